"""`gatherbench show`: a run as a table in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from gatherbench.bench.commands.common import (
    DEFAULT_RESULTS,
    ResultsOption,
    RunArgument,
    bad_input,
    console,
    run_folder,
)


def show(
    folder: RunArgument = None,
    results: ResultsOption = DEFAULT_RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Print a run's tables and its answer in words."""
    from gatherbench.bench.read.tables import RunError, load_run
    from gatherbench.bench.show.run import render
    from gatherbench.bench.show.views.registry import to_json

    with bad_input(RunError):
        run = load_run(run_folder(folder, results))
        if as_json:
            typer.echo(to_json(run))
        else:
            console().print(render(run))
