"""The terminal: one frame for all tables, for 80 columns and without colour; and progress.

Progress is a bar where there is a terminal, and a line a step where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import pandas as pd

    from gatherbench.bench.read.tables import Run

#: A line of a data frame, and what a cell says of it.
Line = Mapping[Hashable, Any]
Cell = Callable[[Line], str]


def frame(title: str, *words: str, numbers: Iterable[str] = ()) -> Table:
    """A table without lines: columns of words, which are folded but for the first, then numbers."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=0,
        show_edge=False,
    )
    for number, name in enumerate(words):
        table.add_column(name, no_wrap=not number, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def of_series(title: str, lines: pd.DataFrame, cells: Mapping[str, Cell]) -> Table:
    """One line a series, with a column for each of ``cells``."""
    table = frame(title, "strategy", "variant")
    for name in cells:
        table.add_column(name, justify="right")
    for line in lines.to_dict("records"):
        said = (cell(line) for cell in cells.values())
        table.add_row(Text(line["strategy"]), Text(line["variant"]), *map(Text, said))
    return table


def each_workload(
    run: Run, table: pd.DataFrame, make: Callable[[str, pd.DataFrame], Table], legend: str = ""
) -> list[RenderableType]:
    """A table of each workload's lines, by its name in words, and the legend; maybe nothing."""
    parts: list[RenderableType] = []
    for workload, mine in table.groupby("workload", sort=False):
        parts += [make(run.names[str(workload)], mine), Text()]
    return [*parts, Text(legend, style="dim"), Text()] if parts and legend else parts


def struck(cases: Iterable[tuple[str, str]], workloads: Iterable[str]) -> str:
    """Series of (series, workload), and on which workloads those are that are not on all."""
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
    """A bar that says what is being done; it leaves nothing behind when it ends."""
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
    """A callback ``(what, fraction)`` for one long piece of work."""
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
