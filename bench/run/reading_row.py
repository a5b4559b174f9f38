"""What a meter read, as a row of the table."""

from __future__ import annotations

from gatherbench.bench.meters.base import Reading, cited
from gatherbench.bench.run.rows import Row, RowMaker


def row_of(reading: Reading, make: RowMaker, stage: str, epoch: int = -1) -> Row:
    """A meter's reading as a row: a sensor that broke is ``failed``, one that lacks ``skipped``."""
    what = (stage, reading.metric, reading.unit)
    if reading.reason is None:
        return make.ok(*what, reading.value or 0.0, cited(reading), epoch)
    status = "failed" if reading.reason.kind == "failed" else "skipped"
    return make.missing(*what, cited(reading), reading.reason, status, epoch)
