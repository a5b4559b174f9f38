"""`gatherbench run`: measure a plan."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gatherbench.bench.commands.common import DEFAULT_RESULTS, ResultsOption, console, fail

if TYPE_CHECKING:
    from gatherbench.bench.run.launch import Launch
    from gatherbench.bench.run.machines import Group

_BUDGET = "Seconds for the whole run, instead of the plan's budget_s."
_SENSORS = "An earlier run with this GPU; its check of the sensors is used again."


def run(
    plan: Annotated[str, typer.Argument(help="A shipped plan, a .toml file, or `usual`.")] = "",
    resume: Annotated[Path | None, typer.Option(help="Complete the run in this folder.")] = None,
    results: ResultsOption = DEFAULT_RESULTS,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda, in place of the plan's.")] = "",
    profile: Annotated[str, typer.Option(help="Predict epochs for one of `list profiles`.")] = "",
    budget: Annotated[float | None, typer.Option(min=0, help=_BUDGET)] = None,
    sensors: Annotated[Path | None, typer.Option(help=_SENSORS)] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the run's folder.")] = False,
) -> None:
    """Measure a plan, print tables and the answer, and write pictures and a report.

    The plan `usual` is gpu-decide on a GPU, else quick. Several processes that
    torchrun, mpirun or srun starts form one run.
    """
    from gatherbench.bench.plan.plan import USUAL, load_plan
    from gatherbench.bench.run.launch import launched

    with _led(launched(os.environ)) as group:
        if budget is not None and not budget < math.inf:
            fail(f"--budget {budget}: seconds are expected")
        if bool(plan) == (resume is not None):
            hint = ", not both: a resumed run keeps its own plan" if plan else ""
            fail(f"give a plan, or --resume FOLDER to complete an earlier run{hint}")
        if resume is not None and (device or profile or sensors):
            fail("--device, --profile and --sensors go with a new run: a resumed one keeps its own")
        if plan and plan != USUAL:
            load_plan(plan).check()  # refuse a wrong one before importing torch

        from gatherbench.bench.commands.execute import execute, new_run, reopen

        if resume is not None:
            prepared = reopen(resume, group)
        else:
            prepared = new_run(plan, results, device, profile, sensors, group)
        status = execute(prepared, console(quiet=quiet), console(stderr=True), budget)
        if quiet:
            typer.echo(prepared.store.folder)
        raise typer.Exit(status)


@contextmanager
def _led(launch: Launch | None) -> Iterator[Group | None]:
    """Give the group of a launcher's processes to its first one; the others end here.

    Raises:
        LaunchError: the processes cannot connect, or the first is gone.
    """
    if launch is None:
        yield None
        return
    from gatherbench.bench.run.guards import status_of
    from gatherbench.bench.run.machines import Group, follow

    with Group(launch) as group:
        if launch.rank:  # the launcher knows the status of the first
            try:
                follow(group)
            except KeyboardInterrupt as stop:
                raise typer.Exit(status_of(stop)) from stop
        yield group
