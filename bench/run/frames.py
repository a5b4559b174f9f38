"""The tables of a run on disk, and the rows that they stand for.

They are ``epochs.csv``, ``cases.csv``, ``reasons.csv``; ``columns.toml`` describes their columns.
When a run has ended the tables are written once more, as Parquet, which is read if there is no CSV.
"""

from __future__ import annotations

import csv
import io
import json
import re
import tomllib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gatherbench.bench.meters.base import LEAST, MOST, UNITS
from gatherbench.bench.run.columns import (
    CASE_KEYS,
    CASES,
    COUNT,
    EPOCH_KEYS,
    EPOCHS,
    REASON_KEYS,
    Column,
)
from gatherbench.bench.run.lines import ENDED, Lines
from gatherbench.bench.run.part import CaseId, StoreError
from gatherbench.bench.run.rows import BACKENDS, BASES, HEADER, STATUSES, is_time
from gatherbench.bench.run.rows import SCHEMA_VERSION as ROW_VERSION
from gatherbench.datasets.files import replacing
from gatherbench.outside import plain, read_bytes

SCHEMA_VERSION = 4
#: The tables, in the order in which a case is appended: it has ended once the last one has it.
TABLES = ("reasons", EPOCHS, CASES)
COLUMNS_FILE = "columns.toml"
KEYS = {EPOCHS: EPOCH_KEYS, CASES: CASE_KEYS, "reasons": REASON_KEYS}
_WHOLE = ("rank", "repeat", "block", "epoch")
_WORDS = {"backend": BACKENDS, "basis": BASES, "status": STATUSES}
_MAY_BE_MISSING = ("status", "reason", "borrowed", "source")
#: The remedy for a file of a run that cannot be made again.
RESTORE = "put a whole copy of it there, or measure again in a new folder: gatherbench run PLAN"
_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_SAME = ("basis", "workload", "strategy", "variant", "rank", "repeat")


@dataclass
class Frames:
    """The tables of a run: see :mod:`gatherbench.bench.run.lines`; ``columns`` by name."""

    epochs: pd.DataFrame
    cases: pd.DataFrame
    reasons: pd.DataFrame
    columns: dict[str, Column] = field(default_factory=dict)

    def table(self, name: str) -> pd.DataFrame:
        """Return the table of this name in :data:`TABLES`."""
        found: pd.DataFrame = getattr(self, name)
        return found

    def short(self) -> pd.DataFrame:
        """Return the measured cases whose number of lines of epochs differs from what they declare:
        workload, strategy, variant, repeat. A case without an end was cut off, and is left out.
        """
        names, case = list(_SAME), ["workload", "strategy", "variant", "repeat"]
        counts = self.epochs.groupby(names, dropna=False).size().rename("there").reset_index()
        told = self.cases[self.cases["status"].notna()].reindex(columns=[*names, COUNT])
        both = told.merge(counts, on=names, how="left").fillna({"there": 0})
        return both.loc[both[COUNT] != both["there"], case].drop_duplicates()

    def rows(self) -> pd.DataFrame:
        """Return the rows, one per observation, with columns :data:`HEADER`, by case.

        Raises:
            StoreError: a value that exists also has a reason why it is missing.
        """
        tables = [self._long(EPOCHS), self._long(CASES)]
        table = pd.concat(tables, ignore_index=True)
        case = pd.MultiIndex.from_frame(table[["workload", "strategy", "variant", "repeat"]])
        ended = pd.MultiIndex.from_frame(self.cases[["workload", "strategy", "variant", "repeat"]])
        order = pd.factorize(ended.append(case))[0][len(ended) :]
        return table.iloc[np.argsort(order, kind="stable")].reset_index(drop=True)

    def _long(self, table: str) -> pd.DataFrame:
        frame = self.table(table)
        names = [name for name in frame if name in self.columns]
        columns = [self.columns[name] for name in names]
        shape = (len(frame), len(names))
        values = frame[names].to_numpy(float) if names else np.zeros(shape)
        status, reason = np.full(shape, "ok", object), np.full(shape, None, object)
        source = np.empty(shape, object)
        source[:] = [column.source for column in columns]
        there = ~np.isnan(values)
        told = there.copy()
        for line, place, said in self._said(table, frame, names):
            for one in line:
                status[one, place], reason[one, place] = said["status"], said["reason"]
                told[one, place] = True
                if said["source"] is not None:
                    source[one, place] = said["source"]
        if ENDED.name in names:
            place = names.index(ENDED.name)
            ended = frame["status"].notna().to_numpy()
            status[ended, place] = frame["status"][ended]
            reason[ended, place] = frame["reason"][ended]
            told[:, place] = ended
        for place, column in enumerate(columns):
            if column.samples in frame:
                often = frame[column.samples].to_numpy(float)
                for polled in np.flatnonzero(~np.isnan(often)):
                    read = f"samples={often[polled]:.0f}"
                    source[polled, place] = source[polled, place].replace("samples=N", read)
        reason[told & ~there & (reason == None)] = "no reason was given"  # noqa: E711
        wrong = (there != (status == "ok")) | (there != (reason == None))  # noqa: E711
        if len(contradict := np.argwhere(told & wrong)):
            line, place = contradict[0]
            of = " ".join(map(str, frame[["workload", "strategy", "variant"]].iloc[line]))
            raise StoreError(
                f"{table}.csv: {names[place]} of {of} has a value and a reason why there is none,"
                f" or neither; {RESTORE}"
            )
        lines, places = np.nonzero(told)
        keys = frame[[name for name in frame if name in KEYS[table]]]
        found = keys.iloc[lines].reset_index(drop=True).rename(columns={"run": "run_id"})
        about = {
            name: np.array([getattr(column, name) for column in columns], object)[places]
            for name in ("stage", "metric", "unit", "declared")
        }
        found = found.assign(
            **{name: of for name, of in about.items() if name != "declared"},
            **{"schema_version": ROW_VERSION, "epoch": found.get("epoch", -1)},
            **{"value": values[lines, places], "source": source[lines, places]},
            **{"status": status[lines, places], "reason": reason[lines, places]},
            basis=np.where(about["declared"].astype(bool), "declared", found["basis"]),
            borrowed=found["borrowed"].where(found["borrowed"].notna(), ""),
        )
        return found[list(HEADER)]

    def _said(
        self, table: str, frame: pd.DataFrame, names: list[str]
    ) -> Iterable[tuple[NDArray[np.intp], int, dict[Any, Any]]]:
        """Return lines and place of the values that a reason is about, and the reason."""
        mine = self.reasons[self.reasons["table"] == table]
        places = {name: place for place, name in enumerate(names)}
        lines: dict[tuple[Any, ...], list[int]] = {}
        for number, key in enumerate(frame[list(_SAME)].itertuples(index=False, name=None)):
            lines.setdefault(key, []).append(number)
        epochs = frame["epoch"].to_numpy() if table == EPOCHS else np.full(len(frame), -1)
        for said in mine.to_dict("records"):
            found = np.array(lines.get(tuple(said[name] for name in _SAME), []), np.intp)
            if said["epoch"] >= 0:
                found = found[epochs[found] == said["epoch"]]
            if said["column"] in places:
                yield found, places[said["column"]], said


def frames_of(lines: Lines) -> Frames:
    """Return lines that this process made, as they would be read."""
    tables: dict[str, pd.DataFrame] = {}
    for name in TABLES:
        of: list[dict[str, Any]] = getattr(lines, name)
        header = list(dict.fromkeys([*KEYS[name], *(key for line in of for key in line)]))
        table = pd.DataFrame(of, columns=header, dtype=object)
        numbers: dict[Any, Any] = {one: int for one in header if one in _WHOLE}
        numbers |= {one: float for one in header if one not in KEYS[name]}
        tables[name] = table.astype(numbers)
    return Frames(tables[EPOCHS], tables[CASES], tables["reasons"], lines.columns)


def read_frames(folder: Path, newer: Collection[CaseId] = ()) -> Frames:
    """Read the tables in a folder.

    Args:
        newer: cases that have more data than the tables.

    Raises:
        StoreError: a file cannot be read, or is not a run's; it names the file and the remedy.
    """
    columns = _read_columns(folder / COLUMNS_FILE)
    tables = {name: _read_table(folder, name, columns) for name in TABLES}
    for name, keys in (
        (EPOCHS, [*_SAME, "backend", "machine", "epoch"]),
        (CASES, [*_SAME, "backend", "machine"]),
    ):
        if (again := tables[name].duplicated(keys)).any():
            twice = " ".join(map(str, tables[name].loc[again, keys].iloc[0]))
            raise StoreError(f"{folder / name}.csv: {twice} stands twice; {RESTORE}")
    found = Frames(tables[EPOCHS], tables[CASES], tables["reasons"], columns)
    short = [one for one in found.short().itertuples(index=False, name=None) if one not in newer]
    if short:
        of = " ".join(map(str, short[0]))
        raise StoreError(
            f"{folder / EPOCHS}.csv: lines of {of} are missing, or {CASES}.csv has another number"
            f" of them; {RESTORE}"
        )
    return found


def _read_columns(path: Path) -> dict[str, Column]:
    try:
        found = tomllib.loads(read_bytes(path).decode())
        version = found.pop("schema_version", None)
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"schema version {version}, expected {SCHEMA_VERSION}; read it with the gatherbench"
                " version that wrote it"
            )
        if strange := {of["unit"] for of in found.values()} - set(UNITS):
            raise ValueError(f"unit {min(strange)!r}: expected one of {UNITS}")
        columns = {
            name: Column(
                plain(of["stage"]),
                plain(of["metric"]),
                of["unit"],
                bool(of["declared"]),
                plain(of["source"]),
            )
            for name, of in found.items()
        }
        if wrong := [name for name, column in columns.items() if name != column.name]:
            raise ValueError(
                f"{wrong[0]}: a column with its stage, metric and unit is"
                f" {columns[wrong[0]].name!r}"
            )
        return columns
    except OSError as error:
        old = path.with_name("rows.csv").exists()
        why = "schema version 3, which has a rows.csv" if old else f"{error.strerror}; {RESTORE}"
        remedy = "; read it with the gatherbench version that wrote it" if old else ""
        raise StoreError(f"{path}: cannot be read: {why}{remedy}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{path}: not the columns of a run ({plain(error)}); {RESTORE}") from error


def _read_table(folder: Path, name: str, columns: dict[str, Column]) -> pd.DataFrame:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    path = folder / f"{name}.csv"
    if not path.exists() and path.with_suffix(".parquet").exists():
        path = path.with_suffix(".parquet")
    keys = KEYS[name]
    texts = [key for key in keys if key not in _WHOLE]
    try:
        data = read_bytes(path)
        if path.suffix == ".parquet":
            found = parquet.read_table(io.BytesIO(data))
        else:
            if not data.endswith(b"\n"):
                raise ValueError("its last line is cut off")
            kinds = {key: pa.string() for key in texts}
            kinds |= {key: pa.int32() for key in keys if key in _WHOLE}
            header = next(csv.reader([data.partition(b"\n")[0].decode()]), [])
            kinds |= {key: pa.float64() for key in header if key not in kinds}
            if b"\0" in data:
                raise ValueError("it holds bytes that are no text")
            found = arrow_csv.read_csv(
                io.BytesIO(data),
                read_options=arrow_csv.ReadOptions(use_threads=False),  # so that errors have a line
                convert_options=arrow_csv.ConvertOptions(
                    column_types=kinds, null_values=[""], strings_can_be_null=True
                ),
            )
        return _checked(found, keys, columns)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}; {RESTORE}") from error
    except (ValueError, pa.ArrowException) as error:
        why = plain(str(error).partition("\n")[0])
        raise StoreError(f"{path}: not a table of a run ({why}); {RESTORE}") from error


def _checked(found: Any, keys: Sequence[str], columns: dict[str, Column]) -> pd.DataFrame:
    """
    Raises:
        ValueError: a column, a word or a number does not belong in such a table.
    """
    names = found.column_names
    if len(set(names)) < len(names):
        raise ValueError("two of its columns have one name")
    if lacking := [key for key in keys if key not in names]:
        raise ValueError(f"it has no column {lacking[0]!r}")
    known = {*keys, COUNT, *columns, *(column.samples for column in columns.values())}
    if strange := [name for name in names if name not in known]:
        raise ValueError(f"{strange[0]!r} does not stand in {COLUMNS_FILE}")
    data: dict[str, Any] = {}
    for name in names:
        column = found.column(name)
        missing = column.null_count > 0
        if name not in keys:
            data[name] = column.to_numpy().astype(float)
            size = np.abs(data[name][~np.isnan(data[name])])
            if len(size) < len(column) - column.null_count or (size > MOST).any():
                raise ValueError(f"{name} has a value that is not finite")
            about = columns.get(name)
            seconds = about is not None and is_time(about.unit, about.metric)
            if (size[size > 0] < LEAST).any() or (seconds and (data[name] < 0).any()):
                raise ValueError(f"{name} has a value that is no measurement")
        elif name in _WHOLE:
            data[name] = column.to_numpy()
            whole = not missing and data[name].dtype.kind == "i"
            if not whole or (len(column) and data[name].min() < -1):
                raise ValueError(f"{name} has a number that is out of range, or none")
        else:
            texts = column.to_pylist()
            clean = {text: None if text is None else plain(text) for text in set(texts)}
            empty = None if name in _MAY_BE_MISSING else ""
            told = [clean[text] or empty for text in texts]
            allowed = {*_WORDS.get(name, ()), *((None,) if empty is None else ())}
            if name in _WORDS and (strange := sorted(set(told) - allowed, key=str)):
                raise ValueError(f"{name} = {strange[0]!r}: expected one of {_WORDS[name]}")
            data[name] = pd.Series(told, dtype=object)
    return pd.DataFrame(data)


def write_columns(folder: Path, columns: dict[str, Column]) -> None:
    """Write the description of the columns."""
    text = f"schema_version = {SCHEMA_VERSION}\n"
    for name, column in columns.items():
        key = name if _BARE.fullmatch(name) else _quoted(name)
        text += f"\n[{key}]\n"
        for field_name in ("unit", "meaning", "source", "stage", "metric"):
            text += f"{field_name} = {_quoted(getattr(column, field_name))}\n"
        text += f"declared = {str(column.declared).lower()}\n"
    with replacing(folder / COLUMNS_FILE) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def write_table(path: Path, lines: Sequence[dict[str, Any]], keys: Sequence[str]) -> None:
    """Replace a table by these lines; ``keys`` come first."""
    header = list(dict.fromkeys([*keys, *(name for line in lines for name in line)]))
    with replacing(path) as temporary:
        temporary.write_text(to_csv([header]) + _text(lines, header), encoding="utf-8")
    path.with_suffix(".parquet").unlink(missing_ok=True)


def _text(lines: Iterable[dict[str, Any]], header: Sequence[str]) -> str:
    """Return lines of CSV: a missing value is an empty cell, a whole number has no fraction."""
    return to_csv([_cell(line.get(name)) for name in header] for line in lines)


def to_csv(lines: Iterable[Sequence[Any]]) -> str:
    """Return lines of CSV; each is one line, as its texts are."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(lines)
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    return "" if value is None else value
