"""`gatherbench show`: print a run's tables and its answer."""

from __future__ import annotations

from typing import Annotated

import typer

from gatherbench.bench.commands.common import (
    DEFAULT_RESULTS,
    JsonOption,
    ResultsOption,
    RunArgument,
    bad_input,
    console,
    run_folder,
)


def show(
    folder: RunArgument = None,
    results: ResultsOption = DEFAULT_RESULTS,
    as_json: JsonOption = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Print every table, with all notes.")
    ] = False,
) -> None:
    """Print a run's tables, and the answer in words."""
    from gatherbench.bench.read.tables import RunError, load_run
    from gatherbench.bench.show.run import render, render_all
    from gatherbench.bench.show.views.registry import to_json

    with bad_input(RunError):
        run = load_run(run_folder(folder, results))
        if as_json:
            typer.echo(to_json(run))
        else:
            console().print(render_all(run) if everything else render(run))
