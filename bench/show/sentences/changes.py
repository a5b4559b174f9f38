"""What changes against the conventional path: time, processor time, power, energy, as tables."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from gatherbench.bench.read.epochs import READING_ORDER, epoch_times
from gatherbench.bench.read.gpu import block_values
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.show.notebook_tables import Findings

COLUMNS = ["quantity", "kind", "strategy", "label", "median", "low", "high"]


def measured_changes(
    findings: Findings, backend: str, quantities: Mapping[str, tuple[str, str]]
) -> pd.DataFrame:
    """Changes of per-epoch medians against ``cpu_gather naive``, for every other strategy.

    A strategy is shown by the variant with the shortest epoch, over the workloads by the median of
    their changes.

    Args:
        quantities: what the change is called → stage and metric; the stage ``energy`` has
            ``energy`` an epoch and mean ``power`` of the GPU, ``processor`` seconds are the
            sum of ``cpu_user`` and ``cpu_system`` and have the metric ``cpu``.

    Returns:
        ``quantity``, ``kind``, ``strategy``, ``label``, ``median``, ``low``, ``high`` (the extremes
        over the workloads), as shares.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for run in findings.runs_on(backend):
        fastest = _fastest_variants(run)
        for row in changes_of_run(run, quantities).to_dict("records"):
            if tuple(row[name] for name in SERIES) in fastest and row["strategy"] != "cpu_gather":
                for quantity in quantities:
                    if pd.notna(row[quantity]):
                        found.setdefault((quantity, row["strategy"]), []).append(row[quantity])
    records = []
    order = dict.fromkeys([*READING_ORDER, *sorted(strategy for _, strategy in found)])
    for quantity, strategy in itertools.product(quantities, order):
        shares = found.get((quantity, strategy), [])
        if shares:
            label = f"{strategy}, {len(shares)} workload{'s' if len(shares) > 1 else ''}"
            middle = statistics.median(shares)
            ends = (min(shares), max(shares))
            records.append((quantity, "measured", strategy, label, middle, *ends))
    return pd.DataFrame(records, columns=COLUMNS)


def changes_of_run(
    run: Run,
    quantities: Mapping[str, tuple[str, str]],
    reference: tuple[str, str] = ("cpu_gather", "naive"),
) -> pd.DataFrame:
    """Changes of per-epoch medians against ``reference``, of every other measured series of a run.

    Args:
        quantities: as :func:`measured_changes` takes them.
        reference: strategy and variant, of the same workload and backend.

    Returns:
        :data:`gatherbench.bench.run.rows.SERIES`, and a column of shares for each
        quantity: -0.17 is 17 % less, NaN where it was not measured.
    """
    found: dict[tuple[str, ...], dict[str, float]] = {}
    run = replace(run, rows=run.select(basis="measured"))
    for quantity, (stage, metric) in quantities.items():
        values = _per_epoch(run, stage, metric).groupby(SERIES).median().dropna()
        for key in values.index:
            base = values.get((key[0], *reference, *key[3:]), 0.0)
            if base > 0 and key[1:3] != reference:
                found.setdefault(key, {})[quantity] = float(values[key] / base - 1)
    records = [dict(zip(SERIES, key, strict=True)) | shares for key, shares in found.items()]
    return pd.DataFrame(records, columns=[*SERIES, *quantities])


def _fastest_variants(run: Run) -> list[tuple[str, ...]]:
    """Keys of the fastest variant for each workload, strategy and backend; and the baseline's."""
    epochs = epoch_times(run).sort_values("median", kind="stable")
    best = epochs.drop_duplicates(["workload", "strategy", "backend"])
    baseline = epochs[(epochs["strategy"] == "cpu_gather") & (epochs["variant"] == "naive")]
    return list(pd.concat([best, baseline])[SERIES].itertuples(index=False, name=None))


def _per_epoch(run: Run, stage: str, metric: str) -> pd.Series[float]:
    if stage == "energy":
        return block_values(run, metric)
    if metric == "cpu":
        return run.values(stage, "cpu_user") + run.values(stage, "cpu_system")
    return run.values(stage, metric)


def published_changes(published: pd.DataFrame) -> pd.DataFrame:
    """What PyTorch-Direct's paper says of transfer time and power: as :func:`measured_changes`."""
    records = []
    for metric, quantity in (
        ("wall_time_change", "transfer time"),
        ("system_power_change", "power"),
    ):
        rows = published[published["metric"] == metric]
        low, high = float(rows["value"].min()), float(rows["value"].max())
        middle = low if low == high else float("nan")
        label = "PyTorch-Direct" + (", average" if metric == "wall_time_change" else ", system")
        case = (quantity, "published", "unified_zero_copy", label)
        records.append((*case, middle, low, high))
    return pd.DataFrame(records, columns=COLUMNS)


def measured_transfers(findings: Findings) -> pd.DataFrame:
    """Fetch time of CPU gather over that of zero-copy on GPUs: ``rows``, ``row_bytes``, ``ratio``.

    A point for each workload that was run with ``cpu_gather naive`` and ``aligned_zero_copy``;
    ``rows`` are those of a mean minibatch.
    """
    records = []
    for run in findings.runs_on("cuda"):
        seconds = run.values("fetch", "wall_time").groupby(SERIES).median()
        payload = run.values("fetch", "payload").groupby("workload").median()
        batches = run.values("epoch", "minibatches").groupby("workload").median()
        widths = run.rows[run.rows["metric"] == "row"].groupby("workload")["value"].median()
        for workload in run.workloads:
            slow = seconds.get((workload, "cpu_gather", "naive", "cuda", "measured"))
            fast = seconds[seconds.index.get_level_values("workload") == workload]
            fast = fast[fast.index.get_level_values("strategy") == "aligned_zero_copy"]
            if slow is None or fast.empty or workload not in widths:
                continue
            width = float(widths[workload])
            rows = float(payload[workload] / batches[workload] / width)
            records.append((workload, rows, width, float(slow) / float(fast.min())))
    return pd.DataFrame(records, columns=["workload", "rows", "row_bytes", "ratio"])
