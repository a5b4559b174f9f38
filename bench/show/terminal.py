"""Draw tables and progress in the terminal, for 80 columns and without colour.

Progress is a bar in a terminal, and a line per step elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import pandas as pd

    from gatherbench.bench.show import table as data  # imports pandas


def in_terminal(
    table: data.Table, names: Mapping[str, str] = MappingProxyType({})
) -> list[RenderableType]:
    """Draw its columns that have a short heading: a table for each value of the first column.

    The next columns identify a line: a path by its strategy and what differs from its default. Of
    several lines with the same name only the first shows it.

    Args:
        names: workloads' ids → their names.
    """
    places = [place for place, column in enumerate(table.columns) if place > 2 and column.short]
    parts: list[RenderableType] = []
    for name, lines in table.groups.items() if places else ():
        title = ": ".join(filter(None, [table.title, names.get(name, name)]))
        parts += [_drawn(table, title, places, lines), Text()]
    return [*parts, Text(table.note, style="dim"), Text()] if parts and table.note else parts


def _drawn(table: data.Table, title: str, places: list[int], lines: list[data.Line]) -> Table:
    paths = table.of_paths
    bold = Text(title, style="bold")
    drawn = Table(title=bold, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for number, label in enumerate(["path"] if paths else table.labels[1:3]):
        width = 20 if paths else None
        drawn.add_column(label, no_wrap=not (number or paths), overflow="fold", min_width=width)
    for place in places:
        column = table.columns[place]
        numeric = column.kind == "numeric"
        heading = "\n".join(filter(None, [column.short, table.units[place]]))
        drawn.add_column(
            heading,
            justify="right" if numeric else "left",
            overflow="fold",
            # Brackets may wrap below their value.
            no_wrap=column.field == "rank" or (numeric and (column.brief or not column.interval)),
            min_width=max(map(len, heading.split())),
        )
    before: list[str] = []
    for line in lines:
        series = [line.path] if paths else [cell.text for cell in line.cells[1:3]]
        series[0] += ", predicted" * line.modelled
        names = [""] * len(series) if series == before else series
        drawn.add_row(*map(Text, [*names, *(line.cells[place].brief for place in places)]))
        before = series
    return drawn


def listed(frame: pd.DataFrame) -> Table:
    """Draw a frame of texts; names in its first column stay whole, so that they can be typed."""
    table = Table()
    for name in map(str, frame):
        width = 20 if name in ("type", "default") else None  # their long words are rare
        table.add_column(name, no_wrap=name == frame.columns[0], overflow="fold", max_width=width)
    for cells in frame.itertuples(index=False, name=None):
        table.add_row(*map(Text, cells))
    return table


def cases_in_words(cases: Iterable[tuple[str, str]], workloads: Iterable[str]) -> str:
    """Join the paths of (path, workload); if they are not those of all workloads, name these."""
    paths: dict[str, list[str]] = {}
    for path, workload in cases:
        if path not in paths.setdefault(workload, []):
            paths[workload].append(path)
    alike: dict[tuple[str, ...], list[str]] = {}
    for workload, names in paths.items():
        alike.setdefault(tuple(names), []).append(workload)
    everywhere = len(alike) == 1 and set(paths) == set(workloads)
    return "; ".join(
        ", ".join(names) + ("" if everywhere else f" on {', '.join(on)}")
        for names, on in alike.items()
    )


def progress_bar(console: Console) -> Progress:
    """Make a bar with the current step, elapsed and remaining time; it disappears when it ends."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def step_bar(console: Console) -> Iterator[Callable[[str, float], None]]:
    """Give a callback ``(what, fraction)`` for one long task."""
    with progress_bar(console) as bar:
        task, last = bar.add_task("starting", total=1.0), ""

        def progress(what: str, fraction: float) -> None:
            nonlocal last
            bar.update(task, description=what, completed=fraction)
            if what != last and not console.is_terminal:
                console.print(what)
            last = what

        yield progress
