"""A run of gpu-micro, answered from its rows alone: rates, what they are held to, and verdicts.

    python -m tools.gpu.micro --report FOLDER

makes ``summary.csv`` and ``targets.csv`` anew from ``rows.csv``, on any machine.

Each ratio is taken within a round, where both sides were measured minutes apart at the most. Its
interval is over the rounds of one process: what another process would measure may lie outside.
Which grid and which order of the ids stand for a side is decided by medians.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pandas as pd

from gatherbench.bench.probe.cases import CASES, GIB, OUR_BEST, PASSES
from gatherbench.bench.read.points import POINT_COLUMNS, read_points
from gatherbench.kernels.grid import SECTOR_BYTES
from gatherbench.kernels.policies import POLICIES
from gatherbench.stats.interval import interval_of
from gatherbench.stats.judge import judge

#: A step with a fetch beside it takes at most so many times the longer of the two.
OVERLAP = 1.05
_ROUNDING = 1e-9
REACHED, MISSED, UNDECIDED = "reached", "missed", "not decided"
#: Of a completion, as the byte counter seems to count it: derived from published counts, and to be
#: confirmed.
COUNTED_HEADER_BYTES = 12


@dataclass(frozen=True, slots=True)
class Target:
    """``ratio`` of ``ours`` to ``other`` (rates, or times of a step) and its 95 % interval.

    ``at_least`` or ``at_most`` is the bound that was asked for, if one was; ``verdict`` is empty
    without one.
    """

    target: str
    span_bytes: int
    row_bytes: int
    ours: str
    other: str
    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan
    rounds: int = 0
    at_least: float | None = None
    at_most: float | None = None
    verdict: str = ""


def write_report(folder: Path) -> str:
    """Write ``summary.csv`` and ``targets.csv`` from ``rows.csv``; what is worth reading first."""
    table = read_points(folder / "rows.csv")
    known = summary(table)
    found = targets(table)
    known.to_csv(folder / "summary.csv", index=False)
    names = [field.name for field in fields(Target)]
    pd.DataFrame(found, columns=names).to_csv(folder / "targets.csv", index=False)
    judged = pd.DataFrame([one for one in found if one.verdict], columns=names).astype(
        {"at_least": float, "at_most": float}
    )
    shown = {
        "Fastest": _fastest(known),
        "Passes over ids": _passes(known),
        "Counted by the GPU over expected": _counted(table),
        "Targets: geometric mean and 95 % interval over the rounds": judged.round(3),
    }
    return "\n".join(
        f"{title}\n{one.to_string(index=False, na_rep='')}\n"
        for title, one in shown.items()
        if len(one)
    )


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Amount a second of each point: median and extremes, and the share of its SM-read roof.

    Columns: those of a point, ``unit``, ``amount``, ``rounds``, ``median_per_s``,
    ``slowest_per_s``, ``fastest_per_s``, ``of_sm_read_roof`` (of the best grid over that span).
    """
    timed = table[table["time_s"].notna() & table["amount"].notna()]
    timed = timed.assign(rate=timed["amount"] / timed["time_s"])
    by_point = timed.groupby([*POINT_COLUMNS, "unit", "amount"])["rate"]
    known = by_point.agg(
        rounds="size", median_per_s="median", slowest_per_s="min", fastest_per_s="max"
    ).reset_index()
    roofs = known[known["case"] == "sm_read"].groupby("span_bytes")["median_per_s"].max()
    rated = known["case"].isin(["sm_read", "copy_to_device", "gpu_gather"])
    share = known["median_per_s"] / known["span_bytes"].map(roofs)
    return known.assign(of_sm_read_roof=share.where(rated))


def share_wanted(row_bytes: int) -> float | None:
    """Share of its span's SM-read roof that ``aligned`` is to reach; ``None``: any will do."""
    return 0.95 if row_bytes >= 512 else 0.85 if row_bytes == 256 else None


def targets(table: pd.DataFrame) -> list[Target]:
    """What was asked for, held against the rounds of one run.

    For each span and row width ``aligned`` over the SM-read roof, over the fastest policy of a
    peer, and over WholeGraph itself; for each load and share of the GPU a step with a fetch beside
    it over the longer of the two.
    """
    timed = table[table["time_s"].notna() & (table["round"] > 0)]
    timed = timed.assign(rate=timed["amount"] / timed["time_s"])
    found = [*_of_gathers(timed), *_of_overlap(timed)]
    family = sum(one.at_least is not None or one.at_most is not None for one, _ in found)
    return [_judged(one, ratios, family) for one, ratios in found]


#: A target without its numbers, and its ratio in each round.
_Asked = tuple[Target, pd.Series]


def _of_gathers(timed: pd.DataFrame) -> Iterator[_Asked]:
    """The fastest way of each side by its median, where both were measured in one round."""
    system = timed["policy"].map(lambda name: POLICIES[name].system if name in POLICIES else "")
    label = timed["policy"].map(lambda name: POLICIES[name].label if name in POLICIES else name)
    grid = timed["grid_percent"].astype(str) + " %"
    ours = timed["policy"] + ", " + timed["order"] + ", grid " + grid
    blocks = (timed["grid_percent"] / 100).map("{:g} blocks a multiprocessor".format)
    gather, live = timed["case"] == "gpu_gather", timed["case"] == "peer_gather"
    best = timed["policy"] == OUR_BEST
    mine = timed.assign(side=ours)[(gather | live) & best]
    roofs = timed.assign(side=blocks)[timed["case"] == "sm_read"]
    theirs = timed.assign(side=label + ", " + timed["order"])[
        (gather & (system != "gatherbench")) | (live & ~best)
    ]
    keys = ["case", "span_bytes", "row_bytes"]
    for case, span, width in mine[keys].drop_duplicates().itertuples(index=False):
        here = [rows[rows[keys].eq([case, span, width]).all(axis=1)] for rows in (mine, theirs)]
        sides = [("of the SM-read roof", roofs[roofs["span_bytes"] == span], share_wanted(width))]
        sides.append(("over the fastest policy of a peer", here[1], 1.0))
        if case == "peer_gather":
            sides = [("over the peer itself", here[1], 1.0)]
        for target, other, wanted in sides:
            if other.empty:
                continue
            one, two = (
                rows.pivot_table(index="round", columns="side", values="rate")
                for rows in (here[0], other)
            )
            fastest, peer = one.median().idxmax(), two.median().idxmax()
            ratios = (one[fastest] / two[peer]).dropna()
            if len(ratios):
                sides_of = (target, span, width, str(fastest), str(peer))
                yield Target(*sides_of, at_least=wanted), ratios


def _of_overlap(timed: pd.DataFrame) -> Iterator[_Asked]:
    """``train_and_fetch`` over the longer of the load alone and the fetch alone.

    The fetch alone is the fastest share's: a share that slows the fetch itself is no excuse.
    """
    share = timed["provider"] + " " + timed["grid_percent"].astype(str) + " %"
    steps = timed.assign(share=share)

    def seconds(case: str, column: str) -> pd.DataFrame:
        rows = steps[steps["case"] == case]
        return rows.pivot_table(index="round", columns=column, values="time_s")

    trains, fetches = seconds("train_alone", "load"), seconds("fetch_alone", "share")
    both = steps[steps["case"] == "train_and_fetch"]
    keys = ["load", "share", "span_bytes", "row_bytes"]
    for load, name, span, width in both[keys].drop_duplicates().itertuples(index=False):
        if load not in trains or fetches.empty:
            continue
        fastest = fetches.median().idxmin()
        longer, other = fetches[fastest], f"fetch alone, {fastest}"
        if trains[load].median() > longer.median():
            longer, other = trains[load], f"{load} alone"
        rows = both[(both["load"] == load) & (both["share"] == name)]
        ratios = (rows.set_index("round")["time_s"] / longer).dropna()
        target = "side by side over the longer of the two"
        if len(ratios):
            ours = f"{load}, {name}"
            yield Target(target, span, width, ours, other, at_most=OVERLAP), ratios


def _judged(one: Target, ratios: pd.Series, family: int) -> Target:
    """With its interval and, where a bound was asked for, the verdict of the whole interval."""
    seen = interval_of((1, np.log(ratios).tolist()))
    bound = one.at_most if one.at_least is None else one.at_least
    verdict = ""
    if bound is not None:
        against = interval_of((1, np.log(ratios / bound).tolist()))
        up = one.at_most is None
        word = judge(against, threshold=_ROUNDING, more_is_better=up, family=family).word
        verdict = {"FAST": REACHED, "SAME": REACHED, "SLOW": MISSED}.get(word, UNDECIDED)
    return replace(
        one, ratio=seen.value, low=seen.low, high=seen.high, rounds=len(ratios), verdict=verdict
    )


def _fastest(known: pd.DataFrame) -> pd.DataFrame:
    """The fastest way to read rows of each width from each span, by us and by others; the roofs."""
    timed = known[known["unit"].eq("B") & known["span_bytes"].gt(0)]
    ours = ["", *(name for name, one in POLICIES.items() if one.system == "gatherbench")]
    timed = timed.assign(by=timed["policy"].isin(ours).map({True: "us", False: "others"}))
    best = timed.sort_values("median_per_s").drop_duplicates(
        ["case", "span_bytes", "row_bytes", "by"], keep="last"
    )
    best = best.sort_values(["span_bytes", "case", "row_bytes", "by"])
    rates = (best[["median_per_s", "slowest_per_s", "fastest_per_s"]] / 1e9).round(1)
    rates.columns = pd.Index(["GB/s", "slowest", "fastest"])
    names = best[["case", "row_bytes", "by", "policy", "order", "grid_percent", "rounds"]]
    return pd.concat([(best["span_bytes"] / GIB).rename("GiB"), names, rates], axis=1)


def _passes(known: pd.DataFrame) -> pd.DataFrame:
    """Microseconds of each pass over ids."""
    passes = known[known["case"].isin(PASSES)]
    seconds = passes["amount"] / passes["median_per_s"]
    ids = passes["amount"].astype(int)
    return passes[["case", "rounds"]].assign(ids=ids, us=(1e6 * seconds).round())


def _counted(table: pd.DataFrame) -> pd.DataFrame:
    """Counted over expected for each policy and width, and the mean read that the bytes imply.

    If each completion is counted with a header of 12 B, (bytes - payload) / 12 of them came.
    """
    rows = table[table["case"].str.match("counted_|expected_") & table["policy"].ne("")]
    wide = rows.pivot_table(
        index=["policy", "row_bytes"], columns="case", values="amount", sort=False
    ).reindex(columns=[case.name for case in CASES.values() if case.section == "ncu"])
    payload = SECTOR_BYTES * wide["counted_sectors"]
    completions = (wide["counted_bytes"] - payload) / COUNTED_HEADER_BYTES
    known = {
        "sectors": wide["counted_sectors"] / wide["expected_sectors"],
        "requests": wide["counted_requests"] / wide["expected_requests_128"],
        "mean_read_bytes": (payload / completions).where(completions > 0).round(),
    }
    return pd.DataFrame(known).round(3).reset_index()
