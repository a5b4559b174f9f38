"""The section ``pages`` of gpu-micro: what it allocates, advises and reads, and keeps."""

import contextlib
import ctypes
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
def free() -> list[int]:
    """What the GPU has free."""
    return [70 << 30]


@pytest.fixture
def done(cuda: None, free: list[int], monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was asked of CUDA, in order; sizes of the tables are a few MiB."""
    noted: list[tuple[Any, ...]] = []

    def managed_table(shape: tuple[int, int], dtype: torch.dtype, device: int | None) -> Tensor:
        noted.append(("managed", shape[1] // MIB))
        return torch.zeros(shape, dtype=dtype)

    def leave_out(_address: int, size: int, _device: int | None) -> None:
        noted.append(("left out", size))

    def seen(address: int, shape: tuple[int, int], _device: torch.device) -> Tensor:
        raw = (ctypes.c_float * (shape[0] * shape[1])).from_address(address)
        return torch.frombuffer(raw, dtype=torch.float32).view(shape)

    monkeypatch.setattr(pages, "managed_table", managed_table)
    monkeypatch.setattr(pages, "HostRegistration", Registered)
    monkeypatch.setattr(pages, "gather_into", gather)
    monkeypatch.setattr(pages, "seen_by_torch", seen)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free[0], 80 << 30))
    monkeypatch.setattr(page_rate, "gather_into", gather)
    monkeypatch.setattr(pages, "_leave_out", leave_out)
    monkeypatch.setattr(pages, "event_seconds", lambda work, _: (work(), 0.5)[1])
    monkeypatch.setattr(pages, "num_ids", lambda _: 200)
    for name, value in (
        ("SPANS", (4 * MIB, 8 * MIB)),
        ("SPLIT_BYTES", 2 * MIB),
        ("FOREIGN_SPANS", (4 * MIB, 32 * MIB)),
    ):
        monkeypatch.setattr(pages, name, value)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(page_rate, "READS", 100)
    monkeypatch.setattr(page_rate, "NEAR_BYTES", MIB)
    return noted


def rows(out: Path, *more: str) -> pd.DataFrame:
    arguments = ["--out", str(out), "--section", "pages", "--rounds", "1", *more]
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
    foreign = table[table["case"].str.startswith("foreign")]
    assert set(foreign["policy"]) == {"torch.index_select"}
    assert set(zip(foreign["span_bytes"], foreign["row_bytes"], strict=True)) == {
        (4 * MIB, width) for width in pages.FOREIGN_ROW_BYTES
    }


def test_no_more_managed_memory_is_asked_for_than_the_gpu_has_free(done, free, tmp_path):
    free[0] = pages.LEFT_BYTES + 5 * MIB
    table = rows(tmp_path, "--cases", "span_managed")
    assert done == [("managed", 4)]
    assert set(table["span_bytes"]) == {4 * MIB}
    free[0] = pages.LEFT_BYTES
    table = rows(tmp_path / "full", "--cases", "span_managed")
    assert table["reason"].tolist() == ["no_memory: host and GPU have no room for 4 MiB"]


def test_a_kernel_of_others_that_is_wrong_costs_its_own_points(done, tmp_path, monkeypatch):
    peer = SimpleNamespace(version="1", gather_from=lambda table, ids: table[ids - 1], close=list)
    monkeypatch.setattr(pages, "WholeGraph", lambda: peer)
    monkeypatch.setattr(pages.importlib.util, "find_spec", lambda _name: True)
    table = rows(tmp_path, "--cases", "foreign_managed").set_index("policy")
    assert table.loc["WholeGraph 1", "reason"] == "WholeGraph 1, rows of 64 B: wrong rows"
    assert set(table.loc[["torch.index_select"], "reason"]) == {""}


@pytest.mark.parametrize(("case", "piece"), [("split_64k", 64 << 10), ("split_4k", 4 << 10)])
def test_every_second_piece_is_advised_otherwise(done, tmp_path, case, piece):
    table = rows(tmp_path, "--cases", case)
    assert done == [("managed", 2), *[("left out", piece)] * (MIB // piece)]
    assert set(table["case"]) == {case}


def test_what_is_not_to_be_had_has_its_reason(done, tmp_path, monkeypatch):
    def none(*_: object) -> Tensor:
        raise MemoryError("no_memory: nothing is left")

    monkeypatch.setattr(pages, "managed_table", none)
    table = rows(tmp_path).set_index("case")
    there = ["span_registered", "foreign_registered", "visits_registered"]
    assert set(table.loc[there, "reason"]) == {""}
    left = table.drop(index=there)
    assert set(left["reason"]) == {"no_memory: nothing is left"}
    assert len(left) == 5


def test_wrong_rows_are_not_timed(done, tmp_path, monkeypatch):
    def wrong(out: Tensor, *more: Any) -> None:
        gather(out, *more)
        out[3, 7] += 1

    monkeypatch.setattr(pages, "gather_into", wrong)
    arguments = ["--out", str(tmp_path), "--section", "pages", "--rounds", "1"]
    assert micro.main(arguments) == 1
    assert read_points(tmp_path / "rows.csv").empty
