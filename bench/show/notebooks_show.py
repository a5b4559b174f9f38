"""What a notebook's cells put out: pictures with their descriptions, and sentences.

Pictures carry an alternative text for readers who cannot see them. What is put out reaches the
notebook as messages, which can be lost: who executes the notebook has a note taken of each.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import matplotlib as mpl
from IPython.display import Image, Markdown, display
from matplotlib.figure import Figure
from PIL import Image as Picture

from gatherbench.bench.show.chart import Chart
from gatherbench.bench.show.figures.draw import draw
from gatherbench.bench.show.looks import RC
from gatherbench.bench.show.notebooks import NOTES_VARIABLE

DOTS_PER_INCH = 100
PICTURE, SENTENCE = "image/png", "text/markdown"


def show(what: Figure | Chart, alt: str) -> None:
    """Put a figure or chart out as a picture; ``alt`` says in a sentence what it shows."""
    figure = draw(what) if isinstance(what, Chart) else what
    _put_out(Image(png(figure), format="png", alt=alt), PICTURE)  # type: ignore[no-untyped-call]


def say(*sentences: str) -> None:
    """Put sentences that were computed from the data out as Markdown."""
    _put_out(Markdown("\n".join(sentences)), SENTENCE)  # type: ignore[no-untyped-call]


def _put_out(what: Image | Markdown, media_type: str) -> None:
    display(what)  # type: ignore[no-untyped-call]
    if NOTES_VARIABLE in os.environ:
        with Path(os.environ[NOTES_VARIABLE]).open("a") as notes:
            notes.write(f"{media_type}\n")


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
