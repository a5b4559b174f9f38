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
from typing import Any

import numpy as np
import pandas as pd

from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Case
from gatherbench.bench.read.check import limits_of
from gatherbench.bench.read.derive import PATH, host_bound, repeat_logs
from gatherbench.bench.read.tables import Run, run_of
from gatherbench.bench.run.frames import Frames
from gatherbench.bench.run.part import key_of
from gatherbench.bench.run.rows import Key
from gatherbench.stats.interval import Logs, interval_of, ratio_of

#: The number of quiet repeats from which on a narrow interval may end a series.
FEWEST = 6


class StoppingRule:
    """Returns the next cases of a run from its tables; none: it is precise enough, or time is up.

    Args:
        cases: those that are always measured: at least one of every series.
        measure: the plan's table; see its ``repeats``, ``precision`` and ``budget_s``.
        env: the machine, by whose number of cores other work during a case is judged.
    """

    def __init__(self, cases: Sequence[Case], measure: Measure, env: dict[str, Any]) -> None:
        self._first = {(c.workload.id, c.strategy, c.variant): c for c in reversed(cases)}
        self._least = set(map(key_of, cases))
        self._measure, self._env = measure, env
        self._draw = random.Random(0)

    def __call__(self, frames: Frames) -> list[Case]:
        measure = self._measure
        if measure.max_repeats <= measure.min_repeats:
            return []
        plan = {"workloads": {}, "cases": [], "measure": measure.model_dump()}
        run = run_of(Path(), plan, self._env, frames, going=None)
        cases = run.ended.reset_index()
        names = cases[[*PATH, "repeat"]].itertuples(index=False, name=None)
        spent_s = cases.loc[[name not in self._least for name in names], "case_s"].sum()
        cases["turns"], cases["quiet"] = cases["setup_process_began_s"].notna(), ~cases["noisy"]
        cases["place"], cases["ok"] = range(len(cases)), cases["status"] == "ok"
        how = {"repeat": "max", "quiet": "sum", "case_s": "max", "turns": "last", "place": "max"}
        table = cases.assign(repeats=1).groupby(PATH).agg({**how, "ok": "all", "repeats": "sum"})
        table = table[table["ok"] & table.index.isin([*self._first])].copy()
        # Those that take turns in one process are measured again together.
        together = zip(table.index, table["turns"], strict=True)
        table["group"] = [name[0] if in_turns else str(name) for name, in_turns in together]
        groups = table.groupby("group")
        table["repeat"] = groups["repeat"].transform("max") + 1
        table["cost_s"] = groups["case_s"].transform("sum")
        # Avoid twice in a row: a drift of the machine would fall on one series alone.
        table["again"] = groups["place"].transform("max") == len(cases) - 1
        half_widths = widths(repeat_logs(run), host_bound(run))
        by_path = {key[:3]: width for key, width in half_widths.items()}
        table["width"] = pd.Series(by_path, dtype=float).reindex(table.index)
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


def widths(logs: Mapping[Key, Logs], bound: Collection[Key] = ()) -> dict[Key, float]:
    """Return the half-width of the interval of each series' epoch, as a share of it.

    For paths that took turns it is that of the ratio over the shortest of their workload: the
    overall speed of the process is in every epoch of it, and cancels in ratios. A series of
    ``bound`` is left out if its shortest is among them, too: repeats never give a verdict on two
    paths that the host bounds.
    """
    shares = {}
    for key, own in logs.items():
        rivals = [k for k in logs if logs[k].blocks and (k[0], k[3]) == (key[0], key[3])]
        leader = min(rivals, key=lambda rival: np.mean(logs[rival])) if own.blocks else key
        if leader == key or not {key, leader} <= {*bound}:
            width = ratio_of(own, logs[leader]) if own.blocks else interval_of(own)
            shares[key] = width.half_width
    return shares


def imprecise(run: Run) -> dict[Key, float]:
    """Return the measured series that are less precise than planned, and their half-width."""
    limits = Measure.model_validate(limits_of(run.plan))
    if limits.max_repeats <= limits.min_repeats:
        return {}  # the plan has a fixed number of repeats
    half_widths = widths(repeat_logs(run), host_bound(run))
    return {key: width for key, width in half_widths.items() if width > limits.precision}
