"""A run in the terminal: the tables of its views, what went wrong, and the answer.

Nothing depends on colour, so that a table reads the same in a pipe.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.answer import answer
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
        below: dict[str, list[str]] = {}
        for point in view.points:
            for workload in point.workloads if point.of_one else ():
                below.setdefault(workload, []).append(point.text)
        for table in view.tables:
            parts += in_terminal(table, run.names, below)
        lines = [*([view.failed] if view.failed else []), *view.notes]
        lines += [text for texts in below.values() for text in texts]
        lines += [point.text for point in view.points if not point.of_one and point not in said]
        parts += [Text(line) for line in lines] + [Text()] * bool(lines)
    parts.append(Text(f"{borrowed(run)} {provenance(run)}".strip(), style="dim"))
    parts += [Text(), Text("The answer", style="bold")]
    parts += [Padding(Text(f"• {point.text}", style="bold"), (0, 0, 0, 2)) for point in said]
    return Group(*parts)
