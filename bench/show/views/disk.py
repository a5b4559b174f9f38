"""Tables on a disk: epochs, and what is read for a byte of rows.

Paths that read a disk are compared with each other, and with the whole table in memory: how much
longer an epoch is. Nobody's epoch is called shorter than another's unless the whole interval
says so.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from gatherbench.bench.read.derive import reference_variant, spread
from gatherbench.bench.read.disk_reads import (
    disk_ratios,
    disk_reads,
    disk_strategies,
    disk_workloads,
    in_memory_s,
    over_memory,
)
from gatherbench.bench.read.tables import Run, only
from gatherbench.bench.read.units import quantity
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.show.chart import Axis, Chart, Line, Panel
from gatherbench.bench.show.charts import (
    Fields,
    Names,
    bars,
    chart_of,
    family_panel,
    panel_of,
    reference_of,
    typical,
)
from gatherbench.bench.show.figures.amplification import reads_of_run, row_widths
from gatherbench.bench.show.figures.draw import drawn
from gatherbench.bench.show.provenance import provenance
from gatherbench.bench.show.table import WHAT, Column, Table, tabulate, with_kind
from gatherbench.bench.show.view import View

#: The table of published epochs with features on a disk.
DISK_EPOCHS = "disk_epochs"
#: The strategy that keeps rows by a cache policy.
CACHE = "disk_cached"
_NO_COUNT = "nobody counts it: the page cache decides what is read"


def on_disk(run: Run) -> Table:
    """One line a series that reads its rows off a disk."""
    frame = disk_reads(run)
    wanted = [
        Column("engine", "engine", below="Reads in flight by {value}: {series}"),
        Column("in_memory", "rows found in memory", "share", short="kept"),
        Column("amplification", "read for a byte of rows", "×", short="B/B"),
        Column("declared", "declared", "×", short="declared"),
        Column("process", "by the process’s counter", "×", short="process"),
        Column("device", "by the disk’s counter", "×"),
        Column("iops", "reads", "1/s", short="reads"),
        Column("over", "over the time of"),
        Column(
            "roof",
            "the disk’s own roof",
            "1/s",
            below="The disk itself gave {value} in random reads of 4 KiB, beside {series}",
        ),
        Column("in_flight", "reads in flight, mean", "1"),
        Column("latency_median", "a read’s latency, median", "s", short="median"),
        Column("latency_99th", "99th percentile", "s", short="99th"),
    ]
    columns = [column for column in wanted if frame[column.field].notna().any()]
    return tabulate(
        "on-disk",
        "What came off the disk in an epoch: medians over repeats and epochs",
        [*WHAT, *columns],
        with_kind(frame),
        title="Read off the disk",
        note="Read for a byte of rows: over the rows that the path had not kept in memory of its"
        " own, by the path’s count and by the kernel’s counters. Below 1 the page cache had some of"
        " them; the disk’s counter also has what other processes read. Roof: random reads of 4 KiB"
        " that the disk gave beside these cases. Latency: from a read’s start to its end, by the"
        " path’s clock, within 19 %.",
    )


def disk_epochs(run: Run) -> Chart:
    """Typical epoch of each path that reads a disk, with the table in memory marked."""
    table, disk, panels = over_memory(run), disk_strategies(run), []

    def line(axis: Axis, names: Names, row: Fields | None, why: str) -> Line | None:
        if names[0] not in disk:
            return None
        return Line(*names, missing=why) if row is None else typical(run, axis, row, "epoch", why)

    for workload in disk_workloads(run):
        bound = in_memory_s(run, workload)
        marks = [] if bound is None else [(bound, "in_memory")]
        name, steps = run.names[workload], {workload: line}
        panels.append(family_panel(run, name, steps, table, "epoch", "s", marks))
    baseline = " ".join(reference_variant(run) or ())
    known = any(panel.marks for panel in panels)
    published = _published_epochs(run, caches=False)
    return chart_of(
        run,
        [*panels, *published],
        ident="disk-epochs",
        title="Epoch time with the table on disk",
        reading="Means over repeats; whiskers: their 95 % interval. A warm memory map may be read"
        " out of the page cache. Shorter is faster."
        + " Published: other people’s machines."
        * bool(published),
        quantity="time per epoch",
        marks={"in_memory": f"{baseline} with the whole table in memory"} if known else {},
    )


def disk_amplification(run: Run) -> Chart:
    """Bytes that come off the disk for each byte of the rows that had to be read."""
    return _of_disk(
        run,
        "amplification",
        "×",
        ident="disk-amplification",
        title="Bytes read off the disk for each byte of the rows",
        reading="By the path’s own count, over the rows that it had not kept in memory: 1 is no"
        " byte too many. A disk is read by whole blocks. Medians over repeats and epochs; whiskers:"
        " quartiles.",
        quantity="bytes read for a byte of rows",
        mark=1.0,
        absent=_NO_COUNT,
    )


def disk_hits(run: Run) -> Chart:
    """Rows that a path had kept in host memory; beside it what cache policies were published at."""
    published = _published_epochs(run, caches=True) if CACHE in disk_strategies(run) else []
    return _of_disk(
        run,
        "in_memory",
        "share",
        ident="disk-hits",
        title="Rows found in the path’s own memory",
        reading="Of the rows that an epoch asks for, by the path’s own count; what the page cache"
        " holds is not in it. Medians over repeats and epochs; whiskers: quartiles."
        + " Published: epochs on another’s machine."
        * bool(published),
        quantity="rows found in memory",
        absent="it keeps no rows, or counts none",
        beside=published,
    )


def disk_rate(run: Run) -> Chart:
    """Reads that a path sent to the disk in a second."""
    return _of_disk(
        run,
        "iops",
        "1/s",
        ident="disk-rate",
        title="Reads of the disk per second",
        reading="By the path’s own count, over the time that the loop waited for rows, or over the"
        " whole epoch where fetches run ahead of it. Medians over repeats and epochs; whiskers:"
        " quartiles.",
        quantity="reads per second",
        absent=_NO_COUNT,
    )


def _of_disk(run: Run, value: str, unit: str, **chart: Any) -> Chart:
    """A panel for each workload with the paths that read a disk: a column of ``disk_ratios``."""
    mine, values = only(run, strategies=disk_strategies(run)), spread(disk_ratios(run)[value])
    if value == "amplification":
        told = disk_reads(run).set_index(SERIES)["declared"].reindex(pd.Index(values[SERIES]))
        values["note"] = [f"declared: {quantity(x, '×')}" if x > 0 else "" for x in told]
    return bars(mine, values, unit, predicted=False, **chart)


def _published_epochs(run: Run, *, caches: bool) -> list[Panel]:
    """A panel for each graph and machine: epochs by policy of a cache, or of whole systems."""
    rows = reference_of(run)
    rows = rows[(rows["table"] == DISK_EPOCHS) & ((rows["strategy"] == CACHE) == caches)]
    panels = []
    for (dataset, machine), mine in rows.sort_values("value").groupby(["dataset", "machine"]):
        bars = mine[["strategy", "variant", "value"]].itertuples(index=False)
        lines = [Line(s, v, "published", {s: t}) for s, v, t in bars]
        title = f"published: {dataset}, machine {machine}"
        panels.append(panel_of(title, "s", lines, quantity="time per epoch"))
    return panels


def row_width_figure(run: Run) -> dict[str, Figure]:
    """What is read for a byte of rows, over the width of the rows."""
    reads = reads_of_run(run)
    return {"disk_row_width": row_widths(reads, provenance(run))} if reads else {}


DISK = View(
    "disk",
    "Table on disk",
    lambda run: bool(disk_strategies(run)),
    lambda run: [on_disk(run)],
    lambda run: (
        drawn(
            run,
            disk_epochs=disk_epochs,
            disk_amplification=disk_amplification,
            disk_hits=disk_hits,
            disk_rate=disk_rate,
        )
        | row_width_figure(run)
    ),
)
