"""What is printed, as a test reads it: on a page so wide that nothing is folded."""

from dataclasses import replace
from io import StringIO

from rich.console import Console, RenderableType

from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.chart import Chart
from gatherbench.bench.show.view import Shown, shown
from gatherbench.bench.show.views.registry import VIEWS


def printed(*what: RenderableType) -> str:
    page = StringIO()
    Console(width=1000, file=page).print(*what)
    return page.getvalue()


def without_tables(run: Run, charts: bool) -> list[Shown]:
    """Our views of a run; to work its tables out takes longer than all the rest."""
    bare = [replace(view, tables=lambda _: (), notes=lambda _: ()) for view in VIEWS]
    found = [shown(view, run, charts) for view in bare]
    return [one for one in found if one is not None]


def charts_of(run: Run) -> dict[str, Chart]:
    """The charts of a run, by the names of their files."""
    return {
        name: chart
        for view in without_tables(run, charts=True)
        for name, chart in view.charts.items()
    }
