"""Show the progress of `gatherbench run`: what is done, and when it ends."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.markup import escape

from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.run.rows import Row
from gatherbench.bench.run.runner import PreparedRun, Progress
from gatherbench.outside import plain

_COLOURS = {"ok": "green", "skipped": "yellow", "failed": "red"}


def again(run: PreparedRun) -> str:
    """Return the command that resumes the run."""
    return escape(f"gatherbench run --resume {shlex.quote(str(run.store.folder))}")


def name_of(case: Case) -> str:
    """Return the name of a case for a progress line."""
    return plain(f"{case.workload.id} {case.strategy} {case.variant} r{case.repeat}")


def reporter(
    bar: Any,
    run: PreparedRun,
    out: Console,
    left_s: Callable[[], float] = lambda: math.inf,
    clock: Callable[[], float] = time.time,
) -> Progress:
    """Show the runner's progress: a changing line on a terminal, elsewhere a line per quarter.

    The first case to fail or to be skipped for a reason has a line with it.

    Args:
        left_s: returns the seconds left for the run.
        clock: seconds since 1970.
    """
    task = bar.add_task("starting", total=1.0)
    printed_reasons = set[str]()
    begin, first, farthest, quarters = clock(), math.nan, 0.0, 0
    # A series goes on until it is precise, so the number of repeats is not known in advance.
    plus = "+" if run.measure.max_repeats > run.measure.min_repeats else ""

    def end(so_far: float, total: int) -> str:
        """Estimate the end time from the cases that have ended, and move the bar.

        The bar never moves back, even when further cases make the total larger.
        """
        nonlocal begin, first, farthest
        if math.isnan(first):
            begin, first = clock(), so_far
        farthest = max(farthest, so_far / total)
        bar.update(task, completed=farthest)
        if not first < so_far < total:
            return ""
        seconds = min((total - so_far) * (clock() - begin) / (so_far - first), left_s())
        moment = datetime.fromtimestamp(clock() + seconds)
        tomorrow = moment.date() != datetime.fromtimestamp(clock()).date()
        return f", ends about {moment:{'%a %H:%M' if tomorrow else '%H:%M'}}"

    def preparing(workload: Workload, step: str, fraction: float) -> None:
        text = escape(plain(f"{workload.dataset}: {step}"))
        bar.update(task, description=f"{text} {fraction:.0%}")

    def starting(so_far: float, total: int, case: Case) -> None:
        bar.update(task, description=escape(name_of(case)) + end(so_far, total))

    def ended(number: int, total: int, case: Case, rows: list[Row]) -> None:
        nonlocal quarters
        status, reason = rows[-1].status, rows[-1].reason
        when = end(number, total)
        if reason is not None and reason not in printed_reasons:
            printed_reasons.add(reason)
            out.print(
                f"{escape(name_of(case))} [{_COLOURS[status]}]{status}[/] {escape(reason)}",
                soft_wrap=True,
                highlight=False,
            )
        if 4 * number // total > quarters and not out.is_terminal:
            quarters = 4 * number // total
            out.print(f"{number} of {total}{plus} cases{when}", soft_wrap=True, highlight=False)

    return Progress(preparing, starting, ended)
