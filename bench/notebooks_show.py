"""What a notebook's cells put out: pictures with their descriptions, and sentences.

Pictures are PNG of few colours, so that an executed notebook stays small, and carry an alternative
text for readers who cannot see them.
"""

from __future__ import annotations

import io

import matplotlib as mpl
from IPython.display import Image, Markdown, display
from matplotlib.figure import Figure
from PIL import Image as Picture

from gatherbench.bench.figures.style import RC

DOTS_PER_INCH = 100
COLOURS = 128


def show(figure: Figure, alt: str) -> None:
    """Put the figure out as a picture; ``alt`` says in a sentence what it shows."""
    display(Image(png(figure), format="png", alt=alt))  # type: ignore[no-untyped-call]


def say(*sentences: str) -> None:
    """Put sentences that were computed from the data out as Markdown."""
    display(Markdown("\n".join(sentences)))  # type: ignore[no-untyped-call]


def png(figure: Figure) -> bytes:
    """The figure as PNG, with a palette of :data:`COLOURS`."""
    drawn, small = io.BytesIO(), io.BytesIO()
    with mpl.rc_context(RC):
        figure.savefig(drawn, format="png", dpi=DOTS_PER_INCH)
    picture = Picture.open(drawn).convert("RGB").quantize(COLOURS, dither=Picture.Dither.NONE)
    picture.save(small, format="png", optimize=True)
    return small.getvalue()
