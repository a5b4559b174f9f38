"""`gatherbench check`: whether a strategy keeps the contract, before anybody measures it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gatherbench.bench.commands.common import bad_input

if TYPE_CHECKING:
    import torch

    from gatherbench.strategies.base import Strategy

FAILED = "FAILED"


def check(
    strategy: Annotated[str, typer.Argument(help="One of `gatherbench list strategies`.")],
    device: Annotated[
        str, typer.Option(help="cpu or cuda; auto takes a GPU where there is one.")
    ] = "auto",
) -> None:
    """Run the conformance suite on a strategy, ours or an installed one, with each of its words."""
    import torch

    from gatherbench.bench.commands.execute import choose_device
    from gatherbench.strategies.registry import get, representatives

    with bad_input(ValueError):
        kind, place = get(strategy), torch.device(choose_device(device))
    said = []
    for variant in representatives(kind):
        said.append(verdict(variant, place))
        typer.echo(f"{kind.name} {variant.variant}: {said[-1]}")
    if all(one.startswith("skipped") for one in said):
        typer.echo(f"nothing was checked on {place}", err=True)
    raise typer.Exit(int("ok" not in said or any(one.startswith(FAILED) for one in said)))


def verdict(variant: Strategy, device: torch.device) -> str:
    """``ok``, ``skipped: reason`` or ``FAILED: what``."""
    from gatherbench.strategies.conformance import check_strategy

    try:
        with variant.surroundings(device):
            reason = variant.skip(device)
            if reason is not None:
                return f"skipped: {reason}"
            check_strategy(variant, device)
    except Exception as error:  # whatever is wrong with it
        return f"{FAILED}: {type(error).__name__}: {error}"
    return "ok"
