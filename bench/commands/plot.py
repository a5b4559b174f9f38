"""`gatherbench plot`: a run's figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gatherbench.bench.commands.common import (
    DEFAULT_RESULTS,
    ResultsOption,
    RunArgument,
    bad_input,
    run_folder,
    writing,
)


def plot(
    folder: RunArgument = None,
    results: ResultsOption = DEFAULT_RESULTS,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the pictures (default: figures/ in the run's folder)."),
    ] = None,
) -> None:
    """Draw a run's figures again."""
    from gatherbench.bench.read.tables import RunError, load_run
    from gatherbench.bench.show.figures.draw import save_all
    from gatherbench.bench.show.views.registry import views_of

    with bad_input(RunError):
        where = run_folder(folder, results)
        run, pictures = load_run(where), out or where / "figures"
        views = views_of(run)
        with writing(pictures, "--out"):
            written = save_all(run, pictures, views=views)
    for failed in filter(None, (view.failed for view in views)):
        typer.echo(failed, err=True)
    for path in written:
        typer.echo(path)
