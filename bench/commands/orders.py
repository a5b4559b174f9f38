"""`gatherbench orders`: which order of the nodes lets minibatches touch fewer pages."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer

from gatherbench.bench.commands.common import bad_input, console


def orders(
    dataset: Annotated[
        str, typer.Argument(help="A dataset of `gatherbench list datasets`, or one you imported.")
    ],
    scale: Annotated[float, typer.Option(help="Share of a generated graph's full size.")] = 1.0,
    fanouts: Annotated[
        str, typer.Option(help="Neighbours drawn of a node, from the seed nodes outwards.")
    ] = "25,10",
    batch_size: Annotated[int, typer.Option(help="Seed nodes of a minibatch.", min=1)] = 1000,
    max_batches: Annotated[
        int, typer.Option(help="Count on so many minibatches (0: a whole epoch).", min=0)
    ] = 0,
    seed: Annotated[int, typer.Option(help="Of the minibatches, as in a plan.")] = 0,
    profile: Annotated[
        str, typer.Option(help="The machine whose reads are modelled, or a .toml file.")
    ] = "nvidia-h200",
    out: Annotated[
        Path | None, typer.Option(help="Folder to write orders.csv and orders.png into.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Count the pages that a minibatch touches, by the order of the nodes. Needs no GPU."""
    from gatherbench.bench.model.advise.answer import fanouts_of
    from gatherbench.bench.model.advise.question import AdviceError
    from gatherbench.bench.model.orders import count_orders
    from gatherbench.bench.model.profile import ProfileError, load_profile
    from gatherbench.bench.plan.workload import Workload
    from gatherbench.bench.sampling.trace import TraceError
    from gatherbench.bench.show.orders import chart_of, render, table_of
    from gatherbench.bench.show.terminal import step_bar
    from gatherbench.datasets.dataset import DatasetError

    with bad_input(AdviceError, ProfileError, DatasetError, TraceError, OSError):
        machine = load_profile(profile)
        workload = Workload(
            dataset,
            scale=scale,
            fanouts=tuple(fanouts_of(fanouts)),
            batch_size=batch_size,
            max_batches=max_batches,
            seed=seed,
        )
        with step_bar(console(stderr=True)) as progress:
            counts = count_orders(workload, machine, progress)
        table = table_of(counts)
        if out is not None:
            from gatherbench.bench.show.figures.draw import draw
            from gatherbench.bench.show.figures.paper import save

            out.mkdir(parents=True, exist_ok=True)
            table.to_csv(out / "orders.csv", index=False)
            save(draw(chart_of(counts)), out / "orders.png")
    if as_json:
        typer.echo(json_format.dumps(table.to_dict("records"), indent=2))
        return
    console().print(render(counts), highlight=False)
    for name in ("orders.csv", "orders.png") if out is not None else ():
        typer.echo((out or Path()) / name)
