"""What a share of the multiprocessors is worth to a gather, and costs training, as tables."""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.show.notebook_tables import Findings
from gatherbench.bench.show.sentences.gathers import gather_rates

#: Rows from which a gather is limited by bytes and not by requests.
WIDE_BYTES = 400


def gather_against_share(findings: Findings) -> pd.DataFrame:
    """Rate of a gather alone over its best, against its share of the GPU: ``series``, ``x``, ``y``.

    From the sweep that ``async_zero_copy`` makes when it is opened, and from gpu-micro's grid caps.
    """
    seconds = _budget_sweep(findings, "gather_time")
    if len(seconds):
        seconds["y"] = seconds.groupby("series")["y"].transform("min") / seconds["y"]
    rates = gather_rates(findings.micro)
    rates = rates[(rates["case"] == "gpu_gather") & (rates["policy"] == "aligned")]
    rates = rates[(rates["order"] == "given") & (rates["span_bytes"] == rates["span_bytes"].max())]
    best = rates.groupby("row_bytes")["y"].transform("max")
    capped = rates.assign(
        series=[f"rows of {width} B" for width in rates["row_bytes"]], x=rates["grid_percent"]
    )
    capped["y"] = capped["y"] / best
    capped = capped[(capped["grid_percent"] > 0) & (capped["row_bytes"] >= WIDE_BYTES)]
    tables = [t[["series", "x", "y"]] for t in (seconds, capped) if len(t)]
    return pd.concat(tables, ignore_index=True) if tables else seconds


def step_against_share(findings: Findings) -> pd.DataFrame:
    """A training step with a gather beside it over training alone: ``series``, ``x``, ``y``.

    From the sweep that ``async_zero_copy`` makes beside the real training step, and from
    gpu-micro's loads that are like training in one way each.
    """
    seconds = _budget_sweep(findings, "step_time")
    alone = _setup_medians(findings, "train_alone_step_time").set_index("series")["value"]
    seconds["y"] = [
        y / alone.get(series, float("nan"))
        for series, y in zip(seconds["series"], seconds["y"], strict=True)
    ]
    tables = [t for t in (seconds.dropna(), _overlapped_loads(findings.micro)) if len(t)]
    return pd.concat(tables, ignore_index=True) if tables else seconds


def overlap_ratios(findings: Findings) -> pd.DataFrame:
    """A training step with a gather beside it over the longer of the two alone: is it hidden?

    Of the real training step, at the share that served it best. Columns: ``series``, ``x`` (that
    share, per cent), ``ratio``.
    """
    seconds = _budget_sweep(findings, "step_time")
    alone = _setup_medians(findings, "(train|fetch)_alone_step_time")
    both = alone.groupby("series")["value"].agg(["max", "count"])
    longer = both.loc[both["count"] == 2, "max"]  # older runs have no fetch alone
    best = seconds.sort_values("y", kind="stable").drop_duplicates("series")
    best = best[best["series"].isin(longer.index)]
    ratio = best["y"].to_numpy() / longer.reindex(best["series"]).to_numpy()
    return best[["series", "x"]].assign(ratio=ratio).reset_index(drop=True)


def _overlapped_loads(micro: pd.DataFrame) -> pd.DataFrame:
    """gpu-micro's loads with a fetch beside them over the loads alone."""
    alone = micro[micro["case"] == "train_alone"].groupby("load")["time_s"].median()
    both = micro[micro["case"] == "train_and_fetch"]
    keys = ["load", "provider", "grid_percent"]
    times = both.groupby(keys, sort=False)["time_s"].median().reset_index()
    return pd.DataFrame(
        {
            "series": times["load"].str.replace("_", " ") + ", " + times["provider"],
            "x": times["grid_percent"].astype(float),
            "y": times["time_s"] / times["load"].map(alone).astype(float),
        }
    )


def _budget_sweep(findings: Findings, what: str) -> pd.DataFrame:
    """Seconds of the rows ``budget_<per cent>_<what>``: ``series``, ``x``, ``y``."""
    rows = _setup_medians(findings, rf"budget_(\d+)_{what}")
    percent = rows["metric"].str.extract(r"budget_(\d+)_")[0].astype(float)
    return pd.DataFrame({"series": rows["series"], "x": percent, "y": rows["value"]})


def _setup_medians(findings: Findings, pattern: str) -> pd.DataFrame:
    """Medians over repeats of the GPU's setup rows whose metric is ``pattern``."""
    tables = [run.rows for run in findings.runs_on("cuda")]
    if not tables:
        return pd.DataFrame({"series": [], "metric": pd.Series(dtype=str), "value": []})
    rows = pd.concat(tables)
    rows = rows[(rows["stage"] == "setup") & rows["metric"].str.fullmatch(pattern)]
    provider = rows["variant"].str.split(",").str[0]
    series = provider + ", " + rows["workload"].map(findings.names).astype(str)
    values = rows.assign(series=series).groupby(["series", "metric"], sort=False)["value"].median()
    return values.reset_index()
