"""What gpu-micro is held to, and what a policy that is wrong or kills the GPU costs it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from gatherbench.bench.probe import micro
from gatherbench.bench.probe.micro_plan import GIB
from gatherbench.bench.probe.micro_targets import MISSED, REACHED, WITHIN, targets, write_targets
from gatherbench.bench.read.micro_row import MicroRow


def row(kind: str, policy: str, width: int, rate: float, number: int, cap: int = 0) -> MicroRow:
    order = "given" if policy else ""
    return MicroRow(kind, policy, order, width, GIB, cap, number, 10**9, 1e9 / rate, "clock")


def rounds(*rates: tuple[float, float, float], width: int = 512) -> list[MicroRow]:
    """Rounds of a roof, ours and a peer's gather, at these rates; slower caps of each beside."""
    rows = []
    for number, (roof, ours, peer) in enumerate(rates):
        rows += [
            row("sm_read", "", 0, roof, number, 800),
            row("sm_read", "", 0, 0.5 * roof, number, 10),
            row("gather", "aligned", width, ours, number, 10),
            row("gather", "aligned", width, 0.5 * ours, number, 5),
            row("gather", "dgl", width, peer, number),
            row("gather", "emogi", width, 0.9 * peer, number),
            row("gather", "aligned-idle", width, 9 * ours, number),  # ours, but not what is tried
            row("sort", "", width, 1.0, number),
        ]
    return rows


def test_ratios_are_taken_within_rounds() -> None:
    # The machine is twice as fast in the last round: no ratio moves.
    roof, peer = targets(rounds((100, 96, 80), (102, 96, 80), (200, 192, 160)))
    assert (roof.target, roof.row_bytes, roof.wanted) == ("of the SM-read roof", 512, 0.95)
    assert (roof.ours, roof.other) == ("aligned, given, cap 10", "8 blocks a multiprocessor")
    assert (roof.ratio, roof.rounds, roof.verdict) == (pytest.approx(0.96), 3, REACHED)
    assert (roof.low, roof.high) == (pytest.approx(96 / 102), pytest.approx(0.96))
    assert peer.other == "policy of DGL, given"
    assert (peer.ratio, peer.wanted, peer.verdict) == (pytest.approx(1.2), 1.0, REACHED)


def test_a_verdict_needs_a_target_and_heeds_the_spread(tmp_path: Path) -> None:
    roof, peer = targets(rounds((100, 94, 96), (100, 96, 95), (100, 94, 96)))
    assert (roof.verdict, peer.verdict) == (WITHIN, WITHIN)
    roof, peer = targets(rounds((100, 90, 95), (100, 91, 95)))
    assert (roof.verdict, peer.verdict) == (MISSED, MISSED)
    at_256, _ = targets(rounds((100, 86, 80), width=256))
    assert (at_256.wanted, at_256.verdict) == (0.85, REACHED)
    narrow, _ = targets(rounds((100, 40, 30), width=64))
    assert (narrow.wanted, narrow.verdict) == (None, "")
    said = write_targets(rounds((100, 40, 30), width=64), tmp_path / "targets.csv")
    assert "SM-read roof" not in said, "nobody asked for a share at this width"
    assert "1.333 (1.333 to 1.333) over the fastest policy of a peer, at least 1: reached" in said
    with (tmp_path / "targets.csv").open() as file:
        assert [r["wanted"] for r in csv.DictReader(file)] == ["", "1.0"]


def test_a_run_that_was_cut_off_answers_what_it_can() -> None:
    assert targets([]) == []
    only_ours = [row("gather", "aligned", 512, 50, 0), row("sort", "", 512, 1, 0)]
    assert targets(only_ours) == []
    other_round = [*only_ours, row("sm_read", "", 0, 60, 1)]
    assert targets(other_round) == []


def test_a_section_that_lost_its_context_begins_anew_without_what_broke_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def run(name: str, out: Path, budget_s: float, more: list[str]) -> tuple[int, str]:
        started.append(list(more))
        assert budget_s <= 100
        if len(started) < 3:
            broke = f"aligned:{100 * len(started)}"
            return micro.AGAIN, f"broke CUDA's context\n--without {broke}\nlast words of a library"
        return 1, "left out, because wrong or worse: aligned:100, aligned:200"

    monkeypatch.setattr(micro, "_run_process", run)
    found = micro.run_section("gather", tmp_path, 100.0, ["--rounds", "2"])
    first = ["--rounds", "2"]
    second = [*first, "--without", "aligned:100"]
    assert started == [first, second, [*second, "--without", "aligned:200"]]
    assert found.status == "failed"
    assert "aligned:100, aligned:200" in found.reason


def test_a_section_is_not_begun_anew_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(micro, "_run_process", lambda *_: (micro.AGAIN, "--without aligned:4"))
    found = micro.run_section("gather", tmp_path, 0.0, [])
    assert (found.status, found.reason) == (
        "failed",
        "ended with status 5; last words: --without aligned:4",
    )
