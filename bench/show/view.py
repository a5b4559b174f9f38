"""A view: one analysis of a run, written once for the terminal, the report, the pictures.

It says whether the run has what it needs, and then gives tables, charts and notes.
:mod:`gatherbench.bench.show.views.registry` lists the views; whoever shows a run goes through it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.chart import Chart
from gatherbench.bench.show.table import Table


@dataclass(frozen=True, slots=True)
class View:
    """One analysis.

    Attributes:
        name: of its section in the report, and of its entry point.
        title: above the section.
        applies: whether a run has what it needs; else nothing of it is shown.
        tables: those of a run; without a line they are left out. Of their columns a terminal shows
            those with a ``short`` heading.
        charts: by the names of their files; one without a panel is left out.
        lead: a sentence below the title, on the page.
        notes: sentences below the tables.
        figures: pictures that are no charts, by the names of their files; not on the page.
    """

    name: str
    title: str
    applies: Callable[[Run], bool] = lambda _run: True
    tables: Callable[[Run], Sequence[Table]] = lambda _run: ()
    charts: Mapping[str, Callable[[Run], Chart]] = field(default_factory=dict)
    lead: Callable[[Run], str] = lambda _run: ""
    notes: Callable[[Run], Sequence[str]] = lambda _run: ()
    figures: Callable[[Run], Mapping[str, Figure]] = lambda _run: {}


@dataclass(frozen=True, slots=True)
class Shown:
    """A view of one run, worked out: what is to be drawn, or in ``failed`` why it is not there."""

    name: str
    title: str
    tables: Sequence[Table] = ()
    charts: Mapping[str, Chart] = field(default_factory=dict)
    lead: str = ""
    notes: Sequence[str] = ()
    figures: Callable[[], Mapping[str, Figure]] = dict
    failed: str = ""


def shown(view: View, run: Run, charts: bool = True) -> Shown | None:
    """The view of a run; ``None`` where it has nothing to say of it."""
    if not view.applies(run):
        return None
    made = {name: make(run) for name, make in view.charts.items()} if charts else {}
    return Shown(
        view.name,
        view.title,
        [table for table in view.tables(run) if table.lines],
        {name: chart for name, chart in made.items() if chart.panels},
        view.lead(run),
        view.notes(run),
        lambda: view.figures(run),
    )
