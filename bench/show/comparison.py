"""Show a comparison of two runs: in the terminal, as JSON, and as a section of the report.

A is the run before, B the new one. :mod:`gatherbench.bench.read.compare` has the rule; here it is
only shown. Nothing depends on colour.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
    choices,
    compare_runs,
    deciding,
)
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import short
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.show.charts import NO_BREAK
from gatherbench.bench.show.drawing import Chart, draw
from gatherbench.bench.show.provenance import in_short
from gatherbench.bench.show.table import WHAT, Column, Table
from gatherbench.bench.show.terminal import cases_in_words, in_terminal
from gatherbench.bench.show.view import Shown
from gatherbench.strategies.registry import in_words

#: Verdicts, the worst first: their colours in pictures, and what they say of B.
VERDICTS = {
    "FAILED": ("vermilion", "failed in B alone"),
    "SLOW": ("vermilion", "B is slower, by more than the threshold"),
    "AMBIGUOUS": ("yellow", "too uncertain to decide"),
    "UNLIKE": ("grey", "threads waited differently in A and B, so nothing is decided"),
    "MISSING": ("grey", "in A alone"),
    "NEW": ("grey", "in B alone"),
    "FAST": ("green", "B is faster, by more than the threshold"),
    "SAME": ("grey", "any difference is below the threshold"),
}
#: Marks after a ratio without a verdict column.
_SIGNS = {"SLOW": "\N{NO-BREAK SPACE}!", "FAST": "\N{NO-BREAK SPACE}*"}
_SIGNS |= dict.fromkeys(("AMBIGUOUS", "UNLIKE"), "\N{NO-BREAK SPACE}?")
#: A note: the ratio is the quotient of these values, not of the medians over all epochs.
TYPICAL = (
    "A and B, measured: typical epochs, the geometric mean over repeats of each repeat's median, as"
    " in speed-ups; the epochs of `gatherbench show` are medians over all epochs. B / A with its"
    " 95 % interval; after other ratios ! is SLOW, * FAST, ? undecided; no mark: SAME."
)
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


def against(run: Run, base: Run) -> Shown:
    """Compare ``run`` (B) with ``base`` (A) for the report.

    Raises:
        RunError: a run's table is damaged.
    """
    sides = [[("Run", side.run_id), *in_short(side)] for side in (base, run)]
    lines = [{"what": what, "a": a, "b": b} for (what, a), (_, b) in zip(*sides, strict=True)]
    columns = [Column("what", "what"), Column("a", "A, compared with"), Column("b", "B, this run")]
    two_runs = Table("against-runs", "The two runs", columns, pd.DataFrame(lines))
    bare = Shown("against", f"Against run {short(base.run_id)}", tables=[two_runs])
    try:
        table = compare_runs(base, run)
    except CompareError as refusal:
        return replace(bare, failed=f"The runs cannot be compared: {refusal}")
    return replace(
        bare,
        tables=[*compared(table), two_runs],
        figures={"against": draw(_chart(deciding(table), base, run))},
        notes=_notes(table, base, run),
    )


def render_comparison(
    table: pd.DataFrame, base: Run, new: Run, metrics: Sequence[str] = (), *, strict: bool = False
) -> RenderableType:
    """Render a table per workload, reasons for other verdicts than SAME, changes, and the sum.

    Args:
        table: from :func:`gatherbench.bench.read.compare.compare_runs`.
        metrics: the requested ones; empty: all.
    """
    titles = {ident: f"{name}: {ident}" for ident, name in (base.names | new.names).items()}
    parts: list[RenderableType] = [Text(f"A {base.folder}\nB {new.folder}\n")]
    for part in compared(table):
        parts += in_terminal(part, titles)
    *notes, total = _notes(table, base, new, metrics)
    parts += [*map(Text, notes), Text(total, style="bold")]
    if exit_status(table, metrics, strict=strict) == NOT_JUDGED:
        text = "this is no evidence that nothing changed"
        parts.append(Text(f"Not judged (exit status {NOT_JUDGED}): {text}.", style="yellow"))
    return Group(*parts)


def compared(table: pd.DataFrame) -> list[Table]:
    """Make a line per series: all values of the first metric; in another table the ratios of the
    others.
    """
    timed = table[table["basis"] != "declared"]
    lead, *others = [name for name in METRICS if (timed["metric"] == name).any()]
    first = timed[timed["metric"] == lead]
    bounded = np.isfinite(first["high"])  # one repeat has no bound
    ends = {"ratio_low": first["low"].where(bounded), "ratio_high": first["high"].where(bounded)}
    columns = [
        *WHAT[:3],
        Column("base", f"{lead} A", str(first["unit"].iloc[0]), short=f"{lead} A"),
        Column("new", "B", str(first["unit"].iloc[0]), like="base", short="B"),
        Column("ratio", "B / A", "×", short="B / A", interval=True),
        Column("verdict", "verdict", short="verdict"),
        Column("reason", "reason"),
    ]
    tables = [Table("against", f"{lead} of A and B", columns, first.assign(**ends))]
    pairs = zip(timed["ratio"], timed["verdict"], strict=True)
    texts = [f"{ratio:.2f}{_SIGNS.get(word, '')}" if ratio > 0 else "" for ratio, word in pairs]
    wide = timed.assign(text=texts).pivot(index=SERIES, columns="metric", values="text")
    if others:
        named = (Column(name, name, short=name.replace("_", " ")) for name in others)
        columns = [*WHAT[:3], *named]
        frame = first[SERIES].join(wide.reindex(columns=others), on=SERIES)
        title = "B / A of the other metrics"
        tables.append(Table("against-others", title, columns, frame, title))
    return tables


def _notes(table: pd.DataFrame, base: Run, new: Run, metrics: Sequence[str] = ()) -> list[str]:
    """Say what changed, why a verdict is open, what is declared otherwise, and at last the sum."""
    chosen, names = deciding(table, metrics), base.names | new.names
    present = set(chosen["verdict"])
    legend = (f"{word}: {VERDICTS[word][1]}" for word in VERDICTS if word in present)
    decided = table[table["basis"] == "measured"]["verdict"].isin(("FAST", "SLOW")).any()
    return [
        *(f"changed: {change}" for change in changes(base, new)),
        *_choices(base, new, names),
        *_reasons(chosen, names),
        *_declared(table, set(metrics), names),
        TYPICAL,
        f"{'; '.join(legend)}.",
        *[_TWO_VISITS] * bool(decided),
        summary(table, metrics),
    ]


def comparison_json(
    table: pd.DataFrame, base: Run, new: Run, metrics: Sequence[str] = (), *, strict: bool = False
) -> str:
    """Return the comparison as one JSON object; unknown values are null."""
    known = table.astype(object).where(~table.isin([math.inf, -math.inf]) & table.notna(), None)
    content = {
        "a": base.run_id,
        "b": new.run_id,
        "changed": changes(base, new),
        "choices": choices(base, new).to_dict("records"),
        "summary": summary(table, metrics),
        "exit_status": exit_status(table, metrics, strict=strict),
        "comparisons": known.to_dict("records"),
    }
    return json.dumps(content, indent=2)


def _reasons(chosen: pd.DataFrame, names: Mapping[str, str]) -> Iterator[str]:
    for word in [word for word in VERDICTS if word not in ("SAME", "FAST")]:
        of_word = chosen[chosen["verdict"] == word]
        for (metric, reason), group in of_word.groupby(["metric", "reason"], sort=False):
            yield f"{word} {metric}, {_cases(group, names)}: {reason}"


def _choices(base: Run, new: Run, names: Mapping[str, str]) -> Iterator[str]:
    for (choice, a, b), group in choices(base, new).groupby(["choice", "a", "b"], sort=False):
        words = str(choice).replace("_", " ")
        yield f"changed: {words} of {_cases(group, names)}: {a} in A, {b} in B"


def _cases(lines: pd.DataFrame, names: Mapping[str, str]) -> str:
    paths = map(in_words, lines["strategy"], lines["variant"])
    return cases_in_words(zip(paths, lines["workload"].map(names), strict=True), names.values())


def _declared(table: pd.DataFrame, metrics: set[str], names: Mapping[str, str]) -> Iterator[str]:
    """Compare what the data paths declare: a line if all is the same, else the differences."""
    declared = table[table["basis"] == "declared"]
    if declared.empty:
        return
    same = declared["verdict"] == "SAME"
    yield (
        f"declared bytes and requests of an epoch: {len(declared)} compared exactly,"
        f" {int(same.sum())} the same"
    )
    for line in declared[~same & ~declared["metric"].isin(metrics)].to_dict("records"):
        unit = "" if line["unit"] == "1" else f" {line['unit']}"
        change = f"{line['base']:,.0f}{unit} in A, {line['new']:,.0f}{unit} in B"
        change = line["reason"] if math.isnan(line["base"]) else change
        case = f"{in_words(line['strategy'], line['variant'])} {line['metric']}"
        cases = cases_in_words([(case, names[line["workload"]])], names.values())
        yield f"  {cases}: {change}"


def _chart(judged: pd.DataFrame, base: Run, run: Run) -> Chart:
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
