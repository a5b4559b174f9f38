"""The rows of a case as a whole, from those of the ranks that trained it together.

An epoch is over when its slowest rank is done. It is chance that this rank had the longest fetch if
all wait for each other in every step, so the stages are means over the ranks. Consumption (bytes,
core-seconds, joules) adds up. A resource that a machine has once is observed by one of its ranks.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from statistics import fmean

from gatherbench.bench.meters.cpu import CORE_SECONDS
from gatherbench.bench.run.group import EXCHANGE, WAIT
from gatherbench.bench.run.part import PartWriter
from gatherbench.bench.run.rows import SET, Row

#: Metrics that every rank observes of its whole machine.
_OF_MACHINE = {
    *("system_cpu_busy", "system_cpu_steal", "cpu_package_energy", "cpu_dram_energy"),
    *("disk_read_device", "disk_reads_device"),
}
#: Metrics that are equal on all ranks.
_ALIKE = {
    *(("fetch", metric) for metric in ("row", "lookahead", "gpu_share", "gpu_table")),
    *(("setup", metric) for metric in ("table", "table_load_time", "numa_node")),
    *(("check", "residency"), (EXCHANGE, "payload"), ("energy", "epochs"), SET[:2]),
}
_MEAN = {
    *((stage, "wall_time") for stage in ("sample", "fetch", "train", EXCHANGE, WAIT)),
    *(("harness", "overhead"), ("train", "loss")),
}
#: Memory of pages that ranks share is counted for each of them.
_MEMORY = {"peak_rss", "host_pageable", "host_file_mapped"}
#: Units of values that add up; of seconds only core-seconds do.
_ADDS_UP = ("B", "J", "W", "1")


def joined(ranks: list[list[Row]], out: PartWriter) -> dict[int, int]:
    """Write the case's rows from those of each rank; return the slowest rank of each epoch."""
    places: dict[tuple[str, str, int, str], dict[int, Row]] = defaultdict(dict)
    for rank, rows in enumerate(ranks):
        for row in rows:
            places[row.stage, row.metric, row.epoch, row.basis][rank] = row
    slowest = {
        epoch: max(rows, key=lambda rank: rows[rank].value or 0.0)
        for (stage, metric, epoch, _), rows in places.items()
        if (stage, metric) == ("epoch", "wall_time")
    }
    for (_, _, epoch, _), of_ranks in places.items():
        if (whole := _joined(of_ranks, slowest.get(epoch, 0))) is not None:
            out.row(replace(whole, rank=-1))
    return slowest


def _joined(rows: dict[int, Row], slowest: int) -> Row | None:
    """Return one row from those of the ranks that have it; ``None``: no row of the whole case."""
    first, count = next(iter(rows.values())), len(rows)
    what, unit = (first.stage, first.metric), first.unit
    if count == 1 or what in _ALIKE:  # one rank did it for all, such as a test of the model
        return first
    absent = next((row for row in rows.values() if row.value is None), None)
    if absent is not None:
        return absent
    values = [row.value or 0.0 for row in rows.values()]
    if what == ("epoch", "wall_time"):
        value, how = max(values), f"rank {slowest}, the slowest"
    elif what in _MEAN:
        value, how = fmean(values), f"mean of {count} ranks"
    elif what[1] in _OF_MACHINE:
        value, how = values[0], "as the first rank saw it"
    elif unit in _ADDS_UP or what[1] in CORE_SECONDS:
        twice = ", what they share counted for each" if what[1] in _MEMORY else ""
        value, how = sum(values), f"sum of {count} ranks{twice}"
    elif unit == "s":
        value, how = max(values), f"longest of {count} ranks"
    else:
        return None
    return replace(first, value=value, source=f"{first.source}; {how}")
