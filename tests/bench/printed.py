"""What is printed, as a test reads it: on a page so wide that nothing is folded."""

from dataclasses import replace
from io import StringIO
from typing import cast
from unittest import mock

from rich.console import Console, RenderableType

from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.chart import Chart
from gatherbench.bench.show.figures import draw
from gatherbench.bench.show.view import Shown, shown
from gatherbench.bench.show.views.registry import VIEWS


def printed(*what: RenderableType) -> str:
    page = StringIO()
    Console(width=1000, file=page).print(*what)
    return page.getvalue()


def without_tables(run: Run, draw: bool) -> list[Shown]:
    """Our views of a run; to work its tables out takes longer than all the rest."""
    bare = [replace(view, frame=lambda _: (), note=lambda _: "") for view in VIEWS]
    found = [shown(view, run, draw) for view in bare]
    return [one for one in found if one is not None]


def charts_of(run: Run) -> dict[str, Chart]:
    """The charts of a run, by the names of their files."""
    with mock.patch.object(draw, "draw", lambda chart: chart):
        views = without_tables(run, draw=True)
    return {
        name: cast("Chart", chart)
        for view in views
        for name, chart in view.figures.items()
        if isinstance(chart, Chart)
    }
