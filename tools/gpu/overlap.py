"""Does a gather beside training cost more than the longer of the two?

Three loads that are like training in one way each, and as long as a fetch: matrix products (they
want multiprocessors), a pass over GPU memory (it wants bandwidth), and the aggregation of fetched
rows (both, and it depends on the rows). Timed are a step of each alone, a fetch alone with every
share of the GPU, and the two side by side.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gatherbench.bench.probe.stand import Measure, Observation, RefusedError, visit
from gatherbench.bench.read.points import Point, PointRow
from gatherbench.kernels.host_memory import empty_table
from gatherbench.strategies.cuda_overlap import (
    OverlappedFetcher,
    alone_seconds,
    open_overlapped,
    share_multiprocessors,
    share_threads,
)

TABLE_BYTES = 2 << 30
FETCH_BYTES = 256 << 20
ROW_WIDTH = 128
LOADS = ("matrix_products", "memory_pass", "aggregation")
#: (provider, per cent of the GPU)
SHARES = (
    *(("stream", percent) for percent in (5, 10, 15, 25, 50)),
    *(("green_context", percent) for percent in (10, 15, 25)),
)
SOURCE = "time.perf_counter around several steps, the device idle at both ends"


def points() -> list[Point]:
    """The loads alone, the fetch alone with each share, and each load beside each of these."""
    fixed = {"row_bytes": 4 * ROW_WIDTH, "span_bytes": TABLE_BYTES, "policy": "aligned"}
    alone = [Point("train_alone", load=load) for load in LOADS]
    return alone + [
        Point(case, grid_percent=percent, load=load, provider=provider, **fixed)  # type: ignore[arg-type]
        for provider, percent in SHARES
        for case, loads in (("fetch_alone", ("",)), ("train_and_fetch", LOADS))
        for load in loads
    ]


def loads(device: torch.device, seconds: float) -> dict[str, Callable[[], object]]:
    """The loads by name, each repeated until it takes about ``seconds``."""
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
    return {name: repeated(work, seconds) for name, work in once.items()}


def repeated(work: Callable[[], object], seconds: float) -> Callable[[], object]:
    """``work`` so often that it takes about ``seconds``."""
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


def measured_by(
    fetcher: OverlappedFetcher, ids: Tensor, steps: Mapping[str, Callable[[], object]]
) -> Measure:
    """What measures :func:`points` with this fetcher, these rows and these loads."""
    take = {"stream": share_threads, "green_context": share_multiprocessors}
    device = fetcher.device

    def measure(point: Point) -> Observation:
        if point.case == "train_alone":
            return Observation(1, alone_seconds(device, steps[point.load]), SOURCE)
        beside = steps[point.load] if point.load else lambda: None
        try:
            take[point.provider](fetcher, point.grid_percent)
            return Observation(1, fetcher.step_seconds(ids, beside), SOURCE)
        except RuntimeError as error:
            torch.cuda.synchronize(device)  # raises if nothing can be measured any more
            raise RefusedError(str(error)) from error

    return measure


def measure(
    add: Callable[[PointRow], None],
    until: float,
    wanted: Callable[[Point], bool],
    most_rounds: int = 0,
) -> None:
    """Visit the points until the time is spent; one round at least."""
    device = torch.device("cuda", torch.cuda.current_device())
    table = empty_table((TABLE_BYTES // (4 * ROW_WIDTH), ROW_WIDTH), torch.float32)
    ids = torch.randperm(len(table))[: FETCH_BYTES // (4 * ROW_WIDTH)]
    with open_overlapped(table, device, "aligned", "stream", "25") as fetcher:
        fetcher.step_seconds(ids, lambda: None)  # the first one loads and allocates
        steps = loads(device, fetcher.step_seconds(ids, lambda: None))
        visit(
            [point for point in points() if wanted(point)],
            measured_by(fetcher, ids, steps),
            add,
            out_of_time=lambda: time.monotonic() > until,
            least_rounds=1,
            most_rounds=most_rounds,
        )
