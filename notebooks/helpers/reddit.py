"""The paper's workload on Reddit, published and modelled, on one GPU and on several; and measured.

What was measured on several ranks is of the workloads of its runs.

The model's free constants (minibatches and the program's own costs) are those that the four
published bars for PCIe 3.0 determine, see ``tools/validate_model.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd

from gatherbench.bench.model.profile import LinkProfile, load_profile
from gatherbench.bench.plan.workload import ranks_of
from gatherbench.bench.read.axis import axis
from gatherbench.bench.read.derive import baseline, set_aside, sort_series, speedup_over
from gatherbench.bench.run.rows import SERIES
from helpers.epoch_bars import BARS
from helpers.findings import Findings
from tools.validate_model import ALL_IN_GPU, CPU_GATHER, chart_epochs, fitted_chart, reddit_chart

#: Of tables over ranks.
COLUMNS = ["kind", "series", "x", "y", "low", "high", "place"]
#: Names of the chart's machines, as figures write them.
MACHINES = {
    "rtx3090-pcie3": "RTX 3090, PCIe 3.0",
    "rtx3090-pcie4": "RTX 3090, PCIe 4.0",
}


def published_reddit(published: pd.DataFrame) -> pd.DataFrame:
    """The chart as :data:`BARS` and ``machine``; ``low`` and ``high`` are its reading error's."""
    chart = published[published["table"] == "reddit_epoch"]
    wide = chart.pivot_table(
        "value", ["machine", "strategy", "variant"], "metric", sort=False
    ).reset_index()
    error = wide["wall_time_reading_error"]
    bars = wide.assign(
        group=wide["machine"].map(MACHINES),
        kind="published",
        median=wide["wall_time"],
        low=wide["wall_time"] - error,
        high=wide["wall_time"] + error,
        note="",
    )
    return bars[[*BARS, "machine"]]


def reddit_bars(published: pd.DataFrame) -> pd.DataFrame:
    """The chart beside the model of it: :data:`BARS`, ``group`` the machine.

    The note says which modelled bars the model was fitted to, and how far off the others are.
    """
    chart = reddit_chart(published)
    notes = [
        "fitted" if fitted else f"{round(error, 2) + 0.0:+.0%}"
        for fitted, error in zip(chart["fitted"], chart["error"], strict=True)
    ]
    group = chart["machine"].map(MACHINES)
    modelled = chart.assign(kind="modelled", group=group, median=chart["modelled_s"], note=notes)
    return pd.concat([published_reddit(published), modelled], ignore_index=True)[BARS]


def reddit_stages(published: pd.DataFrame) -> pd.DataFrame:
    """Stages of the chart's CPU-gather epochs: ``kind``, ``label`` and seconds of each stage.

    The chart itself has none: what its CPU-gather epoch takes beyond the one with the table in GPU
    memory is ``fetch``, that other epoch (sampling and training) is ``other``.
    """
    fitted = fitted_chart(published)
    at = published_reddit(published).set_index(["machine", "strategy"])["median"]
    records: list[dict[str, object]] = []
    for machine, name in MACHINES.items():
        bound = float(at[machine, "all_in_gpu"])
        beyond = float(at[machine, "cpu_gather"]) - bound
        both = {"label": f"Reddit, {name}", "sample": 0.0, "train": 0.0, "other": 0.0}
        records.append({**both, "kind": "published", "fetch": beyond, "other": bound})
        epoch = chart_epochs(fitted, load_profile(machine))[CPU_GATHER]
        seconds = {"sample": epoch.sample_s, "fetch": epoch.fetch_s, "train": epoch.train_s}
        if not math.isnan(epoch.epoch_s):
            records.append({**both, "kind": "modelled", **seconds})
    return pd.DataFrame(records)[["kind", "label", "sample", "fetch", "train", "other"]]


def modelled_scaling(
    published: pd.DataFrame, profile: LinkProfile, gpus: Sequence[int]
) -> pd.DataFrame:
    """One epoch on Reddit, shared by several GPUs of the machine of ``profile``.

    Columns: ``kind``, ``series`` (the strategy), ``x`` (GPUs), ``y`` (seconds), ``bound``. The
    GPUs share the host's processor, memory and ports.
    """
    fitted, records = fitted_chart(published), []
    for number in gpus:
        for (strategy, _), epoch in chart_epochs(fitted, profile, number).items():
            if not math.isnan(epoch.epoch_s):
                records.append(("modelled", strategy, number, epoch.epoch_s, epoch.bound))
    table = pd.DataFrame(records, columns=["kind", "strategy", "x", "y", "bound"])
    return (
        sort_series(table.assign(variant=""))
        .drop(columns="variant")
        .rename(columns={"strategy": "series"})
    )


def over_cpu_gather(epochs: pd.DataFrame) -> pd.DataFrame:
    """How many times as fast as ``cpu_gather`` on as many GPUs; ``y`` is the ratio of seconds."""
    reference = epochs[epochs["series"] == "cpu_gather"].set_index("x")["y"]
    ratio = epochs["x"].map(reference) / epochs["y"]
    return epochs.assign(y=ratio)[epochs["series"] != "cpu_gather"].reset_index(drop=True)


def measured_over_ranks(findings: Findings, backend: str, value: str) -> pd.DataFrame:
    """``epoch``, or ``speedup`` over CPU gather on as many ranks, as :data:`COLUMNS`.

    A strategy is shown by its fastest variant on as many ranks. ``place``: graph and machine; where
    there are several, the names of the series say which.
    """
    tables = []
    for run in findings.runs_of_ranks(backend):
        ends = {"low": "speedup_low", "high": "speedup_high"}
        ratios = speedup_over(run, *baseline(run)).rename(columns=ends)
        table = axis(run, "gpus").merge(ratios, on=SERIES, how="left")
        fields = run.plan["workloads"]
        table["ranks"] = [ranks_of(fields[workload]) for workload in table["workload"]]
        table["family"] += [f", {fields[w]['scaling']} scaling" for w in table["workload"]]
        aside = pd.MultiIndex.from_frame(table[["strategy", "variant"]]).isin(list(set_aside(run)))
        ordered = table[~aside].sort_values("epoch", kind="stable")
        best = ordered.drop_duplicates(["family", "ranks", "strategy"])
        tables.append(best.assign(machine=run.machine))
    if not tables:
        return pd.DataFrame(columns=COLUMNS)
    found = pd.concat(tables, ignore_index=True)
    places = found["family"] + ", " + found["machine"]
    series = found["strategy"]
    if places.nunique() > 1:
        series = series + ": " + places
    renamed = found.assign(kind="measured", series=series, place=places).rename(
        columns={"ranks": "x", value: "y", f"{value}_low": "low", f"{value}_high": "high"}
    )
    if value == "speedup":
        renamed = renamed[renamed["strategy"] != "cpu_gather"]
    ordered = renamed.dropna(subset="y").sort_values(["series", "x"], kind="stable")
    return ordered[COLUMNS].reset_index(drop=True)


def beside_published(ratios: pd.DataFrame, published: Sequence[float]) -> Iterator[str]:
    """A sentence for each zero-copy on several GPUs: is its ratio in the published range?"""
    least, most = min(published), max(published)
    several = ratios[(ratios["x"] > 1) & ~ratios["series"].str.startswith(ALL_IN_GPU[0])]
    for row in several.to_dict("records"):
        low, high = float(row["low"]), float(row["high"])
        if math.isnan(low):
            place, ends = "one repeat, so not comparable with", ""
        else:
            ends = f" ({low:.2f}–{high:.2f})"
            inside, beyond = least <= low and high <= most, high < least or low > most
            place = "inside" if inside else "outside" if beyond else "not decided against"
        yield (
            f"- {row['x']:.0f} GPUs, measured: `{row['series']}` is **{row['y']:.2f}**{ends} times"
            f" as fast as CPU gather, {place} the published {least:.2f} to {most:.2f}."
        )
