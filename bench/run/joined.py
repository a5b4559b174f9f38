"""The rows of a case as a whole, from those of the ranks that trained it together.

An epoch is over when its slowest rank is done. It is chance that this rank had the longest fetch if
all wait for each other in every step, so the stages are means over the ranks. Consumption (bytes,
core-seconds, joules) adds up. A resource that a machine has once is observed by one of its ranks.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from statistics import fmean

from gatherbench.bench.meters import cpu, threads
from gatherbench.bench.run.group import EXCHANGE, WAIT
from gatherbench.bench.run.part import PartWriter
from gatherbench.bench.run.rows import SET, Row

#: Metrics that every rank observes of its whole machine.
_OF_MACHINE = {
    "system_cpu_busy",
    "system_cpu_steal",
    "cpu_package_energy",
    "cpu_dram_energy",
    "disk_read_device",
    "disk_reads_device",
}
#: Metrics that are equal on all ranks.
_ALIKE = {
    ("fetch", "row"),
    ("fetch", "lookahead"),
    ("fetch", "gpu_share"),
    ("fetch", "gpu_table"),
    ("setup", "table"),
    ("setup", "table_load_time"),
    ("setup", "numa_node"),
    ("check", "residency"),
    (EXCHANGE, "payload"),
    SET[:2],
    ("energy", "epochs"),
}
#: Memory of pages that ranks share is counted for each of them.
_MEMORY = {"peak_rss", "host_pageable", "host_file_mapped"}
_MEAN = {
    *((stage, "wall_time") for stage in ("sample", "fetch", "train", EXCHANGE, WAIT)),
    ("harness", "overhead"),
    ("train", "loss"),
}
#: Units of values that add up; of seconds only core-seconds do.
_ADDS_UP = ("B", "J", "W", "1")
_CORE_SECONDS = {*cpu.CORE_SECONDS, *threads.METRICS}

Spot = tuple[str, str, int, str]


def joined(ranks: list[list[Row]], out: PartWriter) -> dict[int, int]:
    """Write the case's rows; return the slowest rank of each epoch.

    Args:
        ranks: rows of each rank, by rank.
    """
    found: dict[Spot, dict[int, Row]] = defaultdict(dict)
    for rank, of_rank in enumerate(ranks):
        for row in of_rank:
            found[row.stage, row.metric, row.epoch, row.basis][rank] = row
    times = {
        spot[2]: {rank: row.value or 0.0 for rank, row in rows.items()}
        for spot, rows in found.items()
        if spot[:2] == ("epoch", "wall_time")
    }
    slowest = {epoch: max(of, key=of.__getitem__) for epoch, of in times.items()}
    for (stage, metric, epoch, _), rows in found.items():
        whole = _joined((stage, metric), rows, slowest.get(epoch, 0))
        if whole is not None:
            out.row(replace(whole, rank=-1))
    return slowest


def _joined(what: tuple[str, str], rows: dict[int, Row], slowest: int) -> Row | None:
    """Return one row from those of the ranks that have it; ``None``: no row of the whole case."""
    first = next(iter(rows.values()))
    if len(rows) == 1 or what in _ALIKE:  # one rank did it for all, such as a test of the model
        return first
    absent = next((one for one in rows.values() if one.value is None), None)
    if absent is not None:
        return absent
    values = {rank: one.value or 0.0 for rank, one in rows.items()}
    found = _value(what, first.unit, values, slowest)
    if found is None:
        return None
    value, how = found
    return replace(first, value=value, source=f"{first.source}; {how}")


def _value(
    what: tuple[str, str], unit: str, values: dict[int, float], slowest: int
) -> tuple[float, str] | None:
    """Return the combined value of the ranks, and the source that says how it was combined."""
    every, count = values.values(), len(values)
    if what == ("epoch", "wall_time"):
        return values[slowest], f"rank {slowest}, the slowest"
    if what in _MEAN:
        return fmean(every), f"mean of {count} ranks"
    if what[1] in _OF_MACHINE:
        return next(iter(every)), "as the first rank saw it"
    if unit in _ADDS_UP or what[1] in _CORE_SECONDS:
        twice = ", what they share counted for each" if what[1] in _MEMORY else ""
        return sum(every), f"sum of {count} ranks{twice}"
    return (max(every), f"longest of {count} ranks") if unit == "s" else None
