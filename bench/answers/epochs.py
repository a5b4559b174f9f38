"""Epochs and their stages, published and measured, as tables for figures."""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.derive import STAGES, stage_breakdown
from gatherbench.bench.findings import Findings
from gatherbench.bench.linkmodel.validate import reddit_chart
from gatherbench.bench.tables import Run

#: Names of the machines of published and modelled rows, as figures write them.
MACHINES = {
    "rtx3090-pcie3": "RTX 3090, PCIe 3.0",
    "rtx3090-pcie4": "RTX 3090, PCIe 4.0",
}
BYTES_TOUCHED = ("cpu_read", "cpu_write", "copy_engine")


def published_reddit(published: pd.DataFrame) -> pd.DataFrame:
    """The Reddit chart as bars: ``kind``, ``machine``, ``strategy``, ``median``, ``low``, ``high``.

    ``low`` and ``high`` are the reading error's.
    """
    chart = published[published["table"] == "reddit_epoch"]
    wide = chart.pivot_table(
        "value", ["machine", "strategy", "variant"], "metric", sort=False
    ).reset_index()
    error = wide["wall_time_reading_error"]
    return wide.assign(
        kind="published",
        median=wide["wall_time"],
        low=wide["wall_time"] - error,
        high=wide["wall_time"] + error,
    )[["kind", "machine", "strategy", "variant", "median", "low", "high"]]


def published_stages(published: pd.DataFrame) -> pd.DataFrame:
    """What of the chart's CPU-gather epochs goes beyond an epoch with the table in GPU memory.

    Columns of :func:`measured_stages`. The chart has no stages: ``fetch`` is the difference of the
    two bars, ``other`` the epoch in GPU memory (sampling and training).
    """
    at = published_reddit(published).set_index(["machine", "strategy"])["median"]
    records = [
        {
            "kind": "published",
            "label": f"Reddit, {MACHINES[machine]}",
            "sample": 0.0,
            "fetch": at[machine, "cpu_gather"] - at[machine, "all_in_gpu"],
            "train": 0.0,
            "other": at[machine, "all_in_gpu"],
        }
        for machine in MACHINES
    ]
    return pd.DataFrame(records)


def measured_stages(findings: Findings, backend: str, strategy: str, variant: str) -> pd.DataFrame:
    """``kind``, ``label`` and the seconds of each stage of one series, for every workload."""
    table = findings.derived(backend, stage_breakdown)
    columns = ["kind", "label", *STAGES, "other"]
    if table.empty:
        return pd.DataFrame(columns=columns)
    mine = table[(table["strategy"] == strategy) & (table["variant"] == variant)]
    where = ", host memory only" if backend == "host" else ""
    label = mine["dataset"] + " " + mine["model"] + ", " + mine["machine"] + where
    return mine.assign(kind="measured", label=label)[columns].reset_index(drop=True)


def passes_over_memory(run: Run) -> pd.DataFrame:
    """Bytes that each strategy declares to touch in host memory for a byte that it delivers.

    Columns: ``workload``, ``strategy``, ``variant``, ``passes``. Declared (rows of ``backend``
    ``model``), not measured.
    """
    keys = ["workload", "strategy", "variant"]
    rows = run.rows[(run.rows["stage"] == "fetch") & (run.rows["status"] == "ok")]
    declared = rows[(rows["backend"] == "model") & rows["metric"].isin(BYTES_TOUCHED)]
    payload = rows[rows["metric"] == "payload"].groupby(keys)["value"].median()
    passes = declared.groupby(keys)["value"].sum() / payload
    return passes.rename("passes").reset_index()


def reddit_bars(published: pd.DataFrame) -> pd.DataFrame:
    """The Reddit chart beside the model of it: columns of ``epoch_bars``, ``group`` the machine.

    The note says which modelled bars the model was fitted to, and how far off the others are.
    """
    chart = reddit_chart(published)
    notes = [
        "fitted" if fitted else f"{round(error, 2) + 0.0:+.0%}"
        for fitted, error in zip(chart["fitted"], chart["error"], strict=True)
    ]
    modelled = chart.assign(kind="modelled", median=chart["modelled_s"], note=notes)
    bars = pd.concat([published_reddit(published), modelled], ignore_index=True)
    bars["group"] = bars["machine"].map(MACHINES)
    return bars[["group", "kind", "strategy", "median", "low", "high", "note"]]


def measured_bars(findings: Findings, backend: str, dataset: str = "") -> pd.DataFrame:
    """Measured epochs of ``dataset`` (all without) as bars: a group for each graph and machine."""
    table = findings.epochs(backend)
    if dataset:
        table = table[table["dataset"] == dataset]
    group = table["dataset"] + " " + table["model"] + ", " + table["machine"]
    note = table["variant"].where(table["variant"] != "default", "")
    bars = table.assign(kind="measured", group=group, note=note)
    return bars[["group", "kind", "strategy", "median", "low", "high", "note"]]
