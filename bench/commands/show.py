"""`gatherbench show`: a run as a table in the terminal."""

from __future__ import annotations

from gatherbench.bench.commands.common import (
    DEFAULT_RESULTS,
    ResultsOption,
    RunArgument,
    bad_input,
    console,
    run_folder,
)


def show(folder: RunArgument = None, results: ResultsOption = DEFAULT_RESULTS) -> None:
    """Print a run's tables, and the answer in words."""
    from gatherbench.bench.read.tables import RunError, load_run
    from gatherbench.bench.show.run import render

    with bad_input(RunError):
        console().print(render(load_run(run_folder(folder, results))))
