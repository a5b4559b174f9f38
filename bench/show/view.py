"""A view is one analysis of a run, defined once: a frame and a figure.

Terminal, JSON, report and pictures use only these and its notes, so they depend on no one view.
:mod:`gatherbench.bench.show.views.registry` lists the views; every output of a run uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.drawing import save
from gatherbench.bench.show.table import Table, table_of

#: The tables of a view: a frame with units in its columns' names, or tables with words for them.
Frames = pd.DataFrame | Table | Sequence[Table] | None
#: The pictures of a view; several figures by the names of their files.
Figures = Figure | Mapping[str, Figure] | None


@dataclass(frozen=True, slots=True)
class View:
    """One analysis.

    Attributes:
        name: the name of its section in the report, of its picture's file, and of its entry point.
        title: the title of the section.
        applies: whether a run has the data for it; else it is omitted.
        frame: its numbers. Columns of a plain data frame end in units: ``train_s``, ``link_B``.
        figure: its picture.
        note: other remarks; a line each.
    """

    name: str
    title: str
    applies: Callable[[Run], bool] = lambda _run: True
    frame: Callable[[Run], Frames] = lambda _run: None
    figure: Callable[[Run], Figures] = lambda _run: None
    note: Callable[[Run], str] = lambda _run: ""


@dataclass(frozen=True, slots=True)
class Shown:
    """The result of a view for one run: its content, or in ``failed`` why it has none."""

    name: str
    title: str
    tables: Sequence[Table] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    notes: Sequence[str] = ()
    failed: str = ""

    def fields(self) -> dict[str, Any]:
        """Return its tables and words for programs, in SI base units."""
        tables = [
            {"name": t.ident, "caption": t.caption, "lines": t.data().to_dict("records")}
            for t in self.tables
        ]
        words = {"name": self.name, "title": self.title, "failed": self.failed or None}
        return {**words, "notes": list(self.notes), "tables": tables}


def shown(view: View, run: Run, draw: bool = True) -> Shown | None:
    """Compute a view of a run, with figures if ``draw``; ``None`` if it does not apply."""
    if not view.applies(run):
        return None
    frames, figures = view.frame(run), view.figure(run) if draw else None
    if isinstance(frames, pd.DataFrame):
        frames = table_of(view.name, view.title, frames)
    tables = [frames] if isinstance(frames, Table) else frames or ()
    if isinstance(figures, Figure):
        figures = {view.name: figures}
    lined = [table for table in tables if len(table.frame)]
    return Shown(view.name, view.title, lined, figures or {}, view.note(run).splitlines())


def save_all(views: Iterable[Shown], folder: Path) -> list[Path]:
    """Write a run's figures as PNG and SVG into ``folder`` (made if needed); return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for view in views:
        for name, figure in view.figures.items():
            for extension in ("png", "svg"):
                written.append(folder / f"{name}.{extension}")
                save(figure, written[-1])
    return written
