"""`gatherbench doctor`: list what this machine has and lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from gatherbench.bench.commands.common import JsonOption, console, print_json

if TYPE_CHECKING:
    from rich.console import Group

    from gatherbench.bench.probe.doctor import Finding

_COLOURS = {"ok": "green", "limited": "yellow", "missing": "red"}


def doctor(as_json: JsonOption = False) -> None:
    """Print what this machine has, and what cannot be measured on it."""
    from gatherbench.bench.probe.doctor import examine

    findings = examine()
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        console().print(table_of(findings))


def table_of(findings: Sequence[Finding]) -> Group:
    """Return a line for each finding and one that counts them; readable at 80 columns."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        lines = [Text(finding.detail)]
        if finding.lost:
            lines.append(Text(f"effect: {finding.lost}", style="yellow"))
            lines.append(Text(f"remedy: {finding.remedy}"))
        status = Text(finding.status, style=_COLOURS[finding.status])
        table.add_row(status, Text(finding.name, style="bold"), Group(*lines))
    counts = [f"{sum(f.status == status for f in findings)} {status}" for status in _COLOURS]
    return Group(table, Text(", ".join(counts)))
