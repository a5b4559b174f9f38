"""`gatherbench orders`: which order of the nodes lets minibatches touch fewer pages."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gatherbench.bench.commands.common import Epoch, asking, bad_input, console


@asking(Epoch)
def orders(
    epoch: Epoch,
    profile: Annotated[
        str,
        typer.Option(help="Machine whose reads are modelled: a profile's name or a .toml file."),
    ] = "nvidia-h200",
    out: Annotated[
        Path | None, typer.Option(help="Folder to write orders.csv and orders.png into.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Count the pages that a minibatch touches, for several orders of the nodes. Needs no GPU."""
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
        workload = Workload(**{**asdict(epoch), "fanouts": fanouts_of(epoch.fanouts)})
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
