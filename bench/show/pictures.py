"""Figures as files, and as a part of the page."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.figures.paper import WORDS, save, settle
from gatherbench.bench.show.looks import FAINT, PALETTE, RC
from gatherbench.bench.show.view import Shown
from gatherbench.bench.show.views.registry import views_of

#: Colours of a picture → those of the page, which has a light and a dark one of each.
_OF_THE_PAGE = {light.lower(): f"var(--{name})" for name, (light, _) in PALETTE.items()} | {
    "#000000": "var(--ink)",
    "#ffffff": "var(--card)",
    FAINT: "var(--soft)",
    RC["grid.color"].lower(): "var(--faint)",
}


def save_all(
    run: Run,
    folder: Path,
    formats: Iterable[str] = ("png", "svg"),
    views: Sequence[Shown] | None = None,
) -> list[Path]:
    """Write every figure of a run's views into ``folder`` (made if need be); the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for view in views_of(run) if views is None else views:
        for name, figure in view.figures.items():
            for extension in formats:
                written.append(folder / f"{name}.{extension}")
                save(figure, written[-1])
    return written


def words_of(figure: Figure) -> dict[str, list[str]]:
    """What stands in a figure's head and foot, by :data:`WORDS`."""
    return {
        kind: [" ".join(t.get_text().split()) for t in figure.texts if t.get_gid() == kind]
        for kind in WORDS
    }


def inline(figure: Figure, ident: str) -> Markup:
    """The figure as SVG for the page, in the page's colours, without the words of head and foot."""
    words = [text for text in figure.texts if text.get_gid() in WORDS]
    drawn = io.StringIO()
    with mpl.rc_context(RC | {"svg.fonttype": "none"}):
        settle(figure)
        for text in words:
            text.set_visible(False)
        try:
            figure.savefig(
                drawn, format="svg", transparent=True, bbox_inches="tight", pad_inches=0.05,
                metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")),
            )  # fmt: skip
        finally:
            for text in words:
                text.set_visible(True)
    svg = drawn.getvalue()
    svg = svg[svg.index("<svg") :]
    ident = re.sub(r"\W", "-", ident)
    svg = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{ident}-", svg)
    for colour, name in _OF_THE_PAGE.items():
        svg = re.sub(rf"\b(fill|stroke): {colour}", rf"\1: {name}", svg)
        svg = re.sub(rf' fill="{colour}"', f' style="fill: {name}"', svg)  # behind a hatch
    return Markup(svg)
