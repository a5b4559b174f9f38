"""Draw tables and progress in the terminal, for 80 columns and without colour.

Progress is a bar in a terminal, and a line per step elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from gatherbench.bench.show import table as data  # imports pandas

#: A line of a data frame.
Line = Mapping[Hashable, Any]


def frame(title: str, *words: str) -> Table:
    """Make a table without rules; only the first of its text columns does not wrap."""
    table = Table(
        title=Text(title, style="bold"),
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for number, name in enumerate(words):
        table.add_column(name, no_wrap=not number, overflow="fold")
    return table


def in_terminal(
    table: data.Table, names: Mapping[str, str] = MappingProxyType({})
) -> list[RenderableType]:
    """Draw its columns that have a short heading: a table for each value of the first column.

    The next columns identify a line: a path by its strategy and what differs from its default. Of
    several lines with the same name only the first shows it.

    Args:
        names: workloads' ids → their names.
    """
    shown = [place for place, column in enumerate(table.columns) if column.short]
    if not (shown and table.lines):
        return []
    paths = table.columns[1].field == "strategy"
    groups: dict[str, list[data.Line]] = {}
    for line in table.lines:
        groups.setdefault(line.cells[0].value, []).append(line)
    parts: list[RenderableType] = []
    for name, lines in groups.items():
        title = ": ".join(filter(None, [table.title, names.get(name, name)]))
        drawn = frame(title, *([] if paths else table.labels[1:3]))
        if paths:
            drawn.add_column("path", overflow="fold", min_width=20)
        for place in shown:
            column, unit = table.columns[place], table.units[place]
            numeric = column.kind == "numeric"
            heading = "\n".join(filter(None, [column.short, unit]))
            drawn.add_column(
                heading,
                justify="right" if numeric else "left",
                overflow="fold",
                # Brackets may wrap below their value.
                no_wrap=column.field == "rank"
                or (numeric and not (column.interval and not column.brief)),
                min_width=max(map(len, heading.split())),
            )
        before: list[str] = []
        for line in lines:
            series = _named(line) if paths else [cell.text for cell in line.cells[1:3]]
            series[0] += ", predicted" * line.modelled
            cells = [
                Text(line.cells[p].brief, style="dim" if line.cells[p].grey else "") for p in shown
            ]
            cells = [Text(line.instead)] if line.instead else cells
            drawn.add_row(*map(Text, [""] * len(series) if series == before else series), *cells)
            before = series
        parts += [drawn, Text()]
    return [*parts, Text(table.note, style="dim"), Text()] if table.note else parts


def _named(line: data.Line) -> list[str]:
    from gatherbench.bench.read.units import short
    from gatherbench.strategies.registry import in_words  # imports torch

    return [short(in_words(*(cell.value for cell in line.cells[1:3])))]


def struck(cases: Iterable[tuple[str, str]], workloads: Iterable[str]) -> str:
    """Join the series of (series, workload); name the workloads of those that are not on all."""
    found: dict[str, dict[str, None]] = {}
    for series, workload in cases:
        found.setdefault(series, {})[workload] = None
    alike: dict[tuple[str, ...], list[str]] = {}
    for series, on in found.items():
        alike.setdefault(tuple(on), []).append(series)
    everywhere = set(workloads)
    return "; ".join(
        ", ".join(names) + f" on {', '.join(on)}" * (set(on) != everywhere)
        for on, names in alike.items()
    )


def progress_bar(console: Console) -> Progress:
    """Make a bar with the current step; it disappears when it ends."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def step_bar(console: Console) -> Iterator[Callable[[str, float], None]]:
    """Give a callback ``(what, fraction)`` for one long task."""
    with progress_bar(console) as bar:
        task = bar.add_task("starting", total=1.0)
        said = ""

        def progress(what: str, fraction: float) -> None:
            nonlocal said
            bar.update(task, description=what, completed=fraction)
            if what != said and not console.is_terminal:
                console.print(what)
            said = what

        yield progress
