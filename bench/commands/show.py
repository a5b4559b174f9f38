"""`gatherbench show`: show a run as tables in the terminal, or as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gatherbench.bench.commands.common import (
    DEFAULT_RESULTS,
    JsonOption,
    ResultsOption,
    RunArgument,
    bad_input,
    console,
    fail,
    run_folder,
    writing,
)

if TYPE_CHECKING:
    from gatherbench.bench.read.tables import Run


def show(
    folder: RunArgument = None,
    results: ResultsOption = DEFAULT_RESULTS,
    as_json: JsonOption = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Print every table, with all notes.")
    ] = False,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw the run's pictures again, instead of tables.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the pictures of --plot (default: figures/ in the run's)."),
    ] = None,
) -> None:
    """Print a run's tables and the answer in words, or draw its pictures."""
    from gatherbench.bench.read.tables import RunError, load_run
    from gatherbench.bench.show.run import render, render_all
    from gatherbench.bench.show.views.registry import to_json

    if out is not None and not plot:
        fail("--out goes with --plot")
    with bad_input(RunError):
        run = load_run(run_folder(folder, results))
        if plot:
            _draw(run, out or run.folder / "figures")
        elif as_json:
            typer.echo(to_json(run))
        else:
            console().print(render_all(run) if everything else render(run))


def _draw(run: Run, pictures: Path) -> None:
    """Write the run's pictures into a folder, and print their paths."""
    from gatherbench.bench.show.view import save_all
    from gatherbench.bench.show.views.registry import views_of

    views = views_of(run)
    with writing(pictures, "--out"):
        written = save_all(views, pictures)
    for failed in filter(None, (view.failed for view in views)):
        typer.echo(failed, err=True)
    for path in written:
        typer.echo(path)
