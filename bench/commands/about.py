"""`gatherbench list`, `doctor` and `check`: what there is to choose from, and whether it works."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from gatherbench.bench.commands.common import JsonOption, console, fail, print_json, print_table
from gatherbench.outside import words_of

if TYPE_CHECKING:
    import torch

    from gatherbench.strategies.base import Strategy

_COLOURS = {"ok": "green", "limited": "yellow", "missing": "red"}
OK, SKIPPED, FAILED = "ok", "skipped", "FAILED"
#: Seconds for which a meter is tried.
WINDOW_S = 0.5


def list_(
    name: Annotated[str, typer.Argument(metavar="WHAT", help="What to list.")] = "",
    as_json: JsonOption = False,
) -> None:
    """List the strategies, datasets, plans, plan-keys, profiles or meters.

    plan-schema: print a JSON Schema of plans, for editors.
    """
    from gatherbench.bench.plan.plan import plan_schema
    from gatherbench.bench.show.listing import LISTINGS

    if name == "plan-schema":
        return print_json(plan_schema())
    if name not in LISTINGS:
        problem = f"cannot list {name!r}" if name else "name what to list"
        fail(f"{problem}: one of {', '.join([*LISTINGS, 'plan-schema'])}")
    print_table(LISTINGS[name](), as_json)


def doctor(as_json: JsonOption = False) -> None:
    """Print what this machine has, and what cannot be measured on it."""
    from rich.text import Text

    from gatherbench.bench.probe.doctor import examine

    findings, screen = examine(), console()
    if as_json:
        return print_json([asdict(finding) for finding in findings])
    for finding in findings:
        status = (f"{finding.status:<9}", _COLOURS[finding.status])
        screen.print(Text.assemble(status, (finding.name, "bold"), f": {finding.detail}"))
        if finding.lost:
            screen.print(Text(f"         effect: {finding.lost}", style="yellow"))
            screen.print(Text(f"         remedy: {finding.remedy}"))
    counts = [f"{sum(f.status == status for f in findings)} {status}" for status in _COLOURS]
    screen.print(", ".join(counts))


def check(
    names: Annotated[list[str], typer.Argument(metavar="STRATEGY | meter NAME")],
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU if any.")] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Test each variant of a strategy with the conformance suite, or try a meter.

    Names are those of `list strategies`, and of `list meters`.
    """
    if names[0] == "meter" and len(names) == 2:
        return _check_meter(names[1], as_json)
    if len(names) != 1:
        fail(f"check {' '.join(names)}: expected one strategy, or `meter` and the name of one")
    import torch

    from gatherbench.bench.commands.execute import choose_device
    from gatherbench.strategies.registry import get, representatives

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


def _check_meter(name: str, as_json: bool) -> None:
    """Print a meter's readings of a window; exit with 1 if a sensor failed, 2 for unknown names."""
    from gatherbench.bench.meters.registry import METERS, PLUGINS, tried
    from gatherbench.plugins import nearest_or_all

    built_in = {meter.name: meter for meter in METERS}
    kind = built_in.get(name) or PLUGINS.load(name)
    if kind is None:
        fail(f"no meter is called {name!r}{nearest_or_all(name, (*built_in, *PLUGINS.packages()))}")
    try:
        readings = tried(kind(), WINDOW_S)
    except ValueError as error:
        fail(str(error))
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
