"""What was measured on several ranks, for the notebook on several GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd

from gatherbench.bench.read.epochs import set_aside
from gatherbench.bench.read.ranks import scaling
from gatherbench.bench.show.notebook_tables import Findings
from gatherbench.bench.show.sentences.scaling import BOUND

COLUMNS = ["kind", "series", "x", "y", "low", "high", "place"]


def measured_over_ranks(findings: Findings, backend: str, value: str) -> pd.DataFrame:
    """``epoch`` or ``speedup`` of :func:`gatherbench.bench.read.ranks.scaling`, as :data:`COLUMNS`.

    A strategy is shown by its fastest variant on as many ranks. ``place``: graph and machine; where
    there are several, the names of the series say which.
    """
    tables = []
    for run in findings.runs_of_ranks(backend):
        table = scaling(run)
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
    several = ratios[(ratios["x"] > 1) & ~ratios["series"].str.startswith(BOUND)]
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
