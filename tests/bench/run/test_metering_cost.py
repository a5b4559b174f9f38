"""What meters cost: both halves of a pair are run, a cost that is there is found, noise is not."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from gatherbench.bench.meters.base import Reading
from gatherbench.bench.meters.gpu_choice import SensorChoice
from gatherbench.bench.meters.recorder import Recorder
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run import metering_cost
from gatherbench.bench.run.metering_cost import Cost, Pair, main, measure_pairs, summarise


class Switch:
    """Says whether its window is open."""

    name: ClassVar[str] = "switch"
    summary: ClassVar[str] = "a test"
    lost: ClassVar[str] = "nothing"
    trust: ClassVar[str] = "by hand"

    def __init__(self) -> None:
        self.on = False

    def probe(self) -> str | None:
        return None

    def start(self) -> None:
        self.on = True

    def stop(self) -> list[Reading]:
        self.on = False
        return []


def test_each_pair_has_one_epoch_with_meters_and_one_without_in_either_order() -> None:
    switch, log = Switch(), []

    def epoch() -> float:
        log.append(switch.on)
        return 2.0 if switch.on else 1.0

    pairs = measure_pairs(epoch, Recorder([switch]), 30)
    assert [(pair.on_s, pair.off_s) for pair in pairs] == [(2.0, 1.0)] * 30
    orders = Counter(zip(log[::2], log[1::2], strict=True))
    assert set(orders) == {(True, False), (False, True)}, "both orders occur, and nothing else"
    assert measure_pairs(epoch, Recorder([switch]), 0) == []


def pairs_with(share: float, noise: float, count: int = 40, seed: int = 3) -> list[Pair]:
    rng = random.Random(seed)
    return [
        Pair((1 + share) * rng.gauss(1, noise), rng.gauss(1, noise), 0.002) for _ in range(count)
    ]


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5])
def test_the_interval_holds_what_was_put_in(share: float) -> None:
    cost = summarise(pairs_with(share, noise=0.01))
    assert cost.low <= share <= cost.high
    assert cost.low <= cost.share <= cost.high
    assert cost.edges_s == 0.002


def test_a_drift_that_falls_on_both_epochs_of_a_pair_is_no_cost() -> None:
    drift = np.linspace(1, 10, 40)
    cost = summarise([Pair(float(s), float(s), 0.0) for s in drift])
    assert (cost.share, cost.low, cost.high) == (0, 0, 0)


def test_one_disturbed_pair_decides_nothing() -> None:
    pairs = [*pairs_with(0.0, noise=0.001), Pair(100.0, 1.0, 0.5)]
    assert summarise(pairs).verdict() == "within"


def test_verdicts() -> None:
    assert summarise(pairs_with(0.0, noise=0.002)).verdict() == "within"
    assert summarise(pairs_with(0.05, noise=0.002)).verdict() == "above"
    assert summarise(pairs_with(0.0, noise=0.3)).verdict() == "undecided"
    assert Cost(0.02, 0.0, 0.04, 0.0).verdict(limit=0.05) == "within"


@pytest.mark.parametrize(("share", "status"), [(0.0, 0), (0.5, 1)])
def test_the_program_reports_and_fails_where_the_cost_is_proven(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], share: float, status: int
) -> None:
    switch = Switch()

    @contextmanager
    def epochs(*_: object) -> Iterator[object]:
        yield lambda: 1 + share if switch.on else 1.0

    monkeypatch.setattr(metering_cost, "case_epochs", epochs)
    monkeypatch.setattr(metering_cost, "open_meters", lambda **_: [switch])
    chosen: list[SensorChoice] = []
    monkeypatch.setattr(metering_cost, "gpu_under_test", lambda _, choice: chosen.append(choice))
    assert main(["--pairs", "5"]) == status
    # Without a choice the meter that polls most often would not run, and cost nothing.
    assert [choice.pcie for choice in chosen] == ["counters"]
    said = capsys.readouterr().out
    assert f"{share:+.2%} (95 % interval" in said
    assert "Other work kept" in said


def test_the_real_case_with_every_meter(tiny_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pair for real: the program's own pieces fit together."""
    import torch

    from gatherbench.bench.meters.registry import open_meters

    monkeypatch.setenv("GATHERBENCH_DATA", str(tiny_root))
    tiny = Workload("tiny", fanouts=(4, 3), batch_size=32, max_batches=5)
    with metering_cost.case_epochs("cpu_gather", torch.device("cpu"), tiny) as epoch:
        (pair,) = measure_pairs(epoch, Recorder(open_meters()), 1)
    assert pair.on_s > 0
    assert pair.off_s > 0
    assert pair.edges_s > 0
