"""`gatherbench report`: write a run's pictures, and its report as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gatherbench.bench.commands.common import (
    DEFAULT_RESULTS,
    ResultsOption,
    RunArgument,
    bad_input,
    fail,
    run_folder,
)


def report(
    folder: RunArgument = None,
    against: Annotated[
        Path | None, typer.Option(help="Folder of another run to compare with.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write only the report, as this file (default: into the run's folder)."),
    ] = None,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Write a run's pictures, and its report: one HTML file that needs no network."""
    from gatherbench.bench.read.tables import RunError, load_run
    from gatherbench.bench.show.page import FILE_NAME, write_report
    from gatherbench.bench.show.view import save_all
    from gatherbench.bench.show.views.registry import views_of

    with bad_input(RunError):
        run = load_run(run_folder(folder, results))
        base = None if against is None else load_run(against)
        views, path = views_of(run), out or run.folder / FILE_NAME
        try:
            if out is None:
                save_all(views, run.folder / "figures")
            write_report(run, path, base, views=views)
        except OSError as error:
            place = error.filename or path
            fail(f"{place}: cannot be written: {error.strerror}; choose another file with --out")
    typer.echo(path)
