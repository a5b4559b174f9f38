"""The probe's table: times and counts of host, link and GPU, one observation per row.

``gatherbench probe`` writes it as ``rows.csv``. Values are in SI units and nothing is derived:
rates are derived when the table is read.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from gatherbench.outside import InputError, open_file, read_bytes

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Point:
    """One test case to measure, with its parameters, 0 or empty if it lacks one."""

    case: str  # of `bench/probe`, or a quantity that it counts
    row_bytes: int = 0  # of a gather, or of a read of a disk
    span_bytes: int = 0  # the part of the host's table that is read
    threads: int = 0  # of the processor; for a disk the reads in flight
    #: The number of blocks that are launched. For a gather: per cent of the threads that the GPU
    #: can hold (0: the launch policy's own grid). For ``sm_read``: blocks per hundred
    #: multiprocessors. While training runs: per cent of the GPU for the fetch.
    grid_percent: int = 0
    policy: str = ""  # launch policy of a gather, or the library that gathers
    order: str = ""  # how the ids are arranged before they are gathered
    load: str = ""  # the work that represents training
    provider: str = ""  # how the fetch during training gets its share of the GPU
    held_out: bool = False  # in older rows: not fitted by a calibration, but predicted


#: The columns of a point, and all: ``amount`` (in the case's ``unit``) took ``time_s``, which is
#: missing if the amount was counted, not timed. If there is no number at all, ``reason`` says why.
#: Round 0 is before the rounds: setting up, checking.
POINT_COLUMNS = {field.name: str(field.type) for field in fields(Point)}
COLUMNS = POINT_COLUMNS | {
    **{"round": "int", "amount": "float", "unit": "str", "time_s": "float"},
    **{"source": "str", "reason": "str"},
}


class ProbeError(InputError):
    """The probe is unable to measure or to save rows."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` of writing ``path`` into a :class:`ProbeError` with a remedy."""
    try:
        yield
    except OSError as error:
        message = f"cannot be written: {error.strerror}; choose a folder with --out"
        raise ProbeError(f"{path}: {message}") from error


def append_row(path: Path, point: Point, **observation: object) -> None:
    """Append a row to a table of points, at once, so that it survives a crash."""
    with writing(path), path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not file.tell():
            writer.writeheader()
        writer.writerow(asdict(point) | observation)


def is_point_table(path: Path) -> bool:
    """Return whether a CSV file has the columns of this table."""
    with open_file(path) as file:
        head = file.readline(1 << 16).decode(errors="replace")
    return list(COLUMNS) == next(csv.reader([head]), [])


def read_points(path: Path | None) -> pd.DataFrame:
    """Read a table of points with :data:`COLUMNS`; missing numbers are NaN, missing texts empty.

    Without a ``path`` the table has no rows.
    """
    import pandas as pd

    text = b"" if path is None else read_bytes(path)
    return pd.read_csv(
        io.BytesIO(text or ",".join(COLUMNS).encode()),
        dtype=COLUMNS,
        keep_default_na=False,
        na_values={"amount": [""], "time_s": [""]},
    )
