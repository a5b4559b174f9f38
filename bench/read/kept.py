"""Rows that a path keeps in the device's memory: how many it found there, and what that changes."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import pandas as pd

from gatherbench.bench.read.derive import declared, epoch_times, sort_series
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES

if TYPE_CHECKING:
    from gatherbench.strategies.base import Strategy

#: By basis: epochs measured and predicted, and bytes over the link as declared.
PANELS = ("measured", "predicted", "declared")


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


def kept_rows(run: Run) -> pd.DataFrame:
    """A point for each share and policy, in each of :data:`PANELS` that has it.

    Columns: ``workload``, ``panel``, ``series``, ``aside`` (whether nobody would train with it),
    ``x`` (share of the table that is kept, per cent), ``y`` and, of epochs, ``low`` and ``high``
    (s, and B over the link in an epoch). A workload with one share, or none, between no row and
    the whole table has no points.
    """
    said = declared(run)
    table = run.select(stage="setup", metric="table").groupby("workload")["value"].median()
    if table.empty or not {"gpu_table", "gpu_link_read", "copy_engine"} <= set(said):
        return pd.DataFrame(columns=["workload", "panel", "series", "aside", "x", "y"])
    said["x"] = 100 * said["gpu_table"] / table
    said["y"] = said["gpu_link_read"] + said["copy_engine"]
    said = said[(said["x"] > 0) | (said["gpu_link_read"] > 0)].reset_index()
    partly = said[(said["x"] > 0) & (said["x"] < 100)]
    shares = partly.groupby("workload")["x"].nunique()
    said = said[said["workload"].isin(shares[shares > 1].index)]
    path = ["workload", "strategy", "variant"]
    epochs = epoch_times(run).merge(said[[*path, "x"]], on=path)
    epochs = epochs.rename(columns={"basis": "panel", "median": "y"})
    points = sort_series(pd.concat([epochs, said.assign(panel=PANELS[2])], ignore_index=True))
    names = line_names(run)
    named = [names[pair] for pair in zip(points["strategy"], points["variant"], strict=True)]
    points["series"], points["aside"] = zip(*named, strict=True) if named else ((), ())
    return points[["workload", "panel", "series", "aside", "x", "y", "low", "high"]]


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
        aside = built[key].aside if alike else None
        found[key] = (f"{label} ({aside.partition(':')[0]})" if aside else label, bool(aside))
    return found


def _line(strategy: Strategy, alike: list[Strategy]) -> str:
    """The strategy, and the words in which its variants differ but for how much they keep."""
    differ = [f.name for f in fields(strategy) if len({getattr(one, f.name) for one in alike}) > 1]
    words = [str(getattr(strategy, name)) for name in differ if name != "share"]
    return f"{strategy.name} {', '.join(words)}".strip()
