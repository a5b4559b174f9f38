"""What a meter read, as a row of the table."""

from __future__ import annotations

from gatherbench.bench.meters.base import Reading, cited
from gatherbench.bench.run.rows import Row, RowMaker


def row_of(reading: Reading, make: RowMaker, stage: str, epoch: int = -1) -> Row:
    """A meter's reading as a row: a sensor that broke is ``failed``, one that lacks ``skipped``."""
    what = (stage, reading.metric, reading.unit)
    if reading.value is not None:
        return make.ok(*what, reading.value, cited(reading), epoch)
    reason = reading.reason or "unsupported: no reading"
    status = "failed" if reason.startswith("failed:") else "skipped"
    return make.missing(*what, cited(reading), reason, status, epoch)
