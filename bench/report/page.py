"""The report as one HTML file that needs nothing else: no network, no font, no server.

Names and reasons come from datasets and exceptions, so every one is escaped by jinja2, and a
content security policy lets the page run its own script and style and nothing besides.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from gatherbench import __version__
from gatherbench.bench.figures.sheet import has_gpu, provenance
from gatherbench.bench.figures.style import CPU_COLOURS, STAGE_COLOURS, STRATEGY_COLOURS
from gatherbench.bench.report import checks, facts, results
from gatherbench.bench.report.grid import short
from gatherbench.bench.report.verdict import verdict
from gatherbench.bench.store import write_atomically
from gatherbench.bench.tables import Run

FILE_NAME = "report.html"

#: Sections of the page, as its contents list them.
CONTENTS = (
    ("verdict", "Verdict"),
    ("results", "How fast"),
    ("processor", "Processor"),
    ("checks", "Checks and set-up"),
    ("unmeasured", "Skipped and failed"),
    ("sensors", "Meters"),
    ("plan", "What was run on what"),
)
#: Workloads of a chart that are shown at once; the others are a click away.
SHOWN = 6
#: What the style sheet has a colour for; every other bar is grey.
COLOURS = (*STAGE_COLOURS, *CPU_COLOURS, *STRATEGY_COLOURS)

_HERE = Path(__file__).parent


def write_report(run: Run, path: Path) -> Path:
    """Write the report of ``run`` to ``path``, replacing an earlier one only when it is whole.

    Raises:
        RunError: the rows contradict each other.
        OSError: the file cannot be written; what was there before is untouched.
    """
    write_atomically(path, render_report(run))
    return path


def render_report(run: Run) -> str:
    """The report's HTML."""
    style, script = _text("report.css"), _text("report.js")
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            contents=CONTENTS,
            colours=COLOURS,
            plan=short(run.plan.get("name", "run")),
            machine_name=short(_machine(run)),
            shown=SHOWN,
            run_id=run.run_id,
            version=__version__,
            host_only=not has_gpu(run),
            statements=verdict(run),
            facts=facts.in_short(run),
            speedups=results.speedups(run),
            stages=results.stages(run),
            processor=results.processor(run),
            numbers=results.numbers(run),
            compared=checks.compared(run),
            setup=checks.setup(run),
            problems=checks.unmeasured(run),
            meters=checks.meters(run),
            workloads=facts.workloads(run),
            machine=facts.machine(run),
            provenance=provenance(run),
            style=Markup(style),
            script=Markup(script),
            style_hash=_hash(style),
            script_hash=_hash(script),
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_text),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["short"] = short
    environment.filters["percent"] = lambda value: f"{value:.2f}%"
    return environment


def _machine(run: Run) -> str:
    return (
        ", ".join(sorted(set(run.rows["machine"][run.rows["backend"] != "model"]))) or "no machine"
    )


def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The hash by which the content security policy knows the page's own script and style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
