"""Rates of gathers over the link, published and measured, as tables for figures."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from gatherbench.kernels.policies import POLICIES

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

    Columns: ``kind``, ``series``, ``x`` (row width in bytes), ``y`` (median GB/s of payload).
    """
    theirs = micro[(micro["case"] == "peer_gather") & (micro["policy"] != OURS)]
    rates = theirs.assign(kind="measured", y=theirs["amount"] / theirs["time_s"] / 1e9)
    keys = ["kind", "policy", "row_bytes"]
    table = rates.groupby(keys, sort=False)["y"].median().reset_index()
    table["policy"] += " itself"
    return table.rename(columns={"policy": "series", "row_bytes": "x"})


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
