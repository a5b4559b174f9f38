"""The section ``pages`` of gpu-micro: what it allocates, advises and reads, and keeps."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from gatherbench.bench.probe.cases import CASES
from gatherbench.bench.read.points import read_points
from gatherbench.strategies import page_rate
from tools.gpu import micro, pages

from ..bench.probe.conftest import Registered, gather

MIB = 1 << 20


@pytest.fixture
def done(cuda: None, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was asked of CUDA, in order; sizes of the tables are a few MiB."""
    noted: list[tuple[Any, ...]] = []
    in_use = [2 * MIB]

    def managed_table(shape: tuple[int, int], dtype: torch.dtype, device: int | None) -> Tensor:
        noted.append(("managed", shape[1] // MIB))
        return torch.zeros(shape, dtype=dtype)

    def unadvised(size: int) -> Tensor:
        noted.append(("unadvised", size // MIB))
        return torch.zeros(size, dtype=torch.uint8)

    def leave_out(_address: int, size: int, _device: int | None) -> None:
        noted.append(("left out", size))

    def counted(out: Tensor, *more: Any) -> None:
        in_use[0] += 1000 if ("unadvised", 8) in noted else 0
        gather(out, *more)

    @contextlib.contextmanager
    def filled(_device: torch.device) -> Any:
        noted.append(("filled",))
        yield
        noted.append(("freed",))

    class Counters:
        def start(self) -> None:
            noted.append(("counters",))

        def stop(self) -> list[SimpleNamespace]:
            return [SimpleNamespace(value=7.0, source="RX", reason=None)]

    monkeypatch.setattr(pages, "managed_table", managed_table)
    monkeypatch.setattr(pages, "HostRegistration", Registered)
    monkeypatch.setattr(pages, "gather_into", counted)
    monkeypatch.setattr(page_rate, "gather_into", gather)
    monkeypatch.setattr(pages, "_unadvised", unadvised)
    monkeypatch.setattr(pages, "_leave_out", leave_out)
    monkeypatch.setattr(pages, "_filled_gpu", filled)
    monkeypatch.setattr(pages, "_link_counters", lambda _: Counters())
    monkeypatch.setattr(pages, "_in_use", lambda _: in_use[0])
    monkeypatch.setattr(pages, "event_seconds", lambda work, _: (work(), 0.5)[1])
    monkeypatch.setattr(pages, "num_ids", lambda _: 200)
    for name, value in (
        ("SPANS", (4 * MIB, 8 * MIB)),
        ("FULL_SPANS", (16 * MIB,)),
        ("SPLIT_BYTES", 2 * MIB),
        ("UNADVISED_BYTES", 8 * MIB),
        ("UNADVISED_ROWS", 50),
        ("LINK_S", 0.0),
    ):
        monkeypatch.setattr(pages, name, value)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(page_rate, "READS", 100)
    monkeypatch.setattr(page_rate, "NEAR_BYTES", MIB)
    return noted


def rows(out: Path, *more: str, section: str = "pages") -> pd.DataFrame:
    arguments = ["--out", str(out), "--section", section, "--rounds", "1", *more]
    assert micro.main(arguments) == 0
    return read_points(out / "rows.csv")


def test_every_case_has_its_rows(done, tmp_path):
    table = rows(tmp_path)
    assert set(table["case"]) == {c.name for c in CASES.values() if c.section == "pages"}
    assert set(table["reason"]) == {""}
    spans = table[table["case"] == "span_managed"]
    assert set(zip(spans["span_bytes"], spans["row_bytes"], strict=True)) == {
        (span, width) for span in pages.SPANS for width in pages.ROW_BYTES
    }
    assert set(spans["amount"] / spans["row_bytes"]) == {200}
    assert ("filled",) not in done, "a GPU that others may be using is not filled unasked"


def test_beside_a_full_gpu_the_link_and_the_memory_in_use_are_read(done, tmp_path):
    table = rows(tmp_path, section="full")
    assert set(table["case"]) == {c.name for c in CASES.values() if c.section == "full"}
    of_full = table[table["case"].str.startswith("full_managed")].set_index("case")
    assert set(of_full["span_bytes"]) == {16 * MIB}
    assert set(of_full.loc["full_managed_link", "amount"]) == {7.0}
    assert set(of_full.loc["full_managed_grown", "amount"]) == {0.0}


def test_the_control_is_told_from_memory_that_stays(done, tmp_path):
    """No advice was ever given for it: advice that is taken back leaves what it had mapped."""
    table = rows(
        tmp_path, "--cases", "full_unadvised_grown", "full_unadvised_payload", section="full"
    )
    assert done == [("unadvised", 8), ("filled",), ("counters",), ("freed",)]
    amounts = table.set_index("case")["amount"]
    assert amounts["full_unadvised_grown"] == 1000
    assert amounts["full_unadvised_payload"] == 50 * 512


@pytest.mark.parametrize(("case", "piece"), [("split_64k", 64 << 10), ("split_4k", 4 << 10)])
def test_every_second_piece_is_advised_otherwise(done, tmp_path, case, piece):
    table = rows(tmp_path, "--cases", case)
    assert done == [("managed", 2), *[("left out", piece)] * (MIB // piece)]
    assert set(table["case"]) == {case}


def test_what_is_not_to_be_had_has_its_reason(done, tmp_path, monkeypatch):
    def none(*_: object) -> Tensor:
        raise MemoryError("no_memory: nothing is left")

    monkeypatch.setattr(pages, "managed_table", none)
    monkeypatch.setattr(pages, "_unadvised", none)
    table = rows(tmp_path).set_index("case")
    assert set(table.loc[["span_registered", "visits_registered"], "reason"]) == {""}
    left = table.drop(index=["span_registered", "visits_registered"])
    assert set(left["reason"]) == {"no_memory: nothing is left"}
    assert len(left) == 4
    table = rows(tmp_path / "full", section="full")
    assert set(table["reason"]) == {"no_memory: nothing is left"}
    assert len(table) == 8
    monkeypatch.setattr(pages, "available_bytes", lambda: 16 * MIB)
    table = rows(tmp_path / "small", "--cases", "full_managed", section="full")
    assert table["reason"].tolist() == ["no_memory: the host has no room for 0 GiB"]


def test_wrong_rows_are_not_timed(done, tmp_path, monkeypatch):
    def wrong(out: Tensor, *more: Any) -> None:
        gather(out, *more)
        out[3, 7] += 1

    monkeypatch.setattr(pages, "gather_into", wrong)
    arguments = ["--out", str(tmp_path), "--section", "pages", "--rounds", "1"]
    assert micro.main(arguments) == 1
    assert read_points(tmp_path / "rows.csv").empty
