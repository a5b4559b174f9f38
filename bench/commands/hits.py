"""`gatherbench hits`: how many of the rows that training asks for a cache would hold."""

from __future__ import annotations

import json as json_format
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gatherbench.bench.commands.common import (
    CALIBRATIONS,
    REFERENCE,
    Epoch,
    asking,
    bad_input,
    console,
)


@asking(Epoch)
def hits(
    epoch: Epoch,
    policies: Annotated[
        str,
        typer.Option(help="Cache policies, separated by commas (default: all)."),
    ] = "",
    profile: Annotated[
        str,
        typer.Option(
            help="The machine: a profile's name or a .toml file (default: this machine's"
            " calibration, or rtx3090-pcie4)."
        ),
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Folder to write hits.csv and hits.png into.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Count the requested rows that a cache would hold, by policy and size. Needs no GPU."""
    from gatherbench.bench.model.advise.answer import chosen_profile, fanouts_of
    from gatherbench.bench.model.advise.question import (
        AdviceError,
        Question,
        dataset_graph,
        graph_of,
    )
    from gatherbench.bench.model.hits import chosen_policies, count_hits, kept_share
    from gatherbench.bench.model.profile import ProfileError
    from gatherbench.bench.sampling.trace import TraceError
    from gatherbench.bench.show.hits import figure_of, render, table_of, to_json
    from gatherbench.bench.show.terminal import step_bar
    from gatherbench.datasets.dataset import DatasetError
    from gatherbench.datasets.registry import prepare_dataset

    with bad_input(AdviceError, ProfileError, DatasetError, TraceError, OSError):
        # What needs no graph is checked before one is prepared.
        machine, default = chosen_profile(profile, CALIBRATIONS)
        remarks = [f"profile {machine.name} is a default: {default}"] if default else []
        chosen = chosen_policies(policies)
        question = Question(graph_of(2, 1, 1), fanouts_of(epoch.fanouts), epoch.batch_size)
        with step_bar(console(stderr=True)) as progress:
            prepare_dataset(epoch.dataset, epoch.scale, progress=progress)
            question = replace(question, graph=dataset_graph(epoch.dataset, scale=epoch.scale))
            workload = replace(
                question.workload(),
                scale=epoch.scale,
                max_batches=epoch.max_batches,
                seed=epoch.seed,
            )
            found = count_hits(workload, question.graph, chosen, progress)
        kept = kept_share(question, found.sizes, machine, found.rates)
        if out is not None:
            from gatherbench.bench.show.figures.paper import save

            out.mkdir(parents=True, exist_ok=True)
            table_of(found).to_csv(out / "hits.csv", index=False)
            save(figure_of(found, REFERENCE), out / "hits.png")
    if as_json:
        typer.echo(json_format.dumps(to_json(found, kept, remarks), indent=2))
    else:
        console().print(render(found, kept, remarks), highlight=False)
        for name in ("hits.csv", "hits.png") if out is not None else ():
            typer.echo((out or Path()) / name)
