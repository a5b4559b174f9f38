"""A run's folder, written so that a crash at any moment loses nothing that was measured.

Each case writes what it measures, as it measures it, into a *part* of its own (one JSON object a
line). When the case ends the runner folds the part into ``rows.csv`` with one append, whose last
line is the row of the case as a whole; a case without that row has not been folded. ``samples``
are gathered from the parts into ``samples.parquet`` when the run ends, and then the parts go.

    plan.json          the resolved plan: every workload and every case
    env.json           the machine, and when the run began
    profile.toml       the machine that epochs are predicted for, if any
    rows.csv           the table (:class:`gatherbench.bench.run.rows.Row`)
    samples.parquet    seconds of every stage of every minibatch
    timeline.parquet   what was polled during epochs; absent when nothing was
    tuned.json         what paths have found beside a training, for all processes of the machine
    sensors.json       which of a GPU's sensors the calibration trusts; absent without a GPU
    parts/             parts of the cases of a run that has not ended
    interrupted/       parts of cases as they were cut off
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatherbench.bench.plan.workload import Case, case_id
from gatherbench.bench.run.rows import HEADER, SCHEMA_VERSION, Row
from gatherbench.datasets.files import replacing
from gatherbench.outside import open_file, parsed, plain, read_bytes, read_json

# Texts that earlier versions wrote may be longer than what Python's reader takes of itself.
csv.field_size_limit(sys.maxsize)

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
#: The remedy for a file of a run that nothing can make again.
RESTORE = "put a whole copy of it there, or measure again in a new folder: gatherbench run PLAN"


class StoreError(ValueError):
    """A run folder that cannot be read or written; the message names it and the remedy."""


CaseId = tuple[str, str, str, int]


def key_of(item: Case | Row) -> CaseId:
    """What identifies a case among the rows of a run."""
    workload = item.workload if isinstance(item, Row) else item.workload.id
    return (workload, item.strategy, item.variant, item.repeat)


class RunStore:
    """One run's folder. Its table is parsed once: what is appended is parsed as it is written."""

    def __init__(self, folder: Path) -> None:
        self._read: tuple[tuple[int, int], list[Row]] | None = None  # with the file's size and time
        self.folder = folder
        self.rows_file = folder / "rows.csv"
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
        store._write_table([], [])
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

    def append(self, rows: list[Row]) -> None:
        """Append rows in one write and see them to the disk.

        Raises:
            OSError: the disk is full or gone; what stood in the file before is untouched but for
                a torn last line, which :meth:`recover` drops.
        """
        known = self._known()
        text = to_csv(rows)
        data = text.encode()
        with self.rows_file.open("ab", buffering=0) as file:
            while data:
                data = data[file.write(data) :]
            os.fsync(file.fileno())
        if known is not None:
            known += self._written(text)  # in place: a copy for each case would be quadratic
            self._keep(known)

    def rows(self, *, growing: bool | None = None) -> list[Row]:
        """All rows, in the order written.

        Args:
            growing: a last line that is half written is none yet; ``None``: unless the run has
                ended, which then has no parts.

        Raises:
            StoreError: the file cannot be read, has another header, or a row that is none.
        """
        known = self._known()
        if known is None:
            growing = self.parts.is_dir() if growing is None else growing
            known = read_rows(self.rows_file, growing=growing)
            if not growing:
                self._keep(known)
        return list(known)

    def _known(self) -> list[Row] | None:
        """What was read, or written, if the file is still that."""
        return self._read[1] if self._read and self._read[0] == self._mark() else None

    def _keep(self, rows: list[Row]) -> None:
        self._read = (self._mark(), rows)

    def _mark(self) -> tuple[int, int]:
        try:
            found = self.rows_file.stat()
        except OSError:
            return (-1, -1)
        return (found.st_size, found.st_mtime_ns)

    def samples(self) -> pd.DataFrame:
        """:data:`SAMPLE_COLUMNS`; empty while the run has not ended: they lie with its cases."""
        return _read_parquet(self.folder / SAMPLES_FILE, SAMPLE_COLUMNS)

    def timeline(self) -> pd.DataFrame:
        """:data:`TIMELINE_COLUMNS`; empty when nothing was polled."""
        return _read_parquet(self.folder / TIMELINE_FILE, TIMELINE_COLUMNS)

    def recover(self) -> set[CaseId]:
        """Drop what a killed run left half-written; returns the cases that are complete.

        A case is complete when its last row stands in the table, and so is the calibration; one
        that was never started is not, nor one that was cut off and still has a part. Rows of any
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
        kept = [r for r in rows if key_of(r) in done]
        self._write_table(kept, [])
        return done

    def replace(self, old: Callable[[Row], bool], new: list[Row]) -> None:
        """Write the table anew: without the rows that ``old`` picks, with ``new`` at its end."""
        kept = [row for row in self.rows() if not old(row)]
        self._write_table(kept, new)

    def _write_table(self, kept: list[Row], new: list[Row]) -> None:
        text = to_csv(new)
        write_atomically(self.rows_file, ",".join(HEADER) + "\n" + to_csv(kept) + text)
        self._keep([*kept, *self._written(text)])

    def _written(self, text: str) -> list[Row]:
        """Rows as whoever reads the file will find them."""
        return _parsed(text.encode().split(b"\n")[:-1], self.rows_file, 1)

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


def read_rows(path: Path, *, growing: bool = False) -> list[Row]:
    """The rows of a table on disk, in order.

    Args:
        growing: a last line that is half written is none yet.

    Raises:
        StoreError: the file cannot be read, has another header, a row that is none, or was cut off.
    """
    try:
        *lines, torn = read_bytes(path).split(b"\n")
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}; {RESTORE}") from error
    header = tuple(lines[0].decode(errors="replace").rstrip("\r").split(",")) if lines else ()
    if header != HEADER:
        raise StoreError(
            f"{path}: not a table of schema version {SCHEMA_VERSION} (its header differs); read it"
            f" with the version that wrote it, or if it is damaged, {RESTORE}"
        )
    rows = _parsed(lines[1:], path, 2)
    if torn and not growing:
        raise StoreError(
            f"{path}: line {len(lines) + 1} is cut off in mid-row, and nothing is being written to"
            " it: the file is damaged; put a whole copy of it there, or measure again what was cut"
            f" off: gatherbench run --resume {shlex.quote(str(path.parent))}"
        )
    return rows


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


def to_csv(rows: list[Row]) -> str:
    """Rows as lines of CSV, without the header; one row is one line, as its texts are."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for row in rows:
        cells = (getattr(row, name) for name in HEADER)
        writer.writerow(["" if c is None else c for c in cells])
    return buffer.getvalue()


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
