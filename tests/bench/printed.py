"""What is printed and drawn, as a test reads it: on a page so wide that nothing is folded."""

import itertools
from dataclasses import replace
from io import StringIO
from typing import Any, cast
from unittest import mock

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from rich.console import Console, RenderableType

from gatherbench.bench.read.tables import Run
from gatherbench.bench.show import charts
from gatherbench.bench.show.drawing import Chart
from gatherbench.bench.show.looks import RC
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


def texts(figure: Figure) -> str:
    return "\n".join(t.get_text() for t in figure.findobj(Text))


def stands_free(figure: Figure) -> None:
    """No text overlaps another of its panel or of the paper, or leaves the paper."""
    with mpl.rc_context(RC):
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw(renderer)
        width, height = figure.get_size_inches()
        drawn = figure.get_tightbbox(renderer)
        assert drawn.x0 >= 0
        assert drawn.y0 >= 0
        assert drawn.x1 <= width
        assert drawn.y1 <= height
        for axes in figure.axes:
            written = [t for t in (*axes.texts, axes.title, *figure.texts) if t.get_text()]
            labels = [t for t in axes.get_yticklabels() if t.get_text() and t.get_visible()]
            for group in (written, labels):
                boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in group]
                for (one, a), (other, b) in itertools.combinations(boxes, 2):
                    assert not a.padded(-1).overlaps(b.padded(-1)), (one, other)
