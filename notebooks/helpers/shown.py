"""What a notebook's cells put out: pictures with their descriptions, and sentences.

Pictures carry an alternative text for readers who cannot see them.
"""

from __future__ import annotations

import io

import matplotlib as mpl
from IPython.display import Image, Markdown, display
from matplotlib.figure import Figure
from PIL import Image as Picture

from gatherbench.bench.show.chart import Chart
from gatherbench.bench.show.figures.draw import draw
from gatherbench.bench.show.looks import RC

DOTS_PER_INCH = 100


def show(what: Figure | Chart, alt: str) -> None:
    """Put a figure or chart out as a picture; ``alt`` says in a sentence what it shows."""
    figure = draw(what) if isinstance(what, Chart) else what
    display(Image(png(figure), format="png", alt=alt))  # type: ignore[no-untyped-call]


def say(*sentences: str) -> None:
    """Put sentences that were computed from the data out as Markdown."""
    display(Markdown("\n".join(sentences)))  # type: ignore[no-untyped-call]


def png(figure: Figure) -> bytes:
    """The figure as PNG of at most 256 colours, a third of the size of all of them.

    The quantiser covers the colours that there are, however few pixels have them: the usual one,
    which splits by how many have them, merges the colours of thin lines.
    """
    drawn, small = io.BytesIO(), io.BytesIO()
    with mpl.rc_context(RC):
        figure.savefig(drawn, dpi=DOTS_PER_INCH)
    picture = Picture.open(drawn).convert("RGB")
    few = picture.quantize(method=Picture.Quantize.MAXCOVERAGE, dither=Picture.Dither.NONE)
    few.save(small, format="png", optimize=True)
    return small.getvalue()
