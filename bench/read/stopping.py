"""When is a run precise enough, and which case comes next until it is?

Beyond the repeats that are measured in any case, each further one goes to the series that needs it
most: one with too few quiet repeats, else the one whose interval is widest (nvbench and MLPerf stop
by such rules, too). The plan's budget is time spent in cases, as their rows tell, so a run that was
cut off goes on with what is left of it.

To stop when an interval happens to be narrow makes it cover less often; from six repeats on that
costs one or two per cent (``python -m tools.interval_coverage``), so no series ends
by its precision before.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from gatherbench.bench.plan.case import Case
from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.read.disturbance import mark_disturbed
from gatherbench.bench.read.epochs import epoch_intervals
from gatherbench.bench.read.stats.interval import interval_of
from gatherbench.bench.read.tables import Run, table_of
from gatherbench.bench.run.rows import SERIES, Row
from gatherbench.bench.run.store import CASE_METRIC, CASE_STAGE

Series = tuple[str, ...]

#: Quiet repeats from which on a narrow interval may end a series.
FEWEST = 6


class Further:
    """The next cases of a run, by its rows so far; none: it is precise enough, or time is up.

    Args:
        cases: that are measured in any case: at least one of every series.
        measure: the plan's table; see its ``precision``, ``max_repeats`` and ``budget_s``.
        cores: logical ones of the machine, by which other work beside a case is judged.
    """

    def __init__(self, cases: Sequence[Case], measure: Measure, cores: int) -> None:
        self._first: dict[Series, Case] = {
            (c.workload.id, c.strategy, c.variant): c for c in reversed(cases)
        }
        self._measure, self._cores = measure, cores
        self._draw = random.Random(measure.order_seed)

    def __call__(self, rows: Sequence[Row]) -> list[Case]:
        measure = self._measure
        if measure.max_repeats <= measure.min_repeats:
            return []
        table = marked(rows, self._cores)
        ended = table[(table["stage"] == CASE_STAGE) & (table["metric"] == CASE_METRIC)]
        epochs = table[(table["stage"] == "epoch") & (table["metric"] == "wall_time")]
        wanted = []
        for series, mine in ended.groupby(SERIES[:3]):
            case = self._first.get(tuple(map(str, series)))
            if case is None or (mine["status"] != "ok").any():
                continue
            known = epochs.merge(mine[[*SERIES[:3], "repeat"]])
            need = self._need(known, len(mine), int((~mine["disturbed"]).sum()))
            within = not measure.budget_s or (
                ended["value"].sum() + mine["value"].max() <= measure.budget_s
            )
            if need is not None and within:
                further = replace(case, repeat=int(mine["repeat"].max()) + 1)
                # Not twice running, or a drift of the machine would fall on one series alone.
                again = mine.index[-1] == ended.index[-1]
                wanted.append((not again, need, self._draw.random(), further))
        return [max(wanted, key=lambda one: one[:3])[-1]] if wanted else []

    def _need(self, epochs: pd.DataFrame, repeats: int, quiet: int) -> tuple[int, float] | None:
        """How much a series wants a repeat: quiet ones that it lacks, width of its interval."""
        measure, counted = self._measure, epochs[epochs["used"]].dropna(subset="value")
        logs = np.log(counted.groupby("repeat")["value"].median())
        # Where other work never ends, twice the repeats are enough.
        enough = quiet >= measure.max_repeats or repeats >= 2 * measure.max_repeats
        if enough or logs.empty:
            return None
        lacking = max(FEWEST, measure.min_repeats) - quiet
        width = interval_of((1, logs)).half_width
        return (max(0, lacking), width) if lacking > 0 or width > measure.precision else None


def marked(rows: Iterable[Row], cores: int) -> pd.DataFrame:
    """The observations of whole cases among these, with the columns of :func:`mark_disturbed`."""
    whole = (r for r in rows if r.stage in ("epoch", "case") and r.rank < 0)
    measured = table_of(r for r in whole if r.basis == "measured")
    return mark_disturbed(measured, {"cpu": {"logical_cores": cores}})


def imprecise(run: Run) -> dict[Series, float]:
    """The measured series whose interval is wider than the plan asked for, and its half-width."""
    asked = Measure.model_validate(run.plan["measure"])
    if asked.max_repeats <= asked.min_repeats:
        return {}  # a number of repeats was asked for
    found = {key[:3]: interval.half_width for key, interval in epoch_intervals(run).items()}
    return {series: width for series, width in found.items() if width > asked.precision}
