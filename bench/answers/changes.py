"""What changes against the conventional path: time, processor time, power, energy, as tables."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from gatherbench.bench.derive import SERIES, epoch_times, epoch_values
from gatherbench.bench.findings import Findings
from gatherbench.bench.tables import Run


def measured_changes(
    findings: Findings, backend: str, quantities: Mapping[str, tuple[str, str]]
) -> pd.DataFrame:
    """Changes of per-epoch medians against ``cpu_gather naive``, for every other strategy.

    A strategy is shown by the variant with the shortest epoch.

    Args:
        quantities: what the change is called → stage and metric; ``processor`` seconds are the
            sum of ``cpu_user`` and ``cpu_system`` and have the metric ``cpu``.

    Returns:
        ``quantity``, ``kind``, ``strategy``, ``label``, ``low``, ``high`` (equal), as shares.
    """
    records = []
    for run in findings.runs_on(backend):
        fastest = _fastest_variants(run)
        for quantity, (stage, metric) in quantities.items():
            values = _per_epoch(run, stage, metric).groupby(SERIES).median()
            values = values[values.index.isin(fastest)]
            for workload, strategy, variant, kind in values.index:
                reference = values.get((workload, "cpu_gather", "naive", kind), float("nan"))
                if strategy == "cpu_gather" or not reference > 0:
                    continue
                change = float(values[workload, strategy, variant, kind]) / float(reference) - 1
                fields = run.plan["workloads"][workload]
                graph = f"{fields['dataset']} {fields['model']}"
                label = f"{strategy}, {graph}"
                records.append((quantity, "measured", strategy, label, change, change))
    columns = ["quantity", "kind", "strategy", "label", "low", "high"]
    return pd.DataFrame(records, columns=columns)


def _fastest_variants(run: Run) -> list[tuple[str, ...]]:
    """Keys of the fastest variant for each workload, strategy and backend; and the baseline's."""
    epochs = epoch_times(run).sort_values("median", kind="stable")
    best = epochs.drop_duplicates(["workload", "strategy", "backend"])
    baseline = epochs[(epochs["strategy"] == "cpu_gather") & (epochs["variant"] == "naive")]
    return list(pd.concat([best, baseline])[SERIES].itertuples(index=False, name=None))


def _per_epoch(run: Run, stage: str, metric: str) -> pd.Series[float]:
    if metric == "cpu":
        return epoch_values(run, stage, "cpu_user") + epoch_values(run, stage, "cpu_system")
    return epoch_values(run, stage, metric)


def published_changes(published: pd.DataFrame) -> pd.DataFrame:
    """What PyTorch-Direct's paper says of transfer time and power: as :func:`measured_changes`."""
    records = []
    for metric, quantity in (
        ("wall_time_change", "transfer time"),
        ("system_power_change", "power"),
    ):
        rows = published[published["metric"] == metric]
        low, high = float(rows["value"].max()), float(rows["value"].min())
        label = "PyTorch-Direct" + (", average" if metric == "wall_time_change" else ", system")
        records.append((quantity, "published", "unified_zero_copy", label, low, high))
    columns = ["quantity", "kind", "strategy", "label", "low", "high"]
    return pd.DataFrame(records, columns=columns)


def measured_transfers(findings: Findings) -> pd.DataFrame:
    """Fetch time of CPU gather over that of zero-copy on GPUs: ``rows``, ``row_bytes``, ``ratio``.

    A point for each workload that was run with ``cpu_gather naive`` and ``aligned_zero_copy``;
    ``rows`` are those of a mean minibatch.
    """
    records = []
    for run in findings.runs_on("cuda"):
        seconds = epoch_values(run, "fetch", "wall_time").groupby(SERIES).median()
        payload = epoch_values(run, "fetch", "payload").groupby("workload").median()
        batches = epoch_values(run, "epoch", "minibatches").groupby("workload").median()
        widths = run.rows[run.rows["metric"] == "row"].groupby("workload")["value"].median()
        for workload in run.workloads:
            slow = seconds.get((workload, "cpu_gather", "naive", "cuda"))
            fast = seconds[seconds.index.get_level_values("workload") == workload]
            fast = fast[fast.index.get_level_values("strategy") == "aligned_zero_copy"]
            if slow is None or fast.empty or workload not in widths:
                continue
            width = float(widths[workload])
            rows = float(payload[workload] / batches[workload] / width)
            records.append((workload, rows, width, float(slow) / float(fast.min())))
    return pd.DataFrame(records, columns=["workload", "rows", "row_bytes", "ratio"])
