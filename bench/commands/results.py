"""`gatherbench show`, `report`, `compare` and `predict`: read runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gatherbench.bench.commands.common import (
    DEFAULT_RESULTS,
    FAILED,
    JsonOption,
    ResultsOption,
    RunArgument,
    console,
    fail,
    print_table,
)

_METRIC = "Metric that decides (epoch, fetch, gpu_energy, …); repeat for several."
_STRICT = "Exit with 3 if one case is not judged."
_THRESHOLD = "Least difference that matters, as a share."
_PROFILE = "One of `list profiles`, or a .toml file (default: that of the run, or of a new run)."
_GRAPH = "A graph instead of a run: a dataset, or NODES,EDGES,DIM such as 2.4M,124M,100."


def show(
    folder: RunArgument = None,
    results: ResultsOption = DEFAULT_RESULTS,
    as_json: JsonOption = False,
    everything: Annotated[bool, typer.Option("--all", help="Print every table and note.")] = False,
) -> None:
    """Print a run's tables, and the answer in words."""
    from gatherbench.bench.read.tables import load_run, newest_run
    from gatherbench.bench.show.run import render, render_all
    from gatherbench.bench.show.views.registry import to_json

    run = load_run(folder or newest_run(results))
    if as_json:
        return typer.echo(to_json(run))
    console().print(render_all(run) if everything else render(run))


def report(
    folder: RunArgument = None,
    against: Annotated[Path | None, typer.Option(help="Another run to compare with.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write only the report, as this file.")] = None,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Write a run's pictures, and its report: one HTML file that needs no network.

    Both go into the run's folder.
    """
    from gatherbench.bench.read.tables import load_run, newest_run
    from gatherbench.bench.show.page import FILE_NAME, write_report
    from gatherbench.bench.show.view import save_all
    from gatherbench.bench.show.views.registry import views_of

    run = load_run(folder or newest_run(results))
    base = None if against is None else load_run(against)
    views, path = views_of(run), out or run.folder / FILE_NAME
    try:
        if out is None:
            save_all(views, run.folder / "figures")
        write_report(run, path, base, views=views)
    except OSError as error:
        place = out or error.filename or path  # the error may name a temporary file beside it
        fail(f"{place}: cannot be written: {error.strerror}; choose another file with --out")
    typer.echo(path)


def compare(
    base: Annotated[Path, typer.Argument(metavar="A", help="Folder of the earlier run.")],
    new: Annotated[Path, typer.Argument(metavar="B", help="Folder of the new run.")],
    metric: Annotated[list[str] | None, typer.Option(help=_METRIC)] = None,
    threshold: Annotated[float, typer.Option(help=_THRESHOLD)] = 0.05,
    strict: Annotated[bool, typer.Option("--strict", help=_STRICT)] = False,
    as_json: JsonOption = False,
) -> None:
    """Tell whether run B is slower than run A.

    Verdicts on the ratio B / A: SAME, FAST or SLOW if its whole 95 % interval
    is within or beyond the threshold, else AMBIGUOUS. UNLIKE: threads slept in
    one run and spun in the other. FAILED: in B alone. MISSING, NEW: in one run.

    Exit status: 1 if a case is SLOW or FAILED, 2 if the runs cannot be compared,
    3 if no case was judged SAME, FAST or SLOW, else 0.
    """
    from gatherbench.bench.read.compare import compare_runs
    from gatherbench.bench.read.tables import load_run
    from gatherbench.bench.show.comparison import comparison_json, exit_status, render_comparison

    if not 0 < threshold < math.inf:
        fail("--threshold: expected a share above 0, e.g. 0.05")
    metrics, runs = metric or (), (load_run(base), load_run(new))
    table = compare_runs(*runs, metrics=metrics, threshold=threshold)
    if as_json:
        typer.echo(comparison_json(table, *runs, metrics, strict=strict))
    else:
        console().print(render_comparison(table, *runs, metrics, strict=strict))
    raise typer.Exit(exit_status(table, metrics, strict=strict))


def predict(
    folder: RunArgument = None,
    profile: Annotated[str, typer.Option(help=_PROFILE)] = "",
    graph: Annotated[str, typer.Option(help=_GRAPH)] = "",
    results: ResultsOption = DEFAULT_RESULTS,
    as_json: JsonOption = False,
) -> None:
    """Predict the epochs of a run, or of every path on a graph, for a machine."""
    from rich.console import Group

    from gatherbench.bench.model.graph import Shape, predict_graph
    from gatherbench.bench.model.profile import load_profile
    from gatherbench.bench.read.tables import newest_run
    from gatherbench.bench.show.terminal import in_terminal
    from gatherbench.bench.show.views.model import graph_table

    if not graph:
        return _predict_run(folder or newest_run(results), profile, as_json)
    if folder is not None or not profile:
        fail("--graph needs --profile NAME (gatherbench list profiles), and no run")
    shape, machine = Shape.parse(graph), load_profile(profile)
    frame = predict_graph(shape, machine)
    if as_json:
        return print_table(frame, as_json)
    console().print(Group(*in_terminal(graph_table(frame, shape, machine))))


def _predict_run(folder: Path, name: str, as_json: bool) -> None:
    """Replace a run's predictions by those for the profile ``name``, and show them."""
    from gatherbench.bench.commands.execute import finish, own_profile, usual_profile
    from gatherbench.bench.model.profile import load_profile
    from gatherbench.bench.read.tables import load_run
    from gatherbench.bench.run.guards import only_one
    from gatherbench.bench.run.store import RunStore, write_atomically
    from gatherbench.bench.show.views.registry import to_json

    store, run = RunStore.open(folder), load_run(folder)
    profile = None if name else own_profile(store)
    if profile is None:
        name = name or usual_profile(str(store.plan().get("device", "")), run.machine)
        without = f"{folder}: neither the run nor this folder has a profile of its machine"
        if not name:
            fail(f"{without}; choose one: --profile NAME (gatherbench list profiles)")
        profile = load_profile(name)
    with only_one(folder):
        try:
            write_atomically(store.profile_file, profile.to_toml())
        except OSError as error:
            remedy = "free some space, or copy the folder where you may write and predict the copy"
            fail(f"{store.profile_file}: cannot be written: {error}; {remedy}")
        run = replace(load_run(folder), going=False)  # it is this process that holds the folder
        consoles = console(quiet=as_json), console(stderr=True)
        complete = finish(run, *consoles, "predict", all_tables=True)
    if as_json:
        typer.echo(to_json(load_run(folder)))
    if not complete:
        raise typer.Exit(FAILED)
