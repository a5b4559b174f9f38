"""Rows that a path keeps in the device's memory: how many it found there, and what that changes."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import pandas as pd

from gatherbench.bench.read.derive import declared
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES

if TYPE_CHECKING:
    from gatherbench.strategies.base import Strategy


def found_on_device(run: Run) -> pd.DataFrame:
    """Share of an epoch's rows that the path found in the device's own memory, by series.

    ``counted``: by the path, the median over repeats and epochs; NaN where nobody counts.
    ``declared``: what the strategy says of the first measured epoch. Index: :data:`SERIES` without
    the basis.
    """
    said = declared(run).reindex(columns=["gpu_memory_read", "declared_payload", "row"])
    hits = run.values("fetch", "rows_on_device") / run.values("fetch", "payload")
    counted = hits.groupby(SERIES[:4]).median() * said["row"]
    found = said["gpu_memory_read"] / said["declared_payload"]
    return pd.DataFrame({"counted": counted, "declared": found})


def line_names(run: Run) -> dict[tuple[str, str], tuple[str, bool]]:
    """Of each strategy and variant the name of its line, and whether nobody would train with it."""
    from gatherbench.strategies.registry import STRATEGIES, build  # imports torch

    known = {one.name for one in STRATEGIES}
    cases = {(c["strategy"], c["variant"]): c["params"] for c in run.plan["cases"]}
    found: dict[tuple[str, str], tuple[str, bool]] = {}
    built = {key: build(key[0], cases[key]) for key in cases if key[0] in known}
    for key in cases:
        alike = [one for one in built.values() if one.name == key[0]]
        label = _line(built[key], alike) if alike else " ".join(key)
        control = bool(alike) and built[key].role == "control"
        found[key] = (f"{label} (control)" if control else label, control)
    return found


def _line(strategy: Strategy, alike: list[Strategy]) -> str:
    """The strategy, and the words in which its variants differ but for how much they keep."""
    differ = [f.name for f in fields(strategy) if len({getattr(one, f.name) for one in alike}) > 1]
    words = [str(getattr(strategy, name)) for name in differ if name != "share"]
    return f"{strategy.name} {', '.join(words)}".strip()
