"""The tables of a run: made from observations, appended to, written, and read.

``epochs.csv`` has a line per epoch, ``cases.csv`` one per case, ``reasons.csv`` one per missing
value. Processes observe one number at a time (:class:`gatherbench.bench.run.rows.Row`); in a line a
metric of a stage in a unit is a column (:class:`Column`), which ``columns.toml`` describes. Each
table is written as Parquet, too, which is read if there is no CSV.
"""

from __future__ import annotations

import io
import json
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv, parquet
from pydantic import TypeAdapter, ValidationError

from gatherbench.bench.meters.base import LEAST, MOST, UNITS
from gatherbench.bench.run.part import CASE, CaseId, StoreError, key_of
from gatherbench.bench.run.rows import PROCESS, WORDS, Row, is_time
from gatherbench.datasets.files import replacing
from gatherbench.outside import cleaned, plain, read_bytes

SCHEMA_VERSION = 4
#: The suffix of a name, by the unit of its values.
_ENDS = {
    **{"s": "_s", "B": "_bytes", "J": "_j", "W": "_w", "K": "_k", "Hz": "_hz"},
    **{"1/s": "_per_s", "1": ""},
}
#: The usual words for the link, seen from the GPU: what it receives, and what it sends.
_SHORT = {"pcie_host_to_device": "link_rx", "pcie_device_to_host": "link_tx"}
_REQUESTS = re.compile(r"gpu_requests_(\d+)_bytes")
_TIME = re.compile(r"_?(wall_)?time(?=_|$)")
_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
#: The number of readings of a polled sensor, in the source of its value.
_READ = re.compile(r"\[samples=(\d+), (?=period=)")
_RUN_KEYS = (
    *("run", "commit", "machine", "backend", "basis", "borrowed", "workload", "dataset"),
    *("strategy", "variant", "rank", "repeat"),
)
#: The prefix of the metrics of an epoch.
EPOCH_KEYS = (*_RUN_KEYS, "block", "epoch")
#: The prefix of the metrics of a case as a whole, which include how it ended.
CASE_KEYS = (*_RUN_KEYS, "status", "reason")
#: The keys of a case, or of one rank of it, within a run.
OF_CASE = ("basis", "workload", "strategy", "variant", "rank", "repeat")
#: The number of lines that ``epochs.csv`` has for a case that has ended.
COUNT = "epochs"
#: Keys of a value that is missing, or has another source than its column. Epoch -1: the whole case.
REASON_KEYS = (*OF_CASE, "epoch", "table", "column", "status", "reason", "source")
#: A metric of such a name follows its stage.
_RESERVED = {*EPOCH_KEYS, *CASE_KEYS, COUNT, "noisy", "other_cores"}
#: The meaning of columns, in the order of a table.
KNOWN: dict[str, str] = tomllib.loads(
    Path(__file__).with_name("columns.toml").read_text(encoding="utf-8")
)
#: The contents of tables: what an epoch observed, and what a case did as a whole.
EPOCHS, CASES = "epochs", "cases"
#: The tables, in the order in which they are written, with the columns before their numbers.
TABLES = {"reasons": REASON_KEYS, EPOCHS: EPOCH_KEYS, CASES: CASE_KEYS}
COLUMNS_FILE = "columns.toml"
_WHOLE = ("rank", "repeat", "block", "epoch", "schema_version")
_MAY_BE_MISSING = ("status", "reason", "borrowed", "source")
#: The remedy for a file of a run that cannot be made again.
RESTORE = "put a whole copy of it there, or measure again in a new folder: gatherbench run PLAN"


@dataclass(frozen=True, slots=True)
class Column:
    """The contents of a column.

    Attributes:
        stage, metric, unit: the observed quantity, in an SI unit.
        declared: computed from ids and data path, not measured.
        source: the counter, clock or formula of most values; ``reasons`` names the others.
            For a sensor that is polled ``samples=N`` represents the number of its readings, which
            has a column of its own.
    """

    stage: str
    metric: str
    unit: str
    declared: bool
    source: str = ""

    @property
    def name(self) -> str:
        """Return the column's name: the wall time of the stage ``fetch`` is ``fetch_s``."""
        stem = _SHORT.get(self.metric, self.metric)
        stem = _TIME.sub("", _REQUESTS.sub(r"gpu_requests_\1b", stem)).strip("_")
        own = self.stage in ("epoch", "case") or (self.declared and self.stage == "fetch")
        parts = ["" if own and stem else self.stage, stem]
        if self.declared and not stem.startswith("declared_"):
            parts = ["declared", *parts]
        name = "_".join(filter(None, parts)) + _ENDS[self.unit]
        return f"{self.stage}_{name}" if name in _RESERVED else name

    @property
    def samples(self) -> str:
        """Return the name of the column with the number of readings of a polled sensor."""
        return self.name.removesuffix(_ENDS[self.unit]) + "_samples"

    @property
    def meaning(self) -> str:
        """Return its meaning in words."""
        kind = "declared" if self.declared else "measured"
        usual = f"{self.metric.replace('_', ' ')} ({kind}; stage {self.stage})"
        return KNOWN.get(self.name) or KNOWN.get(re.sub(r"\d+", "N", self.name), usual)


_COLUMNS = TypeAdapter(dict[str, Column])
#: The column with the duration of a case; how it ended is its status.
ENDED = Column("case", "wall_time", "s", declared=False)


@dataclass
class Frames:
    """The tables of a run; ``columns`` by name."""

    epochs: pd.DataFrame = field(default_factory=pd.DataFrame)
    cases: pd.DataFrame = field(default_factory=pd.DataFrame)
    reasons: pd.DataFrame = field(default_factory=pd.DataFrame)
    columns: dict[str, Column] = field(default_factory=dict)

    def table(self, name: str) -> pd.DataFrame:
        """Return the table of this name in :data:`TABLES`."""
        table: pd.DataFrame = getattr(self, name)
        return table

    def only(self, chosen: Callable[[pd.DataFrame], Any]) -> Frames:
        """Return the lines for which ``chosen`` returns a true mask, given each table."""
        tables = {name: self.table(name) for name in TABLES}
        return replace(self, **{name: table[chosen(table)] for name, table in tables.items()})

    def without(self, cases: Collection[CaseId]) -> Frames:
        """Return the tables without the measured lines of these cases."""
        return self.only(lambda table: (table["basis"] == "predicted") | ~among(table, cases))

    def write(self, folder: Path) -> None:
        """Write the tables, as CSV and Parquet, and the description of their columns."""
        write_columns(folder, self.columns)
        for name in TABLES:
            table = self.table(name)
            with replacing(folder / f"{name}.csv") as temporary:
                table.to_csv(temporary, index=False, lineterminator="\n")
            with replacing(folder / f"{name}.parquet") as temporary:
                table.to_parquet(temporary, compression="zstd", index=False)


def among(table: pd.DataFrame, cases: Collection[CaseId]) -> NDArray[np.bool_]:
    """Return a mask of the lines of a table that belong to one of these cases."""
    known = [key in cases for key in ids_in(table.drop_duplicates(CASE))]
    return np.array(known, bool)[table.groupby(CASE, sort=False).ngroup().to_numpy()]


def ids_in(table: pd.DataFrame) -> list[CaseId]:
    """Return the case of each line of a table."""
    return list(table[CASE].itertuples(index=False, name=None))


def frames_of(rows: Iterable[Row], before: Frames | None = None) -> Frames:
    """Return the tables of cases, behind the lines of ``before``, which has other cases.

    Args:
        rows: of each case in the order in which it was measured; the row with its end is its last.
            Rows of the run as a whole are left out.

    Raises:
        StoreError: an observation occurs twice among the rows, or two have one column.
    """
    before = before or Frames()
    columns, process = dict(before.columns), dict[CaseId, int]()
    numbers: dict[float | None, int] = {}  # of processes whose paths take turns
    first = int(before.epochs["block"].max()) + 1 if len(before.epochs) else 0
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    noted: dict[tuple[Any, ...], list[int]] = defaultdict(list)  # the epochs of each reason
    for row in rows:
        if not row.workload:
            continue
        if (row.stage, row.metric) == PROCESS[:2]:
            process[key_of(row)] = numbers.setdefault(row.value, first + len(numbers))
            if row.epoch >= 0:  # another process continues the case
                continue
        keys = {"run": row.run_id, **{name: getattr(row, name) for name in _RUN_KEYS[1:]}}
        keys["basis"] = "measured" if row.basis == "declared" else row.basis
        keys["borrowed"] = row.borrowed or None
        more: dict[str, Any] = {"status": None, "reason": None}
        table, case = CASES, tuple(keys[name] for name in OF_CASE)
        if row.epoch >= 0:
            table, more = EPOCHS, {"block": process.get(key_of(row), -1), "epoch": row.epoch}
        line = lines.setdefault((table, case, row.machine, row.backend, row.epoch), keys | more)
        line["commit"] = row.commit  # of a case as a whole that of its last process
        if reason := _put(row, line, columns):
            noted[table, case, tuple(reason.items())].append(row.epoch)
    counts = Counter(case for table, case, *_ in lines if table == EPOCHS)
    made = defaultdict[str, list[dict[str, Any]]](list)
    for (table, case, *_), line in lines.items():
        if line.get("status") is not None:
            line[COUNT] = counts[case]
        made[table].append(line)
    for (table, case, items), epochs in noted.items():
        reason = dict(zip(OF_CASE, case, strict=True)) | {"table": table} | dict(items)
        in_all = table == EPOCHS and len(epochs) == counts[case]
        made["reasons"] += [reason | {"epoch": epoch} for epoch in ([-1] if in_all else epochs)]
    tables = {name: _behind(before.table(name), name, made[name]) for name in TABLES}
    return Frames(**tables, columns=columns)


def _put(row: Row, line: dict[str, Any], columns: dict[str, Column]) -> dict[str, Any] | None:
    """Put an observation into its line; return what ``reasons`` says of it, if anything."""
    source = _READ.sub("[samples=N, ", row.source)
    column = Column(row.stage, row.metric, row.unit, row.basis == "declared", source)
    known = columns.setdefault(name := column.name, column)
    if replace(known, source=source) != column:
        both = " and ".join(f"{clash.stage}.{clash.metric}" for clash in (column, known))
        raise StoreError(f"{both} have one column, {name}: rename one")
    if name in line:
        if row.epoch < 0:
            return None  # a path may be set up twice, by the launcher of ranks and by them
        text = f"{row.stage}.{row.metric} of {row.workload} {row.strategy} {row.variant}"
        raise StoreError(f"{text}, repeat {row.repeat}, epoch {row.epoch} stands twice")
    line[name] = row.value
    if polled := _READ.search(row.source):
        line[column.samples] = int(polled[1])
    how = {"status": row.status, "reason": row.reason}
    if ends := name == ENDED.name:
        line |= how
    other = source if source != known.source else None
    missing = row.value is None and not ends
    return {"column": name, **how, "source": other} if other or missing else None


def _behind(before: pd.DataFrame, name: str, lines: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return a table with further lines."""
    header = list(dict.fromkeys([*TABLES[name], *(key for line in lines for key in line)]))
    kinds: dict[Any, Any] = {key: int for key in header if key in _WHOLE}
    kinds |= {key: float for key in header if key not in TABLES[name]}
    table = pd.DataFrame(lines, columns=header, dtype=object).astype(kinds)
    if before.empty:
        return table
    return pd.concat([before, table], ignore_index=True) if lines else before


def read_frames(folder: Path, newer: Collection[CaseId] = ()) -> Frames:
    """Read the tables in a folder.

    Args:
        newer: cases that have more data than the tables.

    Raises:
        StoreError: a file cannot be read, or is not a run's; it names the file and the remedy.
    """
    columns = _read_columns(folder / COLUMNS_FILE)
    numbers = {COUNT, *columns, *(column.samples for column in columns.values())}
    times = {name for name, column in columns.items() if is_time(column.unit, column.metric)}
    tables: dict[str, Any] = {}
    for name, header in TABLES.items():
        path = folder / f"{name}.csv"
        if not path.exists() and path.with_suffix(".parquet").exists():
            path = path.with_suffix(".parquet")
        table = tables[name] = read_table(path, header, numbers, times)
        one = [key for key in (*OF_CASE, "backend", "machine", "epoch") if key in header]
        if name != "reasons" and (again := table.duplicated(one)).any():
            twice = " ".join(map(str, table.loc[again, one].iloc[0]))
            raise StoreError(f"{folder / name}.csv: {twice} stands twice; {RESTORE}")
    names, cases = list(OF_CASE), tables[CASES]
    there = tables[EPOCHS].groupby(names, dropna=False).size().rename("there").reset_index()
    # A case without an end was cut off: it does not say how many epochs it has.
    declared = cases[cases["status"].notna()].reindex(columns=[*names, COUNT])
    both = declared.merge(there, on=names, how="left").fillna({"there": 0})
    short = both.loc[both[COUNT] != both["there"], CASE]
    if not (lacking := short[~among(short, newer)]).empty:
        place = " ".join(map(str, lacking.iloc[0]))
        raise StoreError(
            f"{folder / EPOCHS}.csv: lines of {place} are missing, or {CASES}.csv has another"
            f" number of them; {RESTORE}"
        )
    return Frames(**tables, columns=columns)


@contextmanager
def reading(path: Path, fault: str = "cannot be read: {}", remedy: str = RESTORE) -> Iterator[None]:
    """Name the file and the remedy if reading it fails.

    Raises:
        StoreError: it cannot be read; or ``fault``, with the words of any other error.
    """
    try:
        yield
    except OSError as error:  # Arrow's, of damaged Parquet, has no strerror
        why = error.strerror or plain(str(error).partition("\n")[0])
        raise StoreError(f"{path}: cannot be read: {why}; {remedy}") from error
    except (ValueError, RecursionError, pa.ArrowException) as error:
        why = plain(str(error).partition("\n")[0])
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise StoreError(f"{path}: {fault.format(why)}; {remedy}") from error


def _read_columns(path: Path) -> dict[str, Column]:
    other = "read it with the gatherbench version that wrote it"
    if not path.exists() and path.with_name("rows.csv").exists():
        raise StoreError(f"{path}: cannot be read: schema version 3, which has a rows.csv; {other}")
    with reading(path, "not the columns of a run ({})"):
        described = cleaned(tomllib.loads(read_bytes(path).decode()))
        if (version := described.pop("schema_version", None)) != SCHEMA_VERSION:
            raise ValueError(f"schema version {version}, expected {SCHEMA_VERSION}; {other}")
        columns = _COLUMNS.validate_python(described)
        for name, column in columns.items():
            if column.unit not in UNITS:
                raise ValueError(f"{name}: unit {column.unit!r}: expected one of {UNITS}")
            if name != column.name:
                what = "a column with its stage, metric and unit"
                raise ValueError(f"{name}: {what} is {column.name!r}")
        return columns


def read_table(
    path: Path, keys: Sequence[str], numbers: Collection[str], times: Collection[str] = ()
) -> pd.DataFrame:
    """Read a table with all the columns ``keys``, and any of ``numbers``, of which some are times.

    Raises:
        StoreError: the file cannot be read, or is not such a table.
    """
    with reading(path, "not a table of a run ({})"):
        data = read_bytes(path)
        if path.suffix == ".parquet":
            return _checked(parquet.read_table(io.BytesIO(data)), keys, numbers, times)
        if not data.endswith(b"\n"):
            raise ValueError("its last line is cut off")
        if b"\0" in data:
            raise ValueError("it holds bytes that are no text")
        kinds = dict.fromkeys(numbers, pa.float64()) | dict.fromkeys(keys, pa.string())
        table = csv.read_csv(
            io.BytesIO(data),
            read_options=csv.ReadOptions(use_threads=False),  # so that errors have a line
            convert_options=csv.ConvertOptions(
                column_types=kinds | dict.fromkeys(_WHOLE, pa.int32()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
        return _checked(table, keys, numbers, times)


def _checked(
    table: Any, keys: Sequence[str], numbers: Collection[str], times: Collection[str]
) -> pd.DataFrame:
    """
    Raises:
        ValueError: a column, a word or a number does not belong in such a table.
    """
    names = table.column_names
    if len(set(names)) < len(names):
        raise ValueError("two of its columns have one name")
    if lacking := [key for key in keys if key not in names]:
        raise ValueError(f"it has no column {lacking[0]!r}")
    if strange := [name for name in names if name not in keys and name not in numbers]:
        raise ValueError(f"{strange[0]!r} does not stand in {COLUMNS_FILE}")
    data: dict[str, Any] = {}
    for name in names:
        column = table.column(name)
        if name not in keys:
            values = data[name] = column.to_numpy().astype(float)
            size = np.abs(values[values != 0])
            wrong = (size < LEAST) | (size > MOST) | np.isnan(size)  # NaN: missing, or no number
            if wrong.sum() > column.null_count or (name in times and (values < 0).any()):
                raise ValueError(f"{name} has a value that is no measurement")
        elif name in _WHOLE:
            values = data[name] = column.to_numpy()
            if column.null_count or values.dtype.kind != "i" or (values < -1).any():
                raise ValueError(f"{name} has a number that is out of range, or none")
        else:
            texts, empty = column.to_pylist(), None if name in _MAY_BE_MISSING else ""
            clean = {text: plain(text or "") or empty for text in set(texts)}
            allowed = {*WORDS.get(name, clean.values()), *([empty] if empty is None else [])}
            if strange := sorted({*clean.values()} - allowed, key=str):
                raise ValueError(f"{name} = {strange[0]!r}: expected one of {WORDS[name]}")
            data[name] = pd.Series([clean[text] for text in texts], dtype=object)
    return pd.DataFrame(data)


def write_columns(folder: Path, columns: dict[str, Column]) -> None:
    """Write the description of the columns."""
    text = f"schema_version = {SCHEMA_VERSION}\n"
    for name, column in columns.items():
        key = name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)
        text += f"\n[{key}]\n"
        for about in ("unit", "meaning", "source", "stage", "metric", "declared"):
            text += f"{about} = {json.dumps(getattr(column, about), ensure_ascii=False)}\n"
    with replacing(folder / COLUMNS_FILE) as temporary:
        temporary.write_text(text, encoding="utf-8")
