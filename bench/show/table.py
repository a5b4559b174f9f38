"""A table: a data frame, with the names and units of its columns.

A column has one unit, chosen so that its largest value reads well; CSV and JSON hold SI base units.
:func:`gatherbench.bench.show.terminal.in_terminal` draws a table in a terminal, the report's
template draws it in HTML, and programs read :meth:`Table.data`. None of them depends on runs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import pandas as pd

from gatherbench.bench.read.units import (
    LONGEST_NAME,
    MISSING,
    count,
    number,
    quantity,
    scale,
    short,
)

#: Characters of prose beyond which its middle is cut; JSON has it in full.
LONGEST_TEXT = 1200
_PROSE = ("reason", "source")
#: Units, and the endings of the names of columns with them.
UNITS = MappingProxyType(
    {"B/s": "_B_per_s", "1/s": "_per_s", "s": "_s", "B": "_B", "J": "_J", "W": "_W"}
    | {"×": "_ratio", "share": "_share", "cores": "_cores"}
)


@dataclass(frozen=True, slots=True)
class Column:
    """A field of a data frame; ``unit`` is that of its values, or ``None`` for text.

    If every value has its own unit, ``units`` names the field that holds it. A column has the scale
    of the field ``like``. The text in the field ``mark`` follows the number, and is no part of it.

    Attributes:
        interval: its ends are the fields ``…_low`` and ``…_high``, shown in brackets after it.
        brief: whether a terminal omits these ends.
        greyed: whether a terminal shows marked values in grey, without the mark.
        short: its heading in a terminal, which omits columns without one.
    """

    field: str
    label: str
    unit: str | None = None
    units: str = ""
    like: str = ""
    mark: str = ""
    interval: bool = False
    brief: bool = False
    greyed: bool = False
    short: str = ""

    @property
    def kind(self) -> str:
        """The layout of a cell: a number to the right, prose in lines, a label in one line."""
        if self.unit is not None or self.units:
            return "numeric"
        return "prose" if self.field in _PROSE else "label"

    def name(self, end: str = "") -> str:
        """Return its name for programs, with the unit: ``median_s``, ``median_low_s``."""
        suffix = UNITS.get(self.unit or "", "")
        whole = f"_{self.field}".endswith(suffix)
        return f"{self.field}{end}" if whole or self.unit == "×" else f"{self.field}{end}{suffix}"


#: Columns that identify a line of a table.
WHAT = (
    Column("workload", "workload"),
    Column("strategy", "strategy"),
    Column("variant", "variant"),
    Column("kind", "kind"),
)
KINDS = MappingProxyType({"host": "measured, host", "cuda": "measured, GPU"})


@dataclass(frozen=True, slots=True)
class Cell:
    """``text`` is shown, ``brief`` in a terminal; ``value`` sorts: a number in SI base units."""

    text: str
    value: str = ""
    brief: str = ""
    grey: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A row; ``modelled`` ones are hatched; ``instead`` replaces all its numbers."""

    cells: list[Cell]
    modelled: bool = False
    instead: str = ""


@dataclass(frozen=True, eq=False)
class Table:
    """A table; ``ident`` is its name in the page and for programs; ``note`` follows below it.

    In a terminal each value of its first column has a separate table, below ``title``. On the page
    a ``folded`` table opens with a click. In ``frame``, ``basis`` marks modelled rows; the optional
    ``instead`` replaces a row's numbers.
    """

    ident: str
    caption: str
    columns: Sequence[Column]
    frame: pd.DataFrame
    title: str = ""
    note: str = ""
    folded: bool = False

    @cached_property
    def _shown(self) -> tuple[list[str], list[Line]]:
        """The unit in which each column is shown, and its lines."""
        units, cells, rows = [], list[list[Cell]](), self.frame.to_dict("records")
        for column in self.columns:
            suffix, factor, show = _reader(column, self.frame[column.like or column.field])
            units.append(suffix)
            cells.append([_cell(column, row, show, factor) for row in rows])
        lines = [
            Line(list(mine), row.get("basis", "measured") != "measured", row.get("instead", ""))
            for mine, row in zip(zip(*cells, strict=True), rows, strict=True)
        ]
        return units, lines

    @property
    def units(self) -> list[str]:
        return self._shown[0]

    @property
    def lines(self) -> list[Line]:
        return self._shown[1]

    @property
    def labels(self) -> list[str]:
        """Its headings, with the unit in which a column is shown."""
        pairs = zip(self.columns, self.units, strict=True)
        return [f"{one.label}, {unit}" if unit else one.label for one, unit in pairs]

    @property
    def first(self) -> int:
        """The index of the first column of numbers."""
        return next((i for i, one in enumerate(self.columns) if one.kind == "numeric"), 0)

    def data(self) -> pd.DataFrame:
        """Return its numbers for programs: units in the names, SI base units, unknown values as
        ``None``.
        """
        found = {}
        for column in self.columns:
            for end in ("", "_low", "_high") if column.interval else ("",):
                found[column.name(end)] = self.frame[column.field + end]
        frame = pd.DataFrame(found).astype(object)
        return frame.where(frame.notna() & (frame != ""), None)


def tabulate(
    ident: str, caption: str, columns: Sequence[Column], frame: pd.DataFrame, **more: Any
) -> Table:
    """Make the table of ``frame``'s fields; ``more``: other fields of :class:`Table`."""
    return Table(ident, caption, columns, frame, **more)


def table_of(ident: str, title: str, frame: pd.DataFrame) -> Table:
    """Make a table of a plain data frame, whose columns' names end in their units: ``train_s``.

    A column ``x_s`` with ``x_low_s`` and ``x_high_s`` is an interval; ``workload``, ``strategy``
    and ``variant`` identify a line.
    """
    fields, named = {}, {column.field: column for column in WHAT}
    if {"backend", "basis"} <= set(frame.columns):
        frame = with_kind(frame)
    for name in map(str, frame.columns):
        unit, end = next(((u, e) for u, e in UNITS.items() if name.endswith(e)), ("1", ""))
        fields[name] = name.removesuffix(end), unit
    bare = frame.rename(columns={name: field for name, (field, _) in fields.items()})
    ends = {f"{field}{end}" for field, _ in fields.values() for end in ("_low", "_high")}
    columns = [named[name] for name in named if name in frame]
    for field, unit in fields.values():
        if field in named or field in ends or field in ("backend", "basis", "instead"):
            continue
        label = field.replace("_", " ")
        kind = unit if pd.api.types.is_numeric_dtype(bare[field]) else None
        interval = {f"{field}_low", f"{field}_high"} <= set(bare.columns)
        columns.append(Column(field, label, kind, interval=interval, short=label))
    return Table(ident, title, columns, bare, title=title)


def with_kind(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with its basis and backend in words."""
    kinds = frame["backend"].map(KINDS).where(frame["basis"] == "measured", "modelled")
    return frame.assign(kind=kinds)


def _reader(column: Column, values: pd.Series[Any]) -> tuple[str, float, Callable[[Any, Any], str]]:
    """Return the unit after the column's label, the factor to it, and a function for a value."""
    if column.units:
        return "", 1.0, quantity
    if column.unit is None:
        longest = LONGEST_TEXT if column.kind == "prose" else LONGEST_NAME
        return "", 1.0, lambda value, _: short(value, longest)
    if column.unit == "1":
        return "", 1.0, lambda value, _: count(value)
    numbers = pd.to_numeric(values).dropna().abs()
    name, factor = scale(column.unit, float(numbers.max()) if len(numbers) else 1.0)
    return name, factor, lambda value, _: number(value * factor)


def _cell(
    column: Column, row: Mapping[Hashable, Any], show: Callable[[Any, Any], str], factor: float
) -> Cell:
    value, unit = row[column.field], row[column.units] if column.units else column.unit
    known = not (value is None or value == "" or pd.isna(value))
    text = show(value, unit) if known else MISSING
    if column.kind != "numeric":
        return Cell(text, str(value) if known else "", text)
    mark = row[column.mark] if column.mark else ""
    whole = _with_ends(column, row, text, lambda end: show(end, unit))
    brief = text if column.brief and known else whole
    value = repr(float(value)) if known else ""
    if column.greyed:
        return Cell(whole + mark, value, brief, bool(mark))
    return Cell(whole + mark, value, brief + mark)


def _with_ends(
    column: Column, row: Mapping[Hashable, Any], text: str, show: Callable[[float], str]
) -> str:
    """Return a value with its ends; equal or unknown ends are omitted."""
    if not column.interval or text == MISSING:
        return text
    low, high = (row[f"{column.field}_{end}"] for end in ("low", "high"))
    if low == high:
        return text
    if pd.isna(low):
        return text if row.get("basis") == "predicted" else f"{text} (one repeat)"
    return f"{text} ({show(low)}–{show(high)})"
