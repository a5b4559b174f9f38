"""A table as data: what a reader sees, and beside it the number that sorts and goes into files.

A column has one unit, chosen so that its largest value reads well; CSV and JSON hold SI base units.
The report's template makes HTML of a table, and the page's script CSV;
:func:`gatherbench.bench.show.terminal.in_terminal` draws it in a terminal, :func:`records` are its
JSON. None of them knows of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

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
        interval: its ends are the fields ``…_low`` and ``…_high``: columns of their own.
        ends: how a terminal shows them: in ``brackets`` behind the value, as ± ``half`` of what is
            between them, or not at all (``hidden``); in place of a value that lies between them,
            both in any case, also of a column ``between`` ends that are no columns.
        greyed: a terminal shows it in grey in place of a mark.
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
    ends: Literal["brackets", "half", "hidden", "between"] = "brackets"
    greyed: bool = False
    short: str = ""
    below: str = ""

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
    """``text`` is shown; ``value`` sorts and is exported, ``None`` where both are the text.

    ``with_ends`` is what a terminal shows, which has no columns for the ends of an interval.
    """

    text: str
    value: str | None = None
    with_ends: str = ""
    grey: bool = False

    @property
    def full(self) -> str:
        """What is exported: empty where nothing is known."""
        return self.text if self.value is None else self.value


@dataclass(frozen=True, slots=True)
class Line:
    """A row; ``modelled`` ones are hatched; ``instead`` stands in place of all its numbers."""

    cells: list[Cell]
    modelled: bool = False
    instead: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """``ident`` names it in the page and in files; ``note`` stands below it.

    In a terminal each value of its first column has a table of its own, below ``title``. On the
    page it is a click away where ``folded``.
    """

    ident: str
    caption: str
    columns: list[Column]
    units: list[str]
    lines: list[Line]
    title: str = ""
    note: str = ""
    folded: bool = False

    @property
    def labels(self) -> list[str]:
        """Its headings, with the unit in which a column is shown."""
        pairs = zip(self.columns, self.units, strict=True)
        return [f"{one.label}, {unit}" if unit else one.label for one, unit in pairs]

    @property
    def first(self) -> int:
        """Place of the first column of numbers."""
        return next((i for i, one in enumerate(self.columns) if one.kind == "numeric"), 0)

    @property
    def named(self) -> int:
        """How many columns, from the first on, say what a line is about."""
        kinds = [column.kind for column in self.columns]
        return next((i for i, kind in enumerate(kinds) if kind != "label"), len(kinds))


def tabulate(
    ident: str,
    caption: str,
    columns: Sequence[Column],
    frame: pd.DataFrame,
    **more: Any,
) -> Table:
    """The table of ``frame``'s fields; ``basis`` tells which rows are modelled.

    ``instead``, where the frame has it, stands in place of a row's numbers; ``more``: the rest of
    :class:`Table`.
    """
    columns = [one for column in columns for one in (column, *_ends_of(column))]
    units, cells, of_lines = [], list[list[Cell]](), frame.to_dict("records")
    for column in columns:
        suffix, factor, show = _reader(column, frame[column.like or column.field])
        units.append(suffix)
        cells.append([_cell(column, row, show, factor) for row in of_lines])
    modelled = frame["basis"] != "measured" if "basis" in frame else [False] * len(frame)
    instead = frame["instead"] if "instead" in frame else [""] * len(frame)
    rows = zip(zip(*cells, strict=True), modelled, instead, strict=True)
    lines = [Line(list(row), bool(is_modelled), said) for row, is_modelled, said in rows]
    return Table(ident, caption, columns, units, lines, **more)


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
    return [Column(f"{field}_{end}", label, unit, like=field) for end, label in ends]


def _reader(column: Column, values: pd.Series[Any]) -> tuple[str, float, Callable[[Any, Any], str]]:
    """What to write behind the column's label, how many of that one is, how to write a value."""
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
    mark = row[column.mark] if column.mark else ""
    known = not (value is None or value == "" or pd.isna(value))
    text = show(value, unit) if known else MISSING
    ends = _in_words(column, row, text, lambda end: show(end, unit), factor)
    ends += "" if column.greyed else mark
    if not known:
        return Cell(MISSING + mark, "", ends)
    if column.kind == "numeric":
        return Cell(text + mark, repr(float(value)), ends, bool(mark) and column.greyed)
    return Cell(text, None if text == str(value) else str(value), text)


def _in_words(
    column: Column,
    row: Mapping[Hashable, Any],
    text: str,
    show: Callable[[float], str],
    factor: float,
) -> str:
    """A value with its ends; what has the same ends, or is not known, has none."""
    if not (column.interval or column.ends == "between"):
        return text
    low, high = (row[f"{column.field}_{end}"] for end in ("low", "high"))
    if text == MISSING:  # it lies between them
        return " to ".join(dict.fromkeys(map(show, (low, high)))) if pd.notna(low) else text
    if low == high or column.ends in ("hidden", "between"):
        return text
    if pd.isna(low):
        return text if row.get("basis") == "predicted" else f"{text} (one repeat)"
    if column.ends == "half":
        return f"{text} ±{(high - low) / 2 * factor:.{len(text.partition('.')[2])}f}"
    return f"{text} ({show(low)}–{show(high)})"
