"""What the meters themselves cost: one case with meters on and off, in turn, and the difference.

    python -m tools.metering_cost [--pairs 40] [--strategy cpu_gather]

Epochs come in pairs, one with every meter open and one with none, in random order, so that a drift
of the machine falls on both alike. Exit status 1 if the meters have been shown to cost more than
the limit.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gatherbench.bench.meters.cpu import OtherWork
from gatherbench.bench.meters.nvml_device import SensorChoice
from gatherbench.bench.meters.pcie import FieldCounters
from gatherbench.bench.meters.recorder import Recorder
from gatherbench.bench.meters.registry import open_meters
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.loop import run_epoch
from gatherbench.bench.run.models import Trainer, build_model
from gatherbench.bench.run.sensor_check import gpu_under_test
from gatherbench.bench.run.table import load_table
from gatherbench.bench.sampling.epoch import draws
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.bench.sampling.prepare import prepare
from gatherbench.datasets.store import open_dataset
from gatherbench.strategies.by_type import opened
from gatherbench.strategies.registry import build

#: What metering may add to an epoch.
LIMIT = 0.01
#: What is metered: the `quick` plan's case on the shipped graph, a little longer.
WORKLOAD = Workload("wordnet", fanouts=(25, 10), max_batches=20)


@dataclass(frozen=True, slots=True)
class Cost:
    """What metering adds to an epoch, as a share of it: median over pairs, 95 % interval."""

    share: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """``within`` or ``above`` the limit where the interval decides it, else ``undecided``."""
        if self.high <= LIMIT:
            return "within"
        return "above" if self.low > LIMIT else "undecided"


def measure_pairs(
    epoch: Callable[[], float], recorder: Recorder, pairs: int, seed: int = 0
) -> NDArray[np.float64]:
    """``[pairs, 3]``, s: an epoch with the meters on, one with them off, and opening and closing
    the windows beside the first. ``epoch`` returns the seconds of one."""
    rng, found = random.Random(seed), []
    for _ in range(pairs):
        on_first = rng.random() < 0.5
        off_s = 0.0 if on_first else epoch()
        begin = time.perf_counter()
        with recorder:
            on_s = epoch()
        edges_s = time.perf_counter() - begin - on_s
        found.append((on_s, epoch() if on_first else off_s, edges_s))
    return np.array(found)


def summarise(pairs: NDArray[np.float64], resamples: int = 10_000) -> Cost:
    """Median of the pairs' ratios less 1, with the interval of a seeded bootstrap over pairs."""
    ratios = pairs[:, 0] / pairs[:, 1] - 1
    drawn = np.random.default_rng(0).choice(ratios, (resamples, len(ratios)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return Cost(float(np.median(ratios)), float(low), float(high))


@contextmanager
def case_epochs(
    strategy: str, device: torch.device, workload: Workload = WORKLOAD
) -> Iterator[Callable[[], float]]:
    """Epochs of a case, the first of them run already."""
    dataset = open_dataset(prepare(workload)[0])
    sampler = NeighborSampler(dataset.indptr, dataset.indices, workload.fanouts)
    model = build_model(workload, dataset.spec.feature_dim, dataset.spec.num_classes)
    trainer = Trainer(model, torch.from_numpy(np.array(dataset.labels)), device)
    with opened(build(strategy, {}), load_table(dataset).features, device) as fetcher:

        def epoch() -> float:
            batches = itertools.starmap(sampler.sample, draws(workload, dataset))
            return run_epoch(batches, fetcher, trainer).wall_s

        epoch()
        yield epoch


def main(arguments: list[str] | None = None) -> int:
    """Measure and report; the exit status."""
    parser = argparse.ArgumentParser(description="What the meters cost an epoch.")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of epochs")
    parser.add_argument("--strategy", default="cpu_gather")
    options = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # The source that is polled most often, whether or not a calibration would trust it here.
    polled = SensorChoice(FieldCounters.name, None)
    recorder = Recorder(open_meters(gpu=gpu_under_test(device, polled)))
    work = OtherWork()
    with case_epochs(options.strategy, device) as epoch:
        pairs = measure_pairs(epoch, recorder, options.pairs)
    cost = summarise(pairs)
    _, off_ms, edges_ms = 1e3 * np.median(pairs, axis=0)
    cores = work.cores()
    print(
        f"{options.strategy} on {device.type}, {len(pairs)} pairs of epochs of {off_ms:.0f} ms: "
        f"metering adds {cost.share:+.2%} (95 % interval {cost.low:+.2%} to {cost.high:+.2%}), "
        f"{cost.verdict} the limit of {LIMIT:.0%}; "
        f"its windows take {edges_ms:.1f} ms to open and close, beside the epoch. Other work kept "
        f"{'an unknown number of' if cores is None else f'{cores:.1f}'} cores busy."
    )
    return 1 if cost.verdict == "above" else 0


if __name__ == "__main__":
    sys.exit(main())
