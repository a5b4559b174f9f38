"""Show the progress of `gatherbench run`: what is done, when it ends, and what makes it noisy."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.markup import escape

from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.read.noise import logical_cores
from gatherbench.bench.read.stopping import so_far
from gatherbench.bench.run.rows import Row
from gatherbench.bench.run.runner import PreparedRun, Progress
from gatherbench.outside import plain

#: The number of noisy cases after which a warning explains them.
FEW = 3
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
    """Draw the runner's progress: a line that changes on a terminal, elsewhere a line a quarter.

    The first case to fail or to be skipped for a reason has a line with it.

    Args:
        left_s: returns the seconds left for the run.
        clock: seconds since 1970.
    """
    task = bar.add_task("starting", total=1.0)
    cores, told = logical_cores(run.store.env()), set[str]()
    begin, first, done, noisy, shown, quarters = clock(), math.nan, 0, 0, 0.0, 0
    # A series goes on until it is precise, so the number of repeats is not known in advance.
    more = "+" if run.measure.max_repeats > run.measure.min_repeats else ""

    def end(so_far: float, total: int) -> str:
        """Estimate the end time from the cases that have ended, and move the bar.

        The bar never moves back, even when further cases make the total larger.
        """
        nonlocal begin, first, shown
        if math.isnan(first):
            begin, first = clock(), so_far
        shown = max(shown, so_far / total)
        bar.update(task, completed=shown)
        if not first < so_far < total:
            return ""
        seconds = min((total - so_far) * (clock() - begin) / (so_far - first), left_s())
        moment = datetime.fromtimestamp(clock() + seconds)
        tomorrow = moment.date() != datetime.fromtimestamp(clock()).date()
        return f", ends about {moment:{'%a %H:%M' if tomorrow else '%H:%M'}}"

    def preparing(workload: Workload, what: str, fraction: float) -> None:
        said = escape(plain(f"{workload.dataset}: {what}"))
        bar.update(task, description=f"{said} {fraction:.0%}")

    def starting(so_far: float, total: int, case: Case) -> None:
        bar.update(task, description=escape(name_of(case)) + end(so_far, total))

    def ended(number: int, total: int, case: Case, rows: list[Row]) -> None:
        nonlocal done, noisy, quarters
        done += 1
        status, reason = rows[-1].status, rows[-1].reason
        when = end(number, total)
        if reason is not None and reason not in told:
            told.add(reason)
            out.print(
                f"{escape(name_of(case))} [{_COLOURS[status]}]{status}[/] {escape(reason)}",
                soft_wrap=True,
                highlight=False,
            )
        if 4 * number // total > quarters and not out.is_terminal:
            quarters = 4 * number // total
            out.print(f"{number} of {total}{more} cases{when}", soft_wrap=True, highlight=False)
        beside = bool(so_far(rows, Measure(), cores).ended["noisy"].any())
        noisy += beside
        if beside and noisy == FEW:
            out.print(
                f"[yellow]{FEW} of {done} cases ran while other work had this machine.[/] Their"
                " epochs are slower and differ more: comparisons find less, and a run until it is"
                " precise takes up to twice the repeats. Ctrl-C ends it and keeps what there is;"
                f" on a quiet machine go on with: {again(run)}",
                soft_wrap=True,
                highlight=False,
            )

    return Progress(preparing, starting, ended)
