"""What is printed, as a test reads it: on a page so wide that nothing is folded."""

from __future__ import annotations

from io import StringIO

from rich.console import Console, RenderableType


def printed(*what: RenderableType) -> str:
    page = StringIO()
    Console(width=1000, file=page).print(*what)
    return page.getvalue()
