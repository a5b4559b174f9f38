"""Decide when a run is precise enough, and which case comes next until then.

Beyond the repeats that are always measured, each further one goes to the series that needs it
most: one with too few quiet repeats, else the one whose interval is widest (nvbench and MLPerf stop
by such rules, too). All series that take turns with it are measured with it. The plan's budget is
time spent in such further cases, by their rows, so a run that was cut off continues with the rest.

Stopping at a narrow interval lowers its coverage, by one or two per cent from six repeats on
(``stats/NOTES.md``), so no series ends by its precision before.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Case
from gatherbench.bench.read.check import limits_of
from gatherbench.bench.read.derive import epoch_logs, host_bound
from gatherbench.bench.read.tables import Run, run_of
from gatherbench.bench.run.frames import Frames
from gatherbench.bench.run.part import key_of
from gatherbench.bench.run.rows import SERIES, Key
from gatherbench.stats.interval import Logs, interval_of, ratio_of

#: Workload, strategy and variant.
Series = tuple[str, str, str]
_PATH = SERIES[:3]

#: The number of quiet repeats from which on a narrow interval may end a series.
FEWEST = 6


class StoppingRule:
    """Returns the next cases of a run from its tables; none: it is precise enough, or time is up.

    Args:
        cases: those that are always measured: at least one of every series.
        measure: the plan's table; see its ``repeats``, ``precision`` and ``budget_s``.
        cores: logical ones of the machine, by which other work during a case is judged.
    """

    def __init__(self, cases: Sequence[Case], measure: Measure, cores: int) -> None:
        self._first = {(c.workload.id, c.strategy, c.variant): c for c in reversed(cases)}
        self._least = set(map(key_of, cases))
        self._measure, self._cores = measure, cores
        self._draw = random.Random(0)

    def __call__(self, frames: Frames) -> list[Case]:
        measure = self._measure
        if measure.max_repeats <= measure.min_repeats:
            return []
        run = so_far(frames, measure, self._cores)
        cases = run.ended.reset_index()
        names = cases[[*_PATH, "repeat"]].itertuples(index=False, name=None)
        spent_s = cases.loc[[name not in self._least for name in names], "case_s"].sum()
        table = self._series(cases)
        # Those that take turns in one process are measured again together.
        groups = table.groupby("group")
        table["repeat"] = groups["repeat"].transform("max") + 1
        table["cost_s"] = groups["longest_s"].transform("sum")
        # Avoid twice in a row: a drift of the machine would fall on one series alone.
        table["again"] = groups["place"].transform("max") == len(cases) - 1
        table["width"] = pd.Series(_widths(run), dtype=float).reindex(table.index)
        table["lacking"] = (max(FEWEST, measure.min_repeats) - table["quiet"]).clip(lower=0)
        # If other work never ends, twice the repeats are enough.
        most = measure.max_repeats
        enough = (table["quiet"] >= most) | (table["repeats"] >= 2 * most)
        wide = (table["lacking"] > 0) | (table["width"] > measure.precision)
        affordable = table["cost_s"] <= (measure.budget_s or math.inf) - spent_s
        wanted = table[~enough & wide & table["width"].notna() & affordable]
        if wanted.empty:
            return []
        wanted = wanted.assign(draw=[self._draw.random() for _ in wanted.index])
        order = {"again": True, "lacking": False, "width": False, "draw": False}
        best = wanted.sort_values([*order], ascending=[*order.values()]).iloc[0]
        members = table.index[table["group"] == best["group"]]
        return [replace(self._first[series], repeat=int(best["repeat"])) for series in members]

    def _series(self, cases: pd.DataFrame) -> pd.DataFrame:
        """Return a line for each series that never failed; a ``group`` is measured together."""
        cases = cases.assign(
            turns=cases["setup_process_began_s"].notna(),
            quiet=~cases["noisy"],
            place=range(len(cases)),
            ok=cases["status"] == "ok",
        )
        table = cases.groupby(_PATH).agg(
            repeats=("repeat", "size"),
            repeat=("repeat", "max"),
            quiet=("quiet", "sum"),
            longest_s=("case_s", "max"),
            turns=("turns", "last"),
            place=("place", "max"),
            ok=("ok", "all"),
        )
        table = table[table["ok"] & table.index.isin([*self._first])]
        together = zip(table.index, table["turns"], strict=True)
        return table.assign(group=[s[0] if in_turns else str(s) for s, in_turns in together])


def widths(logs: Mapping[Key, Logs], bound: Collection[Key] = ()) -> dict[Key, float]:
    """Return the half-width of the interval of each series' epoch, as a share of it.

    For paths that took turns it is that of the ratio over the shortest of their workload: the
    overall speed of the process is in every epoch of it, and cancels in ratios. A series of
    ``bound`` is left out if its shortest is among them, too: repeats never give a verdict on two
    paths that the host bounds.
    """
    turns = [key for key, own in logs.items() if own.blocks]
    shares = {}
    for key, own in logs.items():
        if not own.blocks:
            shares[key] = interval_of(own).half_width
            continue
        rivals = [k for k in turns if (k.workload, k.backend) == (key.workload, key.backend)]
        leader = min(rivals, key=lambda rival: np.mean(logs[rival]))
        if leader == key or not {key, leader} <= {*bound}:
            shares[key] = ratio_of(own, logs[leader]).half_width
    return shares


def _widths(run: Run) -> dict[Series, float]:
    shares = widths(epoch_logs(run), host_bound(run))
    return {key[:3]: width for key, width in shares.items()}


def so_far(frames: Frames, measure: Measure, cores: int) -> Run:
    """Return what a run has measured so far."""
    plan = {"workloads": {}, "cases": [], "measure": measure.model_dump()}
    env = {"cpu": {"logical_cores": cores}}
    return run_of(Path(), plan, env, frames, going=None)


def imprecise(run: Run) -> dict[Series, float]:
    """Return the measured series that are less precise than planned, and their half-width."""
    limits = Measure.model_validate(limits_of(run.plan))
    if limits.max_repeats <= limits.min_repeats:
        return {}  # the plan has a fixed number of repeats
    return {series: width for series, width in _widths(run).items() if width > limits.precision}
