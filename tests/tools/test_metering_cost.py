"""What meters cost: both halves of a pair are run, a cost that is there is found, noise is not."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gatherbench.bench.meters.base import Reading
from gatherbench.bench.meters.nvml_device import SensorChoice
from gatherbench.bench.meters.recorder import Recorder
from gatherbench.bench.meters.registry import open_meters
from gatherbench.bench.plan.workload import Workload
from tools import metering_cost
from tools.metering_cost import Cost, main, measure_pairs, summarise


class Switch:
    """Says whether its window is open."""

    name = "switch"
    summary = lost = trust = "a test"
    on = False

    def probe(self) -> None: ...

    def start(self) -> None:
        self.on = True

    def stop(self) -> list[Reading]:
        self.on = False
        return []


def test_each_pair_has_one_epoch_with_meters_and_one_without_in_either_order():
    switch, log = Switch(), []

    def epoch() -> float:
        log.append(switch.on)
        return 2.0 if switch.on else 1.0

    pairs = measure_pairs(epoch, Recorder([switch]), 30)
    assert pairs[:, :2].tolist() == [[2.0, 1.0]] * 30
    orders = Counter(zip(log[::2], log[1::2], strict=True))
    assert set(orders) == {(True, False), (False, True)}, "both orders occur, and nothing else"


def pairs_with(share: float, noise: float) -> NDArray[np.float64]:
    pairs = np.random.default_rng(3).normal(1, noise, (40, 3))
    return pairs * [1 + share, 1, 0.002]


@pytest.mark.parametrize(
    ("share", "noise", "verdict"),
    [
        (0.0, 0.002, "within"), (0.05, 0.002, "above"), (0.5, 0.002, "above"),
        (0.0, 0.3, "undecided"),
    ],
)  # fmt: skip
def test_the_interval_holds_what_was_put_in(share, noise, verdict):
    cost = summarise(pairs_with(share, noise))
    assert cost.low <= share <= cost.high
    assert cost.low <= cost.share <= cost.high
    assert cost.verdict == verdict


def test_a_drift_on_both_epochs_and_one_disturbed_pair_decide_nothing():
    drift = np.linspace(1, 10, 40)[:, None] * [1, 1, 0]
    assert summarise(drift) == Cost(0, 0, 0)
    disturbed = np.vstack([pairs_with(0.0, noise=0.001), [100.0, 1.0, 0.5]])
    assert summarise(disturbed).verdict == "within"


@pytest.mark.parametrize(("share", "status"), [(0.0, 0), (0.5, 1)])
def test_the_program_reports_and_fails_where_the_cost_is_proven(monkeypatch, capsys, share, status):
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


def test_the_real_case_with_every_meter(tiny_root, monkeypatch):
    """One pair for real: the program's own pieces fit together."""
    monkeypatch.setenv("GATHERBENCH_DATA", str(tiny_root))
    tiny = Workload("tiny", fanouts=(4, 3), batch_size=32, max_batches=5)
    with metering_cost.case_epochs("cpu_gather", torch.device("cpu"), tiny) as epoch:
        pairs = measure_pairs(epoch, Recorder(open_meters()), 1)
    assert (pairs > 0).all()
