"""From findings to the tables that figures draw: the step between loading and plotting.

Each function gives one tidy table with a column ``kind`` (``published``, ``modelled``,
``measured``). Seconds stay seconds; what is derived (rates, ratios) is derived here and nowhere
stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from gatherbench.bench.derive import STAGES, stage_breakdown
from gatherbench.bench.findings import Findings
from gatherbench.bench.tables import Run
from gatherbench.kernels.policies import POLICIES

#: Names of the machines of published and modelled rows, as figures write them.
MACHINES = {
    "rtx3090-pcie3": "RTX 3090, PCIe 3.0",
    "rtx3090-pcie4": "RTX 3090, PCIe 4.0",
}
BYTES_TOUCHED = ("cpu_read", "cpu_write", "copy_engine")
#: Kinds of timed launches among the rows of gpu-micro.
LAUNCHES = ("copy_engine", "sm_read", "gather")


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


def gather_rates(micro: pd.DataFrame) -> pd.DataFrame:
    """GB/s of payload of each point of gpu-micro: median over its rounds, with the extremes.

    Columns: those that name a point, ``y``, ``low``, ``high``, ``machine``.
    """
    timed = micro[micro["kind"].isin(LAUNCHES)]
    keys = ["machine", "kind", "policy", "order", "row_bytes", "span_bytes", "cap", "payload_bytes"]
    times = timed.groupby(keys, sort=False)["time_s"]
    spread = pd.DataFrame({"y": times.median(), "low": times.max(), "high": times.min()})
    rates = spread.reset_index()
    for column in ("y", "low", "high"):
        rates[column] = rates["payload_bytes"] / rates[column] / 1e9
    return rates


def policy_series(policy: str, order: str) -> str:
    """What a curve of a launch policy is called: whose it is, and the order of the ids."""
    return f"{POLICIES[policy].label}, {order}"


def measured_gather_rates(
    micro: pd.DataFrame, policies: Sequence[str] = tuple(POLICIES)
) -> pd.DataFrame:
    """Curves of gpu-micro on its largest span: columns as of the modelled ones, ``low``, ``high``.

    Each point is the best of the grid caps that were tried.
    """
    rates = gather_rates(micro)
    gathers = rates[(rates["kind"] == "gather") & rates["policy"].isin(policies)]
    widest = gathers[gathers["span_bytes"] == gathers["span_bytes"].max()]
    best = widest.sort_values("y").drop_duplicates(["policy", "order", "row_bytes"], keep="last")
    series = [policy_series(p, o) for p, o in zip(best["policy"], best["order"], strict=True)]
    curves: pd.DataFrame = best.assign(kind="measured", series=series, x=best["row_bytes"])
    rank = [list(policies).index(name) for name in curves["policy"]]
    curves = curves.assign(rank=rank).sort_values(["rank", "order", "x"], ignore_index=True)
    return curves[["kind", "series", "policy", "order", "x", "y", "low", "high"]]


def measured_roofs(micro: pd.DataFrame) -> pd.DataFrame:
    """The limits beside those curves: copy engine and contiguous read by multiprocessors, GB/s.

    Columns: ``kind``, ``name``, ``y``.
    """
    rates = gather_rates(micro)
    roofs = rates[rates["kind"] != "gather"]
    roofs = roofs[roofs["span_bytes"] == roofs["span_bytes"].max()]
    best = roofs.groupby("kind")["y"].max()
    names = {"copy_engine": "copy engine", "sm_read": "contiguous read by SMs"}
    return pd.DataFrame(
        [("measured", names[str(kind)], rate) for kind, rate in best.items()],
        columns=["kind", "name", "y"],
    )


def published_order(published: pd.DataFrame) -> pd.DataFrame:
    """DGL's gather of 188 B rows, ids as given and sorted: ``kind``, ``series``, ``x``, ``y``."""
    rows = published[published["metric"] == "payload_in_one_second"]
    series = ["DGL, " + variant.split(",")[1] for variant in rows["variant"]]
    return pd.DataFrame(
        {"kind": "published", "series": series, "x": 188, "y": rows["value"].to_numpy() / 1e9}
    )
