"""Write the report as one self-contained HTML file: no network, no font, no server.

Names and reasons come from datasets and exceptions: jinja2 and matplotlib escape every one.
"""

from __future__ import annotations

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
from gatherbench.bench.show.answer import cautions, joined
from gatherbench.bench.show.comparison import against
from gatherbench.bench.show.drawing import inline, words_of
from gatherbench.bench.show.provenance import borrowed, in_short, provenance
from gatherbench.bench.show.view import Shown
from gatherbench.bench.show.views.registry import views_of

FILE_NAME = "report.html"
_HERE = Path(__file__).parent


def write_report(
    run: Run, path: Path, base: Run | None = None, views: Sequence[Shown] | None = None
) -> Path:
    """Write the report of ``run`` to ``path``; with ``base``, compare it with that run.

    An existing file is replaced only when the new one is complete.

    Raises:
        RunError: the rows contradict each other.
        OSError: the file cannot be written; an existing one is unchanged.
    """
    write_atomically(path, render_report(run, base, views))
    return path


def render_report(run: Run, base: Run | None = None, views: Sequence[Shown] | None = None) -> str:
    """Return the report's HTML; ``base``: a run to compare with; ``views``: the run's, if known."""
    shown = list(views_of(run) if views is None else views)
    page = _environment().get_template("report.html.j2")
    return page.render(
        title=f"{short(run.plan.get('name', 'run'))} on {short(run.machine or 'no machine yet')}",
        run=short(run.run_id, 80),
        facts=in_short(run),
        answers=joined(run),
        cautions=cautions(run),
        names=run.names if base is None else base.names | run.names,
        views=[*([] if base is None else [against(run, base)]), *shown],
        version=__version__,
        provenance=f"{borrowed(run)} {provenance(run)}",
        style=Markup(_text("report.css")),
        script=Markup(_text("report.js")),
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
    environment.filters |= {"short": short, "code": _code, "inline": inline, "words": words_of}
    return environment


def _code(text: str) -> Markup:
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
