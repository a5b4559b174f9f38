"""`gatherbench check`: test whether a strategy or a meter keeps its contract, before use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gatherbench.bench.commands.common import JsonOption, bad_input, fail, print_json
from gatherbench.outside import words_of
from gatherbench.plugins import nearest

if TYPE_CHECKING:
    import torch

    from gatherbench.strategies.base import Strategy

OK, SKIPPED, FAILED = "ok", "skipped", "FAILED"
#: Seconds for which a meter is tried.
WINDOW_S = 0.5


def check(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="STRATEGY | meter NAME",
            help="A name of `gatherbench list strategies`; or `meter` and a name of `list meters`.",
        ),
    ],
    device: Annotated[
        str, typer.Option(help="auto (a GPU if there is one), cpu or cuda.")
    ] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Test each variant of a strategy with the conformance suite, or try a meter."""
    import torch

    from gatherbench.bench.commands.execute import choose_device
    from gatherbench.strategies.registry import get, representatives

    if len(what) == 2 and what[0] == "meter":
        return _meter(what[1], as_json)
    if len(what) != 1:
        fail(f"check {' '.join(what)}: expected one strategy, or `meter` and the name of one")
    with bad_input(ValueError):
        kind, torch_device = get(what[0]), torch.device(choose_device(device))
    lines = []
    for variant in representatives(kind):
        verdict, why = judged(variant, torch_device)
        values = (kind.name, variant.variant, verdict, why)
        lines.append(dict(zip(("strategy", "variant", "verdict", "reason"), values, strict=True)))
        if not as_json:
            typer.echo(f"{kind.name} {variant.variant}: {verdict}{why and f': {why}'}")
    if as_json:
        print_json(lines)
    verdicts = {line["verdict"] for line in lines}
    if verdicts == {SKIPPED}:
        typer.echo(f"nothing was checked on {torch_device}", err=True)
    raise typer.Exit(int(OK not in verdicts or FAILED in verdicts))


def _meter(name: str, as_json: bool) -> None:
    """Print a meter's readings of a window; exit with 1 if a sensor failed, 2 for unknown names."""
    from gatherbench.bench.meters.registry import METERS, PLUGINS, tried

    built_in = {meter.name: meter for meter in METERS}
    with bad_input(ValueError):
        kind = built_in.get(name) or PLUGINS.load(name)
        if kind is None:
            known = (*built_in, *PLUGINS.packages())
            fail(f"no meter is called {name!r}; there are {', '.join(known)}{nearest(name, known)}")
        readings = tried(kind(), WINDOW_S)
    names = ("metric", "value", "unit", "source", "reason")
    lines = [(r.metric, r.value, r.unit, r.source, str(r.reason or "")) for r in readings]
    if as_json:
        print_json([dict(zip(names, line, strict=True)) for line in lines])
    for metric, value, unit, source, reason in () if as_json else lines:
        number = "" if reason else f"{value:g}" + f" {unit}" * (unit != "1")
        typer.echo(f"{metric}: {reason or number} ({source})")
    raise typer.Exit(int(any(r.reason is not None and r.reason.kind == "failed" for r in readings)))


def judged(variant: Strategy, device: torch.device) -> tuple[str, str]:
    """Return the verdict, and why it is not :data:`OK`."""
    from gatherbench.strategies.conformance import check_strategy

    try:
        with variant.surroundings(device):
            reason = variant.skip(device)
            if reason is not None:
                return SKIPPED, str(reason)
            check_strategy(variant, device)
    except Exception as error:  # a faulty strategy may raise anything
        return FAILED, words_of(error)
    return OK, ""
