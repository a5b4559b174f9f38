"""The views there are: one explicit list of ours, in the page's order; then other packages'."""

from __future__ import annotations

import json
from typing import Any

from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.chart import Chart
from gatherbench.bench.show.charts import charts_of_run
from gatherbench.bench.show.table import records
from gatherbench.bench.show.view import View
from gatherbench.bench.show.views.disk import DISK
from gatherbench.bench.show.views.issue import ISSUE
from gatherbench.bench.show.views.ranks import RANKS
from gatherbench.plugins import Plugins

VIEWS: tuple[View, ...] = (RANKS, DISK, ISSUE)


def _checked(loaded: Any) -> View:
    if not isinstance(loaded, View):
        raise TypeError("it is no gatherbench.bench.show.view.View")
    return loaded


#: Views of other packages.
PLUGINS = Plugins("gatherbench.views", _checked, lambda: (view.name for view in VIEWS))


def views_of(run: Run) -> list[View]:
    """Those that have something to say of the run."""
    return [view for view in (*VIEWS, *PLUGINS.usable()) if view.applies(run)]


def charts_of(run: Run) -> dict[str, Chart]:
    """Every chart that is kept as a picture, by the name of its file."""
    of_views = {name: make for view in views_of(run) for name, make in view.charts.items()}
    made = {name: make(run) for name, make in of_views.items()}
    # Of ranks, say, there is nothing to draw where all cases have as many.
    return charts_of_run(run) | {name: chart for name, chart in made.items() if chart.panels}


def to_json(run: Run) -> str:
    """The tables of a run's views, and their points of the answer; numbers are in SI base units."""
    views = [
        {
            "name": view.name,
            "title": view.title,
            "points": list(view.points(run)),
            "tables": [
                {"name": table.ident, "caption": table.caption, "lines": records(table)}
                for table in view.tables(run)
            ],
        }
        for view in views_of(run)
    ]
    return json.dumps({"run": run.run_id, "views": views}, indent=2, ensure_ascii=False)
