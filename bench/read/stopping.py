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
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gatherbench.bench.plan.case import Case
from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.read.disturbance import beside
from gatherbench.bench.read.epochs import epoch_intervals
from gatherbench.bench.read.stats.interval import interval_of
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import Row
from gatherbench.bench.run.store import CASE_METRIC, CASE_STAGE

Series = tuple[str, str, str]

#: Quiet repeats from which on a narrow interval may end a series.
FEWEST = 6


@dataclass(frozen=True, slots=True)
class _Repeat:
    """What one case tells: how it ended, its median epoch, and whether other work ran beside it."""

    number: int
    status: str
    took_s: float
    epoch_s: float | None
    disturbed: bool


class Further:
    """The next case of a run, by its rows so far; ``None``: it is precise enough, or time is up.

    Args:
        cases: that are measured in any case: at least one of every series.
        measure: the plan's table; see its ``precision``, ``max_repeats`` and ``budget_s``.
        cores: logical ones of the machine, by which other work beside a case is judged.
    """

    def __init__(self, cases: Sequence[Case], measure: Measure, cores: int) -> None:
        self._first = {_series(case): case for case in reversed(cases)}
        self._measure, self._cores = measure, cores
        self._draw = random.Random(measure.order_seed)

    def __call__(self, rows: Sequence[Row]) -> Case | None:
        measure = self._measure
        if measure.max_repeats <= measure.min_repeats:
            return None
        repeats = self._repeats(rows)
        spent = sum(one.took_s for series in repeats.values() for one in series)
        wanted = []
        for series in self._first:
            need = self._need(repeats.get(series, []))
            if need is not None:
                longest = max(one.took_s for one in repeats[series])
                if not measure.budget_s or spent + longest <= measure.budget_s:
                    wanted.append((need, self._draw.random(), series))
        if not wanted:
            return None
        last = next(_of(row) for row in reversed(rows) if _ends_a_case(row))
        # Not twice running, or a drift of the machine would fall on one series alone.
        others = [one for one in wanted if one[-1] != last] or wanted
        chosen = max(others)[-1]
        repeat = max(one.number for one in repeats[chosen]) + 1
        return replace(self._first[chosen], repeat=repeat)

    def _repeats(self, rows: Sequence[Row]) -> dict[Series, list[_Repeat]]:
        """What the cases that have ended tell, by series."""
        cases: dict[tuple[Series, int], list[Row]] = defaultdict(list)
        for row in rows:
            if row.basis == "measured":
                cases[_of(row), row.repeat].append(row)
        found: dict[Series, list[_Repeat]] = defaultdict(list)
        for (series, number), mine in cases.items():
            end = next((row for row in mine if _ends_a_case(row)), None)
            if end is None:
                continue
            epochs = [
                row.value
                for row in mine
                if (row.stage, row.metric) == ("epoch", "wall_time") and row.value is not None
            ]
            epoch_s = float(np.median(epochs)) if epochs else None
            other = beside(mine, self._cores)
            disturbed = other is not None and other[1]
            found[series].append(_Repeat(number, end.status, end.value or 0.0, epoch_s, disturbed))
        return found

    def _need(self, repeats: list[_Repeat]) -> tuple[int, float] | None:
        """How much a series wants a repeat: quiet ones that it lacks, width of its interval."""
        measure = self._measure
        if not repeats or any(one.status != "ok" for one in repeats):
            return None
        quiet = [one for one in repeats if not one.disturbed]
        logs = [np.log(one.epoch_s) for one in quiet or repeats if one.epoch_s]
        # Where other work never ends, twice the repeats are enough.
        enough = len(quiet) >= measure.max_repeats or len(repeats) >= 2 * measure.max_repeats
        if enough or not logs:
            return None
        lacking = min(max(FEWEST, measure.min_repeats), measure.max_repeats) - len(quiet)
        width = interval_of((1, logs)).half_width
        return (max(0, lacking), width) if lacking > 0 or width > measure.precision else None


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


def _ends_a_case(row: Row) -> bool:
    return (row.stage, row.metric) == (CASE_STAGE, CASE_METRIC)
