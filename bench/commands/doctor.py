"""`gatherbench doctor`: list what this machine has and lacks."""

from __future__ import annotations

from dataclasses import asdict

from gatherbench.bench.commands.common import JsonOption, console, print_json

_COLOURS = {"ok": "green", "limited": "yellow", "missing": "red"}


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
