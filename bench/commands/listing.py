"""`gatherbench list`: what there is to choose from."""

from __future__ import annotations

from typing import Annotated

import typer

from gatherbench.bench.commands.common import console, fail


def list_things(
    what: Annotated[
        str, typer.Argument(help="strategies, policies, datasets, plans, profiles or meters.")
    ],
) -> None:
    """List what there is to choose from."""
    from gatherbench.bench.show.listing import LISTINGS

    if what not in LISTINGS:
        fail(f"cannot list {what!r}: one of {', '.join(LISTINGS)}")
    console().print(LISTINGS[what]())
