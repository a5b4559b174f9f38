"""A run's folder, written so that a crash at any moment loses nothing that was measured.

Each case writes what it measures, as it measures it, into a *part* of its own (one JSON object a
line). When the case ends the runner appends its lines to the tables, last of all to ``cases.csv``
that which says how it ended; a case without it has not ended, and its other lines go. ``samples``
are gathered from the parts into ``samples.parquet`` when the run ends, and then the parts go.

    plan.json          the resolved plan: every workload and every case
    env.json           the machine, and when the run began
    profile.toml       the machine that epochs are predicted for, if any
    epochs.csv         a line an epoch (:mod:`gatherbench.bench.run.lines`)
    cases.csv          a line a case
    reasons.csv        a line for each number that is missing
    columns.toml       what the columns hold
    epochs.parquet, …  the tables of a run that has ended, once more
    calibration.csv    the check of a GPU's sensors, an observation a line; absent without a GPU
    samples.parquet    seconds of every stage of every minibatch
    timeline.parquet   what was polled during epochs; absent when nothing was
    tuned.json         what paths have found beside a training, for all processes of the machine
    sensors.json       which of a GPU's sensors the calibration trusts; absent without a GPU
    parts/             parts of the cases of a run that has not ended
    interrupted/       parts of cases as they were cut off
"""

from __future__ import annotations

import csv
import json
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatherbench.bench.plan.workload import Case, case_id
from gatherbench.bench.run.columns import Column
from gatherbench.bench.run.frames import (
    COLUMNS_FILE,
    KEYS,
    RESTORE,
    TABLES,
    Frames,
    StoreError,
    append_lines,
    read_frames,
    write_columns,
    write_table,
)
from gatherbench.bench.run.frames import to_csv as cells_to_csv
from gatherbench.bench.run.lines import Lines, lines_of
from gatherbench.bench.run.rows import HEADER, Row, rows_in
from gatherbench.datasets.files import replacing
from gatherbench.outside import open_file, parsed, plain, read_bytes, read_json

# Texts that earlier versions wrote may be longer than what Python's reader takes of itself.
csv.field_size_limit(sys.maxsize)

__all__ = ["RESTORE", "StoreError"]

SAMPLES_FILE, TIMELINE_FILE = "samples.parquet", "timeline.parquet"

_CASE = ["workload", "strategy", "variant", "repeat"]
SAMPLE_COLUMNS = (*_CASE, "epoch", "stage", "batch", "value_s")
#: ``time_s`` counts from the opening of the epoch's window; ``value`` is in ``unit``: bytes since
#: then for a counter, the sensor's value for others.
TIMELINE_COLUMNS = (*_CASE, "epoch", "metric", "unit", "time_s", "value")
_KINDS = {
    **dict.fromkeys(("repeat", "epoch", "batch"), "int32"),
    **dict.fromkeys(("value_s", "time_s", "value"), "float64"),
}


def write_samples(records: Iterable[dict[str, Any]], folder: Path) -> None:
    """Gather the ``samples`` among the records of parts."""
    lines = [
        {**record, "batch": range(len(record["values"])), "value_s": record["values"]}
        for record in records
        if record["kind"] == "samples"
    ]
    _write(lines, SAMPLE_COLUMNS, folder / SAMPLES_FILE)


def write_timeline(records: Iterable[dict[str, Any]], folder: Path) -> None:
    """Gather the ``series`` among the records of parts; no file where there are none."""
    lines = []
    for record in records:
        if record["kind"] == "series" and record["points"]:
            time_s, value = zip(*record["points"], strict=True)
            lines.append({**record, "time_s": time_s, "value": value})
    if lines:
        _write(lines, TIMELINE_COLUMNS, folder / TIMELINE_FILE)


def _write(records: list[dict[str, Any]], columns: tuple[str, ...], path: Path) -> None:
    """Add to the file what it has not: repeats are added to a run that had ended.

    The last columns of a record are many numbers, the others are the same for each of them.
    """
    import pandas as pd

    tables = [pd.DataFrame({name: record[name] for name in columns}) for record in records]
    table = pd.concat([pd.DataFrame(columns=list(columns)), *tables], ignore_index=True)
    if path.is_file():
        before = pd.read_parquet(path)
        again = pd.MultiIndex.from_frame(before[_CASE]).isin(table.set_index(_CASE).index)
        table = pd.concat([before[~again], table], ignore_index=True)
    table = table.astype({name: _KINDS.get(name, "str") for name in columns})
    with replacing(path) as temporary:
        table.to_parquet(temporary, compression="zstd", index=False)


if TYPE_CHECKING:
    import pandas as pd

CASE_STAGE, CASE_METRIC = "case", "wall_time"
#: Of the rows that say whether a case is right. One that failed: nothing that it measured holds.
CHECK_STAGE = "check"
#: ``source`` of the last row of a case that was never started, because what it needs could not be
#: had (a download that failed, say). Such a case is tried again when the run is resumed.
NOT_PREPARED = "preparation of dataset and minibatches"
#: ``source`` of the last row of a case that was cut off and has whole blocks. They count; while its
#: part is there, a run that is resumed measures the others.
CUT_OFF = "time.perf_counter, up to the last whole block: the case was cut off"
#: Of the rows that belong to the run as a whole; the last of them is its wall time.
CALIBRATION_STAGE = "calibration"


CaseId = tuple[str, str, str, int]


def key_of(item: Case | Row) -> CaseId:
    """What identifies a case among the rows of a run."""
    workload = item.workload if isinstance(item, Row) else item.workload.id
    return (workload, item.strategy, item.variant, item.repeat)


class RunStore:
    """One run's folder. Its tables are parsed again only where something has changed them."""

    def __init__(self, folder: Path) -> None:
        self._read: tuple[object, Frames] | None = None  # with the files' sizes and times
        self._known: tuple[dict[str, Column], dict[str, list[str]], int] | None = None
        self.folder = folder
        self.calibration_file = folder / "calibration.csv"
        self.profile_file = folder / "profile.toml"
        self.parts = folder / "parts"
        self.interrupted = folder / "interrupted"
        self.sensors_file = folder / "sensors.json"
        self.tuned_file = folder / "tuned.json"

    @property
    def run_id(self) -> str:
        return self.folder.name

    @classmethod
    def create(
        cls, root: Path, machine: str, plan: dict[str, Any], env: dict[str, Any]
    ) -> RunStore:
        """A new folder ``root/<machine>/<date>-<plan>-<6 hex digits>``."""
        run_id = f"{date.today():%Y%m%d}-{plan['name']}-{secrets.token_hex(3)}"
        store = cls(root / machine / run_id)
        store.parts.mkdir(parents=True)
        began = {"began": datetime.now(UTC).isoformat(timespec="seconds")}
        write_atomically(store.folder / "env.json", json.dumps(env | began, indent=2) + "\n")
        store.write([])
        # The plan last: a folder with a plan is a run.
        write_atomically(store.folder / "plan.json", json.dumps(plan, indent=2) + "\n")
        return store

    @classmethod
    def open(cls, folder: Path) -> RunStore:
        """The folder of an earlier run.

        Raises:
            StoreError: it is none, or its name is none that a folder can have.
        """
        try:
            why = "" if (folder / "plan.json").exists() else "it has no plan.json"
        except OSError as error:
            why = str(error.strerror)
        if why:
            raise StoreError(
                f"{folder}: not a run folder ({why}); name one, such as results/MACHINE/RUN, or put"
                " its file back"
            )
        return cls(folder)

    def plan(self) -> dict[str, Any]:
        """The resolved plan of the run."""
        return _read_json(self.folder / "plan.json")

    def env(self) -> dict[str, Any]:
        """The machine of the run."""
        return _read_json(self.folder / "env.json")

    def part(self, case: Case) -> Path:
        """Where ``case`` writes what it measures."""
        return self._part(key_of(case))

    def _part(self, key: CaseId) -> Path:
        return self.parts / f"{case_id(*key)}.jsonl"

    def append(self, rows: Sequence[Row]) -> None:
        """Append what cases observed, of which nothing stands there, and see it to the disk.

        Raises:
            OSError: the disk is full or gone; what stood in the files before is untouched but for
                torn last lines, which :meth:`recover` drops.
            StoreError: an observation stands twice.
        """
        if of_the_run := [row for row in rows if not row.workload]:
            write_atomically(self.calibration_file, to_csv([*self.calibration(), *of_the_run]))
        columns, headers, block = self._known or self._look()
        known, self._known = len(columns), None  # where something fails, they are looked at again
        lines = _lines(rows, columns, block)
        if len(columns) > known:
            write_columns(self.folder, columns)
        for name in TABLES:
            path = self.folder / f"{name}.csv"
            headers[name] = append_lines(path, getattr(lines, name), headers[name])
        block = max([block, *(1 + line["block"] for line in lines.epochs)])
        self._known = columns, headers, block

    def _look(self) -> tuple[dict[str, Column], dict[str, list[str]], int]:
        """What :meth:`append` has to know of the tables: columns, headers, the next block."""
        frames = self.frames(growing=True)
        for name in TABLES:  # the Parquet files alone may have been kept
            if not (path := self.folder / f"{name}.csv").exists():
                write_table(path, frames.lines(name), KEYS[name])
        block = 1 + int(frames.epochs["block"].max()) if len(frames.epochs) else 0
        return dict(frames.columns), {name: frames.header(name) for name in TABLES}, block

    def frames(self, *, growing: bool | None = None) -> Frames:
        """The tables.

        Args:
            growing: a last line that is half written is none yet; ``None``: unless the run has
                ended, which then has no parts.

        Raises:
            StoreError: a file cannot be read, or is none of a run.
        """
        mark = self._mark()
        if self._read is None or self._read[0] != mark:
            growing = self.parts.is_dir() if growing is None else growing
            self._read = mark, read_frames(self.folder, growing=growing)
        return self._read[1]

    def _mark(self) -> object:
        names = [*(f"{name}{end}" for name in TABLES for end in (".csv", ".parquet")), COLUMNS_FILE]
        paths = [self.folder / name for name in names]
        return [(p.stat().st_size, p.stat().st_mtime_ns) if p.exists() else None for p in paths]

    def rows(self, *, growing: bool | None = None) -> list[Row]:
        """All observations, those of the run as a whole first; for ``growing`` see :meth:`frames`.

        Raises:
            StoreError: see :meth:`frames`.
        """
        return [*self.calibration(), *rows_in(self.frames(growing=growing).rows())]

    def calibration(self) -> list[Row]:
        """What was observed of the run as a whole; nothing without a GPU."""
        return read_rows(self.calibration_file) if self.calibration_file.exists() else []

    def samples(self) -> pd.DataFrame:
        """:data:`SAMPLE_COLUMNS`; empty while the run has not ended: they lie with its cases."""
        return _read_parquet(self.folder / SAMPLES_FILE, SAMPLE_COLUMNS)

    def timeline(self) -> pd.DataFrame:
        """:data:`TIMELINE_COLUMNS`; empty when nothing was polled."""
        return _read_parquet(self.folder / TIMELINE_FILE, TIMELINE_COLUMNS)

    def recover(self) -> set[CaseId]:
        """Drop what a killed run left half-written; returns the cases that are complete.

        A case is complete when its last line stands in the table, and so is the calibration; one
        that was never started is not, nor one that was cut off and still has a part. Lines of any
        other case are dropped: its part, if it has one, still holds them.
        """
        rows = self.rows(growing=True)
        last = ((CASE_STAGE, CASE_METRIC), (CALIBRATION_STAGE, CASE_METRIC))
        ended = [r for r in rows if (r.stage, r.metric) in last]
        done = {
            key
            for key, r in zip(map(key_of, ended), ended, strict=True)
            if r.source != NOT_PREPARED and not (r.source == CUT_OFF and self._part(key).exists())
        }
        frames = self.frames(growing=True)
        done -= {*frames.short().itertuples(index=False, name=None)}
        kept = [r for r in rows if key_of(r) in done]
        # Reasons are appended first: there may be some of a case of which nothing else is there.
        early = {*frames.reasons[_CASE].itertuples(index=False, name=None)} - done
        if len(kept) < len(rows) or early or frames.torn:
            self.write(kept)
        else:  # where nothing can be written, it is known before anything is measured
            write_columns(self.folder, frames.columns)
        return done

    def replace(self, old: Callable[[Row], bool], new: Sequence[Row]) -> None:
        """Write the tables anew: without the rows that ``old`` picks, with ``new`` at their end."""
        self.write([*(row for row in self.rows() if not old(row)), *new])

    def write(self, rows: Sequence[Row]) -> None:
        """Write the tables anew."""
        columns: dict[str, Column] = {}
        lines = _lines(rows, columns, 0)
        of_the_run = [row for row in rows if not row.workload]
        if of_the_run or self.calibration_file.exists():
            write_atomically(self.calibration_file, to_csv(of_the_run))
        write_columns(self.folder, columns)
        for name in TABLES:
            write_table(self.folder / f"{name}.csv", getattr(lines, name), KEYS[name])
        self._known = None

    def write_parquet(self) -> None:
        """Write the tables of a run that has ended once more, smaller."""
        for name in TABLES:
            with replacing(self.folder / f"{name}.parquet") as temporary:
                self.frames().table(name).to_parquet(temporary, compression="zstd", index=False)

    def keep_blocks(self, part: Path) -> int:
        """Cut the part of a case that was cut off down to its whole blocks; how many these are.

        A block is whole when each path has had its epoch and its rows have been compared. Without
        one nothing is left. The part as it was is kept beside.
        """
        take_in_ranks(part)
        records = list(read_part(part))
        if records and records[-1]["kind"] == "cut":
            return int(records[-1]["blocks"])
        self.interrupted.mkdir(exist_ok=True)
        number = len(list(self.interrupted.glob(f"{part.stem}.*.jsonl")))
        part.rename(self.interrupted / f"{part.stem}.{number}.jsonl")
        whole = [r for r in records if r["kind"] == "block"]
        if not whole:
            return 0
        blocks = int(whole[-1]["number"]) + 1
        spent = [r for r in records if r["kind"] in ("block", "cut")][-1]
        kept = [r for r in records if r["kind"] != "end" and _epoch(r) < blocks]
        took = spent["wall_time_s"] if spent["kind"] == "block" else 0.0
        kept.append({"kind": "cut", "blocks": blocks, "wall_time_s": took})
        write_atomically(part, "".join(json.dumps(record) + "\n" for record in kept))
        return blocks

    def write_samples(self, *, finished: bool) -> None:
        """Gather the parts' samples and timelines; a finished run drops the parts."""
        if not self.parts.is_dir():
            return
        parts = sorted(self.parts.glob("*.jsonl"))
        for write in (write_samples, write_timeline):
            write((record for path in parts for record in read_part(path)), self.folder)
        if finished:
            shutil.rmtree(self.parts)


class PartWriter:
    """What a case measures, on disk as soon as it is known."""

    def __init__(self, path: Path, *, more: bool = False) -> None:
        """``more``: behind what the file has."""
        self._file = path.open("a" if more else "w", encoding="utf-8")

    def close(self) -> None:
        """Close the file; what was written stands already."""
        self._file.close()

    def _write(self, kind: str, fields: dict[str, Any]) -> None:
        self._file.write(json.dumps({"kind": kind, **fields}) + "\n")
        self._file.flush()

    def _write_case(self, kind: str, case: Case, fields: dict[str, Any]) -> None:
        self._write(kind, {**case.names, **fields})

    def row(self, row: Row) -> None:
        self._write("row", {name: getattr(row, name) for name in HEADER})

    def rows(self, rows: Iterable[Row]) -> None:
        """Each as soon as it is known."""
        for row in rows:
            self.row(row)

    def samples(self, case: Case, epoch: int, stage: str, values: list[float]) -> None:
        """Seconds of ``stage`` for each minibatch of ``epoch``, in order."""
        self._write_case("samples", case, {"epoch": epoch, "stage": stage, "values": values})

    def series(
        self, case: Case, epoch: int, metric: str, unit: str, points: Iterable[tuple[float, float]]
    ) -> None:
        """What was polled during ``epoch``: (s since its window opened, value then)."""
        fields = {"epoch": epoch, "metric": metric, "unit": unit, "points": list(points)}
        self._write_case("series", case, fields)

    def block(self, number: int, spent_s: float, compared: int) -> None:
        """Each path has had its epoch of this block.

        Args:
            spent_s: that the case has taken in this process.
            compared: rows of it that have been compared so far.
        """
        self._write("block", {"number": number, "wall_time_s": spent_s, "rows": compared})

    def record(self, record: dict[str, Any]) -> None:
        """A record of another part, as :func:`read_part` gives it."""
        self._write(record["kind"], {n: v for n, v in record.items() if n != "kind"})

    def end(self, status: str, reason: str | None, wall_time_s: float) -> None:
        """The case is over: ``ok``, ``skipped`` or ``failed``."""
        said = None if reason is None else plain(reason)
        fields = {"status": status, "reason": said, "wall_time_s": wall_time_s}
        self._write("end", {**fields, "at": time.time()})
        os.fsync(self._file.fileno())


def read_part(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a part; a torn last line (its writer was killed) is left out.

    Raises:
        StoreError: a line is damaged, or it is no file.
    """
    line_number = 0
    try:
        with open_file(path) as file:
            for line in file:
                line_number += 1
                if line.endswith(b"\n"):
                    yield _record(parsed(line))
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path}: line {line_number}: {error}; delete the file and resume the run: its case is"
            " measured again, or has its rows in the table and no samples"
        ) from error


def _record(found: Any) -> dict[str, Any]:
    """
    Raises:
        ValueError: it is no record of a part.
    """
    fields = _RECORDS.get(str(found.get("kind"))) if isinstance(found, dict) else None
    if fields is None or not fields <= found.keys():
        raise ValueError("it is no record of a case")
    record: dict[str, Any] = found
    return record


#: The fields that records of a kind have.
_RECORDS: dict[str, set[str]] = {
    "row": set(HEADER),
    "samples": {*SAMPLE_COLUMNS[:-2], "values"},
    "series": {*TIMELINE_COLUMNS[:-2], "points"},
    "block": {"number", "wall_time_s", "rows"},
    "cut": {"blocks", "wall_time_s"},
    "end": {"status", "reason", "wall_time_s", "at"},
}


def ranks_folder(part: Path) -> Path:
    """Where the ranks of a case write a part each, until these are the case's."""
    return part.with_suffix(".ranks")


def rank_part(part: Path, rank: int) -> Path:
    """The part of one of them."""
    return ranks_folder(part) / f"rank{rank}.jsonl"


def read_ranks(part: Path) -> dict[int, list[dict[str, Any]]]:
    """The records of each rank of a case whose part is ``part``, by rank."""
    named = (
        (re.fullmatch(r"rank(0|[1-9]\d{0,5})\.jsonl", p.name, re.ASCII), p)
        for p in ranks_folder(part).iterdir()
    )
    files = {int(found[1]): path for found, path in named if found}
    return {rank: list(read_part(files[rank])) for rank in sorted(files)}


def take_in_ranks(part: Path) -> None:
    """Have the part of a case that was cut off hold the rows that its ranks had written."""
    if (folder := ranks_folder(part)).is_dir():
        with closing(PartWriter(part)) as out:
            for records in read_ranks(part).values():
                out.rows(rows_of(records))
        shutil.rmtree(folder)


def _epoch(record: dict[str, Any]) -> int:
    """To which epoch a record belongs; -1: to none."""
    return int(record.get("epoch", -1))


def has_ended(part: Path) -> bool:
    """Whether the part says how its case ended."""
    return any(r["kind"] == "end" for r in read_part(part))


def read_rows(path: Path) -> list[Row]:
    """The rows of a table with an observation a line, in order.

    Raises:
        StoreError: the file cannot be read, has another header, a row that is none, or was cut off.
    """
    try:
        *lines, torn = read_bytes(path).split(b"\n")
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}; {RESTORE}") from error
    header = tuple(lines[0].decode(errors="replace").rstrip("\r").split(",")) if lines else ()
    if header != HEADER or torn:
        raise StoreError(f"{path}: not a table of observations, or cut off; {RESTORE}")
    return _parsed(lines[1:], path, 2)


def _parsed(lines: Iterable[bytes], path: Path, first: int) -> list[Row]:
    """The rows of lines of a table, the ``first`` of which has that number in the file."""
    rows: list[Row] = []
    records = csv.reader(map(_text, lines))
    while True:
        number = records.line_num + first
        try:
            if (cells := next(records, None)) is None:
                return rows
            rows.append(_row(cells))
        except (ValueError, csv.Error) as error:
            raise StoreError(f"{path}: line {number}: {error}; {RESTORE}") from error


def rows_of(records: Iterable[dict[str, Any]]) -> list[Row]:
    """The rows among the records of a part.

    Where several processes wrote it, each has opened the path: what the last of them found stands.

    Raises:
        StoreError: one of them is none.
    """
    records = list(records)
    try:
        rows = [Row(**{n: r[n] for n in HEADER}) for r in records if r["kind"] == "row"]
    except (ValueError, TypeError, OverflowError) as error:
        raise StoreError(
            f"a row in the parts of a run is none ({error}); delete parts/ in its folder and resume"
        ) from error
    if any(record["kind"] == "cut" for record in records):
        names = ("epoch", "stage", "metric", "basis", "rank")
        rows = list({tuple(getattr(row, n) for n in names): row for row in rows}.values())
    return rows


def to_csv(rows: Sequence[Row]) -> str:
    """Rows as a table with an observation a line."""
    return cells_to_csv([HEADER, *([getattr(row, name) for name in HEADER] for row in rows)])


def _lines(rows: Sequence[Row], columns: dict[str, Column], block: int) -> Lines:
    try:
        return lines_of((row for row in rows if row.workload), columns, block)
    except ValueError as error:
        raise StoreError(str(error)) from error


def write_atomically(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` so that a reader sees the old or the new, never half."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _text(line: bytes) -> str:
    if b"\0" in line:
        raise ValueError("holds bytes that are no text")
    return line.decode() + "\n"


def _row(cells: list[str]) -> Row:
    if len(cells) != len(HEADER):
        raise ValueError(f"{len(cells)} cells, expected {len(HEADER)}")
    record: dict[str, Any] = dict(zip(HEADER, cells, strict=True))
    for name in ("schema_version", "repeat", "epoch", "rank"):
        record[name] = int(record[name])
        if not -1 <= record[name] < 2**31:
            raise ValueError(f"{name} = {record[name]}: out of range")
    record["value"] = float(record["value"]) if record["value"] else None
    record["reason"] = record["reason"] or None
    return Row(**record)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise StoreError(f"{path}: cannot be read: {why}; {RESTORE}") from error
    if not isinstance(content, dict):
        raise StoreError(f"{path}: not a JSON object; {RESTORE}")
    return content


def _read_parquet(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    """The table; an empty one where there is no file."""
    import pandas as pd
    import pyarrow as pa

    if not path.exists():
        return pd.DataFrame({name: [] for name in columns})
    try:
        with open_file(path) as file:
            table = pd.read_parquet(file)
        if missing := set(columns) - set(table.columns):
            raise ValueError(f"it has no column {min(missing)!r}")
    except (OSError, ValueError, pa.ArrowException) as error:
        raise StoreError(
            f"{path}: cannot be read ({error}); put a whole copy of it there, or delete it: the"
            " rows are read without it"
        ) from error
    return table
