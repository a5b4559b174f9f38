"""What of an epoch is the data path's own: what it has beyond the floor of the harness.

The floor is the epoch of a path that fetches nothing (:mod:`gatherbench.strategies.no_fetch`).
"""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.read.derive import of_paths, quiet_speedups, set_aside
from gatherbench.bench.read.issuing import host_bound
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES, Key


def floor_of(run: Run) -> tuple[str, str] | None:
    """Strategy and variant of the run's floor; ``None``: its plan has none."""
    from gatherbench.strategies.registry import role_of  # imports torch

    named = ((case["strategy"], case["variant"]) for case in run.plan["cases"])
    return next((names for names in dict.fromkeys(named) if role_of(*names) == "floor"), None)


def path_shares(run: Run) -> pd.DataFrame:
    """Which share of its epoch each measured path has beyond the floor.

    Columns: :data:`SERIES`, ``share``, and ``low`` and ``high``, its 95 % interval (NaN of one
    repeat): 1 less the ratio of the floor's epoch to its own. An interval that reaches down to 0
    does not tell the path from the floor. Without what is set aside, what has no floor, and paths
    that like their floor the host bounds: they are not compared.
    """
    floor = floor_of(run)
    if floor is None:
        return pd.DataFrame(columns=[*SERIES, "share", "low", "high"])
    ratios, apart = quiet_speedups(run, *floor), {floor, *set_aside(run)}
    ratios = of_paths(ratios[ratios["basis"] == "measured"], lambda pair: pair not in apart)
    bound = host_bound(run)
    held = {key.workload for key in bound if key[1:3] == floor}
    keys = map(Key._make, ratios[SERIES].itertuples(index=False))
    compared = [key.workload not in held or key not in bound for key in keys]
    ratios = ratios[pd.Series(compared, ratios.index, dtype=bool)]
    ends = {"share": 1 - ratios["speedup"], "low": 1 - ratios["high"], "high": 1 - ratios["low"]}
    return ratios[SERIES].assign(**ends).reset_index(drop=True)


def floors(run: Run, epochs: pd.DataFrame) -> dict[str, float]:
    """The floor's epoch (s) of each workload that has one, out of a table with ``median``."""
    floor = floor_of(run)
    if floor is None:
        return {}
    found = of_paths(epochs[epochs["basis"] == "measured"], lambda pair: pair == floor)
    return dict(zip(found["workload"], found["median"], strict=True))
