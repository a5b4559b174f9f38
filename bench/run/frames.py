"""The tables of a run on disk, and the rows that they stand for.

They are ``epochs.csv``, ``cases.csv``, ``reasons.csv``; ``columns.toml`` describes their columns.
When a run has ended the tables are written once more, as Parquet, which is read if there is no CSV.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gatherbench.bench.meters.base import LEAST, MOST, UNITS
from gatherbench.bench.run.columns import (
    CASE_KEYS,
    CASES,
    COUNT,
    EPOCH_KEYS,
    EPOCHS,
    OF_CASE,
    REASON_KEYS,
    Column,
)
from gatherbench.bench.run.part import CaseId, StoreError
from gatherbench.bench.run.rows import BACKENDS, BASES, STATUSES, is_time
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
        names, case = list(OF_CASE), ["workload", "strategy", "variant", "repeat"]
        counts = self.epochs.groupby(names, dropna=False).size().rename("there").reset_index()
        declared = self.cases[self.cases["status"].notna()].reindex(columns=[*names, COUNT])
        both = declared.merge(counts, on=names, how="left").fillna({"there": 0})
        return both.loc[both[COUNT] != both["there"], case].drop_duplicates()

    def write(self, folder: Path) -> None:
        """Write the tables and the description of their columns."""
        write_columns(folder, self.columns)
        for name in TABLES:
            frame = self.table(name)
            lines = ([_cell(cell) for cell in line] for line in frame.itertuples(index=False))
            with replacing(folder / f"{name}.csv") as temporary:
                temporary.write_text(to_csv([[*frame.columns], *lines]), encoding="utf-8")
            (folder / f"{name}.parquet").unlink(missing_ok=True)


def framed(lines: Mapping[str, Sequence[dict[str, Any]]], columns: dict[str, Column]) -> Frames:
    """Return lines that this process made, by table, as they would be read."""
    tables: dict[str, pd.DataFrame] = {}
    for name in TABLES:
        header = list(dict.fromkeys([*KEYS[name], *(key for line in lines[name] for key in line)]))
        table = pd.DataFrame(lines[name], columns=header, dtype=object)
        numbers: dict[Any, Any] = {one: int for one in header if one in _WHOLE}
        numbers |= {one: float for one in header if one not in KEYS[name]}
        tables[name] = table.astype(numbers)
    return Frames(tables[EPOCHS], tables[CASES], tables["reasons"], columns)


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
        (EPOCHS, [*OF_CASE, "backend", "machine", "epoch"]),
        (CASES, [*OF_CASE, "backend", "machine"]),
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
            cleaned_texts = [clean[text] or empty for text in texts]
            allowed = {*_WORDS.get(name, ()), *((None,) if empty is None else ())}
            if name in _WORDS and (strange := sorted(set(cleaned_texts) - allowed, key=str)):
                raise ValueError(f"{name} = {strange[0]!r}: expected one of {_WORDS[name]}")
            data[name] = pd.Series(cleaned_texts, dtype=object)
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


def to_csv(lines: Iterable[Sequence[Any]]) -> str:
    """Return lines of CSV; each is one line, as its texts are."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(lines)
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    """Return a cell of CSV: empty if it is missing, and a whole number without a fraction."""
    if not isinstance(value, float):
        return value
    if math.isnan(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value
