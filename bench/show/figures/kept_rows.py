"""What keeping more rows on the device buys: epochs and traffic over the share that is kept.

Drawn of a run that measured it at two shares or more. No row kept and the whole table kept are the
ends of every line, and series of their own.
"""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from gatherbench.bench.read.kept import PANELS, kept_rows
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import scale
from gatherbench.bench.show.figures.curves import curve, label_places, series_looks
from gatherbench.bench.show.figures.paper import named, panel_row, say_absent
from gatherbench.bench.show.looks import FAINT, RC, ink
from gatherbench.bench.show.provenance import (
    has_gpu,
    modelled_for,
    provenance,
    warnings_of,
)

MEASURED, MODELLED, LINK = PANELS
#: How each is drawn: what is declared was computed, as what is modelled.
_LOOKS = {MEASURED: "measured", MODELLED: "modelled", LINK: "modelled"}
_UNITS = {MEASURED: "s", MODELLED: "s", LINK: "B"}
#: Colours of the series that nobody would train with, in turn.
_ASIDE = (FAINT, ink("grey"))


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
        beside=named(looks),
    )
    places = sorted({round(x) for x in points["x"]})
    with mpl.rc_context(RC):
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
