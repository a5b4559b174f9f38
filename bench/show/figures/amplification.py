"""How many bytes come off a disk for each byte of a row, over the width of the rows.

Lines are computed, for as many random ids as a minibatch of the run has, by the very function with
which paths plan their reads (:func:`gatherbench.kernels.disk_read.reads_of`), in blocks of 4096 B.
Points are the run's own: hollow as declared, filled as counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gatherbench.bench.read.disk_reads import disk_reads, disk_workloads
from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.figures.curves import label_places, series_looks
from gatherbench.bench.show.figures.paper import named, panel_row
from gatherbench.bench.show.looks import FAINT, RC
from gatherbench.kernels.disk_read import reads_of
from gatherbench.kernels.table_file import TableFile
from gatherbench.strategies.disk_direct import NOWHERE

#: Row widths (B): where the axis is labelled, and others between them, all of whole floats.
LABELLED = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
WIDTHS = sorted({*LABELLED, *(int(w) // 4 * 4 for w in np.geomspace(64, 8192, 113))})
#: Computed lines, whether rows share reads, and their dashes.
COMPUTED = {
    "computed, random ids: one read a row": (False, (0, (4, 2))),
    "computed, random ids: rows of a block share a read": (True, (0, (1, 1.5))),
}
#: Ids that are drawn at most; of a larger minibatch the table is cut alike.
_MOST_IDS = 4000


def random_reads(row_bytes: int, num_rows: int, ids: int, *, merge: bool) -> float:
    """Bytes read for each byte of ``ids`` distinct rows by lot, of ``num_rows`` from a block on."""
    some = max(1, min(ids, num_rows, _MOST_IDS))
    of = max(some, round(num_rows * some / max(ids, 1)))
    chosen = np.random.default_rng(0).choice(of, some, replace=False)
    read, _ = reads_of(chosen.astype(np.int64), TableFile(NOWHERE, 0, of, row_bytes), merge)
    return read / (some * row_bytes)


@dataclass(frozen=True, slots=True)
class Reads:
    """What a panel shows: a table of so many rows, minibatches of so many ids, and points.

    ``points``: ``series`` (the strategy), ``x`` (B of a row), ``counted`` and ``declared`` (bytes
    for a byte); a line for each variant.
    """

    rows: int
    ids: int
    points: pd.DataFrame


def reads_of_run(run: Run) -> dict[str, Reads]:
    """By workload that read a disk, without the paths of which nobody counts what they read."""
    workloads, found = disk_workloads(run), {}
    if not workloads:
        return {}
    table = disk_reads(run).dropna(subset=["amplification", "declared"], how="all")
    columns = {"x": "row_bytes", "counted": "amplification", "declared": "declared"}
    for workload in workloads:
        mine = table[table["workload"] == workload]
        points = mine.groupby(["strategy", "variant"])[list(columns.values())].median()
        if len(points):
            points = points.rename(columns={old: new for new, old in columns.items()})
            points["series"] = points.index.get_level_values("strategy")
            size = int(mine["rows"].median()), int(mine["ids"].median())
            found[run.names[workload]] = Reads(*size, points.reset_index(drop=True))
    return found


def row_widths(panels: Mapping[str, Reads], foot: str = "") -> Figure:
    """Draw a panel for each of ``panels``, by its title."""
    series = [name for reads in panels.values() for name in reads.points["series"]]
    looks: dict[str, dict[str, Any]] = {
        name: {"color": look["color"], "marker": look.get("marker", "o"), "linestyle": "none"}
        for name, look in series_looks(list(dict.fromkeys(series))).items()
    }
    looks |= {name: {"color": FAINT, "linestyle": of[1]} for name, of in COMPUTED.items()}
    figure, axes = panel_row(
        "Bytes read off the disk for each byte of the rows",
        list(panels),
        foot="Lines are computed for as many random ids as a minibatch has, of a table of as many"
        " rows that begins on a block of 4096 B. Points: hollow as the path declared, filled as it"
        f" counted, over the rows that it had not kept in memory; medians. {foot}",
        height=3.2,
        width=4.6 + 4.4 * len(panels),
        share_y=True,
        beside=named(looks),
    )
    with mpl.rc_context(RC):
        for one, reads in zip(axes, panels.values(), strict=True):
            _fill(one, reads, looks)
        axes[0].set_ylabel("bytes read for a byte of rows")
    return figure


def _fill(axes: Axes, reads: Reads, looks: dict[str, dict[str, Any]]) -> None:
    axes.grid(visible=True, axis="both")
    for name, (merge, _) in COMPUTED.items():
        heights = [random_reads(width, reads.rows, reads.ids, merge=merge) for width in WIDTHS]
        axes.plot(WIDTHS, heights, linewidth=1.3, **looks[name])
    for line in reads.points.to_dict("records"):
        look = looks[line["series"]] | {"zorder": 3}
        axes.plot(line["x"], line["declared"], markersize=9, fillstyle="none", **look)
        axes.plot(line["x"], line["counted"], markersize=5, **look)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlabel("row width (B)")
    label_places(axes, LABELLED, [str(width) for width in LABELLED])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
