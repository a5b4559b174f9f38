"""`gatherbench list`: list the names to choose from."""

from __future__ import annotations

from typing import Annotated

import typer

from gatherbench.bench.commands.common import JsonOption, fail, print_json, print_table


def list_(
    name: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="One of strategies, datasets, plans, plan-keys, profiles, meters; or"
            " plan-schema, a JSON Schema of plans for editors.",
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """List the available strategies, datasets, plans, meters or profiles."""
    from gatherbench.bench.plan.plan_file import plan_schema
    from gatherbench.bench.show.listing import LISTINGS

    if name == "plan-schema":
        return print_json(plan_schema())
    if name not in LISTINGS:
        problem = f"cannot list {name!r}" if name else "name what to list"
        fail(f"{problem}: one of {', '.join([*LISTINGS, 'plan-schema'])}")
    print_table(LISTINGS[name](), as_json)
