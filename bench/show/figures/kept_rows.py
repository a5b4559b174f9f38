"""What keeping more rows on the device buys: epochs and traffic over the share that is kept.

Drawn of a run that measured it at two shares or more. No row kept and the whole table kept are the
ends of every line, and series of their own.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from gatherbench.bench.read.epochs import epoch_times, sort_series
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import scale
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.show.figures.curves import curve, label_places, name_series, series_looks
from gatherbench.bench.show.figures.paper import panel_row, say_absent
from gatherbench.bench.show.looks import FAINT, RC, ink
from gatherbench.bench.show.sentences.provenance import (
    has_gpu,
    modelled_for,
    provenance,
    warnings_of,
)
from gatherbench.strategies.base import Strategy
from gatherbench.strategies.registry import STRATEGIES, build

#: What the panels show, and how: what is declared was computed, as what is modelled.
MEASURED, MODELLED, LINK = PANELS = ("measured", "predicted", "declared")
_LOOKS = {MEASURED: "measured", MODELLED: "modelled", LINK: "modelled"}
_UNITS = {MEASURED: "s", MODELLED: "s", LINK: "B"}
#: Colours of the series that nobody would train with, in turn.
_ASIDE = (FAINT, ink("grey"))


def kept_rows(run: Run) -> pd.DataFrame:
    """A point for each share and policy, in each of :data:`PANELS` that has it.

    Columns: ``workload``, ``panel``, ``series``, ``aside`` (whether nobody would train with it),
    ``x`` (share of the table that is kept, per cent), ``y`` and, of epochs, ``low`` and ``high``
    (s, and B over the link in an epoch). A workload with one share, or none, between no row and
    the whole table has no points.
    """
    keys = SERIES[:4]
    said = run.select(stage="fetch", basis=LINK, status="ok")
    said = said.pivot_table("value", keys, "metric", "median")
    table = run.select(stage="setup", metric="table").groupby("workload")["value"].median()
    if table.empty or not {"gpu_table", "gpu_link_read", "copy_engine"} <= set(said):
        return pd.DataFrame(columns=["workload", "panel", "series", "aside", "x", "y"])
    said["x"] = 100 * said["gpu_table"] / table
    said["y"] = said["gpu_link_read"] + said["copy_engine"]
    said = said[(said["x"] > 0) | (said["gpu_link_read"] > 0)].reset_index()
    partly = said[(said["x"] > 0) & (said["x"] < 100)]
    shares = partly.groupby("workload")["x"].nunique()
    said = said[said["workload"].isin(shares[shares > 1].index)]
    path = ["workload", "strategy", "variant"]
    epochs = epoch_times(run).merge(said[[*path, "x"]], on=path)
    epochs = epochs.rename(columns={"basis": "panel", "median": "y"})
    points = sort_series(pd.concat([epochs, said.assign(panel=LINK)], ignore_index=True))
    names = _names(run)
    named = [names[pair] for pair in zip(points["strategy"], points["variant"], strict=True)]
    points["series"], points["aside"] = zip(*named, strict=True) if named else ((), ())
    return points[["workload", "panel", "series", "aside", "x", "y", "low", "high"]]


def _names(run: Run) -> dict[tuple[str, str], tuple[str, bool]]:
    """Of each strategy and variant the name of its line, and whether nobody would train with it."""
    known = {one.name for one in STRATEGIES}
    cases = {(c["strategy"], c["variant"]): c["params"] for c in run.plan["cases"]}
    found: dict[tuple[str, str], tuple[str, bool]] = {}
    built = {key: build(key[0], cases[key]) for key in cases if key[0] in known}
    for key in cases:
        alike = [one for one in built.values() if one.name == key[0]]
        label = _line(built[key], alike) if alike else " ".join(key)
        aside = built[key].aside if alike else None
        found[key] = (f"{label} ({aside.partition(':')[0]})" if aside else label, bool(aside))
    return found


def _line(strategy: Strategy, alike: list[Strategy]) -> str:
    """The strategy, and the words in which its variants differ but for how much they keep."""
    differ = [f.name for f in fields(strategy) if len({getattr(one, f.name) for one in alike}) > 1]
    words = [str(getattr(strategy, name)) for name in differ if name != "share"]
    return f"{strategy.name} {', '.join(words)}".strip()


def draw_kept_rows(run: Run) -> dict[str, Figure]:
    """A figure for each workload that was measured at two shares or more."""
    points = kept_rows(run)
    return {str(w): _draw(run, str(w), mine) for w, mine in points.groupby("workload", sort=False)}


def _draw(run: Run, workload: str, points: pd.DataFrame) -> Figure:
    looks: dict[str, dict[str, Any]] = series_looks(
        list(dict.fromkeys(points.loc[~points["aside"].astype(bool), "series"]))
    )
    aside = dict.fromkeys(points.loc[points["aside"].astype(bool), "series"])
    looks |= {name: {"color": _ASIDE[i % 2]} for i, name in enumerate(aside)}
    machines = ", ".join(modelled_for(run))
    titles = {
        MEASURED: "epoch, measured" + ("" if has_gpu(run) else " in host memory"),
        MODELLED: f"epoch, modelled for {machines}" if machines else "epoch, modelled",
        LINK: "over the link in an epoch, declared",
    }
    figure, panels = panel_row(
        f"What keeping more rows on the device buys: {run.names[workload]}",
        list(titles.values()),
        foot=" ".join(f"{warning}." for warning in warnings_of(run))
        + " Medians; whiskers: quartiles. The share is that of the feature table; the axis is"
        " logarithmic from 1 % on. Bytes over the link are computed from ids and data path. "
        + provenance(run),
        height=3.0,
        width=13.0,
    )
    places = sorted({round(x) for x in points["x"]})
    with mpl.rc_context(RC):
        name_series(figure, panels, looks)
        for axes, panel in zip(panels, PANELS, strict=True):
            mine = points[points["panel"] == panel]
            if mine["y"].dropna().empty:
                remedy = "`gatherbench predict RUN --profile NAME` models the epochs"
                say_absent(axes, remedy if panel == MODELLED else "", f"not {_LOOKS[panel]}")
                continue
            most = max(mine["y"].max(), mine["high"].fillna(0).max())
            unit, factor = scale(_UNITS[panel], most)
            axes.grid(visible=True, axis="both")
            for name, line in mine.groupby("series", sort=False):
                scaled = line.assign(**{c: line[c] * factor for c in ("y", "low", "high")})
                curve(axes, scaled, _LOOKS[panel], looks[str(name)])
            axes.set_xscale("symlog", linthresh=1, linscale=0.4)
            axes.set(xlim=(-0.25, 130), ylim=(0, 1.08 * most * factor), ylabel=unit)
            axes.set_xlabel("share of the table that is kept (%)")
            label_places(axes, places, [str(place) for place in places])
    return figure
