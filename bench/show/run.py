"""Show a run in the terminal: a table and a line per workload, the next step, one caution.

Nothing depends on colour, so the text is the same in a pipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from gatherbench.bench.read.axis import AXES, axis
from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.answer import cautions, has_one_path, joined
from gatherbench.bench.show.provenance import borrowed, provenance, repeats_of
from gatherbench.bench.show.terminal import in_terminal
from gatherbench.bench.show.view import Shown
from gatherbench.bench.show.views.axis import compared
from gatherbench.bench.show.views.checks import reasons
from gatherbench.bench.show.views.epochs import numbers
from gatherbench.bench.show.views.registry import views_of


def render(run: Run) -> RenderableType:
    """Render a table of each workload's paths, and the answer, for 100 columns.

    Of a plan with one path, the tables compare the values of the fields in which workloads differ.
    """
    where = "on a GPU" if run.has_gpu else "host memory, no GPU"
    turns = ", in turns" if run.in_turns else ""
    epochs = run.plan["measure"]["epochs"]
    text = f"{where}, {repeats_of(run)} × {epochs} epoch{'s' * (epochs != 1)}{turns}"
    frames = [(field, axis(run, field.field)) for field in AXES.values() if has_one_path(run)]
    tables = [compared(field, frame) for field, frame in frames if len(frame)] or [numbers(run)]
    parts = []
    for table in tables:
        titles = {name: name for name in table.groups} | run.names
        parts += in_terminal(table, {name: f"{title}: {text}" for name, title in titles.items()})
    failed = [Text(reason) for reason in reasons(run, never=True)]
    return Group(*parts, *failed, *[Text()] * bool(failed), *_answer(run))


def render_all(run: Run, views: Sequence[Shown] | None = None) -> RenderableType:
    """Render tables and notes of each view, the provenance, and the answer."""
    parts: list[RenderableType] = []
    for view in views_of(run, draw=False) if views is None else views:
        for table in view.tables:
            parts += in_terminal(table, run.names)
        lines = [Text(text) for text in (view.failed, *view.notes) if text]
        parts += lines + [Text()] * bool(lines)
    parts += [Text(f"{borrowed(run)} {provenance(run)}".strip(), style="dim"), Text()]
    return Group(*parts, *_answer(run, every_caution=True))


def _answer(run: Run, *, every_caution: bool = False) -> Iterator[RenderableType]:
    yield Text("Answer", style="bold")
    for answer in joined(run):
        yield _line(2, f"{answer.workload}: ", answer.text)
        if answer.call:
            yield _line(4, f"{answer.use}: ", answer.call)
        if answer.change:
            yield _line(4, "To separate paths: ", f"{answer.change}.")
    for caution in cautions(run)[: None if every_caution else 1]:
        yield _line(2, "Caution: ", f"{caution}.")


def _line(indent: int, what: str, text: str) -> RenderableType:
    line = Text(what, style="bold").append(text, style="not bold")
    return Padding(line, (0, 0, 0, indent), expand=False)
