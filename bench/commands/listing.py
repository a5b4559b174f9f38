"""`gatherbench list`: what there is to choose from."""

from __future__ import annotations

from typing import Annotated

import typer

from gatherbench.bench.commands.common import console, fail


def list_things(
    what: Annotated[
        str,
        typer.Argument(
            help="strategies, policies, datasets, plans, plan-keys, profiles or meters."
        ),
    ] = "",
) -> None:
    """List what there is to choose from."""
    from gatherbench.bench.show.listing import LISTINGS

    if what not in LISTINGS:
        said = f"cannot list {what!r}" if what else "say what to list"
        fail(f"{said}: one of {', '.join(LISTINGS)}")
    console().print(LISTINGS[what]())
