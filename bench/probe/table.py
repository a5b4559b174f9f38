"""Show the results of a probe: as a table, a picture, and the one file that can be sent in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from rich.table import Table

from gatherbench.bench.probe.gathers import OUR_BEST
from gatherbench.bench.probe.host import ROW_BYTES
from gatherbench.bench.probe.points import POINT_COLUMNS
from gatherbench.bench.read.units import quantity
from gatherbench.bench.show.looks import FAINT, RC

#: The columns of :func:`medians` that are rates.
RATES = ["median_per_s", "low_per_s", "high_per_s"]
#: Cases of the picture: the lines over the size of the table, and the limits.
LINES = {
    "managed_gather": ("managed memory, read by the GPU", "C0", "s-"),
    "gpu_gather": ("registered memory, read by the GPU", "C1", "o-"),
    "host_gather": ("gathered by the CPU into memory", "C2", "^-"),
}
LIMITS = {
    "copy_to_device": ("copy engine", "--"),
    "sm_read": ("contiguous read by the GPU", ":"),
    "host_copy": ("memcpy", "-."),
}


def medians(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a line per point: median and quartiles of its rate, or the reason why it has none.

    Columns: those of a point, ``unit``, ``rounds``, ``median_per_s``, ``low_per_s``,
    ``high_per_s``, ``reason``.
    """
    keys = [*POINT_COLUMNS, "unit"]
    rates = rows.assign(rate=rows["amount"] / rows["time_s"]).dropna(subset="rate")
    groups = rates.groupby(keys)["rate"].describe()[["count", "50%", "25%", "75%"]]
    known = groups.set_axis(["rounds", *RATES], axis=1).astype({"rounds": int}).reset_index()
    refused = rows[rows["reason"] != ""].drop_duplicates(keys)[[*keys, "reason"]]
    parts = [part for part in (known.assign(reason=""), refused.assign(rounds=0)) if len(part)]
    return pd.concat(parts or [known.assign(reason="")], ignore_index=True)


def own_best(table: pd.DataFrame) -> pd.DataFrame:
    """Keep default gathers of ``OUR_BEST``; of other cases the best grid; of the host all cores."""
    table = table[table["median_per_s"].notna()]
    gather = table["case"].isin(["gpu_gather", "managed_gather"])
    is_default = (
        table["policy"].eq(OUR_BEST) & table["order"].eq("given") & table["grid_percent"].eq(0)
    )
    best = table[~gather | is_default]
    host = best["case"].str.startswith("host_")
    best = best[~host | best["threads"].eq(best.loc[host, "threads"].max())]
    best = best.sort_values("median_per_s", kind="stable")
    keys = ["case", "row_bytes", "span_bytes", "threads", "policy", "order"]
    return best.drop_duplicates(keys, keep="last").sort_index()


def draw(table: pd.DataFrame, title: str, path: Path) -> None:
    """Draw GB/s of random rows over the size of the table, a panel for each row width."""
    best = own_best(table)
    spans = sorted(set(best[best["case"].isin(LINES)]["span_bytes"]))
    with mpl.rc_context(RC):
        figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
        for axes, width in zip(panels, ROW_BYTES, strict=True):
            for case, (label, colour, style) in LINES.items():
                line = best[(best["case"] == case) & (best["row_bytes"] == width)]
                line = line.sort_values("span_bytes")
                x, (y, low, high) = line["span_bytes"], (line[r] / 1e9 for r in RATES)
                if len(line):
                    axes.plot(x, y, style, color=colour, markersize=4, label=label)
                    axes.vlines(x, low, high, color=colour, linewidth=1)
            for case, (label, style) in LIMITS.items():
                rates = best[best["case"] == case]["median_per_s"]
                if len(rates):
                    axes.axhline(rates.max() / 1e9, color=FAINT, linestyle=style, label=label)
            axes.set_xscale("log", base=2)
            axes.set_xticks(spans, [size_text(span) for span in spans], fontsize=7)
            axes.set_xticks([], minor=True)
            axes.grid(axis="y")
            axes.set(title=f"random rows of {width} B", xlabel="size of the table")
        panels[0].set_ylim(bottom=0)
        panels[0].set_ylabel("GB/s")
        handles = panels[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=3, fontsize=8)
        figure.suptitle(title, fontsize=9, x=0.01, ha="left")
        figure.savefig(path, dpi=150)
        plt.close(figure)


def table(medians: pd.DataFrame) -> Table:
    """Return a line for each case and its parameters, with a column for each table size.

    Of several grids the best one counts.
    """
    measured = medians[medians["median_per_s"].notna()]
    spans = sorted(set(measured["span_bytes"]) - {0})
    grid = Table("case", "", box=None, pad_edge=False)
    for name in ("rate", *map(size_text, spans)):
        grid.add_column(name, justify="right")
    for column in grid.columns:
        column.no_wrap = True
    keys = ["case", "row_bytes", "threads", "policy", "order", "unit"]
    groups: Any = measured.groupby(keys, sort=False)
    for (case, width, threads, policy, order, unit), rows in groups:
        best = rows.groupby("span_bytes")["median_per_s"].max()
        details = [f"{width} B"] * bool(width) + [f"{threads} threads"] * bool(threads)
        if policy and (policy, order) != (OUR_BEST, "given"):
            details.append(f"{policy}, {order}")
        cells = (quantity(best[s], f"{unit}/s") if s in best else "" for s in (0, *spans))
        grid.add_row(case, ", ".join(details), *cells)
    return grid


def size_text(span: float) -> str:
    return f"{span / 2**30:g} GiB" if span >= 2**30 else f"{span / 2**20:g} MiB"
