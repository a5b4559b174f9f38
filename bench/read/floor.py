"""The limit: the epoch of a path that fetches nothing (:mod:`gatherbench.strategies.no_fetch`)."""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.read.derive import of_paths
from gatherbench.bench.read.tables import Run


def floor_of(run: Run) -> tuple[str, str] | None:
    """Strategy and variant of the run's floor; ``None``: its plan has none."""
    from gatherbench.strategies.registry import role_of  # imports torch

    named = ((case["strategy"], case["variant"]) for case in run.plan["cases"])
    return next((names for names in dict.fromkeys(named) if role_of(*names) == "floor"), None)


def floors(run: Run, epochs: pd.DataFrame) -> dict[str, float]:
    """The floor's epoch (s) of each workload that has one, out of a table with ``median``."""
    floor = floor_of(run)
    if floor is None:
        return {}
    found = of_paths(epochs[epochs["basis"] == "measured"], lambda pair: pair == floor)
    return dict(zip(found["workload"], found["median"], strict=True))
