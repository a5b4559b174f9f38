"""What every picture has to keep to."""

import itertools

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from gatherbench.bench.show.looks import RC


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
