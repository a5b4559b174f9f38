"""Show what crosses the link: each path's declared bytes and requests, and the counters'; and the
rows that a path keeps in device memory, which need not cross it."""

from __future__ import annotations

from gatherbench.bench.read.derive import copied_ratio, link_bytes, requests_declared, sort_series
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.show.table import WHAT, Column, Table, table_of
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
    kept = {"declared": "rows found on the device", "counted": "the same, as counted in epochs"}
    columns += [Column(name, label, "share") for name, label in kept.items() if frame[name].any()]
    caption = (
        "Bytes and link requests of an epoch, computed from ids and data path, not measured"
        + " (but for what is counted)" * bool(counted.notna().any())
    )
    return Table("path", caption, [*WHAT, *columns], sort_series(frame, run.workloads))


def link_traffic(run: Run) -> Table:
    """Tabulate bytes to the device in an epoch, measured and counted."""
    names = {
        "payload": "payload_B",
        "read": "sectors_and_copies_B",
        "link_128": "link_if_reads_are_of_128_B",
        "link_64": "link_if_reads_are_of_64_B",
        "median": "measured_B",
        "low": "measured_low_B",
        "high": "measured_high_B",
    }
    title = "Bytes from host to device in an epoch: counted from the ids, and measured"
    if run.drawn == "uva":
        title += ". Measured bytes include reads of the graph, which are not counted"
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
    frame = link_bytes(run)[[*SERIES[:3], *names]].rename(columns=names)
    return table_of("link-traffic", title, frame, note, terminal=False)


REQUESTS = View(
    "link",
    "Over the link",
    lambda run: len(run.declared) > 0 or run.has_gpu,
    lambda run: [data_path(run), link_traffic(run)],
)
