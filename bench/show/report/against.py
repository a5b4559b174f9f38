"""Compare a run with a second one in the report: what both are, the ratios, the verdicts.

The rule is that of ``gatherbench compare`` (:mod:`gatherbench.bench.read.compare`); here it
is only shown. A is the reference run, B the run of the report.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from gatherbench.bench.read.compare import CompareError, changes, compare_runs, deciding
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import short
from gatherbench.bench.show.charts import NO_BREAK
from gatherbench.bench.show.comparison import summary
from gatherbench.bench.show.drawing import Chart, draw
from gatherbench.bench.show.provenance import in_short, machine_of, modelled_for
from gatherbench.bench.show.table import WHAT, Column, Table, tabulate, with_kind
from gatherbench.bench.show.view import Shown

_DECIDES = (
    "What decides: typical epochs of A and B, where measured the geometric mean over repeats of"
    " each repeat’s median"
)
#: Verdicts, and the colours of their bars.
VERDICTS = {
    "SLOW": "vermilion",
    "FAILED": "vermilion",
    "FAST": "green",
    "SAME": "grey",
    "AMBIGUOUS": "yellow",
    "MISSING": "grey",
    "NEW": "grey",
}


def against(run: Run, base: Run) -> Shown:
    """Compare ``run`` with ``base``: times on like machines, else ratios only.

    Raises:
        RunError: a run's table is damaged.
    """
    bare = Shown("against", f"Against run {short(base.run_id)}", tables=[_side_by_side(run, base)])
    caution = ""
    try:
        table = compare_runs(base, run)
    except CompareError as refusal:
        try:
            table = compare_runs(base, run, across_machines=True)
        except CompareError as final:
            return replace(bare, failed=f"The runs cannot be compared: {final}")
        caution = f"Only ratios over each run’s own baseline are compared: {refusal}"
    judged = deciding(table)
    profiles = ", ".join(dict.fromkeys([*modelled_for(base), *modelled_for(run)]))
    relative = ", each over its own baseline" * bool(caution)
    chart = _chart(judged, base.names | run.names, profiles, relative)
    tables = [
        _grid("against", _DECIDES, judged),
        *bare.tables,
        replace(_grid("against-all", "Every metric of A and B", table), folded=True),
    ]
    changed = [f"Changed: {change}" for change in changes(base, run)]
    notes = [*filter(None, [summary(table), caution]), *changed]
    return replace(bare, tables=tables, figures={"against": draw(chart)}, notes=notes)


def _side_by_side(run: Run, base: Run) -> Table:
    """Put the facts of both runs in two columns."""
    sides = [
        [("Run", one.run_id), ("Machine", machine_of(one)), *in_short(one)] for one in (base, run)
    ]
    frame = pd.DataFrame(
        [{"what": what, "a": a, "b": b} for (what, a), (_, b) in zip(*sides, strict=True)]
    )
    columns = [Column("what", "what"), Column("a", "A, compared with"), Column("b", "B, this run")]
    return tabulate("against-runs", "The two runs", columns, frame)


def _grid(ident: str, caption: str, table: pd.DataFrame) -> Table:
    """Make a table of a comparison; each value has the unit of its metric."""
    columns = [
        *WHAT,
        Column("metric", "metric"),
        Column("verdict", "verdict"),
        Column("base", "A", units="unit"),
        Column("new", "B", units="unit"),
        Column("ratio", "B over A", "×"),
        Column("low", "from", "×"),
        Column("high", "to", "×"),
        Column("reason", "reason"),
    ]
    return tabulate(ident, caption, columns, with_kind(table))


def _chart(judged: pd.DataFrame, names: Mapping[str, str], profiles: str, relative: str) -> Chart:
    """Draw ratios of epoch times with their intervals, around the line of no change.

    Args:
        judged: the deciding lines of :func:`gatherbench.bench.read.compare.compare_runs`.
        names: the workloads in words, by id.
        profiles: the profiles of modelled epochs, which have separate panels.
        relative: text for the title if each time is over its own run's baseline.
    """
    modelled = judged["basis"] == "predicted"
    reasons = (judged["verdict"] + ": " + judged["reason"]).where(judged["ratio"].isna(), "")
    frame = judged[["strategy", "variant", "low"]].assign(
        panel=judged["workload"].map(names),
        look=modelled.map({True: "modelled", False: "measured"}),
        profile=modelled.map({True: profiles, False: ""}),
        value=judged["ratio"],
        high=judged["high"].replace(math.inf, math.nan),  # one repeat has no bound
        suffix=" " + judged["verdict"],
        colour=judged["verdict"].map(VERDICTS),
        reason=reasons.fillna(""),
    )
    return Chart(
        f"Epoch time of B over that of A{relative}",
        frame,
        "B over A",
        "×",
        f"Whiskers: the ratio’s 95{NO_BREAK}% interval. "
        "Shorter is faster; the dotted line is no change.",
        at=[(panel, 1.0, "one") for panel in frame["panel"].unique()],
    )
