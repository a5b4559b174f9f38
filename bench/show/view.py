"""A view: one analysis of a run, written once for the terminal, the report, the pictures.

It says whether the run has what it needs, and then gives tables, charts and points of the answer.
:mod:`gatherbench.bench.show.views.registry` lists the views; whoever shows a run goes through it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.chart import Chart
from gatherbench.bench.show.table import Table


def _nothing(_run: Run) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class View:
    """One analysis.

    Attributes:
        name: of its section in the report, and of its entry point.
        title: above the section.
        applies: whether a run has what it needs; else nothing of it is shown.
        tables: those of a run; without a line they are left out. Of their columns a terminal shows
            those with a ``short`` heading.
        charts: by the names of their files.
        points: sentences of the answer.
        lead: a sentence below the title.
    """

    name: str
    title: str
    applies: Callable[[Run], bool]
    tables: Callable[[Run], Sequence[Table]]
    charts: Mapping[str, Callable[[Run], Chart]] = field(default_factory=dict)
    points: Callable[[Run], Sequence[str]] = _nothing
    lead: Callable[[Run], str] = lambda _run: ""
