"""Derive from a run's rows what is never stored: medians, ratios, rates, and how far to trust them.

Spread is stated as quartiles, because epoch times have a long tail to one side that a standard
deviation hides; ratios carry a bootstrap interval.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gatherbench.bench.tables import Run, RunError

#: What tells two bars of one panel apart: modelled and measured values never mix.
SERIES = ["workload", "strategy", "variant", "backend"]
STAGES = ("sample", "fetch", "train")

#: Strategies in the order in which they are read: from the baseline to the upper bound.
#: Strategies that are not listed follow by name.
READING_ORDER = (
    "cpu_gather",
    "unified_zero_copy",
    "aligned_zero_copy",
    "async_zero_copy",
    "all_in_gpu",
)

#: Share of an epoch below which what its stages leave is rounding: a modelled epoch is their sum.
ROUNDING = 1e-9
#: Why a case has not been run, by whether the run is still going.
NOT_RUN = {
    True: "the run is still going",
    False: "the run was cut off; --resume completes it",
    None: "the run is still going or was cut off; --resume completes one that was",
}


def epoch_times(run: Run) -> pd.DataFrame:
    """Seconds per epoch of each series: median and quartiles over repeats × epochs.

    Columns: :data:`SERIES`, ``median``, ``low`` and ``high`` (the quartiles), ``min``, ``max``,
    ``count``. The same columns come from :func:`stage_times` and :func:`bandwidth`.
    """
    return _spread(epoch_values(run, "epoch", "wall_time"))


def stage_times(run: Run) -> dict[str, pd.DataFrame]:
    """Seconds per epoch that the loop spent in each stage, by stage, as :func:`epoch_times`."""
    return {stage: _spread(epoch_values(run, stage, "wall_time")) for stage in STAGES}


def stage_breakdown(run: Run) -> pd.DataFrame:
    """Epoch times, and beside them medians of each stage and of what is left (``other``), seconds.

    Columns as :func:`epoch_times`, and :data:`STAGES`, ``other``. A modelled epoch without stages
    is all ``other``.
    """
    values = epoch_times(run)
    for stage, table in stage_times(run).items():
        part = table[[*SERIES, "median"]].rename(columns={"median": stage})
        values = values.merge(part, on=SERIES, how="left")
    values[list(STAGES)] = values[list(STAGES)].fillna(0.0)
    left = values["median"] - values[list(STAGES)].sum(axis=1)
    values["other"] = left.where(left > ROUNDING * values["median"], 0.0)
    return values


def cpu_seconds(run: Run) -> pd.DataFrame:
    """Core-seconds per epoch of the process tree: spread of the total, and medians of its parts.

    Columns as :func:`epoch_times`, and ``user``, ``system``: the medians of the two parts.
    """
    user, system = (epoch_values(run, "epoch", metric) for metric in ("cpu_user", "cpu_system"))
    total = _spread(user + system)
    for name, part in (("user", user), ("system", system)):
        medians = part.groupby(SERIES).median().rename(name).reset_index()
        total = total.merge(medians, on=SERIES, how="left")
    return total


def bandwidth(run: Run) -> pd.DataFrame:
    """Bytes of payload per second that the loop waited in the fetch stage, as :func:`epoch_times`.

    For a strategy that fetches ahead this is no rate of any link: the wait it hides makes the
    quotient large.
    """
    return _spread(epoch_values(run, "fetch", "payload") / epoch_values(run, "fetch", "wall_time"))


def reference_variant(run: Run) -> tuple[str, str] | None:
    """Strategy and variant that speed-ups refer to: ``cpu_gather`` ``naive``, the paper's baseline.

    Where a run has no such case, the first ``cpu_gather`` variant that was measured; else ``None``.
    """
    measured = set(epoch_times(run).query("strategy == 'cpu_gather'")["variant"])
    ordered = sorted(measured, key=lambda v: (v != "naive", v))
    return ("cpu_gather", ordered[0]) if ordered else None


def speedup_over(
    run: Run, strategy: str = "cpu_gather", variant: str = "naive", *, resamples: int = 2000
) -> pd.DataFrame:
    """Median epoch time of the reference over that of each series, on the same workload.

    ``low`` and ``high`` bound the 95 % interval of a hierarchical bootstrap (Davison & Hinkley,
    *Bootstrap Methods and their Application*, §3.8): repeats are drawn first, then epochs within
    them, because the epochs of one process are alike. The draws are seeded: the same rows give
    the same interval. Columns: :data:`SERIES`, ``speedup``, ``low``, ``high``. A series
    whose reference is not there, on the same workload and the same backend, is left out.
    """
    rng = np.random.default_rng(0)
    draws = {
        key: (float(times.median()), bootstrap_medians(times, resamples, rng))
        for key, times in epoch_values(run, "epoch", "wall_time").groupby(SERIES, sort=False)
    }
    records: list[tuple[object, ...]] = []
    for (workload, name, kind, backend), (median, medians) in draws.items():
        reference = draws.get((workload, strategy, variant, backend))
        if reference is None:
            continue
        # Over itself the ratio is 1 by definition, whatever the draws say.
        itself = (name, kind) == (strategy, variant)
        ratios = np.ones(1) if itself else reference[1] / medians
        low, high = np.percentile(ratios, [2.5, 97.5])
        records.append((workload, name, kind, backend, reference[0] / median, low, high))
    return sort_series(pd.DataFrame(records, columns=[*SERIES, "speedup", "low", "high"]))


def problems(run: Run) -> pd.DataFrame:
    """Cases without a measurement: failed, skipped, or not run (yet).

    Columns: ``workload``, ``strategy``, ``variant``, ``status`` (``failed``, ``skipped``,
    ``not run``), ``reason`` (of the first such repeat), ``repeats`` (how many), ``of`` (planned).
    """
    keys = ["workload", "strategy", "variant"]
    planned = pd.DataFrame(run.plan["cases"])[[*keys, "repeat"]]
    ended = run.rows[(run.rows["stage"] == "case") & (run.rows["metric"] == "wall_time")]
    cases = planned.merge(
        ended[[*keys, "repeat", "status", "reason"]], on=[*keys, "repeat"], how="left"
    )
    not_run = cases["status"].isna()
    cases.loc[not_run, "status"] = "not run"
    cases.loc[not_run, "reason"] = NOT_RUN[run.going]
    cases["of"] = cases.groupby(keys)["repeat"].transform("count")
    bad = cases[cases["status"] != "ok"].sort_values("repeat")
    found = bad.groupby(keys, as_index=False).agg(
        status=("status", "first"),
        reason=("reason", "first"),
        repeats=("repeat", "count"),
        of=("of", "first"),
    )
    return sort_series(found)


def epoch_values(run: Run, stage: str, metric: str) -> pd.Series[float]:
    """The observations of measured epochs, indexed by :data:`SERIES`, repeat and epoch.

    Raises:
        RunError: an observation stands twice in the table.
    """
    rows = run.rows
    wanted = (rows["stage"] == stage) & (rows["metric"] == metric)
    rows = rows[wanted & (rows["epoch"] >= 0) & (rows["status"] == "ok")]
    values = rows.set_index([*SERIES, "repeat", "epoch"])["value"]
    if values.index.has_duplicates:
        twice = values.index[values.index.duplicated()][0]
        raise RunError(f"{run.folder / 'rows.csv'}: {stage}.{metric} stands twice for {twice}")
    return values


def bootstrap_medians(
    times: pd.Series[float], resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Medians of ``resamples`` draws of repeats and of epochs within each drawn repeat.

    Args:
        times: one series' values, with the index level ``repeat``; not empty.

    Returns:
        float64 ``[resamples]``.
    """
    times = times.sort_index(level="repeat")  # rows of one repeat side by side
    flat = times.to_numpy()
    lengths = np.unique(times.index.get_level_values("repeat"), return_counts=True)[1]
    starts = np.cumsum(lengths) - lengths
    drawn = rng.integers(len(lengths), size=(resamples, len(lengths)))
    length, start = lengths[drawn][..., None], starts[drawn][..., None]
    place = np.arange(lengths.max())
    values = flat[start + rng.integers(length, size=(*drawn.shape, place.size))]
    values[np.broadcast_to(place >= length, values.shape)] = np.nan  # a repeat with fewer epochs
    values = values.reshape(resamples, -1)
    # Where nothing is missing, as in most runs, the same in a third of the time.
    median = np.nanmedian if np.isnan(values).any() else np.median
    medians: NDArray[np.float64] = median(values, axis=1)
    return medians


def sort_series(table: pd.DataFrame) -> pd.DataFrame:
    """The table in :data:`READING_ORDER` of its strategies, then by variant and backend."""
    rank = {name: i for i, name in enumerate(READING_ORDER)}
    order = table.assign(_rank=[rank.get(s, len(rank)) for s in table["strategy"]])
    by = ["_rank", "strategy", "variant", *(["backend"] if "backend" in table else [])]
    return order.sort_values(by, kind="stable").drop(columns="_rank").reset_index(drop=True)


def plan_order(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    """The table's workloads in the order of the run's plan, each as :func:`sort_series` has it."""
    place = {workload: number for number, workload in enumerate(run.workloads)}
    return sort_series(table).sort_values(
        "workload", key=lambda names: names.map(place), kind="stable", ignore_index=True
    )


def _spread(values: pd.Series[float]) -> pd.DataFrame:
    groups = values.dropna().groupby(SERIES)
    table = pd.DataFrame(
        {
            "median": groups.median(),
            "low": groups.quantile(0.25),
            "high": groups.quantile(0.75),
            "min": groups.min(),
            "max": groups.max(),
            "count": groups.count(),
        }
    )
    return sort_series(table.reset_index())
