"""Show the progress of `gatherbench run`."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress as Bar

from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.run.runner import Progress
from gatherbench.outside import plain

_COLOURS = {"ok": "green", "skipped": "yellow", "failed": "red"}


def reporter(bar: Bar, out: Console) -> Progress:
    """Show the runner's progress: a changing line on a terminal, elsewhere a line per quarter.

    The first case to fail or to be skipped for a reason has a line with it.
    """
    task = bar.add_task("starting", total=1.0)
    printed_reasons, quarters = set[str](), 0

    def preparing(workload: Workload, step: str, fraction: float) -> None:
        bar.update(task, description=escape(plain(f"{workload.dataset}: {step} {fraction:.0%}")))

    def starting(so_far: float, total: int, case: Case) -> None:
        bar.update(task, description=_name(case), completed=so_far, total=total)

    def ended(number: int, total: int, case: Case, status: str, reason: str | None) -> None:
        nonlocal quarters
        bar.update(task, completed=number, total=total)
        text = f"{number} of {total} cases" if 4 * number // total > quarters else ""
        quarters = 4 * number // total
        if reason is not None and reason not in printed_reasons:
            printed_reasons.add(reason)
            line = f"{_name(case)} [{_COLOURS[status]}]{status}[/] {escape(reason)}"
            out.print(line, soft_wrap=True, highlight=False)
        if text and not out.is_terminal:
            out.print(text, highlight=False)

    return Progress(preparing, starting, ended)


def _name(case: Case) -> str:
    return escape(plain(f"{case.workload.id} {case.strategy} {case.variant} r{case.repeat}"))
