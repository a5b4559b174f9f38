"""A run in the terminal: the tables of its views, what went wrong, and the answer.

Nothing depends on colour, so that a table reads the same in a pipe.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.answer import Point, answer
from gatherbench.bench.show.provenance import borrowed, provenance, warnings_of
from gatherbench.bench.show.terminal import in_terminal
from gatherbench.bench.show.view import Shown
from gatherbench.bench.show.views.registry import views_of


def render(run: Run, views: Sequence[Shown] | None = None) -> RenderableType:
    """Tables and notes of each view, where it all comes from, and the answer.

    Wants 80 columns; in fewer, long variants are folded.

    Args:
        views: of the run, where somebody has them already.
    """
    views = views_of(run, charts=False) if views is None else views
    said = answer([point for view in views for point in view.points])
    parts: list[RenderableType] = [Text(line, style="bold") for line in warnings_of(run)]
    for view in views:
        below: dict[str, list[Text]] = {}
        for point in view.points:
            for workload in point.workloads if point.of_one else ():
                below.setdefault(workload, []).append(_said(point))
        for table in view.tables:
            parts += in_terminal(table, run.names, below)
        lines = [Text(one) for one in [*([view.failed] if view.failed else []), *view.notes]]
        lines += [text for texts in below.values() for text in texts]
        lines += [Text(p.text) for p in view.points if not p.of_one and p not in said]
        parts += lines + [Text()] * bool(lines)
    parts.append(Text(f"{borrowed(run)} {provenance(run)}".strip(), style="dim"))
    parts += [Text(), Text("The answer", style="bold")]
    parts += [Padding(Text("• ").append_text(_said(point)), (0, 0, 0, 2)) for point in said]
    return Group(*parts)


def _said(point: Point) -> Text:
    """Its sentence, in grey where nothing is decided."""
    return Text(point.text, style="dim" if point.verdict == "AMBIGUOUS" else "bold")
