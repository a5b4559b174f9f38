"""Which work the processor's time went to, and how much was left, from a run's rows."""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.read.derive import sort_series
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES

#: What the meter's groups of threads are called here (:mod:`gatherbench.bench.meters.threads`).
GROUPS = {
    "main": ("cpu_main",),
    "gather": ("cpu_gather_workers",),
    "sampler": ("cpu_sampler_workers",),
    "torch": ("cpu_torch_pool",),
    "rest": ("cpu_other_threads", "cpu_ended_threads", "cpu_meters"),
}


def thread_seconds(run: Run) -> pd.DataFrame:
    """Core-seconds per epoch by group of threads: medians over repeats × epochs.

    Columns: :data:`gatherbench.bench.run.rows.SERIES`, one for each of :data:`GROUPS`,
    ``unused`` (the cores that the case may use, times the epoch, less what it used), and
    ``median``, ``low`` and ``high``, the quartiles of the groups' sum. Empty where threads
    were not metered.
    """
    metrics = [metric for group in GROUPS.values() for metric in group]
    seen = pd.DataFrame({metric: run.values("epoch", metric) for metric in metrics})
    groups = pd.DataFrame(
        {name: seen[list(group)].sum(axis=1, skipna=False) for name, group in GROUPS.items()}
    )
    used = groups.sum(axis=1, skipna=False)
    left = run.values("epoch", "window_time") * cores_of(run) - used
    table = groups.assign(unused=left.clip(lower=0)).groupby(SERIES).median()
    spread = used.dropna().groupby(SERIES)
    ends = {"low": spread.quantile(0.25), "high": spread.quantile(0.75)}
    return sort_series(table.assign(median=spread.median(), **ends).dropna().reset_index())


def cores_of(run: Run) -> int:
    """Cores that the run's cases might use: the plan's threads, the GPU's node, or all."""
    limits = [int(run.env.get("cpu", {}).get("usable_cores") or 1)]
    if threads := run.plan["measure"].get("threads"):
        limits.append(int(threads))
    bound = run.select(stage="setup", metric="numa_node")["value"].dropna()
    processors = run.env.get("numa", {}).get("processors_by_node", {})
    limits += [int(count) for node, count in processors.items() if float(node) in set(bound)]
    return min(limits)
