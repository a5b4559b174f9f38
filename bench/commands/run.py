"""`gatherbench run`: measure a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gatherbench.bench.commands.common import (
    DEFAULT_RESULTS,
    ResultsOption,
    bad_input,
    console,
    fail,
)


def run(
    plan: Annotated[str, typer.Argument(help="A shipped plan's name or a .toml file.")] = "",
    resume: Annotated[
        Path | None, typer.Option(help="Complete the run in this folder instead of a new one.")
    ] = None,
    results: ResultsOption = DEFAULT_RESULTS,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda; overrides the plan's.")] = "",
) -> None:
    """Measure every case of a plan; print the table, and where table and pictures are."""
    from gatherbench.bench.execute import BadRunError, execute, new_run, reopen

    if bool(plan) == (resume is not None):
        fail("give a plan, or --resume FOLDER to complete an earlier run")
    if resume is not None and device:
        fail("--device goes with a new run: a resumed one keeps the device of its plan")
    out = console()
    with bad_input(BadRunError):
        prepared = reopen(resume) if resume is not None else new_run(plan, results, device)
        raise typer.Exit(execute(prepared, out, console(stderr=True)))
