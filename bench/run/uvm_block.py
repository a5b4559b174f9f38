"""What became of a case's managed memory: one more epoch, with the driver's counters of it open.

Counting changes times and CUPTI stays with the process, so the epoch comes after everything that is
timed, and only where managed memory is in play.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gatherbench.bench.machine.reason import Reason
from gatherbench.bench.meters.clock import WallClockMeter
from gatherbench.bench.meters.recorder import Recorder
from gatherbench.bench.meters.uvm import UvmMeter
from gatherbench.bench.run.reading_row import row_of
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.kernels.managed_memory import managed_bytes

STAGE = "uvm"
TRACED = Reason("busy", "--trace has CUPTI in this process", "run without it")
#: Closing the window reads every record, millions of them where a table thrashes.
_PATIENCE_S = 60.0


def uvm_rows(one_epoch: Callable[[], object], make: RowMaker, traced: bool) -> Iterator[Row]:
    """The rows of the stage ``uvm``; none where the process holds no managed memory.

    Args:
        one_epoch: runs an epoch and waits for the GPU.
        make: of the case's rows.
        traced: torch's profiler has its turn in this process.
    """
    if managed_bytes() == 0:
        return
    meter = UvmMeter(TRACED if traced else None)
    reason = meter.probe()
    if reason is not None:  # then no epoch is spent
        meter.start()
        for reading in meter.stop():
            yield row_of(reading, make, STAGE)
        return
    recorder = Recorder([meter, WallClockMeter()], _PATIENCE_S)
    said = "a further epoch, not timed: counting costs"
    try:
        with recorder:
            one_epoch()
    except Exception as error:  # counting that fails must not cost what was measured
        why = Reason("failed", f"{type(error).__name__}: {error}")
        yield make.missing(STAGE, "epochs", "1", said, why, "failed")
        return
    yield make.ok(STAGE, "epochs", "1", 1, said)
    for reading in recorder.readings:
        yield row_of(reading, make, STAGE)
