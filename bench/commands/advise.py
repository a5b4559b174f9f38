"""`gatherbench advise`: which way of moving the features to take."""

from __future__ import annotations

import json as json_format
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from gatherbench.bench.commands.common import (
    CALIBRATIONS,
    COUNT,
    DEFAULT_RESULTS,
    GIBIBYTES,
    PICTURE,
    ResultsOption,
    bad_input,
    console,
    writing,
)


def advise(
    dataset: Annotated[
        str, typer.Argument(help="A dataset, prepared or not; or give --nodes, --edges and --dim.")
    ] = "",
    nodes: Annotated[
        int, typer.Option(help="Nodes of a graph that is no dataset, e.g. 2.4M or 2.4e6.", **COUNT)
    ] = 0,
    edges: Annotated[
        int, typer.Option(help="Its edges as stored: count both directions if both are.", **COUNT)
    ] = 0,
    dim: Annotated[int, typer.Option(help="Elements of a feature row.")] = 0,
    dtype: Annotated[str, typer.Option(help="Type of a feature.")] = "float32",
    classes: Annotated[int, typer.Option(help="Classes of the labels (0: a usual number).")] = 0,
    train_nodes: Annotated[
        int, typer.Option(help="Seed nodes of an epoch (0: every node).", **COUNT)
    ] = 0,
    fanouts: Annotated[
        str, typer.Option(help="Neighbours drawn of a node, from the seed nodes outwards.")
    ] = "25,10",
    batch_size: Annotated[int, typer.Option(help="Seed nodes of a minibatch.")] = 1000,
    model: Annotated[str, typer.Option(help="sage or gat.")] = "sage",
    hidden: Annotated[int, typer.Option(help="Width of the hidden layers.")] = 16,
    gpus: Annotated[int, typer.Option(help="GPUs of a machine.")] = 1,
    machines: Annotated[int, typer.Option(help="Machines, all alike.")] = 1,
    gpu_memory: Annotated[
        float,
        typer.Option(help="Memory of each GPU in GiB (0: as the profile says).", **GIBIBYTES),
    ] = 0,
    host_memory: Annotated[
        float,
        typer.Option(help="Memory of each machine in GiB (0: as the profile says).", **GIBIBYTES),
    ] = 0,
    network: Annotated[
        float,
        typer.Option(
            help="Network of each machine in Gb/s, one direction (0: as the profile says).",
            metavar="<Gb/s>",
        ),
    ] = 0,
    disk: Annotated[
        str,
        typer.Option(
            help="Disk of each machine: random reads of 4 KiB a second, many at a time, and bytes a"
            " second of long ones, e.g. 250k,3GB/s (default: as the profile says).",
            metavar="<IOPS,BANDWIDTH>",
        ),
    ] = "",
    profile: Annotated[
        str,
        typer.Option(
            help="The machine: a profile's name or a .toml file (default: this machine's"
            " calibration, or rtx3090-pcie4)."
        ),
    ] = "",
    law: Annotated[
        str,
        typer.Option(
            help="Law of a graph that is not there: rmat, uniform, powerlaw (default: all)."
        ),
    ] = "",
    sampler: Annotated[
        str,
        typer.Option(
            help="Edges drawn a second, e.g. 20M, or those of a program: pytorch-direct, of 2021"
            " (default: as the profile says; say it to compare two profiles)."
        ),
    ] = "",
    results: ResultsOption = DEFAULT_RESULTS,
    figure: Annotated[
        Path | None,
        typer.Option(
            help="Instead draw epochs over row width, link, GPUs and batch size into this file.",
            **PICTURE,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Rank the strategies for a graph and a machine, with the reason for each."""
    said = locals()
    from gatherbench.bench.model.advise.answer import Asked, answer
    from gatherbench.bench.model.advise.question import AdviceError
    from gatherbench.bench.model.profile import ProfileError
    from gatherbench.bench.show.advice import minibatches, render, to_json
    from gatherbench.datasets.dataset import DatasetError

    with bad_input(AdviceError, DatasetError, ProfileError):
        asked = Asked(**{field.name: said[field.name] for field in fields(Asked)})
        advice = answer(asked, results, CALIBRATIONS)
    if figure is not None:
        from gatherbench.bench.model.sweeps import all_sweeps
        from gatherbench.bench.show.figures.curves import sweep_panels
        from gatherbench.bench.show.figures.paper import save

        graph = advice.question.graph
        title = f"Epoch of {graph.name or 'the graph'}"
        foot = f"{minibatches(advice)}, and anew for each batch size."
        foot += f" Machine: profile {advice.profile.name}."
        with bad_input(ValueError), writing(figure, "--figure"):
            sweeps = all_sweeps(advice.question, advice.profile)
            save(sweep_panels(sweeps, title=title, foot=foot), figure)
        typer.echo(figure)
    elif as_json:
        typer.echo(json_format.dumps(to_json(advice), indent=2))
    else:
        console().print(render(advice), highlight=False)
