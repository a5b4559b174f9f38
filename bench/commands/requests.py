"""`gatherbench requests`: what each launch policy's reads cost on the link, computed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gatherbench.bench.commands.common import PICTURE, bad_input, console, writing


def requests(
    dim: Annotated[int, typer.Option(help="Elements of a feature row.")] = 602,
    dtype: Annotated[str, typer.Option(help="Type of a feature.")] = "float32",
    policy: Annotated[
        list[str] | None,
        typer.Option(help="A launch policy; repeat for several (default: all)."),
    ] = None,
    max_request: Annotated[
        int, typer.Option(help="Largest read request on the link in bytes: 32, 64, 96 or 128.")
    ] = 128,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")] = False,
    figure: Annotated[
        Path | None,
        typer.Option(help="Draw requests over row width into this file instead.", **PICTURE),
    ] = None,
) -> None:
    """Compute how many requests each launch policy makes on the link. Needs no GPU."""
    from gatherbench.bench.show.requests import BadRequestError, render, rows_of, to_csv

    with bad_input(BadRequestError):
        rows = rows_of(dim, dtype, policy or (), max_request)
    if figure is not None:
        from gatherbench.bench.show.figures.paper import save
        from gatherbench.bench.show.figures.requests_per_row import requests_per_row

        with bad_input(ValueError), writing(figure, "--figure"):
            save(requests_per_row([row.policy for row in rows], max_request), figure)
        typer.echo(figure)
    elif csv:
        typer.echo(to_csv(rows, dim, dtype, max_request), nl=False)
    else:
        console().print(render(rows, dim, dtype, max_request))
