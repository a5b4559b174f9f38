"""A table as data: what a reader sees, and beside it the number that sorts and goes into files.

A column has one unit, chosen so that its largest value reads well; CSV and JSON hold SI base units.
The report's template makes HTML of a table, and the page's script CSV; :func:`in_terminal` draws it
in a terminal, :func:`records` are its JSON. None of them knows of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

#: Prose longer than this is cut in the middle where it is shown; the CSV has it in full.
LONGEST_TEXT = 1200
_PROSE = ("reason", "source")


@dataclass(frozen=True, slots=True)
class Column:
    """A field of a data frame: ``unit`` is that of its values, ``None`` for text.

    Where every value has a unit of its own, ``units`` names the field that says which. A column is
    scaled as the field ``like`` is, so that an interval has the unit of its value. What stands in
    the field ``mark`` is shown behind the number, and is no part of it.

    Attributes:
        interval: its ends are the fields ``…_low`` and ``…_high``: columns of their own, in a
            terminal in brackets behind the value.
        short: its heading in a terminal, which has no room for columns without one.
        below: what a terminal says below the table in place of a column, of each of its values:
            ``{value}``, and ``{series}``, which have it.
    """

    field: str
    label: str
    unit: str | None = None
    units: str = ""
    like: str = ""
    mark: str = ""
    interval: bool = False
    short: str = ""
    below: str = ""
    end_of: str = ""

    @property
    def kind(self) -> str:
        """How a cell is set: a number to the right, prose in lines, names in one."""
        if self.unit is not None or self.units:
            return "numeric"
        return "prose" if self.field in _PROSE else "label"

    @property
    def csv(self) -> str:
        """Name in the CSV's header, with the unit: ``median_s``."""
        suffix = {None: "", "1": "", "×": "", "share": "", "B/s": "_B_per_s"}.get(
            self.unit, f"_{self.unit}"
        )
        return f"{self.field}{suffix}"


#: Columns that say what a line of a table is about.
WHAT = (
    Column("workload", "workload"),
    Column("strategy", "strategy"),
    Column("variant", "variant"),
    Column("kind", "kind"),
)
KINDS = MappingProxyType({"host": "measured, host", "cuda": "measured, GPU"})


@dataclass(frozen=True, slots=True)
class Cell:
    """``text`` is shown; ``value`` sorts and is exported, ``None`` where both are the text."""

    text: str
    value: str | None = None

    @property
    def full(self) -> str:
        """What is exported: empty where nothing is known."""
        return self.text if self.value is None else self.value


@dataclass(frozen=True, slots=True)
class Line:
    """A row; ``modelled`` ones are hatched."""

    cells: list[Cell]
    modelled: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """``ident`` names it in the page and in files; ``note`` stands below it.

    In a terminal each value of its first column has a table of its own, below ``title``.
    """

    ident: str
    caption: str
    columns: list[Column]
    labels: list[str]
    lines: list[Line]
    title: str = ""
    note: str = ""


def tabulate(
    ident: str,
    caption: str,
    columns: Sequence[Column],
    frame: pd.DataFrame,
    *,
    title: str = "",
    note: str = "",
) -> Table:
    """The table of ``frame``'s fields; ``basis`` tells which rows are modelled."""
    columns = [one for column in columns for one in (column, *_ends_of(column))]
    labels, cells = [], list[list[Cell]]()
    for column in columns:
        values = frame[column.field]
        suffix, show = _reader(column, frame[column.like or column.field])
        labels.append(f"{column.label}, {suffix}" if suffix else column.label)
        units = frame[column.units] if column.units else [column.unit] * len(frame)
        marks = frame[column.mark] if column.mark else [""] * len(frame)
        said = zip(values, units, marks, strict=True)
        cells.append([_cell(column, value, show, unit, mark) for value, unit, mark in said])
    modelled = frame["basis"] != "measured" if "basis" in frame else [False] * len(frame)
    rows = zip(zip(*cells, strict=True), modelled, strict=True)
    lines = [Line(list(row), bool(is_modelled)) for row, is_modelled in rows]
    return Table(ident, caption, columns, labels, lines, title, note)


def with_kind(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with its basis and backend in words."""
    kinds = frame["backend"].map(KINDS).where(frame["basis"] == "measured", "modelled")
    return frame.assign(kind=kinds)


def records(table: Table) -> list[dict[str, str | float | None]]:
    """Its lines by field: numbers in SI base units, ``None`` for what is not known."""
    return [
        {
            column.field: _plain(column, cell)
            for column, cell in zip(table.columns, line.cells, strict=True)
        }
        for line in table.lines
    ]


def _plain(column: Column, cell: Cell) -> str | float | None:
    full = cell.full
    return (float(full) if column.kind == "numeric" else full) if full else None


def _ends_of(column: Column) -> list[Column]:
    """The columns of an interval's ends, in the unit of its value."""
    ends = (("low", "from"), ("high", "to")) if column.interval else ()
    field, unit = column.field, column.unit
    return [Column(f"{field}_{end}", label, unit, like=field, end_of=field) for end, label in ends]


def _reader(column: Column, values: pd.Series[Any]) -> tuple[str, Callable[[Any, Any], str]]:
    """What to write behind the column's label, and how to write a value of some unit."""
    if column.units:
        return "", quantity
    if column.unit is None:
        longest = LONGEST_TEXT if column.kind == "prose" else LONGEST_NAME
        return "", lambda value, _: short(value, longest)
    if column.unit == "1":
        return "", lambda value, _: count(value)
    numbers = pd.to_numeric(values).dropna().abs()
    name, factor = scale(column.unit, float(numbers.max()) if len(numbers) else 1.0)
    return name, lambda value, _: number(value * factor)


def _cell(
    column: Column, value: Any, show: Callable[[Any, Any], str], unit: Any, mark: str
) -> Cell:
    if value is None or value == "" or pd.isna(value):
        return Cell(MISSING + mark, "")
    if column.kind == "numeric":
        return Cell(show(value, unit) + mark, repr(float(value)))
    text, full = show(value, unit), str(value)
    return Cell(text, None if text == full else full)
