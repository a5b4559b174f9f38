"""`gatherbench list`: list the names to choose from."""

from __future__ import annotations

from typing import Annotated

import typer

from gatherbench.bench.commands.common import JsonOption, fail, print_json, print_table


def list_(
    what: Annotated[
        str,
        typer.Argument(
            help="One of strategies, policies, datasets, plans, plan-keys, profiles, meters; or"
            " plan-schema, a JSON Schema of plans for editors."
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """List the available strategies, datasets, plans, meters, policies or profiles."""
    from gatherbench.bench.show.listing import LISTINGS

    if what == "plan-schema":
        from gatherbench.bench.plan.plan_file import plan_schema

        return print_json(plan_schema())
    if what not in LISTINGS:
        problem = f"cannot list {what!r}" if what else "name what to list"
        fail(f"{problem}: one of {', '.join([*LISTINGS, 'plan-schema'])}")
    print_table(LISTINGS[what](), as_json)
