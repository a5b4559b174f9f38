"""A table: a data frame with headings and units for its columns; all that is shown is made of it.

A column has one unit, chosen so that its largest value reads well; CSV and JSON hold SI base units.
:func:`gatherbench.bench.show.terminal.in_terminal` draws a table in a terminal, the report's
template draws it in HTML, and programs read :meth:`Table.data`. None of them depends on runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pandas as pd

from gatherbench.bench.read.derive import ends_of
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
#: Fields that say how a line is shown.
_UNSHOWN = ("backend", "basis", "instead")
#: Units, and the endings of the names of columns with them.
UNITS = {"B/s": "_B_per_s", "1/s": "_per_s", "s": "_s", "B": "_B", "J": "_J", "W": "_W"}
UNITS |= {"×": "_ratio", "share": "_share", "cores": "_cores"}
_MEASURED = {"host": "measured, host", "cuda": "measured, GPU"}


@dataclass(frozen=True, slots=True)
class Column:
    """A field of a data frame, with its heading; ``unit`` is that of its values, ``None``: text.

    If every value has its own unit, ``units`` names the field that holds it. A column has the scale
    of the field ``like``. The text in the field ``mark`` follows the number, and is no part of it.

    Attributes:
        interval: its ends are the fields ``…_low`` and ``…_high``, shown in brackets after it.
        brief: whether a terminal omits these ends.
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
    short: str = ""

    @property
    def kind(self) -> str:
        """The layout of a cell: a number to the right, prose in lines, a label in one line."""
        if self.unit is not None or self.units:
            return "numeric"
        return "prose" if self.field in _PROSE else "label"

    def name(self, field: str) -> str:
        """Return a field's name for programs, with the unit: ``median_s``, ``median_low_s``."""
        suffix = UNITS.get(self.unit or "", "")
        return field if self.unit == "×" or f"_{self.field}".endswith(suffix) else field + suffix


#: Columns that identify a line of a table.
WHAT = tuple(Column(name, name) for name in ("workload", "strategy", "variant", "kind"))


class Cell(NamedTuple):
    """``text`` is shown, ``brief`` in a terminal; ``value`` sorts: a number in SI base units."""

    text: str
    value: str
    brief: str


class Line(NamedTuple):
    """A row; ``modelled`` ones are hatched."""

    cells: list[Cell]
    modelled: bool

    @property
    def path(self) -> str:
        """The second and third cell of a data path: its strategy, and what is not its default."""
        strategy, variant = self.cells[1].text, self.cells[2].text
        return strategy if variant == "default" else f"{strategy} ({variant})"


@dataclass(frozen=True, eq=False)
class Table:
    """A table; ``ident`` is its name in the page and for programs; ``note`` follows below it.

    In a terminal each value of its first column has a separate table, below ``title``; on the page
    that of data paths has a heading within it. There a ``folded`` table opens with a click.

    In ``frame``, ``basis`` marks modelled rows, and with ``backend`` makes the text of a column
    ``kind``; the optional ``instead`` replaces all numbers of a row.
    """

    ident: str
    caption: str
    columns: Sequence[Column]
    frame: pd.DataFrame
    title: str = ""
    note: str = ""
    folded: bool = False

    def __post_init__(self) -> None:
        if {"backend", "basis"} <= {*self.frame}:
            kinds = self.frame["backend"].map(_MEASURED)
            kinds = kinds.where(self.frame["basis"] == "measured", "modelled")
            object.__setattr__(self, "frame", self.frame.assign(kind=kinds))

    @cached_property
    def _scales(self) -> list[tuple[str, float]]:
        return [_scale(column, self.frame[column.like or column.field]) for column in self.columns]

    @property
    def units(self) -> list[str]:
        """The unit in which each column is shown."""
        return [unit for unit, _ in self._scales]

    @cached_property
    def lines(self) -> list[Line]:
        """Its lines, as they are shown."""
        return [self._line(row) for row in self.frame.to_dict("records")]

    @property
    def of_paths(self) -> bool:
        """Whether a strategy and its variant identify a line."""
        return [column.field for column in self.columns[1:3]] == ["strategy", "variant"]

    @property
    def groups(self) -> dict[str, list[Line]]:
        """Its lines by the value of the first column."""
        groups: dict[str, list[Line]] = {}
        for line in self.lines:
            groups.setdefault(line.cells[0].value, []).append(line)
        return groups

    def _line(self, row: Mapping[Any, Any]) -> Line:
        scales = zip(self.columns, self._scales, strict=True)
        cells = [_cell(column, row, factor) for column, (_, factor) in scales]
        if instead := row.get("instead", ""):
            first = [column.kind for column in self.columns].index("numeric")
            cells[first:] = [
                Cell(instead, "", instead),
                *[Cell(MISSING, "", "")] * len(cells[first + 1 :]),
            ]
        return Line(cells, row.get("basis", "measured") != "measured")

    @property
    def labels(self) -> list[str]:
        """Its headings, with the unit in which a column is shown."""
        pairs = zip(self.columns, self.units, strict=True)
        return [f"{column.label}, {unit}" if unit else column.label for column, unit in pairs]

    def data(self) -> pd.DataFrame:
        """Return its numbers for programs: units in the names, SI base units, unknown values as
        ``None``.
        """
        names = {
            column.name(field): self.frame[field]
            for column in self.columns
            for field in (ends_of(column.field) if column.interval else [column.field])
        }
        frame = pd.DataFrame(names).astype(object)
        return frame.where(frame.notna() & (frame != ""), None)


def table_of(
    ident: str,
    title: str,
    frame: pd.DataFrame,
    note: str = "",
    *,
    terminal: bool = True,
    folded: bool = False,
) -> Table:
    """Make a table of a plain data frame, whose columns' names end in their units: ``train_s``.

    A column ``x_s`` with ``x_low_s`` and ``x_high_s`` is an interval; ``workload``, ``strategy``
    and ``variant`` identify a line; ``unit`` is that of each ``value``. A column without a value is
    left out. ``terminal``: whether a terminal shows it, too.
    """
    named, fields = {column.field: column for column in WHAT}, dict[str, str]()
    for name in map(str, frame.columns):
        unit, end = next(((u, e) for u, e in UNITS.items() if name.endswith(e)), ("1", ""))
        fields[name.removesuffix(end)] = unit
    bare = frame.set_axis(list(fields), axis=1)
    ends = {end for field in fields for end in ends_of(field)[1:]}
    columns = [named[name] for name in named if name in frame]
    if {"backend", "basis"} <= set(frame):
        columns.append(named["kind"])
    known = [field for field in fields if (bare[field].notna() & (bare[field] != "")).any()]
    first = dict[str, str]()  # of a unit: the others have its scale
    for field in [field for field in known if field not in {*named, *ends, *_UNSHOWN}]:
        label, unit = field.replace("_", " "), fields[field]
        columns.append(
            Column(
                field,
                label,
                unit if pd.api.types.is_numeric_dtype(bare[field]) else None,
                units="unit" if field == "value" and "unit" in fields else "",
                like=first.setdefault(unit, field) if unit != "1" else "",
                interval=set(ends_of(field)) <= set(fields),
                short=label * terminal,
            )
        )
    return Table(ident, title, columns, bare, title, note, folded)


def _scale(column: Column, values: pd.Series[Any]) -> tuple[str, float]:
    """Return the unit after the column's label, and the factor to it."""
    if column.units or column.unit in (None, "1"):
        return "", 1.0
    numbers = pd.to_numeric(values).dropna().abs()
    return scale(str(column.unit), float(numbers.max()) if len(numbers) else 1.0)


def _cell(column: Column, row: Mapping[Any, Any], factor: float) -> Cell:
    value = row[column.field]
    known = not (value is None or value == "" or pd.isna(value))
    if column.kind != "numeric":
        longest = LONGEST_TEXT if column.kind == "prose" else LONGEST_NAME
        words = _variant(row) if column.field == "variant" and "strategy" in row else value
        text = short(words, longest) if known else MISSING
        return Cell(text, str(value) if known else "", text)
    if not known:
        return Cell(MISSING, "", MISSING)
    text, mark = _shown(column, row, factor, value), row[column.mark] if column.mark else ""
    whole = text + _ends(column, row, factor) + mark
    return Cell(whole, repr(float(value)), text + mark if column.brief else whole)


def _variant(row: Mapping[Any, Any]) -> str:
    """Return the words in which a path differs from its strategy's default, as in the answer."""
    from gatherbench.strategies.registry import in_words  # imports torch

    name = str(row["strategy"])
    return in_words(name, str(row["variant"])).removeprefix(name).strip(" ()") or "default"


def _shown(column: Column, row: Mapping[Any, Any], factor: float, value: float) -> str:
    if column.units:
        return quantity(value, row[column.units])
    return count(value) if column.unit == "1" else number(value * factor)


def _ends(column: Column, row: Mapping[Any, Any], factor: float) -> str:
    """Return the ends of an interval in brackets; equal or unknown ends are omitted."""
    if not column.interval:
        return ""
    low, high = (row[name] for name in ends_of(column.field)[1:])
    if low == high:
        return ""
    if pd.isna(low):
        return "" if row.get("basis") == "predicted" else " (one repeat)"
    return f" ({'–'.join(_shown(column, row, factor, end) for end in (low, high))})"
