"""Show a comparison as tables in the terminal and as JSON. Nothing depends on colour."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from rich.console import Group, RenderableType
from rich.text import Text

from gatherbench.bench.read.compare import BAD, METRICS, OPEN, changes, deciding
from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.table import WHAT, Column, tabulate
from gatherbench.bench.show.terminal import in_terminal, struck

_COLOURS = {"SLOW": "red", "FAILED": "red", "FAST": "green", "AMBIGUOUS": "yellow"}
_COLOURS |= {"UNLIKE": "yellow", "MISSING": "yellow", "NEW": "yellow"}
#: Marks after a ratio without a verdict column.
_SIGNS = {"SLOW": "\N{NO-BREAK SPACE}!", "FAST": "\N{NO-BREAK SPACE}*"}
_SIGNS |= dict.fromkeys(("AMBIGUOUS", "UNLIKE"), "\N{NO-BREAK SPACE}?")
_LEGEND = "! SLOW, * FAST, ? AMBIGUOUS or UNLIKE, no sign SAME"
#: A note: the ratio is the quotient of these values, not of the medians over all epochs.
TYPICAL = (
    "A and B, measured: typical epochs, the geometric mean over repeats of each repeat's median, as"
    " in speed-ups; the epochs of `gatherbench show` are medians over all epochs."
)
_SERIES = ["strategy", "variant", "backend", "basis"]
#: The columns that a single table of all metrics needs.
WIDE = 120


#: One build was 19 % faster in the second of two idle runs of a shared machine.
_TWO_VISITS = (
    "The interval holds what differs between repeats of a run. A shared machine may also change"
    " between two runs: let both builds take turns (docs/continuous-integration.md)."
)


#: The exit status of a comparison without enough verdicts.
NOT_JUDGED = 3


def exit_status(table: pd.DataFrame, metrics: Sequence[str] = (), *, strict: bool = False) -> int:
    """Return 1 if a deciding line is SLOW or a case failed in B; :data:`NOT_JUDGED`; else 0.

    A comparison is not judged if all measured lines (else all computed ones) lack a verdict; with
    ``strict``, if any deciding line does.
    """
    chosen = deciding(table, metrics)
    if chosen["verdict"].isin(BAD).any():
        return 1
    measured = chosen[chosen["basis"] == "measured"]
    open_ = (chosen if strict or measured.empty else measured)["verdict"].isin(OPEN)
    return NOT_JUDGED if (open_.any() if strict else open_.all()) else 0


def render_comparison(
    table: pd.DataFrame,
    base: Run,
    new: Run,
    metrics: Sequence[str] = (),
    width: int = WIDE,
    *,
    strict: bool = False,
) -> RenderableType:
    """Render a table per workload, reasons for other verdicts than SAME, changes, and the sum.

    Args:
        table: from :func:`gatherbench.bench.read.compare.compare_runs`.
        metrics: the requested ones; empty: all.
        width: columns of the terminal, 80 or more; below :data:`WIDE` the metrics after the first
            have a separate table.
        strict: as for :func:`exit_status`.
    """
    parts: list[RenderableType] = [
        Text(f"A {base.folder}\nB {new.folder}"),
        *(Text(f"changed: {change}", style="yellow") for change in changes(base, new)),
        Text(),
    ]
    declared = table["metric"].map(lambda name: METRICS[name].declared)
    names = base.names | new.names
    titles = {ident: f"{name}: {ident}" for ident, name in names.items()}
    for _, here in table[~declared].groupby("workload", sort=False):
        if here["ratio"].notna().any():
            parts += _tables(here, titles, width)
    parts += _reasons(deciding(table, metrics), names)
    parts += _declared(table[declared], set(metrics), names)
    parts.append(Text(f"{TYPICAL} B / A with its 95 % interval; {_LEGEND}.", style="dim"))
    if table[table["basis"] == "measured"]["verdict"].isin(("FAST", "SLOW")).any():
        parts.append(Text(_TWO_VISITS, style="yellow"))
    parts.append(Text(summary(table, metrics), style="bold"))
    if exit_status(table, metrics, strict=strict) == NOT_JUDGED:
        text = "this is no evidence that nothing changed"
        parts.append(Text(f"Not judged (exit status {NOT_JUDGED}): {text}.", style="yellow"))
    return Group(*parts)


def summary(table: pd.DataFrame, metrics: Sequence[str] = ()) -> str:
    """Count the verdicts of the deciding lines, in one sentence."""
    chosen = deciding(table, metrics)
    names = ", ".join(dict.fromkeys(chosen["metric"]))
    modelled = chosen["basis"] == "predicted"
    parts = []
    for kind, mine in (("measured", chosen[~modelled]), ("modelled", chosen[modelled])):
        counts = Counter(mine["verdict"])
        if counts:
            text = ", ".join(f"{counts[word]} {word}" for word in _in_order(counts))
            parts.append(f"{kind} {text}")
    return f"{names}: {'; '.join(parts)}"


def comparison_json(
    table: pd.DataFrame,
    base: Run,
    new: Run,
    metrics: Sequence[str] = (),
    *,
    strict: bool = False,
) -> str:
    """Return the comparison as one JSON object; unknown values are null."""
    records = [
        {
            str(name): None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in record.items()
        }
        for record in table.to_dict("records")
    ]
    content = {
        "a": base.run_id,
        "b": new.run_id,
        "changed": changes(base, new),
        "summary": summary(table, metrics),
        "exit_status": exit_status(table, metrics, strict=strict),
        "comparisons": records,
    }
    return json.dumps(content, indent=2)


def _tables(here: pd.DataFrame, names: Mapping[str, str], width: int) -> Iterator[RenderableType]:
    """Give a line per series: all values of the first metric, and the ratios of the others."""
    compared = here[here["ratio"].notna()]
    lead, *others = [name for name in METRICS if (compared["metric"] == name).any()]
    keys, first = ["workload", *_SERIES], compared[compared["metric"] == lead]
    unit = "×" if first["unit"].iloc[0] == "1" else str(first["unit"].iloc[0])  # a reference's
    signs = compared["verdict"].map(_SIGNS).fillna("")
    texts = compared.assign(told=compared["ratio"].map("{:.2f}".format) + signs)
    frame = texts.pivot(index=keys, columns="metric", values="told").reindex(columns=others)
    first = first.set_index(keys)[["base", "new", "ratio", "low", "high", "verdict"]]
    frame = frame.join(first.rename(columns={"low": "ratio_low", "high": "ratio_high"}))
    columns = [
        Column("base", f"{lead} A", unit, short=f"{lead} A"),
        Column("new", "B", unit, like="base", short="B"),
        Column("ratio", "B / A", "×", short="B / A", interval=True),
        Column("verdict", "verdict", short="verdict"),
    ]
    beside = [Column(name, name, short=name.replace("_", " ")) for name in others]
    for mine in [[*columns, *beside]] if width >= WIDE else filter(None, [columns, beside]):
        yield from in_terminal(tabulate("", "", [*WHAT[:3], *mine], frame.reset_index()), names)


def _reasons(chosen: pd.DataFrame, workloads: Iterable[str]) -> list[Text]:
    """Give each reason for a closer look once, with its cases."""
    lines = []
    open_lines = chosen[~chosen["verdict"].isin(["SAME", "FAST"])]
    for word in _in_order(open_lines["verdict"]):
        mine = open_lines[open_lines["verdict"] == word]
        for (metric, reason), group in mine.groupby(["metric", "reason"], sort=False):
            cases = zip(group["strategy"] + " " + group["variant"], group["workload"], strict=True)
            what = (f"{word} ", _COLOURS.get(word, ""))
            lines.append(Text.assemble(what, f"{metric}, {struck(cases, workloads)}: {reason}"))
    return [*lines, Text()] if lines else []


def _declared(table: pd.DataFrame, asked: set[str], workloads: Iterable[str]) -> list[Text]:
    """Compare what the data paths declare: a line if all is the same, else the differences."""
    if table.empty:
        return []
    other = table[(table["verdict"] != "SAME") & ~table["metric"].isin(asked)]
    lines = [
        Text(
            f"declared bytes and requests of an epoch: {len(table)} compared exactly,"
            f" {int((table['verdict'] == 'SAME').sum())} the same"
        )
    ]
    for line in other.to_dict("records"):
        unit = "" if line["unit"] == "1" else f" {line['unit']}"
        change = f"{line['base']:,.0f}{unit} in A, {line['new']:,.0f}{unit} in B"
        change = line["reason"] if math.isnan(line["base"]) else change
        case = f"{line['strategy']} {line['variant']} {line['metric']}"
        lines.append(Text(f"  {struck([(case, line['workload'])], workloads)}: {change}"))
    return [*lines, Text()]


def _in_order(words: Any) -> list[str]:
    """Return the words that occur, the worst first."""
    order = ("FAILED", "SLOW", "AMBIGUOUS", "UNLIKE", "MISSING", "NEW", "FAST", "SAME")
    return [word for word in order if word in set(words)]
