"""Show a comparison of two runs: in the terminal, as JSON, and as a section of the report.

A is the run before, B the new one. :mod:`gatherbench.bench.read.compare` has the rule; here it is
only shown. Nothing depends on colour.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from rich.console import Group, RenderableType
from rich.text import Text

from gatherbench.bench.read.compare import (
    BAD,
    METRICS,
    OPEN,
    CompareError,
    changes,
    compare_runs,
    deciding,
)
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import short
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.show.charts import NO_BREAK
from gatherbench.bench.show.drawing import Chart, draw
from gatherbench.bench.show.provenance import in_short, machine_of
from gatherbench.bench.show.table import WHAT, Column, Table
from gatherbench.bench.show.terminal import cases_in_words, in_terminal
from gatherbench.bench.show.view import Shown
from gatherbench.strategies.registry import in_words

#: Verdicts, the worst first: their colours in pictures and in a terminal, and what they say of B.
VERDICTS = {
    "FAILED": ("vermilion", "red", "failed in B alone"),
    "SLOW": ("vermilion", "red", "B is slower, by more than the threshold"),
    "AMBIGUOUS": ("yellow", "yellow", "too uncertain to decide"),
    "UNLIKE": ("grey", "yellow", "threads waited differently in A and B, so nothing is decided"),
    "MISSING": ("grey", "yellow", "in A alone"),
    "NEW": ("grey", "yellow", "in B alone"),
    "FAST": ("green", "green", "B is faster, by more than the threshold"),
    "SAME": ("grey", "", "any difference is below the threshold"),
}
#: Marks after a ratio without a verdict column.
_SIGNS = {"SLOW": "\N{NO-BREAK SPACE}!", "FAST": "\N{NO-BREAK SPACE}*"}
_SIGNS |= dict.fromkeys(("AMBIGUOUS", "UNLIKE"), "\N{NO-BREAK SPACE}?")
#: A note: the ratio is the quotient of these values, not of the medians over all epochs.
TYPICAL = (
    "A and B, measured: typical epochs, the geometric mean over repeats of each repeat's median, as"
    " in speed-ups; the epochs of `gatherbench show` are medians over all epochs. B / A with its"
    " 95 % interval; after other ratios ! is SLOW, * FAST, ? AMBIGUOUS or UNLIKE, nothing SAME."
)
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


def summary(table: pd.DataFrame, metrics: Sequence[str] = ()) -> str:
    """Count the verdicts of the deciding lines, in one sentence."""
    chosen = deciding(table, metrics)
    names, counts = ", ".join(dict.fromkeys(chosen["metric"])), Counter(chosen["verdict"])
    return f"{names}: {', '.join(f'{counts[word]} {word}' for word in VERDICTS if counts[word])}"


def compared(table: pd.DataFrame) -> Table:
    """Make a line per series: all values of the first metric, and the ratios of the others.

    Args:
        table: from :func:`gatherbench.bench.read.compare.compare_runs`.
    """
    timed = table[~table["metric"].map(lambda name: METRICS[name].declared).astype(bool)]
    lead, *others = [name for name in METRICS if (timed["metric"] == name).any()]
    first = timed[timed["metric"] == lead]
    unit = str(first["unit"].iloc[0])
    pairs = zip(timed["ratio"], timed["verdict"], strict=True)
    texts = [f"{ratio:.2f}{_SIGNS.get(word, '')}" if ratio > 0 else "" for ratio, word in pairs]
    wide = timed.assign(text=texts).pivot(index=SERIES, columns="metric", values="text")
    bounded = np.isfinite(first["high"])  # one repeat has no bound
    ends = {"ratio_low": first["low"].where(bounded), "ratio_high": first["high"].where(bounded)}
    frame = first.assign(**ends).join(wide.reindex(columns=others), on=SERIES)
    columns = [
        *WHAT[:3],
        Column("base", f"{lead} A", unit, short=f"{lead} A"),
        Column("new", "B", unit, like="base", short="B"),
        Column("ratio", "B / A", "×", short="B / A", interval=True),
        Column("verdict", "verdict", short="verdict"),
        *(Column(name, f"{name}, B / A", short=name.replace("_", " ")) for name in others),
        Column("reason", "reason"),
    ]
    caption = f"The two runs: {lead} of A and B, its ratio and verdict, and the other ratios"
    return Table("against", caption, columns, frame)


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
        metrics: the requested ones; empty: all.
        width: columns of the terminal; below :data:`WIDE` the metrics after the first have a
            separate table.
    """
    names = base.names | new.names
    titles = {ident: f"{name}: {ident}" for ident, name in names.items()}
    parts: list[RenderableType] = [
        Text(f"A {base.folder}\nB {new.folder}"),
        *(Text(f"changed: {change}", style="yellow") for change in changes(base, new)),
        Text(),
    ]
    whole, chosen = compared(table[table["ratio"].notna()]), deciding(table, metrics)
    cut = [column.field for column in whole.columns].index("verdict") + 1
    left, right = whole.columns[:cut], [*WHAT[:3], *whole.columns[cut:]]
    for columns in [whole.columns] if width >= WIDE else [left, right]:
        parts += in_terminal(replace(whole, columns=columns), titles)
    parts += _reasons(chosen, names)
    declared = table["metric"].map(lambda name: METRICS[name].declared)
    parts += _declared(table[declared], set(metrics), names)
    parts += [Text(TYPICAL, style="dim"), Text(_legend(chosen["verdict"]), style="dim")]
    if table[table["basis"] == "measured"]["verdict"].isin(("FAST", "SLOW")).any():
        parts.append(Text(_TWO_VISITS, style="yellow"))
    parts.append(Text(summary(table, metrics), style="bold"))
    if exit_status(table, metrics, strict=strict) == NOT_JUDGED:
        text = "this is no evidence that nothing changed"
        parts.append(Text(f"Not judged (exit status {NOT_JUDGED}): {text}.", style="yellow"))
    return Group(*parts)


def comparison_json(
    table: pd.DataFrame, base: Run, new: Run, metrics: Sequence[str] = (), *, strict: bool = False
) -> str:
    """Return the comparison as one JSON object; unknown values are null."""
    known = table.astype(object).where(~table.isin([math.inf, -math.inf]) & table.notna(), None)
    content = {
        "a": base.run_id,
        "b": new.run_id,
        "changed": changes(base, new),
        "summary": summary(table, metrics),
        "exit_status": exit_status(table, metrics, strict=strict),
        "comparisons": known.to_dict("records"),
    }
    return json.dumps(content, indent=2)


def _legend(verdicts: Iterable[str]) -> str:
    """Explain the verdicts that occur."""
    present = set(verdicts)
    return "; ".join(f"{word}: {VERDICTS[word][2]}" for word in VERDICTS if word in present) + "."


def _reasons(chosen: pd.DataFrame, names: Mapping[str, str]) -> Iterator[Text]:
    """Give each reason for a closer look once, with its cases."""
    open_ = chosen[~chosen["verdict"].isin(["SAME", "FAST"])]
    for word in [word for word in VERDICTS if word in set(open_["verdict"])]:
        of_word = open_[open_["verdict"] == word]
        for (metric, reason), group in of_word.groupby(["metric", "reason"], sort=False):
            paths = map(in_words, group["strategy"], group["variant"])
            pairs = zip(paths, group["workload"].map(names), strict=True)
            cases = cases_in_words(pairs, names.values())
            yield Text.assemble((f"{word} ", VERDICTS[word][1]), f"{metric}, {cases}: {reason}")
    if len(open_):
        yield Text()


def _declared(table: pd.DataFrame, metrics: set[str], names: Mapping[str, str]) -> Iterator[Text]:
    """Compare what the data paths declare: a line if all is the same, else the differences."""
    if table.empty:
        return
    same = table["verdict"] == "SAME"
    yield Text(
        f"declared bytes and requests of an epoch: {len(table)} compared exactly,"
        f" {int(same.sum())} the same"
    )
    for line in table[~same & ~table["metric"].isin(metrics)].to_dict("records"):
        unit = "" if line["unit"] == "1" else f" {line['unit']}"
        change = f"{line['base']:,.0f}{unit} in A, {line['new']:,.0f}{unit} in B"
        change = line["reason"] if math.isnan(line["base"]) else change
        case = f"{in_words(line['strategy'], line['variant'])} {line['metric']}"
        cases = cases_in_words([(case, names[line["workload"]])], names.values())
        yield Text(f"  {cases}: {change}")
    yield Text()


# ---- in the report -------------------------------------------------------------------------------


def against(run: Run, base: Run) -> Shown:
    """Compare ``run`` (B) with ``base`` (A).

    Raises:
        RunError: a run's table is damaged.
    """
    bare = Shown("against", f"Against run {short(base.run_id)}", tables=[_side_by_side(run, base)])
    try:
        table = compare_runs(base, run)
    except CompareError as refusal:
        return replace(bare, failed=f"The runs cannot be compared: {refusal}")
    changed = [f"Changed: {change}" for change in changes(base, run)]
    notes = [summary(table), _legend(deciding(table)["verdict"]), *changed]
    tables = [compared(table), *bare.tables]
    figures = {"against": draw(_chart(deciding(table), base, run))}
    return replace(bare, tables=tables, figures=figures, notes=notes)


def _side_by_side(run: Run, base: Run) -> Table:
    """Put the facts of both runs in two columns."""
    sides = [
        [("Run", one.run_id), ("Machine", machine_of(one)), *in_short(one)] for one in (base, run)
    ]
    lines = [{"what": what, "a": a, "b": b} for (what, a), (_, b) in zip(*sides, strict=True)]
    columns = [Column("what", "what"), Column("a", "A, compared with"), Column("b", "B, this run")]
    return Table("against-runs", "The two runs", columns, pd.DataFrame(lines))


def _chart(judged: pd.DataFrame, base: Run, run: Run) -> Chart:
    """Draw ratios of epoch times with their intervals, around the line of no change.

    Args:
        judged: the deciding lines of :func:`gatherbench.bench.read.compare.compare_runs`.
    """
    reasons = (judged["verdict"] + ": " + judged["reason"]).where(judged["ratio"].isna(), "")
    frame = judged[["strategy", "variant", "low"]].assign(
        panel=judged["workload"].map(base.names | run.names),
        look="measured",
        value=judged["ratio"],
        high=judged["high"].replace(math.inf, math.nan),  # one repeat has no bound
        suffix=" " + judged["verdict"],
        colour=judged["verdict"].map(lambda word: VERDICTS[word][0]),
        reason=reasons.fillna(""),
    )
    return Chart(
        f"Epoch time of B, this run, over that of A, {short(base.run_id)}",
        frame,
        "B over A",
        "×",
        f"Whiskers: the ratio’s 95{NO_BREAK}% interval. "
        "Shorter is faster; the dotted line is no change.",
        at=[(panel, 1.0, "one") for panel in frame["panel"].unique()],
    )
