"""Gathers over the link for the notebooks: measured, published, modelled, and on part of the GPU.

What the model expects comes from request accounting over the very ids, and a profile's constants. A
value that needs a constant nobody has published is left out here, and the notebook says so.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from gatherbench.bench.model.epoch import predict_batches
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.bench.model.physics import gpu_reads
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import with_ends
from gatherbench.kernels.order import pages_of
from gatherbench.kernels.policies import POLICIES
from gatherbench.kernels.requests import RequestRow, request_row, uniform_ids
from gatherbench.stats.interval import Interval, interval_of
from helpers.epoch_bars import bar_groups
from helpers.findings import Findings
from helpers.ratios import compared

#: Our own gather beside those of live peers.
OURS = "aligned"
#: Bytes of the table that is modelled where none was measured.
UNMEASURED_SPAN = 8 << 30
#: Cases of gpu-micro that read the host's table.
READS = ("copy_to_device", "sm_read", "gpu_gather")


def gather_rates(micro: pd.DataFrame) -> pd.DataFrame:
    """GB/s of payload of each point of gpu-micro: median over its rounds, with the extremes.

    Columns: those that name a point, ``y``, ``low``, ``high``, ``machine``.
    """
    timed = micro[micro["case"].isin(READS)]
    keys = [
        "machine",
        "case",
        "policy",
        "order",
        "row_bytes",
        "span_bytes",
        "grid_percent",
        "amount",
    ]
    times = timed.groupby(keys, sort=False)["time_s"]
    spread = pd.DataFrame({"y": times.median(), "low": times.max(), "high": times.min()})
    rates = spread.reset_index()
    for column in ("y", "low", "high"):
        rates[column] = rates["amount"] / rates[column] / 1e9
    return rates


def policy_series(policy: str, order: str) -> str:
    """What a curve of a launch policy is called: whose it is, and the order of the ids."""
    return f"{POLICIES[policy].label}, {order}"


def span_of(micro: pd.DataFrame) -> int:
    """Bytes of the table whose gathers :func:`measured_gather_rates` shows, or that is modelled."""
    spans = micro[micro["case"] == "gpu_gather"]["span_bytes"]
    return int(spans.max()) if len(spans) else UNMEASURED_SPAN


def measured_gather_rates(
    micro: pd.DataFrame, policies: Sequence[str] = tuple(POLICIES)
) -> pd.DataFrame:
    """Curves of gpu-micro on its largest span: columns as of the modelled ones, ``low``, ``high``.

    Each point is the best of the grid caps that were tried.
    """
    rates = gather_rates(micro)
    gathers = rates[(rates["case"] == "gpu_gather") & rates["policy"].isin(policies)]
    widest = gathers[gathers["span_bytes"] == gathers["span_bytes"].max()]
    best = widest.sort_values("y").drop_duplicates(["policy", "order", "row_bytes"], keep="last")
    series = [policy_series(p, o) for p, o in zip(best["policy"], best["order"], strict=True)]
    curves: pd.DataFrame = best.assign(kind="measured", series=series, x=best["row_bytes"])
    rank = [list(policies).index(name) for name in curves["policy"]]
    curves = curves.assign(rank=rank).sort_values(["rank", "order", "x"], ignore_index=True)
    return curves[["kind", "series", "policy", "order", "x", "y", "low", "high"]]


def ratio_over_rounds(
    micro: pd.DataFrame, width: int, ours: tuple[str, str], other: tuple[str, str]
) -> tuple[float, float, float]:
    """How many times as fast ``ours`` is as ``other``, each a policy and an order of the ids.

    Within a round, where both were measured minutes apart at most: median and extremes over the
    rounds of gpu-micro, on its largest span, each with the grid cap that is best by median. NaN
    where no round has both.
    """
    sides = []
    for policy, order in (ours, other):
        rows = micro[(micro["case"] == "gpu_gather") & (micro["row_bytes"] == width)]
        rows = rows[(rows["policy"] == policy) & (rows["order"] == order)]
        rows = rows[rows["span_bytes"] == span_of(micro)]
        rates = (rows["amount"] / rows["time_s"]).groupby([rows["grid_percent"], rows["round"]])
        by_cap = rates.median().unstack("round")
        sides.append(by_cap.iloc[by_cap.median(axis=1).argmax()] if len(by_cap) else by_cap.sum())
    ratios = (sides[0] / sides[1]).dropna()
    return float(ratios.median()), float(ratios.min()), float(ratios.max())


def best_orders(rates: pd.DataFrame) -> pd.DataFrame:
    """The curves of rates with one a policy: at each width the better order of the ids."""
    best = rates.sort_values("y", kind="stable").drop_duplicates(
        ["kind", "policy", "x"], keep="last"
    )
    best = best.assign(series=[POLICIES[name].label for name in best["policy"]])
    rank = {name: place for place, name in enumerate(POLICIES)}
    return best.sort_values(
        ["policy", "x"], key=lambda c: c.map(rank) if c.name == "policy" else c, ignore_index=True
    )


def live_peers(micro: pd.DataFrame) -> pd.DataFrame:
    """Gathers of gpu-micro by other systems themselves, not by their policies.

    Columns: ``kind``, ``series`` (with the size of the table, which is not that of our policies),
    ``x`` (row width in bytes), ``y`` (median GB/s of payload), ``beside``: our own in turn with it,
    in words.
    """
    both = micro[micro["case"] == "peer_gather"]
    rates = both.assign(y=both["amount"] / both["time_s"] / 1e9)
    keys = ["policy", "row_bytes", "span_bytes", "order"]
    records = []
    medians = rates.groupby(keys, sort=False)["y"].median().reset_index().to_dict("records")
    for row in medians:
        series = f"{row['policy']} itself, {row['span_bytes'] / 2**30:g} GiB"
        point = ("measured", series, row["row_bytes"], row["y"])
        ours = [
            f"{our['order']} {our['y']:.1f}"
            for our in medians
            if our["policy"] == OURS
            and (our["row_bytes"], our["span_bytes"]) == (row["row_bytes"], row["span_bytes"])
        ]
        if row["policy"] != OURS:
            records.append((*point, ", ".join(ours)))
    return pd.DataFrame(records, columns=["kind", "series", "x", "y", "beside"])


def measured_roofs(micro: pd.DataFrame) -> pd.DataFrame:
    """The limits beside those curves: copy engine and contiguous read by multiprocessors, GB/s.

    Columns: ``kind``, ``name``, ``y``.
    """
    rates = gather_rates(micro)
    roofs = rates[rates["case"] != "gpu_gather"]
    roofs = roofs[roofs["span_bytes"] == roofs["span_bytes"].max()]
    best = roofs.groupby("case")["y"].max()
    names = {"copy_to_device": "copy engine", "sm_read": "contiguous read by SMs"}
    return pd.DataFrame(
        [("measured", names[str(case)], rate) for case, rate in best.items()],
        columns=["kind", "name", "y"],
    )


def published_order(published: pd.DataFrame) -> pd.DataFrame:
    """DGL's gather of 188 B rows, ids as given and sorted: ``kind``, ``series``, ``x``, ``y``."""
    rows = published[published["metric"] == "payload_in_one_second"]
    series = ["DGL, " + variant.split(",")[1] for variant in rows["variant"]]
    return pd.DataFrame(
        {"kind": "published", "series": series, "x": 188, "y": rows["value"].to_numpy() / 1e9}
    )


# ---- by the link model ------------------------------------------------------------------------

FLOAT_BYTES = 4


def requests_at(policies: Sequence[str], row_bytes: Sequence[int]) -> list[RequestRow]:
    """Requests of these policies on uniform ids and float32 rows, by request accounting."""
    ids = uniform_ids(1 << 14)
    return [
        request_row(POLICIES[name], width, FLOAT_BYTES, ids)
        for name in policies
        for width in row_bytes
    ]


def modelled_gather_rates(
    policies: Sequence[str], row_bytes: Sequence[int], profile: LinkProfile, span_bytes: float
) -> pd.DataFrame:
    """GB/s of payload that multiprocessors read from host memory.

    Columns: ``kind``, ``series``, ``policy``, ``x`` (row width in bytes), ``y`` (GB/s), ``bound``
    (the limit that holds). Ids are random: as given each row lies on another page, sorted many
    share one.
    """
    records = []
    for row in requests_at(policies, row_bytes):
        payload = float(row.counts.rows * row.row_bytes)
        order = row.policy.order_of(row.row_bytes)
        load = MinibatchLoad(
            payload_bytes=payload,
            gpu_link_read_bytes=payload,
            gpu_requests=row.counts.requests,
            gpu_page_visits=row.counts.rows * pages_of(row.row_bytes) if order == "given" else 0.0,
            table_bytes=span_bytes,
            row_bytes=row.row_bytes,
        )
        part = gpu_reads(load, profile)
        if part.known:
            rate = payload / part.seconds / 1e9
            series = policy_series(row.policy.name, order)
            records.append(("modelled", series, row.policy.name, row.row_bytes, rate, part.bound))
    return pd.DataFrame(records, columns=["kind", "series", "policy", "x", "y", "bound"])


def modelled_roofs(profile: LinkProfile) -> pd.DataFrame:
    """The link's raw rate in GB/s: ``kind``, ``name``, ``y``."""
    raw = profile["link.raw_rate"].value
    rows = [] if raw is None else [("modelled", "raw link", raw / 1e9)]
    return pd.DataFrame(rows, columns=["kind", "name", "y"])


def modelled_transfers(
    profile: LinkProfile, rows: Sequence[int], row_bytes: Sequence[int], num_rows: int
) -> pd.DataFrame:
    """Transfer time of CPU gather over that of aligned zero-copy.

    Columns: ``rows``, ``row_bytes``, ``ratio`` (NaN where a constant is not known). CPU gather is
    the paper's baseline: fresh pageable memory, staged and copied. Each side pays the cost of
    being submitted once.
    """
    records = []
    for width in row_bytes:
        counts = requests_at(["aligned"], [width])[0].counts
        for count in rows:
            payload = float(count * width)
            requests = {size: n / counts.rows * count for size, n in counts.requests.items()}
            shape = MinibatchLoad(payload, table_bytes=num_rows * width, row_bytes=width)
            zero_copy = replace(
                shape,
                gpu_link_read_bytes=payload,
                gpu_requests=requests,
                gpu_page_visits=count * pages_of(width),
            )
            gathered = replace(
                shape,
                cpu_read_bytes=payload,
                cpu_write_bytes=payload,
                copy_engine_bytes=payload,
                pageable_bytes=payload,
            )
            seconds = [_fetch(load, profile) for load in (gathered, zero_copy)]
            records.append((count, width, seconds[0] / seconds[1]))
    return pd.DataFrame(records, columns=["rows", "row_bytes", "ratio"])


def _fetch(load: MinibatchLoad, profile: LinkProfile) -> float:
    """Seconds from asking for one minibatch's rows to having them, with nothing beside it."""
    alone = replace(load, sample_s=0.0, train_s=0.0)
    return predict_batches(alone, profile, 1).fetch_s


# ---- on a share of the multiprocessors ----------------------------------------------------------

#: Rows from which a gather is limited by bytes and not by requests.
WIDE_BYTES = 400
#: Of the best rate: a gather that reaches it has enough of the GPU.
ENOUGH = 0.97
#: Of tables over shares of the GPU, per cent.
SHARES = ["source", "series", "x", "y", "low", "high"]
#: Where they come from: what ``async_zero_copy`` tries when it is opened, and gpu-micro.
SWEEP, MICRO = "sweep", "gpu-micro"


def gather_against_share(findings: Findings) -> pd.DataFrame:
    """Rate of a gather alone over its best, against its share of the GPU, per cent.

    From the sweep that ``async_zero_copy`` makes when it is opened, and from gpu-micro's grid caps.
    Columns: :data:`SHARES`; ``low`` and ``high`` are the 95 % interval over the repeats (NaN of
    one), or the extremes over the rounds.
    """
    rates = 1 / _sweeps(findings, r"budget_(\d+)_gather_time")
    swept = _over(rates, rates.max(axis=1))
    micro = gather_rates(findings.micro)
    micro = micro[(micro["case"] == "gpu_gather") & (micro["policy"] == "aligned")]
    micro = micro[(micro["order"] == "given") & (micro["span_bytes"] == micro["span_bytes"].max())]
    best = micro.groupby("row_bytes")["y"].transform("max")
    over = f" over {span_of(findings.micro) / 2**30:g} GiB"
    series = [f"rows of {width} B{over}" for width in micro["row_bytes"]]
    x = micro["grid_percent"].astype(float)
    capped = micro.assign(source=MICRO, series=series, x=x)
    capped[["y", "low", "high"]] = capped[["y", "low", "high"]].div(best, axis=0)
    capped = capped[(capped["grid_percent"] > 0) & (capped["row_bytes"] >= WIDE_BYTES)]
    capped = capped.sort_values(["row_bytes", "x"])
    return _together(swept, capped[SHARES])


def step_against_share(findings: Findings) -> pd.DataFrame:
    """A training step with a gather beside it over training alone, against the gather's share.

    From the sweep that ``async_zero_copy`` makes beside the real training step, and from
    gpu-micro's loads that are like training in one way each. Columns as
    :func:`gather_against_share`.
    """
    steps = _sweeps(findings, r"budget_(\d+)_step_time")
    alone = _sweeps(findings, "(train)_alone_step_time").reindex(steps.index)
    return _together(_over(steps, alone.max(axis=1)), _overlapped_loads(findings.micro))


def overlap_ratios(findings: Findings) -> pd.DataFrame:
    """A training step with a gather beside it over the longer of the two alone: is it hidden?

    Of the real training step, at the share that served it best. Columns as
    :func:`gather_against_share`.
    """
    steps = _sweeps(findings, r"budget_(\d+)_step_time")
    alone = _sweeps(findings, "(train|fetch)_alone_step_time").reindex(steps.index)
    both = alone.dropna() if alone.shape[1] == 2 else alone.iloc[:0]  # older runs have no fetch
    ratios = _over(steps.reindex(both.index), both.max(axis=1)).sort_values("y", kind="stable")
    return ratios.drop_duplicates("series").sort_index(ignore_index=True)


def share_table(findings: Findings) -> Iterator[str]:
    """What the tables over shares say: lines of a Markdown table, one for each series."""
    cells: dict[tuple[str, str], list[str]] = {}

    def put(column: int, row: Mapping[Hashable, Any], text: str) -> None:
        cells.setdefault((row["source"], row["series"]), ["–"] * 3)[column] = text

    for _, line in gather_against_share(findings).groupby(["source", "series"], sort=False):
        tried = line.sort_values("x").to_dict("records")
        row = next((row for row in tried if row["y"] >= ENOUGH), None)
        if row is None:
            put(0, tried[0], f"none of {len(tried)} tried")
            continue
        which = "" if row["x"] > tried[0]["x"] else ", the smallest tried"
        open_ = ", not decided" if row["low"] < ENOUGH else ""
        share = with_ends(row["y"], row["low"], row["high"], "share")
        put(0, row, f"**{row['x']:g} %**{which}: {share}{open_}")
    for _, line in step_against_share(findings).groupby(["source", "series"], sort=False):
        row = min(line.to_dict("records"), key=lambda one: one["y"])
        put(1, row, f"{compared(_interval(row))} ({row['x']:g} %, of {len(line)} shares)")
    for row in overlap_ratios(findings).to_dict("records"):
        put(2, row, f"{compared(_interval(row))} ({row['x']:g} %)")
    if cells:
        yield (
            f"| | the smallest share with {ENOUGH:.0%} and more of the best rate | the shortest"
            " step with a gather beside it, over training alone | that over the longer of training"
            " and fetch |"
        )
        yield "|---|---|---|---|"
    for names, texts in cells.items():
        yield f"| {' | '.join([_named(names), *texts])} |"


def _named(names: Sequence[object]) -> str:
    return " of ".join(map(str, names))


def _interval(row: Mapping[Hashable, Any]) -> Interval:
    return over_rounds(row["y"], row["low"], row["high"])


def over_rounds(value: float, low: float, high: float) -> Interval:
    """A ratio with these ends; NaN: there are none."""
    if math.isnan(low):
        return Interval(value, 0.0, math.inf, 1)
    return Interval(value, low, high, 2, 0.0)


def _overlapped_loads(micro: pd.DataFrame) -> pd.DataFrame:
    """gpu-micro's loads with a fetch beside them over the loads alone, round by round."""
    keys = ["load", "provider", "grid_percent"]
    alone = micro[micro["case"] == "train_alone"].set_index(["load", "round"])["time_s"]
    both = micro[micro["case"] == "train_and_fetch"]
    both = both.join(alone.rename("alone_s"), ["load", "round"])
    ratios = both.assign(y=both["time_s"] / both["alone_s"]).groupby(keys)["y"]
    table = ratios.agg(y="median", low="min", high="max").dropna().reset_index()
    series = table["load"].str.replace("_", " ") + ", " + table["provider"]
    x = table["grid_percent"].astype(float)
    return table.assign(source=MICRO, series=series, x=x)[SHARES]


def _sweeps(findings: Findings, pattern: str) -> pd.DataFrame:
    """Seconds of the GPU's setup rows whose metric is ``pattern``; a column by what it captures.

    Index: ``series`` (variant and graph) and ``repeat``. Numbers are captured as such.
    """

    def rows(run: Run) -> pd.DataFrame:
        found = run.select(stage="setup", status="ok")
        return found[found["metric"].str.fullmatch(pattern).astype(bool)]

    groups = bar_groups(findings, "cuda")
    tables = [pd.DataFrame(columns=["series", "repeat", "what", "value"])]
    for run in findings.runs_on("cuda", rows):
        found = rows(run)
        graph = pd.Series([groups[run.machine, w] for w in found["workload"]], found.index)
        what = found["metric"].str.extract(pattern)[0]
        tables.append(found.assign(series=found["variant"] + ", " + graph, what=what))
    table = pd.concat([t for t in tables if len(t)] or tables)
    wide = table.set_index(["series", "repeat", "what"])["value"].astype(float).unstack()
    return wide.rename(columns=lambda name: float(name) if name.isdigit() else name)


def _over(wide: pd.DataFrame, base: pd.Series[float]) -> pd.DataFrame:
    """Each column over what belongs to its line: means over repeats with their intervals."""
    records = [
        (SWEEP, series, x, *interval_of((1, np.log(values.dropna()))).ends)
        for series, mine in wide.div(base, axis=0).groupby(level="series")
        for x, values in mine.items()
        if values.notna().any()
    ]
    return pd.DataFrame(records, columns=SHARES)


def _together(*tables: pd.DataFrame) -> pd.DataFrame:
    there = [table for table in tables if len(table)]
    return pd.concat(there, ignore_index=True) if there else pd.DataFrame(columns=SHARES)
