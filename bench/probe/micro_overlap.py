"""Does a gather beside training cost more than the longer of the two?

    python -m gatherbench.bench.probe.micro_overlap --out FOLDER --budget 80

Three loads that are like training in one way each, and as long as a fetch: matrix products (they
want multiprocessors), a pass over GPU memory (it wants bandwidth), and the aggregation of fetched
rows (both, and it depends on the rows). For each the time of a step alone, of a fetch alone and of
the two side by side, for every share of the GPU and both providers, in turns.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from gatherbench.bench.probe.micro_machine import prepare
from gatherbench.bench.probe.micro_rows import RowFile
from gatherbench.bench.probe.micro_targets import MISSED, REACHED, WITHIN
from gatherbench.kernels.host_memory import empty_table
from gatherbench.strategies.cuda_overlap import (
    alone_seconds,
    open_overlapped,
    share_multiprocessors,
    share_threads,
)

TABLE_BYTES = 2 << 30
FETCH_BYTES = 256 << 20
ROW_WIDTH = 128
#: (provider, per cent of the GPU)
SHARES = (
    *(("stream", percent) for percent in (5, 10, 15, 25, 50)),
    *(("green_context", percent) for percent in (10, 15, 25)),
)
#: The issue's target: side by side at most this many times the longer of the two.
TARGET = 1.05


@dataclass(frozen=True, slots=True)
class OverlapRow:
    """Seconds of a step: ``train`` or ``fetch`` alone, or ``both`` side by side."""

    kind: str
    load: str
    provider: str
    budget_percent: int
    round: int
    time_s: float
    source: str


@dataclass(frozen=True, slots=True)
class OverlapTarget:
    """``ratio`` of both side by side over the longer of the two, which is to be ``wanted`` at most.

    ``low`` and ``high`` are the extremes over ``rounds``.
    """

    load: str
    provider: str
    budget_percent: int
    ratio: float
    low: float
    high: float
    rounds: int
    wanted: float
    verdict: str


def loads(device: torch.device, seconds: float) -> dict[str, Callable[[], object]]:
    """Loads by name, each repeated until it takes about ``seconds``."""
    matrix = torch.randn(4096, 4096, dtype=torch.bfloat16, device=device)
    large = torch.ones(1 << 28, device=device)
    table = torch.randn(1 << 19, ROW_WIDTH, device=device)
    places = torch.randint(0, 1 << 16, (1 << 19,), device=device)
    into = torch.zeros(1 << 16, ROW_WIDTH, device=device)
    once: dict[str, Callable[[], object]] = {
        "matrix_products": lambda: matrix @ matrix,
        "memory_pass": lambda: large.mul_(1.0),
        "aggregation": lambda: into.index_add_(0, places, table),
    }
    return {name: _repeated(work, seconds) for name, work in once.items()}


def _repeated(work: Callable[[], object], seconds: float) -> Callable[[], object]:
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(10):
        work()
    torch.cuda.synchronize()
    times = max(1, round(10 * seconds / (time.perf_counter() - begin)))

    def step() -> None:
        for _ in range(times):
            work()

    return step


def measure(out: Path, budget_s: float) -> list[OverlapRow]:
    """Rows until the time is spent; one round at least."""
    began = time.monotonic()
    source = "time.perf_counter around several steps, the device idle at both ends"
    device = torch.device("cuda", torch.cuda.current_device())
    table = empty_table((TABLE_BYTES // (4 * ROW_WIDTH), ROW_WIDTH), torch.float32)
    ids = torch.randperm(len(table))[: FETCH_BYTES // (4 * ROW_WIDTH)]
    take = {"stream": share_threads, "green_context": share_multiprocessors}
    with (
        RowFile(out / "overlap.csv", OverlapRow) as file,
        open_overlapped(table, device, "aligned", "stream", "25") as fetcher,
    ):
        fetcher.step_seconds(ids, lambda: None)  # the first one loads and allocates
        steps = loads(device, fetcher.step_seconds(ids, lambda: None))
        number, refused = 0, set[str]()
        while len(refused) < len(take) and (not number or time.monotonic() - began < budget_s):
            turn = [(load, *share) for load in steps for share in SHARES]
            random.Random(number).shuffle(turn)
            for load, provider, percent in turn:
                if provider in refused:
                    continue
                try:
                    take[provider](fetcher, percent)
                    times = {
                        "train": alone_seconds(device, steps[load]),
                        "fetch": fetcher.step_seconds(ids, lambda: None),
                        "both": fetcher.step_seconds(ids, steps[load]),
                    }
                except RuntimeError as error:
                    torch.cuda.synchronize(device)  # raises if no other share can be measured
                    print(f"{provider} left out: {error}", flush=True)
                    refused.add(provider)
                    continue
                for kind, seconds in times.items():
                    file.add(OverlapRow(kind, load, provider, percent, number, seconds, source))
            number += 1
    return file.rows


def targets(rows: Sequence[OverlapRow]) -> list[OverlapTarget]:
    """``both / max(train, fetch)`` of each load and share: median over the rounds, and extremes.

    The fetch alone is the fastest share's, the train alone the load's, both by their medians: a
    share that slows the fetch itself is no excuse.
    """
    times: dict[tuple[str, str, str, int], list[float]] = defaultdict(list)
    trains: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        times[row.kind, row.load, row.provider, row.budget_percent].append(row.time_s)
        if row.kind == "train":
            trains[row.load].append(row.time_s)
    found = []
    for (kind, load, provider, percent), both in sorted(times.items()):
        if kind == "both":
            fetch = min(statistics.median(v) for (k, *_), v in times.items() if k == "fetch")
            longer = max(statistics.median(trains[load]), fetch)
            middle, low, high = (f(both) / longer for f in (statistics.median, min, max))
            verdict = REACHED if middle <= TARGET else WITHIN if low <= TARGET else MISSED
            share = (load, provider, percent)
            found.append(OverlapTarget(*share, middle, low, high, len(both), TARGET, verdict))
    return found


def main(arguments: Sequence[str]) -> int:
    """Measure and print; the exit status."""
    parser = argparse.ArgumentParser(prog="gpu-micro overlap")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=80.0)
    options = parser.parse_args(arguments)
    if (problem := prepare(options.out)) is not None:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    rows = measure(options.out, options.budget)
    with RowFile(options.out / "overlap_targets.csv", OverlapTarget) as file:
        for one in targets(rows):
            file.add(one)
    for load in sorted({one.load for one in file.rows}):
        best = min((one for one in file.rows if one.load == load), key=lambda one: one.ratio)
        print(
            f"{load}: both / max(train, fetch) = {best.ratio:.3f} ({best.low:.3f} to"
            f" {best.high:.3f}) with {best.provider} {best.budget_percent} % (target {TARGET}:"
            f" {best.verdict})"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
