"""Progress on the terminal: a bar where there is one, a line a step where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


def progress_bar(console: Console) -> Progress:
    """A bar that says what is being done; it leaves nothing behind when it ends."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def step_bar(console: Console) -> Iterator[Callable[[str, float], None]]:
    """A callback ``(what, fraction)`` for one long piece of work."""
    with progress_bar(console) as bar:
        task = bar.add_task("starting", total=1.0)
        said = ""

        def progress(what: str, fraction: float) -> None:
            nonlocal said
            bar.update(task, description=what, completed=fraction)
            if what != said and not console.is_terminal:
                console.print(what)
            said = what

        yield progress
