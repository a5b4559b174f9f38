"""A view: one analysis of a run, written once: a frame and a figure.

Terminal, JSON, report and pictures are made of those two, so none of them knows of a view.
:mod:`gatherbench.bench.show.views.registry` lists the views; whoever shows a run goes through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.drawing import save
from gatherbench.bench.show.table import Table, table_of

#: What a view tabulates: a frame with units in its columns' names, or with words for them.
Frames = pd.DataFrame | Table | Sequence[Table] | None
#: What a view draws; several figures by the names of their files.
Figures = Figure | Mapping[str, Figure] | None


@dataclass(frozen=True, slots=True)
class View:
    """One analysis.

    Attributes:
        name: of its section in the report, of its picture's file, and of its entry point.
        title: above the section.
        applies: whether a run has what it needs; else nothing of it is shown.
        frame: its numbers. Of a plain data frame the names say the units: ``train_s``, ``link_B``.
        figure: its picture.
        note: what else there is to say; a line each.
    """

    name: str
    title: str
    applies: Callable[[Run], bool] = lambda _run: True
    frame: Callable[[Run], Frames] = lambda _run: None
    figure: Callable[[Run], Figures] = lambda _run: None
    note: Callable[[Run], str] = lambda _run: ""


@dataclass(frozen=True, slots=True)
class Shown:
    """A view of one run, worked out: what is to be shown, or in ``failed`` why it is not there."""

    name: str
    title: str
    tables: Sequence[Table] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    notes: Sequence[str] = ()
    failed: str = ""


def shown(view: View, run: Run, draw: bool = True) -> Shown | None:
    """The view of a run; ``None`` where it has nothing to say of it.

    Args:
        draw: whether its figures are wanted, too.
    """
    if not view.applies(run):
        return None
    frames, figures = view.frame(run), view.figure(run) if draw else None
    if isinstance(frames, pd.DataFrame):
        frames = table_of(view.name, view.title, frames)
    tables = [frames] if isinstance(frames, Table) else frames or ()
    if isinstance(figures, Figure):
        figures = {view.name: figures}
    return Shown(
        view.name,
        view.title,
        [table for table in tables if table.lines],
        figures or {},
        view.note(run).splitlines(),
    )


def save_all(
    views: Iterable[Shown], folder: Path, formats: Iterable[str] = ("png", "svg")
) -> list[Path]:
    """Write every figure of a run's views into ``folder`` (made if need be); the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for view in views:
        for name, figure in view.figures.items():
            for extension in formats:
                written.append(folder / f"{name}.{extension}")
                save(figure, written[-1])
    return written
