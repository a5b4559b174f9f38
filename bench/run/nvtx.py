"""Tools to profile an epoch: named ranges, and a trace.

Ranges carry the names of the loop's stages. ``--nvtx`` marks the measured epochs for Nsight
Systems. ``--trace`` writes a Chrome trace of one more epoch, because recording a trace costs far
more than the work it records. Without these options there are no marks.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch

#: Opens a range of this name for the length of a block.
Mark = Callable[[str], AbstractContextManager[object]]

#: The most minibatches of a traced epoch: a trace holds every operator of each of them, and a
#: viewer cannot handle hundreds of MB.
TRACE_BATCHES = 30

#: The fields of a trace that a viewer needs; the rest names files, hosts and processes.
_KEPT = ("schemaVersion", "displayTimeUnit", "baseTimeNanoseconds", "traceEvents")
_NOTHING = nullcontext()


def unmarked(_name: str) -> AbstractContextManager[object]:
    """Return an empty context, without a range."""
    return _NOTHING


@contextmanager
def nvtx_session(wanted: bool) -> Iterator[Mark]:
    """Open ranges for Nsight, inside ``cudaProfilerStart`` and ``cudaProfilerStop``, if wanted.

    ``nsys profile --capture-range=cudaProfilerApi`` records just the block.

    Raises:
        RuntimeError: torch is built without CUDA.
    """
    if not wanted:
        yield unmarked
        return
    torch.cuda.synchronize()
    with torch.cuda.profiler.profile():
        try:
            yield torch.cuda.nvtx.range
        finally:
            torch.cuda.synchronize()  # work launched inside belongs inside


def write_trace(epoch: Callable[[Mark], object], path: Path, device: torch.device) -> int:
    """Run ``epoch`` under torch's profiler and write ``path`` (``.json.gz``); return its bytes.

    The trace opens in https://ui.perfetto.dev and in ``chrome://tracing``. It omits host, user
    and path: everything that the profiler adds to the events is dropped.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    # Without keeping them torch 2.11 warns that a second cycle loses events; there is only one.
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        epoch(torch.profiler.record_function)
        if device.type == "cuda":
            torch.cuda.synchronize()
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = path.with_suffix(".raw")
    try:
        profiler.export_chrome_trace(str(raw))
        content = json.loads(raw.read_text(encoding="utf-8"))
    finally:
        raw.unlink(missing_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump({key: content[key] for key in _KEPT if key in content}, file)
    return path.stat().st_size
