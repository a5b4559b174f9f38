"""`gatherbench check`: test whether a strategy or a meter keeps its contract, before use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gatherbench.bench.commands.common import DeviceOption, JsonOption, bad_input, fail, print_json
from gatherbench.outside import words_of

if TYPE_CHECKING:
    import torch

    from gatherbench.strategies.base import Strategy

OK, SKIPPED, FAILED = "ok", "skipped", "FAILED"
#: Seconds for which a meter is tried.
WINDOW_S = 0.5


def check(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="STRATEGY | meter NAME",
            help="A name of `gatherbench list strategies`; or `meter` and a name of `list meters`.",
        ),
    ],
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Test each variant of a strategy with the conformance suite, or try a meter."""
    if names[0] == "meter" and len(names) == 2:
        return _meter(names[1], as_json)
    if len(names) != 1:
        fail(f"check {' '.join(names)}: expected one strategy, or `meter` and the name of one")
    import torch

    from gatherbench.bench.commands.execute import choose_device
    from gatherbench.strategies.registry import get, representatives

    with bad_input(ValueError):
        kind, torch_device = get(names[0]), torch.device(choose_device(device))
    lines = []
    for variant in representatives(kind):
        verdict, reason = _judged(variant, torch_device)
        line = {"strategy": kind.name, "variant": variant.variant}
        lines.append({**line, "verdict": verdict, "reason": reason})
        if not as_json:
            typer.echo(f"{kind.name} {variant.variant}: {verdict}{reason and f': {reason}'}")
    if as_json:
        print_json(lines)
    verdicts = {line["verdict"] for line in lines}
    if verdicts == {SKIPPED}:
        typer.echo(f"nothing was checked on {torch_device}", err=True)
    raise typer.Exit(int(OK not in verdicts or FAILED in verdicts))


def _meter(name: str, as_json: bool) -> None:
    """Print a meter's readings of a window; exit with 1 if a sensor failed, 2 for unknown names."""
    from gatherbench.bench.meters.registry import METERS, PLUGINS, tried
    from gatherbench.plugins import nearest_or_all

    built_in = {meter.name: meter for meter in METERS}
    with bad_input(ValueError):
        kind = built_in.get(name) or PLUGINS.load(name)
        if kind is None:
            hint = nearest_or_all(name, (*built_in, *PLUGINS.packages()))
            fail(f"no meter is called {name!r}{hint}")
        readings = tried(kind(), WINDOW_S)
    fields = ("metric", "value", "unit", "source")
    lines = [
        {**{field: getattr(r, field) for field in fields}, "reason": str(r.reason or "")}
        for r in readings
    ]
    if as_json:
        print_json(lines)
    for line in () if as_json else lines:
        unit = "" if line["unit"] == "1" else f" {line['unit']}"
        number = line["reason"] or f"{line['value']:g}{unit}"
        typer.echo(f"{line['metric']}: {number} ({line['source']})")
    raise typer.Exit(int(any(r.reason is not None and r.reason.kind == "failed" for r in readings)))


def _judged(variant: Strategy, device: torch.device) -> tuple[str, str]:
    """Return the verdict, and the reason if it is not :data:`OK`."""
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
