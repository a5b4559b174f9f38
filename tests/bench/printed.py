"""What is printed, as a test reads it: on a page so wide that nothing is folded."""

from dataclasses import replace
from io import StringIO
from typing import Any, cast
from unittest import mock

from rich.console import Console, RenderableType

from gatherbench.bench.read.tables import Run
from gatherbench.bench.show import charts
from gatherbench.bench.show.drawing import Chart
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
    with mock.patch.object(charts, "draw", lambda chart: chart):
        views = without_tables(run, draw=True)
    return {
        name: cast("Chart", chart)
        for view in views
        for name, chart in view.figures.items()
        if isinstance(chart, Chart)
    }


def lines_of(chart: Chart, panel: int = 0) -> list[dict[str, Any]]:
    """The lines of a panel, with the number beside each bar in its ``text``."""
    return [*map(dict, chart.panels()[panel].lines.to_dict("records"))]
