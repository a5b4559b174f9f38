"""List the views: gatherbench's own in the page's order, then other packages'."""

from __future__ import annotations

import json
from typing import Any

from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.answer import answers, cautions
from gatherbench.bench.show.view import Shown, View, shown
from gatherbench.bench.show.views.axis import AXIS_VIEWS
from gatherbench.bench.show.views.checks import CHECKS, PLAN, SENSORS, UNMEASURED
from gatherbench.bench.show.views.epochs import EPOCHS
from gatherbench.bench.show.views.model import MODEL
from gatherbench.bench.show.views.requests import REQUESTS
from gatherbench.bench.show.views.resources import ENERGY, GATHER, ISSUE, PROCESSOR
from gatherbench.outside import words_of
from gatherbench.plugins import Plugins

#: In the page's order. Those of other packages come between FOUND and HOW.
FOUND = (EPOCHS, *AXIS_VIEWS, MODEL, REQUESTS, ENERGY, ISSUE, GATHER, PROCESSOR)
HOW = (CHECKS, UNMEASURED, SENSORS, PLAN)
VIEWS: tuple[View, ...] = (*FOUND, *HOW)


def _checked(loaded: Any) -> View:
    if not isinstance(loaded, View):
        raise TypeError("it is no gatherbench.bench.show.view.View")
    return loaded


#: Views of other packages.
PLUGINS = Plugins("gatherbench.views", _checked, lambda: (view.name for view in VIEWS))


def views_of(run: Run, draw: bool = True) -> list[Shown]:
    """Compute each view that applies to the run; ``draw``: whether to draw figures, too.

    If a view of another package fails, its place has the error, and the others go on.

    Raises:
        RunError: a run's table is damaged.
    """
    views = [shown(view, run, draw) for view in FOUND]
    for view in PLUGINS.usable():
        try:
            views.append(shown(view, run, draw))
        except Exception as error:  # another package may raise anything
            package = PLUGINS.packages().get(view.name)
            whose = f" of {package}" if package else ""
            why = f"The view {view.name}{whose} failed: {words_of(error)}"
            views.append(Shown(view.name, view.title, failed=why))
    views += [shown(view, run, draw) for view in HOW]
    return [view for view in views if view is not None]


def to_json(run: Run) -> str:
    """Return a run's answer and the tables of its views as JSON, in SI base units."""
    content = {
        "run": run.run_id,
        "answer": [answer.fields() for answer in answers(run)],
        "cautions": cautions(run),
        "views": [view.fields() for view in views_of(run, draw=False)],
    }
    return json.dumps(content, indent=2, ensure_ascii=False)
