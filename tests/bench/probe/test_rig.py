"""What a rig makes once, the table of rows, what a machine is asked."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatherbench.bench.probe import probe, rig
from gatherbench.bench.probe.points import (
    Point,
    ProbeError,
    append_row,
    is_point_table,
    read_points,
)
from gatherbench.bench.probe.rig import GIB, MIB, RefusedError, Rig, filled_table


def test_rows_are_on_disk_at_once_and_come_back(tmp_path):
    path = tmp_path / "rows.csv"
    seen = {"round": 3, "amount": 10, "unit": "1", "time_s": 2.0, "source": "clock"}
    append_row(path, Point("round_trip", span_bytes=GIB), **seen)
    assert len(path.read_text().splitlines()) == 2
    held_out = Point("gpu_gather", 64, policy="dgl", held_out=True)
    append_row(path, held_out, round=0, amount=None, unit="B", reason="no, none")
    assert is_point_table(path)
    first, second = read_points(path).itertuples()
    assert (first.case, first.round, first.amount, first.unit) == ("round_trip", 3, 10, "1")
    assert (first.time_s, first.source, first.reason, first.held_out) == (2, "clock", "", False)
    assert (second.unit, second.reason, second.policy, second.order) == ("B", "no, none", "dgl", "")
    assert second.held_out
    assert second.amount != second.amount  # NaN: there is none
    none = read_points(None)
    assert len(none) == 0
    assert none.dtypes.to_dict() == read_points(path).dtypes.to_dict()


def test_a_full_disk_says_where_to_go():
    with pytest.raises(ProbeError, match=r"/dev/full: .*No space left.*--out"):
        append_row(Path("/dev/full"), Point("gpu_copy"), round=3)


def test_what_is_made_once_is_closed_with_the_rig_and_a_refusal_is_not_tried_again():
    made: list[str] = []

    class Held:
        def __init__(self, name: str) -> None:
            made.append(name)

        def close(self) -> None:
            made.append("closed")

    def refuse() -> None:
        made.append("refused")
        raise RefusedError("not here")

    with Rig() as one:
        assert one.once(Held, "a") is one.once(Held, "a")
        for _ in range(2):
            with pytest.raises(RefusedError, match="not here"):
                one.once(refuse)
    assert made == ["a", "refused", "closed"]


def test_the_hosts_table_is_as_large_as_a_quarter_of_the_free_memory(monkeypatch):
    sizes: list[int] = []
    monkeypatch.setattr(rig, "filled_table", lambda size: sizes.append(size) or torch.empty(0))
    for free in (64 * GIB, 5 * GIB, GIB):
        monkeypatch.setattr(rig, "available_bytes", lambda free=free: free)
        assert Rig().table.numel() == 0
    assert sizes == [2 * GIB, GIB, 256 * MIB]
    monkeypatch.setattr(rig, "available_bytes", lambda: 900 * MIB)
    with pytest.raises(RefusedError, match=r"no_memory: 0.9 GiB are free.*close other programs"):
        Rig().table  # noqa: B018


def test_every_eight_bytes_of_a_table_differ():
    words = filled_table(8 * 10_001).view(torch.int64)
    assert len(words.unique()) == 10_001


def test_a_machine_with_a_gpu_is_asked(monkeypatch):
    gpu = SimpleNamespace(name="NVIDIA H200", total_memory=150 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    idle, awake = (
        {"link_gen_current": gen, "link_width_current": 16, "driver": "580"} for gen in (1, 5)
    )
    told: dict[str, Any] = {"gpus": [awake, idle], "gpu_in_use": "this one"}
    monkeypatch.setattr(probe, "describe_gpus", lambda: told)
    facts = probe.facts_of(torch.device("cuda", 0))
    assert (facts["machine"], facts["gpus"]) == ("nvidia-h200", 2)
    assert facts["gpu_memory_bytes"] == 150 << 30
    assert (facts["link_generation"], facts["link_lanes"], facts["driver"]) == (5, 16, "580")
    assert probe.in_words(facts).startswith("NVIDIA H200, PCIe 5.0 x16; ")
    told["gpu_in_use"] = None  # which of them it is, nobody says
    assert probe.facts_of(torch.device("cuda", 0))["link_generation"] is None
    told["gpus"] = [awake]
    assert probe.facts_of(torch.device("cuda", 0))["link_generation"] == 5


def test_this_host_can_be_asked(monkeypatch):
    monkeypatch.setenv("GATHERBENCH_COMMIT", "0123456789ab")
    facts = probe.facts_of(None)
    assert facts["machine"].startswith("cpu-")
    assert facts["cores"] >= 1
    assert (facts["gpus"], facts["gpu"], facts["commit"]) == (0, "", "0123456789ab")
