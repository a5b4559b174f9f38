"""The results of a probe: medians, as a table, a picture, and the one file that can be sent in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from rich.table import Table

from gatherbench.bench.probe.gathers import OUR_BEST
from gatherbench.bench.probe.host import ROW_BYTES
from gatherbench.bench.probe.machine import Facts
from gatherbench.bench.read.points import POINT_COLUMNS
from gatherbench.bench.read.units import quantity
from gatherbench.bench.show.looks import FAINT, RC

_RATES = ["median_per_s", "low_per_s", "high_per_s"]
#: Cases of the picture: the lines over the size of the table, and the limits.
LINES = {
    "managed_gather": ("managed memory, read by the GPU", "C0", "s-"),
    "gpu_gather": ("registered memory, read by the GPU", "C1", "o-"),
    "host_gather": ("gathered by the CPU into memory", "C2", "^-"),
}
KINDS = ("registered", "managed", "CPU")
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
    found = pd.DataFrame(
        [
            (*key, len(some), some.median(), some.quantile(0.25), some.quantile(0.75), "")
            for key, some in rates.groupby(keys)["rate"]
        ],
        columns=[*keys, "rounds", *_RATES, "reason"],
    )
    missing = rows[rows["reason"] != ""].drop_duplicates(keys)[[*keys, "reason"]]
    return (
        pd.concat([found, missing.assign(rounds=0)], ignore_index=True) if len(missing) else found
    )


def sent(known: pd.DataFrame, facts: Facts) -> pd.DataFrame:
    """Return the table that can be sent in: :func:`medians`, each line with its machine."""
    return known.assign(**asdict(facts))


def own_best(known: pd.DataFrame) -> pd.DataFrame:
    """Keep default gathers of ``OUR_BEST``; of other cases the best grid; of the host all cores."""
    gather = known["case"].isin(["gpu_gather", "managed_gather"])
    own = known["policy"].eq(OUR_BEST) & known["order"].eq("given") & known["grid_percent"].eq(0)
    best = known[~gather | own]
    host = best["case"].str.startswith("host_")
    cores = best.loc[host, "threads"].max()
    best = best[~host | best["threads"].eq(cores)].sort_values("median_per_s", kind="stable")
    keys = ["case", "row_bytes", "span_bytes", "threads", "policy", "order"]
    return best.drop_duplicates(keys, keep="last").sort_index()


def draw(known: pd.DataFrame, title: str, path: Path) -> None:
    """Draw GB/s of random rows over the size of the table, a panel for each row width."""
    best = own_best(known)
    best = best[best["median_per_s"].notna()]
    with mpl.rc_context(RC):
        figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
        for axes, width in zip(panels, ROW_BYTES, strict=True):
            for case, (label, colour, style) in LINES.items():
                line = best[(best["case"] == case) & (best["row_bytes"] == width)]
                line = line.sort_values("span_bytes")
                x, (y, low, high) = line["span_bytes"], (line[r] / 1e9 for r in _RATES)
                if len(line):
                    axes.plot(x, y, style, color=colour, markersize=4, label=label)
                    axes.vlines(x, low, high, color=colour, linewidth=1)
            for case, (label, style) in LIMITS.items():
                rates = best[best["case"] == case]["median_per_s"]
                if len(rates):
                    axes.axhline(rates.max() / 1e9, color=FAINT, linestyle=style, label=label)
            spans = sorted(set(best[best["case"].isin(LINES)]["span_bytes"]))
            axes.set_xscale("log", base=2)
            axes.set_xticks(spans, [_size(span) for span in spans], fontsize=7)
            axes.set_xticks([], minor=True)
            axes.grid(axis="y")
            axes.set(title=f"random rows of {width} B", xlabel="size of the table")
        panels[0].set_ylim(bottom=0)
        panels[0].set_ylabel("GB/s")
        figure.legend(
            *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8
        )
        figure.suptitle(title, fontsize=9, x=0.01, ha="left")
        figure.savefig(path, dpi=150)
        plt.close(figure)


def table(known: pd.DataFrame) -> Table:
    """Return a line for each case and its parameters, with a column for each table size."""
    best = own_best(known) if len(known) > _LONG else known
    seen = best[best["median_per_s"].notna()]
    spans = sorted(set(seen["span_bytes"]) - {0})
    shown = Table(box=None, pad_edge=False)
    shown.add_column("case", no_wrap=True)
    shown.add_column("", no_wrap=True)
    for name in ("rate", *map(_size, spans)):
        shown.add_column(name, justify="right", no_wrap=True)
    keys = ["case", "row_bytes", "threads", "policy", "order"]
    for key, rows in seen.groupby(keys, sort=False):
        rates = {
            int(r["span_bytes"]): quantity(r["median_per_s"], _per_second(r["unit"]))
            for r in rows.to_dict("records")
        }
        shown.add_row(str(key[0]), _parameters(key), *(rates.get(s, "") for s in (0, *spans)))
    return shown


_LONG = 150


def _per_second(unit: str) -> str:
    return "1/s" if unit == "1" else f"{unit}/s"


def _parameters(key: Sequence[object]) -> str:
    case, width, threads, policy, order = key
    words = [f"{width} B"] if width else []
    if threads:
        words.append(f"{threads} {'in flight' if str(case).startswith('disk') else 'threads'}")
    if policy and (policy, order) != (OUR_BEST, "given"):
        words.append(f"{policy}, {order}")
    return ", ".join(words)


def _size(span: float) -> str:
    return f"{span / 2**30:g} GiB" if span >= 2**30 else f"{span / 2**20:g} MiB"


def summary_line(known: pd.DataFrame) -> dict[str, str]:
    """Return a machine's line of the comparison: GB/s of random rows of 64 and 512 B, and limits.

    The GPU's gathers are those of the largest table with the most results; the processor's are of
    its largest table.
    """
    best = own_best(known)
    best = best[best["median_per_s"].notna()]
    narrow = best[best["row_bytes"].isin(ROW_BYTES)]
    of_gpu = narrow[narrow["case"].isin(["gpu_gather", "managed_gather"])]
    kinds = of_gpu.groupby("span_bytes").size()
    span = max(kinds[kinds == kinds.max()].index, default=0)
    host = narrow[narrow["case"] == "host_gather"]
    here = [
        of_gpu[of_gpu["span_bytes"] == span],
        host[host["span_bytes"] == host["span_bytes"].max()],
    ]
    rates = pd.concat(here).set_index(["case", "row_bytes"])["median_per_s"]
    line = {"table": _size(span) if span else "–"}
    for case, name in zip(("gpu_gather", "managed_gather", "host_gather"), KINDS, strict=True):
        line[name] = " / ".join(_gb(rates.get((case, width))) for width in ROW_BYTES)
    for case, (name, _) in LIMITS.items():
        line[name] = _gb(best[best["case"] == case]["median_per_s"].max())
    return line


def _gb(rate: float | None) -> str:
    return "–" if rate is None or pd.isna(rate) else f"{rate / 1e9:.1f}"
