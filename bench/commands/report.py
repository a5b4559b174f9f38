"""`gatherbench report`: write a run as one HTML file."""

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


def report(
    folder: RunArgument = None,
    against: Annotated[
        Path | None, typer.Option(help="Folder of another run to compare with.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file (default: report.html in the run's folder).")
    ] = None,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Write a run's report: one HTML file that needs no network."""
    from gatherbench.bench.read.tables import RunError, load_run
    from gatherbench.bench.show.page import FILE_NAME, write_report

    with bad_input(RunError):
        place = run_folder(folder, results)
        run = load_run(place)
        base = None if against is None else load_run(against)
        path = out or place / FILE_NAME
        with writing(path, "--out"):
            written = write_report(run, path, base)
    typer.echo(written)
