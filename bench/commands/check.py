"""`gatherbench check`: whether a strategy keeps the contract, before anybody measures it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gatherbench.bench.commands.common import JsonOption, bad_input, print_json
from gatherbench.outside import words_of

if TYPE_CHECKING:
    import torch

    from gatherbench.strategies.base import Strategy

OK, SKIPPED, FAILED = "ok", "skipped", "FAILED"


def check(
    strategy: Annotated[str, typer.Argument(help="A strategy of `gatherbench list strategies`.")],
    device: Annotated[
        str, typer.Option(help="cpu or cuda; auto takes a GPU where there is one.")
    ] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Run the conformance suite on each variant of a strategy, ours or an installed one."""
    import torch

    from gatherbench.bench.commands.execute import choose_device
    from gatherbench.strategies.registry import get, representatives

    with bad_input(ValueError):
        kind, place = get(strategy), torch.device(choose_device(device))
    lines = []
    for variant in representatives(kind):
        verdict, why = judged(variant, place)
        words = (kind.name, variant.variant, verdict, why)
        lines.append(dict(zip(("strategy", "variant", "verdict", "reason"), words, strict=True)))
        if not as_json:
            typer.echo(f"{kind.name} {variant.variant}: {verdict}{why and f': {why}'}")
    if as_json:
        print_json(lines)
    found = {line["verdict"] for line in lines}
    if found == {SKIPPED}:
        typer.echo(f"nothing was checked on {place}", err=True)
    raise typer.Exit(int(OK not in found or FAILED in found))


def judged(variant: Strategy, device: torch.device) -> tuple[str, str]:
    """The verdict, and why it is not :data:`OK`."""
    from gatherbench.strategies.conformance import check_strategy

    try:
        with variant.surroundings(device):
            reason = variant.skip(device)
            if reason is not None:
                return SKIPPED, str(reason)
            check_strategy(variant, device)
    except Exception as error:  # whatever is wrong with it
        return FAILED, words_of(error)
    return OK, ""
