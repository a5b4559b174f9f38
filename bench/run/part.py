"""The parts of a run: what each of its processes writes as it measures, one JSON object per line.

The runner reads a part while its process writes it, and reads the valid records once more after
that has ended in any way. If a case has not ended in a part, its whole *blocks* count: epochs
whose rows have been compared. A process that continues it measures the others.

Kinds of records, besides the fields that name their case: ``row`` (an observation), ``samples``
and ``timeline`` (columns of :data:`LISTS`), ``block`` (the case has had its epoch of a block),
``end`` (its last row). Others show progress: ``turn`` (the running case), ``work`` (what is being
prepared or counted, and its ``fraction``) and ``answer`` (the result of that).
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from gatherbench.bench.plan.workload import Case
from gatherbench.bench.run.rows import HEADER, Row, RowMaker
from gatherbench.outside import InputError, open_file, parsed

Record: TypeAlias = dict[str, Any]
#: The key of a case in a run: workload, strategy, variant and repeat.
CaseId: TypeAlias = tuple[str, str, str, int]

CASE_STAGE, CASE_METRIC = "case", "wall_time"
#: The stage of the rows that belong to the run as a whole; the last of them is its wall time.
CALIBRATION_STAGE = "calibration"
#: The stage of the rows that check a case. If one failed, all its measurements are invalid.
CHECK_STAGE = "check"
CASE_CLOCK = "time.perf_counter"
#: ``source`` of the last row of a case that was never started, because its inputs were unavailable
#: (a failed download, say). Such a case is tried again when the run is resumed.
NOT_PREPARED = "preparation of dataset and minibatches"
#: ``source`` of the last row of a case that was cut off and has whole blocks. They count, and a run
#: that is resumed measures the others.
CUT_OFF = "time.perf_counter, up to the last whole block: the case was cut off"
#: ``source`` of the number of its rows that have been compared.
COMPARED_EACH = "rows compared in each epoch; cut off before the comparison after the last"

_CASE = {"workload": "str", "strategy": "str", "variant": "str", "repeat": "int32"}
#: The columns that name a case within a run.
CASE = list(_CASE)
#: Columns and dtypes of tables with many numbers per epoch: the seconds of every stage of every
#: minibatch, and the values polled: ``time_s`` counts from the opening of the epoch's window;
#: ``value`` is in ``unit``: bytes since then for a counter, the sensor's value for others.
LISTS = {
    "samples": _CASE | {"epoch": "int32", "stage": "str", "batch": "int32", "value_s": "float64"},
    "timeline": _CASE
    | {"epoch": "int32", "metric": "str", "unit": "str", "time_s": "float64", "value": "float64"},
}
#: The fields of the records of each kind.
_FIELDS: dict[str, set[str]] = {
    **{"row": set(HEADER), "end": {*HEADER, "at"}},
    **{kind: set(columns) for kind, columns in LISTS.items()},
    "block": {*CASE, "number", "wall_time_s", "rows"},
    "turn": {"case", "since", "before_s", "done"},
    "work": {"what", "fraction"},
    "answer": set(),
}
#: Returns the case of a record.
_case: Callable[[Record], CaseId] = itemgetter(*CASE)


class StoreError(InputError):
    """A run folder that cannot be read or written; the message names it and the remedy."""


def key_of(item: Case | Row) -> CaseId:
    """Return the key of a case among the rows of a run."""
    workload = item.workload if isinstance(item, Row) else item.workload.id
    return (workload, item.strategy, item.variant, item.repeat)


class PartWriter:
    """Writes a part, or goes on with it; each record is in the file as soon as it is known."""

    def __init__(self, path: Path) -> None:
        if path.exists():  # its writer may have left the last line unfinished
            with path.open("rb+") as file:
                file.truncate(file.read().rfind(b"\n") + 1)
        self._file = path.open("a", encoding="utf-8")

    def close(self) -> None:
        """Close the file, in which all records are already."""
        self._file.close()

    def sync(self) -> None:
        """Sync the file to the disk."""
        os.fsync(self._file.fileno())

    def write(self, kind: str, **fields: Any) -> None:
        """Write a record."""
        self._file.write(json.dumps({"kind": kind, **fields}) + "\n")
        self._file.flush()

    def row(self, row: Row) -> None:
        self.write("row", **asdict(row))

    def rows(self, rows: Iterable[Row]) -> None:
        """Write each row as soon as it is known."""
        for row in rows:
            self.row(row)

    def end(
        self,
        make: RowMaker,
        status: str,
        reason: str | None,
        wall_time_s: float,
        source: str = CASE_CLOCK,
    ) -> None:
        """Record the end of a case, ``ok``, ``skipped`` or ``failed``, and sync it to the disk."""
        columns = (CASE_STAGE if make.workload else CALIBRATION_STAGE, CASE_METRIC, "s")
        if status == "ok":
            row = make.ok(*columns, wall_time_s, source)
        else:
            row = make.missing(*columns, source, reason or "ended without a word", status)
        self.write("end", **asdict(row), at=time.time())
        self.sync()


def _whole_lines(file: BinaryIO) -> Iterator[tuple[int, Record]]:
    """Yield length and record of each line; a torn last one (its writer was killed) is left out."""
    for line in file:
        if line.endswith(b"\n"):
            record = parsed(line)
            fields = _FIELDS.get(str(record.get("kind"))) if isinstance(record, dict) else None
            if fields is None or not fields <= record.keys():
                raise ValueError("it is no record of a case")
            yield len(line), record


def read_part(path: Path) -> Iterator[Record]:
    """Read the records of a part; those of an observation have it as ``row``, too.

    Raises:
        StoreError: a line is damaged, or the path is not a file.
    """
    number = 1
    try:
        with open_file(path) as file:
            for _, record in _whole_lines(file):
                if record["kind"] in ("row", "end"):
                    record["row"] = Row(**{name: record[name] for name in HEADER})
                yield record
                number += 1
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise StoreError(
            f"{path}: line {number}: {error}; delete the file and resume the run: its cases are"
            " measured again"
        ) from error


def ranks_folder(part: Path) -> Path:
    """Return the folder of the ranks' parts, which are later joined into the case's."""
    return part.with_suffix(".ranks")


def rank_part(part: Path, rank: int) -> Path:
    """Return the part of one rank."""
    return ranks_folder(part) / f"rank{rank}.jsonl"


class Tail:
    """Follows a part while its process writes it."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def more(self) -> list[Record]:
        """Return the records written since; what is invalid is left to :func:`read_part`."""
        records: list[Record] = []
        with suppress(OSError, ValueError), open_file(self._path) as file:
            file.seek(self._at)
            for size, record in _whole_lines(file):
                self._at += size
                records.append(record)
        return records


def rows_of(records: Iterable[Record], kind: str = "row") -> list[Row]:
    """Return the rows among the records of a part."""
    return [record["row"] for record in records if record["kind"] == kind]


def counted(path: Path) -> Iterator[Record]:
    """Read the records of a part that count: all of an ended case, else those of whole blocks.

    Errors as of :func:`read_part`.
    """
    records, whole = list(read_part(path)), dict[CaseId, float]()
    for record in records:
        if record["kind"] in ("block", "end"):
            whole[_case(record)] = record.get("number", math.inf)
    for record in records:
        if "workload" in record and record.get("epoch", -1) <= whole.get(_case(record), -2):
            yield record


@dataclass
class SoFar:
    """The valid records of a case from all its processes.

    Attributes:
        blocks: the number of its whole blocks.
        spent_s: the time of those blocks.
        ended: its last row, after which no other process continues it.
    """

    blocks: int = 0
    spent_s: float = 0.0
    ended: Row | None = None
    _rows: dict[tuple[object, ...], Row] = field(default_factory=dict)
    _compared: int = 0
    _last: Row = field(init=False)  # of the rows that came last

    def add(self, records: list[Record]) -> None:
        """Add the records that another process has written of the case.

        Each process opens the path: the last one's rows replace the earlier ones'.
        """
        rows: dict[tuple[object, ...], Row] = {}
        for row in rows_of(records):
            rows.setdefault((row.epoch, row.stage, row.metric, row.basis, row.rank), row)
            self._last = row
        self._rows |= rows
        for record in records:
            if record["kind"] == "block":
                self.blocks, self.spent_s = record["number"] + 1, record["wall_time_s"]
                self._compared = max(self._compared, record["rows"])
        self.ended = next(iter(rows_of(records, "end")), None)

    @property
    def rows(self) -> list[Row]:
        """Return its rows, the last of which says how it ended."""
        rows = list(self._rows.values())
        if self.ended is not None:
            return [*rows, self.ended]
        make = replace(self._last, basis="measured", rank=-1, borrowed="")
        compared = make.ok(CHECK_STAGE, "rows", "1", self._compared, COMPARED_EACH)
        return [*rows, compared, make.ok(CASE_STAGE, CASE_METRIC, "s", self.spent_s, CUT_OFF)]


def take_in(cases: dict[CaseId, SoFar], path: Path) -> None:
    """Add a part's valid records to those of its cases. Errors as of :func:`read_part`."""
    records: dict[CaseId, list[Record]] = defaultdict(list)
    for record in counted(path):
        records[_case(record)].append(record)
    for case, of_case in records.items():
        cases.setdefault(case, SoFar()).add(of_case)
