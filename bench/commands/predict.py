"""`gatherbench predict`: predict a machine's times for an existing run, or for a graph."""

from __future__ import annotations

from typing import Annotated

import typer

from gatherbench.bench.commands.common import (
    DEFAULT_RESULTS,
    FAILED,
    JsonOption,
    ResultsOption,
    RunArgument,
    bad_input,
    console,
    fail,
    print_table,
    run_folder,
)


def predict(
    folder: RunArgument = None,
    profile: Annotated[
        str,
        typer.Option(
            help="Machine to predict for: a name of `gatherbench list profiles`, or a .toml file "
            "(default: the run's own, else that of a new run here)."
        ),
    ] = "",
    graph: Annotated[
        str,
        typer.Option(
            help="Predict for a graph instead of a run: the name of a dataset, or"
            " NODES,EDGES,DIM such as 2.4M,124M,100."
        ),
    ] = "",
    results: ResultsOption = DEFAULT_RESULTS,
    as_json: JsonOption = False,
) -> None:
    """Predict the epochs of a run, or of every path on a graph, for a machine."""
    from rich.console import Group

    from gatherbench.bench.model.graph import Shape, predict_graph
    from gatherbench.bench.model.profile import ProfileError, load_profile
    from gatherbench.bench.run.part import StoreError
    from gatherbench.bench.show.terminal import in_terminal
    from gatherbench.bench.show.views.model import graph_table
    from gatherbench.datasets.dataset import DatasetError

    with bad_input(StoreError, ProfileError, DatasetError):
        if not graph:
            return _predict_run(folder, results, profile, as_json)
        if folder is not None or not profile:
            fail("--graph needs --profile NAME (gatherbench list profiles), and no run")
        shape, machine = Shape.parse(graph), load_profile(profile)
        frame = predict_graph(shape, machine)
        if as_json:
            return print_table(frame, as_json)
        console().print(Group(*in_terminal(graph_table(frame, shape, machine))))


def _predict_run(folder: RunArgument, results: ResultsOption, name: str, as_json: bool) -> None:
    """Replace a run's predictions by those for the profile ``name``, and show them."""
    from dataclasses import replace

    from gatherbench.bench.commands.execute import usual_profile
    from gatherbench.bench.commands.finish import finish, own_profile
    from gatherbench.bench.model.profile import load_profile
    from gatherbench.bench.read.tables import run_in
    from gatherbench.bench.run.guards import only_one
    from gatherbench.bench.run.store import RunStore, write_atomically
    from gatherbench.bench.show.views.registry import to_json

    store = RunStore.open(run_folder(folder, results))
    run = run_in(store)
    profile = load_profile(name) if name else own_profile(store)
    if profile is None:
        usual = usual_profile(str(store.plan().get("device", "")), run.machine)
        if not usual:
            fail(
                f"{store.folder}: neither the run nor this folder has a profile of its machine;"
                " choose one: --profile NAME (gatherbench list profiles)"
            )
        profile = load_profile(usual)
    with only_one(store.folder):
        try:
            write_atomically(store.profile_file, profile.to_toml())
        except OSError as error:
            fail(
                f"{store.profile_file}: cannot be written: {error}; free some space, or copy the"
                " folder to a place where you may write and predict the copy"
            )
        run = replace(run_in(store), going=False)  # it is this process that holds the folder
        consoles = console(quiet=as_json), console(stderr=True)
        complete = finish(run, store, *consoles, "predict", everything=True)
    if as_json:
        typer.echo(to_json(run_in(store)))
    if not complete:
        raise typer.Exit(FAILED)
