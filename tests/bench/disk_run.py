"""A run folder with a table on disk, by hand: each number below is worked out in the comments."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .written_run import PAYLOAD_BYTES, seen

#: Two workloads; of the second the table does not fit in memory.
FITS, LARGE = "wordnet-sage16x2-b1000-aaaaaaaa", "wordnet-sage16x2-b500-bbbbbbbb"
#: Of 500 B, so that an epoch of 2 GB asks for 4 M of them.
ROW_BYTES, TABLE_BYTES = 500.0, 8e7
GATHER, MAPPED = ("cpu_gather", "naive"), ("disk_mmap", "random")
DIRECT, CACHED = ("disk_direct", "io_uring,merged"), ("disk_cached", "s3-fifo,10%")
#: Seconds of an epoch by path, on both workloads: a fifth is not the fetch.
SECONDS = {GATHER: (1.0, 1.0), MAPPED: (2.0, 8.0), DIRECT: (4.0, 4.0), CACHED: (2.5, 2.5)}
#: What each path counted in an epoch: of 2 GB it read 16 GB, a block of 4000 B for each row; the
#: cache had a quarter of the 4 M rows, so 1.5 GB were left for which it read 12 GB.
COUNTED: dict[tuple[str, ...], dict[str, tuple[str, float]]] = {
    MAPPED: {},
    DIRECT: {"disk_read": ("B", 16e9), "disk_requests": ("1", 4e6)},
    CACHED: {
        "rows_in_memory": ("1", 1e6), "disk_read": ("B", 12e9), "disk_requests": ("1", 3e6),
    },
}  # fmt: skip
#: What it had declared: payload off the disk, bytes read (8 and 7.5 B for each), lookahead.
DECLARED: dict[tuple[str, ...], tuple[float, float | None, int]] = {
    MAPPED: (2e9, None, 0),
    DIRECT: (2e9, 16e9, 0),
    CACHED: (1.6e9, 12e9, 1),
}
#: By the kernel: of the process and of the device, B in an epoch.
KERNEL: dict[tuple[str, ...], tuple[float, float]] = {
    MAPPED: (3e9, 3.2e9),
    DIRECT: (16e9, 16e9),
    CACHED: (12e9, 12.6e9),
}


def write_disk(
    make_run: Callable[..., Path], name: str = "20261122-disk-abc123", **more: Any
) -> Path:
    """Two workloads: on the second CPU gather cannot run."""
    series = [
        (*names, {w: _stages(s) for w, s in zip((FITS, LARGE), both, strict=True)})
        for names, both in SECONDS.items()
    ]
    fixed = {
        "workloads": {FITS: {}, LARGE: {"batch_size": 500}},
        "failures": {(LARGE, *GATHER): ("skipped", "no_memory: too little of it")},
        "more": _observed,
    }
    usual = {"repeats": 3, "epochs": 2, "longer": lambda *_: 1.0}
    return make_run(name, series=series, **fixed, **usual | more)


def _observed(case: tuple[str, str, str], repeat: int, epoch: int) -> list[dict[str, Any]]:
    if (path := case[1:]) == GATHER:
        return []
    if epoch >= 0:
        return _counted(path)
    return _declared(path) if repeat == 0 else []


def _stages(epoch_s: float) -> tuple[float, float, float, float]:
    return 0.1 * epoch_s, 0.8 * epoch_s, 0.1 * epoch_s, 0.0


def _declared(names: tuple[str, ...]) -> list[dict[str, Any]]:
    payload, read, ahead = DECLARED[names]
    facts = {"declared_payload": PAYLOAD_BYTES, "disk_payload": payload, "row": ROW_BYTES}
    rows = seen("fetch", "B", facts, basis="declared")
    rows += seen("fetch", "1", {"lookahead": ahead}, basis="declared")
    why = {"status": "skipped", "reason": "not_applicable: the page cache decides"}
    known = why if read is None else {}
    rows += seen("fetch", "B", {"disk_read": read}, basis="declared", **known)
    if read is not None:  # the cached path asked for io_uring, too, and did not get it
        rows += seen("setup", "1", {"disk_io_uring": 1 - ahead})
        rows += seen("fetch", "1", {"disk_roof_reads": 6e5})
        rows += seen("fetch", "s", {"disk_roof_time": 0.4})
    return [*rows, *seen("setup", "B", {"table": TABLE_BYTES})]


def _counted(names: tuple[str, ...]) -> list[dict[str, Any]]:
    latencies = {"disk_latency_median": 9e-5, "disk_latency_99th": 4e-4, "disk_latency_mean": 1e-4}
    counted, (process, device) = COUNTED[names], KERNEL[names]
    return [
        *(row for name, (unit, of) in counted.items() for row in seen("fetch", unit, {name: of})),
        *seen("epoch", "B", {"disk_read_process": process, "disk_read_device": device}),
        *seen("epoch", "1", {"minibatches": 40}),
        *seen("fetch", "s", latencies if counted else {}),
    ]
