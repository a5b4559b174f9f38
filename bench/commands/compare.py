"""`gatherbench compare`: compare two runs of one plan, with an exit status for slower builds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from gatherbench.bench.commands.common import JsonOption, bad_input, console, fail


def compare(
    base: Annotated[Path, typer.Argument(metavar="A", help="Folder of the earlier run.")],
    new: Annotated[Path, typer.Argument(metavar="B", help="Folder of the new run.")],
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Metric that decides (epoch, fetch, gpu_energy, …); repeat for several."),
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="Smallest difference that matters, as a share.")
    ] = 0.05,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 3 as soon as one case cannot be judged.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Tell whether run B is slower than run A.

    Verdicts on the ratio B / A: SAME, FAST or SLOW if its whole 95 % interval
    is within or beyond the threshold, else AMBIGUOUS. UNLIKE: threads slept in
    one run and spun in the other. FAILED: in B alone. MISSING, NEW: in one run.

    Exit status: 1 if a case is SLOW or FAILED, 2 if the runs cannot be compared,
    3 if no case was judged SAME, FAST or SLOW, else 0.
    """
    from gatherbench.bench.read.compare import CompareError, compare_runs
    from gatherbench.bench.read.tables import RunError, load_run
    from gatherbench.bench.show.comparison import comparison_json, exit_status, render_comparison

    if not 0 < threshold < math.inf:
        fail("--threshold: expected a share above 0, e.g. 0.05")
    metrics = metric or ()
    with bad_input(RunError, CompareError):
        runs = load_run(base), load_run(new)
        table = compare_runs(*runs, metrics=metrics, threshold=threshold)
    if as_json:
        typer.echo(comparison_json(table, *runs, metrics, strict=strict))
    else:
        console().print(render_comparison(table, *runs, metrics, strict=strict))
    raise typer.Exit(exit_status(table, metrics, strict=strict))
