"""Show what crosses the link: each path's declared bytes and requests, and the counters'; and the
rows that a path keeps in device memory, which need not cross it."""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.meters.pcie import DIRECTIONS
from gatherbench.bench.read.gpu import copied_ratio, link_bytes, link_rate, requests_declared
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import quantity
from gatherbench.bench.show.charts import Points, drawn, polled
from gatherbench.bench.show.drawing import Chart
from gatherbench.bench.show.table import WHAT, Column, Table, in_plan_order
from gatherbench.bench.show.view import View

#: Metrics of the stage ``fetch`` that a case declares for its path, and their names for readers.
_DECLARED = {
    "cpu_read": "CPU reads",
    "cpu_write": "CPU writes",
    "copy_engine": "copy engine",
    "gpu_link_read": "GPU reads over the link",
    "gpu_table": "part of the table on the GPU",
}


def data_path(run: Run) -> Table:
    """Tabulate what each strategy moves in an epoch, by its own declaration."""
    declared = run.declared_medians
    counted = run.medians["counted_on_device"].droplevel("basis").reindex(declared.index)
    sizes = requests_declared(declared)
    names = {f"declared_{name}_bytes": name for name in _DECLARED}
    names |= {column: f"gpu_requests_{n}_bytes" for n, column in sizes.items()}
    names["declared_on_device"] = "declared"
    frame = declared.assign(counted=counted, basis="declared").reset_index().rename(columns=names)
    columns = [
        *(Column(name, label, "B") for name, label in _DECLARED.items()),
        *(Column(names[column], f"requests of {n} B", "1") for n, column in sizes.items()),
    ]
    columns = [column for column in columns if frame[column.field].notna().any()]
    found = {"declared": "rows found on the device", "counted": "the same, as counted in epochs"}
    columns += [Column(f, label, "share") for f, label in found.items() if frame[f].any()]
    caption = (
        "Bytes and link requests of an epoch, computed from ids and data path, not measured"
        + " (but for what is counted)" * bool(counted.notna().any())
    )
    return Table("path", caption, [*WHAT, *columns], in_plan_order(run, frame))


def link_traffic(run: Run) -> Table:
    """Tabulate bytes to the device in an epoch, measured and counted."""
    columns = [
        *WHAT[:3],
        Column("payload", "payload", "B"),
        Column("read", "sectors and copies", "B"),
        Column("link_128", "with headers, reads of 128 B", "B"),
        Column("link_64", "with headers, reads of 64 B", "B"),
        Column("median", "measured", "B"),
        Column("low", "lower quartile", "B"),
        Column("high", "upper quartile", "B"),
    ]
    caption = "Bytes from host to device in an epoch: counted from the ids, and measured"
    if run.drawn == "uva":
        caption += ". Measured bytes include reads of the graph, which are not counted"
    copied = copied_ratio(run)
    counted = (
        f", which counted {copied or 1:.3f} B for each byte copied: what is above 1 are headers"
    )
    note = (
        f"Measured by the counter that the run’s calibration trusts{counted * bool(copied)}."
        " Counted: whole sectors of 32 B that are read, 20 B of header for each, and copies, ids"
        " among them, at what the calibration saw them cost. Edges that are copied for training are"
        " measured and not counted; with sampling on the GPU there are none. Managed memory moves"
        " pages, whatever its reads."
    )
    return Table("link-traffic", caption, columns, link_bytes(run), note=note)


def pcie_over_time(run: Run) -> Chart | None:
    """Draw bytes per second over the link in an epoch, each way: steady, or in bursts?"""
    if not run.has_gpu:
        return None
    raw, unknown = link_rate(run)
    reading = (
        "Bytes of the link, headers included, between readings of the counter that the run’s"
        " calibration trusts; payload: the rows that the loop asked for. The first polled epoch of"
        " each series."
    )
    if raw is None:
        reading += f" No raw rate of the link: {unknown}."
    else:
        reading += (
            f" The scale ends at the link’s raw rate, {quantity(raw, 'B/s')} or at the"
            " peak where that is less than a tenth of it."
        )
    colours = zip(DIRECTIONS, ("blue", "orange"), strict=True)
    return polled(
        run,
        _rates,
        {f"pcie_{way}": (way.replace("_", " "), colour) for way, colour in colours},
        "B/s",
        title="Traffic over the link during an epoch",
        reading=reading,
        quantity="rate",
        roof=raw,
    )


def _rates(counter: pd.DataFrame) -> Points:
    """Return the rates between readings; each holds up to its time."""
    steps = counter[["time_s", "value"]].diff()
    steps = steps[steps["time_s"] > 0]  # two readings with one stamp have no rate
    rates = steps["value"] / steps["time_s"]
    return list(zip(counter.loc[rates.index, "time_s"], rates, strict=True))


REQUESTS = View(
    "link",
    "Over the link",
    lambda run: len(run.declared) > 0 or run.has_gpu,
    lambda run: [data_path(run), link_traffic(run)],
    lambda run: drawn(run, pcie_over_time=pcie_over_time),
)
