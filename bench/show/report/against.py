"""The report's comparison with a second run: what both are, the ratios, and their verdicts.

The rule is that of ``gatherbench compare`` (:mod:`gatherbench.bench.read.compare`); here it
is only shown. A is the run compared with, B the run that the report is about.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from gatherbench.bench.read.compare import CompareError, changes, compare_runs, deciding
from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.chart import Chart
from gatherbench.bench.show.charts import comparison_chart
from gatherbench.bench.show.comparison import summary
from gatherbench.bench.show.report.facts import in_short, machine_of
from gatherbench.bench.show.sentences.provenance import modelled_for
from gatherbench.bench.show.table import WHAT, Column, Table, tabulate, with_kind

_DECIDES = (
    "What decides: typical epochs of A and B, where measured the geometric mean over repeats of"
    " each repeat’s median"
)


@dataclass(frozen=True, slots=True)
class Against:
    """A comparison, ready to be shown; ``refused`` says why there is none but the two runs."""

    base: str
    runs: Table
    refused: str = ""
    summary: str = ""
    caution: str = ""
    chart: Chart | None = None
    deciding: Table | None = None
    every: Table | None = None
    changed: Table | None = None


def against(run: Run, base: Run) -> Against:
    """Compare ``run`` with ``base``; times where the machines are alike, else ratios only.

    Raises:
        RunError: a run's table is damaged.
    """
    runs = _side_by_side(run, base)
    caution = ""
    try:
        table = compare_runs(base, run)
    except CompareError as refusal:
        try:
            table = compare_runs(base, run, across_machines=True)
        except CompareError as final:
            return Against(base.run_id, runs, refused=str(final))
        caution = f"Only ratios over each run’s own baseline are compared: {refusal}"
    judged = deciding(table)
    return Against(
        base.run_id,
        runs,
        summary=summary(table),
        caution=caution,
        chart=comparison_chart(
            judged,
            base.names | run.names,
            dict.fromkeys([*modelled_for(base), *modelled_for(run)]),
            relative=bool(caution),
        ),
        deciding=_grid("against", _DECIDES, judged),
        every=_grid("against-all", "Every metric of A and B", table),
        changed=_changed(base, run),
    )


def _side_by_side(run: Run, base: Run) -> Table:
    """The facts of both runs in two columns."""
    sides = [
        [("Run", one.run_id), ("Machine", machine_of(one)), *in_short(one)] for one in (base, run)
    ]
    frame = pd.DataFrame(
        [{"what": what, "a": a, "b": b} for (what, a), (_, b) in zip(*sides, strict=True)]
    )
    columns = [Column("what", "what"), Column("a", "A, compared with"), Column("b", "B, this run")]
    return tabulate("against-runs", "The two runs", columns, frame)


def _grid(ident: str, caption: str, table: pd.DataFrame) -> Table:
    """Lines of a comparison. A value has the unit of its metric."""
    columns = [
        *WHAT,
        Column("metric", "metric"),
        Column("verdict", "verdict"),
        Column("base", "A", units="unit"),
        Column("new", "B", units="unit"),
        Column("ratio", "B over A", "×"),
        Column("low", "from", "×"),
        Column("high", "to", "×"),
        Column("unit", "unit in the CSV"),
        Column("reason", "reason"),
    ]
    return tabulate(ident, caption, columns, with_kind(table))


def _changed(base: Run, run: Run) -> Table | None:
    found = changes(base, run)
    if not found:
        return None
    frame = pd.DataFrame({"reason": found})
    return tabulate("against-changes", "What else has changed", [Column("reason", "change")], frame)
