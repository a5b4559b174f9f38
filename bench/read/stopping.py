"""When is a run precise enough, and which case comes next until it is?

Beyond the repeats that are measured in any case, each further one goes to the series that needs it
most: one with too few quiet repeats, else the one whose interval is widest (nvbench and MLPerf stop
by such rules, too). The plan's budget is time spent in cases, as their rows tell, so a run that was
cut off goes on with what is left of it.

To stop when an interval happens to be narrow makes it cover less often; from six repeats on that
costs one or two per cent (``python -m gatherbench.bench.read.stats.coverage``), so no series ends
by its precision before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from gatherbench.bench.plan.case import Case
from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.read.epochs import epoch_intervals
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import Row
from gatherbench.bench.run.store import CASE_METRIC, CASE_STAGE

Series = tuple[str, str, str]

#: Quiet repeats from which on a narrow interval may end a series.
FEWEST = 6


class Further:
    """The next case of a run, by its rows so far; ``None``: it is precise enough, or time is up.

    Args:
        cases: that are measured in any case: at least one of every series.
        measure: the plan's table; see its ``precision``, ``max_repeats`` and ``budget_s``.
        read: rows of the run as a :class:`Run`.
    """

    def __init__(
        self, cases: Sequence[Case], measure: Measure, read: Callable[[list[Row]], Run]
    ) -> None:
        self._first = {_series(case): case for case in reversed(cases)}
        self._measure, self._read = measure, read
        self._draw = random.Random(measure.order_seed)

    def __call__(self, rows: list[Row]) -> Case | None:
        measure = self._measure
        if measure.max_repeats <= measure.min_repeats:
            return None
        ended = [r for r in rows if (r.stage, r.metric) == (CASE_STAGE, CASE_METRIC)]
        spent = sum(row.value or 0.0 for row in ended)
        wanted = []
        for series, need in self._needs(rows, ended).items():
            times = [row.value or 0.0 for row in ended if _of(row) == series]
            if not measure.budget_s or spent + max(times) <= measure.budget_s:
                wanted.append((need, self._draw.random(), series))
        if not wanted:
            return None
        last = _of(ended[-1])
        # Not twice running, or a drift of the machine would fall on one series alone.
        others = [one for one in wanted if one[-1] != last] or wanted
        chosen = max(others)[-1]
        repeat = max(row.repeat for row in ended if _of(row) == chosen) + 1
        return replace(self._first[chosen], repeat=repeat)

    def _needs(self, rows: list[Row], ended: list[Row]) -> dict[Series, tuple[int, float]]:
        """How much each series wants a repeat: quiet ones that it lacks, width of its interval."""
        measure, run = self._measure, self._read(rows)
        intervals = {key[:3]: found for key, found in epoch_intervals(run).items()}
        columns = ["workload", "strategy", "variant", "repeat"]
        disturbed = set(run.rows.loc[run.rows["disturbed"], columns].itertuples(index=False))
        needs = {}
        for series in self._first:
            mine = [row for row in ended if _of(row) == series]
            if not mine or any(row.status != "ok" for row in mine) or series not in intervals:
                continue
            quiet = sum((*series, row.repeat) not in disturbed for row in mine)
            width = intervals[series].half_width
            # Where other work never ends, twice the repeats are enough.
            if quiet < measure.max_repeats and len(mine) < 2 * measure.max_repeats:
                lacking = max(0, min(max(FEWEST, measure.min_repeats), measure.max_repeats) - quiet)
                if lacking or width > measure.precision:
                    needs[series] = (lacking, width)
        return needs


def imprecise(run: Run) -> dict[Series, float]:
    """The measured series whose interval is wider than the plan asked for, and its half-width."""
    asked = Measure.model_validate(run.plan["measure"])
    if asked.max_repeats <= asked.min_repeats:
        return {}  # a number of repeats was asked for
    found = {key[:3]: interval.half_width for key, interval in epoch_intervals(run).items()}
    return {series: width for series, width in found.items() if width > asked.precision}


def _series(case: Case) -> Series:
    return case.workload.id, case.strategy, case.variant


def _of(row: Row) -> Series:
    return row.workload, row.strategy, row.variant
