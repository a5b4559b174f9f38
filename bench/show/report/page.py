"""The report as one HTML file that needs nothing else: no network, no font, no server.

Names and reasons come from datasets and exceptions, so every one is escaped by jinja2, and a
content security policy lets the page run its own script and style and nothing besides.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from gatherbench import __version__
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import short
from gatherbench.bench.run.store import write_atomically
from gatherbench.bench.show.answer import answers, cautions
from gatherbench.bench.show.chart import Panel, Points
from gatherbench.bench.show.looks import PALETTE
from gatherbench.bench.show.provenance import in_short, machine_of, provenance
from gatherbench.bench.show.report.against import against
from gatherbench.bench.show.view import Shown
from gatherbench.bench.show.views.registry import views_of

FILE_NAME = "report.html"

#: Panels of a chart that are shown at once; the others are a click away.
SHOWN = 6
_HERE = Path(__file__).parent


def write_report(
    run: Run, path: Path, base: Run | None = None, views: Sequence[Shown] | None = None
) -> Path:
    """Write the report of ``run`` to ``path``; with ``base``, beside that run.

    A file that is there is replaced only when the new one is whole.

    Raises:
        RunError: the rows contradict each other.
        OSError: the file cannot be written; what was there before is untouched.
    """
    write_atomically(path, render_report(run, base, views))
    return path


def render_report(run: Run, base: Run | None = None, views: Sequence[Shown] | None = None) -> str:
    """The report's HTML; with ``base``, beside that run; ``views``: of the run, where known."""
    views = views_of(run) if views is None else views
    style, script = _text("report.css") + _colours(), _text("report.js")
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            run=run,
            machine_name=machine_of(run),
            facts=in_short(run),
            views=views,
            answers=answers(run),
            cautions=cautions(run),
            against=None if base is None else against(run, base),
            shown=SHOWN,
            version=__version__,
            provenance=provenance(run),
            style=Markup(style),
            script=Markup(script),
            style_hash=_hash(style),
            script_hash=_hash(script),
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_text),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["short"] = short
    environment.filters["code"] = _code
    environment.filters["percent"] = lambda value: f"{value:.2f}%"
    environment.filters["steps"] = _steps
    return environment


def _colours() -> str:
    """A rule for bars and one for lines, of each colour of the palette."""
    return "".join(
        f".fill-{name} {{ fill: light-dark({light}, {dark}); }}\n"
        f".line-{name} {{ stroke: light-dark({light}, {dark}); }}\n"
        for name, (light, dark) in PALETTE.items()
    )


def _steps(points: Points, panel: Panel) -> str:
    """An SVG path in a box of 1000 by 100: each value holds from the point before to its time."""
    top = panel.values.top if panel.values else 1.0
    heights = [100 - 100 * value / top for _, value in points]
    steps = [
        f"V{height:.1f}H{1000 * time / panel.axis.top:.1f}"
        for height, (time, _) in zip(heights, points, strict=True)
    ]
    return f"M0 {heights[0]:.1f}{''.join(steps)}"


def _code(text: str) -> Markup:
    """The text, escaped, with what stands between backticks set as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The hash by which the content security policy knows the page's own script and style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
