"""Tables on disk: the reads of a path for the rows of a minibatch, and the cost of an epoch.

Bytes and requests are counted by the path itself, and bytes also by the kernel, for the process
(``/proc/self/io``) and for the device. All are related to the same payload: the rows that the path
lacks in memory of its own. For a memory map it is unknown which rows the page cache holds, so
the payload is all of them, and less than 1 B read per 1 B of it means that it holds some.
"""

from __future__ import annotations

import contextlib

import pandas as pd

from gatherbench.bench.read.derive import declared, plan_order
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES


def disk_strategies(run: Run) -> list[str]:
    """Return the plan's strategies that fetch off a disk: all with a file, if one declared rows."""
    if not len(said := _declared(run)):
        return []
    from gatherbench.strategies.registry import build  # imports torch

    found = set(said.index.get_level_values("strategy"))
    for case in run.plan["cases"]:
        with contextlib.suppress(ValueError):  # of a package that is not installed here
            if "file" in build(case["strategy"], case["params"]).needs:
                found.add(case["strategy"])
    return sorted(found)


def disk_ratios(run: Run) -> pd.DataFrame:
    """Return ratios of each measured epoch of a path that reads a disk, by its index.

    ``amplification``: bytes that the path reads for each byte of the rows that it has to read;
    ``process`` and ``device``: the same by the kernel's counters. ``in_memory``: the share of the
    requested rows that the path has kept. ``iops``: reads per second of the fetch, or of the whole
    epoch if fetches run ahead of it; ``in_flight``: the average number of reads under way in that
    time (Little's law: their rate times their mean latency); ``latency_median`` and
    ``latency_99th`` of a read, s. NaN without a counter.
    """
    said, seen = _declared(run), run.measured
    keys = pd.MultiIndex.from_arrays([seen.index.get_level_values(name) for name in SERIES[:4]])
    told = said.reindex(keys).set_axis(seen.index)
    seen, told = (of[(told["declared_disk_payload_bytes"] > 0).to_numpy()] for of in (seen, told))
    payload, row = seen["fetch_payload_bytes"], told["declared_row_bytes"]
    missed = payload - seen["fetch_rows_in_memory"].fillna(0) * row
    missed = missed.where(missed > 0)
    ahead = told["declared_lookahead"] > 0
    iops = seen["fetch_disk_requests"] / seen["fetch_s"].mask(ahead, seen["epoch_s"])
    return pd.DataFrame(
        {
            "amplification": seen["fetch_disk_read_bytes"] / missed,
            "process": seen["disk_read_process_bytes"] / missed,
            "device": seen["disk_read_device_bytes"] / missed,
            "in_memory": seen["fetch_rows_in_memory"] * row / payload,
            "iops": iops,
            "in_flight": iops * seen["fetch_disk_latency_mean_s"],
            "latency_median": seen["fetch_disk_latency_median_s"],
            "latency_99th": seen["fetch_disk_latency_99th_s"],
        }
    )


def disk_reads(run: Run) -> pd.DataFrame:
    """Return a line for each measured series that reads a disk: medians of :func:`disk_ratios`.

    Columns: :data:`SERIES`, those, ``declared`` (the amplification that the path declares of the
    first measured epoch; NaN if the page cache decides), ``over`` (the time base of ``iops``:
    ``fetch`` or ``epoch``), ``row_bytes``, ``rows`` (of the table), ``ids`` (of a minibatch),
    ``engine`` (``io_uring`` or ``threads``), ``roof`` (random reads of a block per second that the
    disk itself reaches during these cases).
    """
    medians = disk_ratios(run).groupby(SERIES).median().reset_index()
    said, cases = _declared(run), run.ended.groupby(SERIES[:4]).median(numeric_only=True)
    seen = run.measured.groupby(SERIES[:4]).median(numeric_only=True)
    cases, seen = cases.reindex(said.index), seen.reindex(said.index)
    roofs = run.ended["fetch_disk_roof_reads"] / run.ended["fetch_disk_roof_s"]
    row, rings = said["declared_row_bytes"], cases["setup_disk_io_uring"]
    ids = seen["fetch_payload_bytes"] / seen["minibatches"] / row
    facts = {
        "declared": said["declared_disk_read_bytes"] / said["declared_disk_payload_bytes"],
        "over": said["declared_lookahead"].map(lambda ahead: "epoch" if ahead else "fetch"),
        "row_bytes": row,
        "rows": cases["setup_table_bytes"] / row,
        "ids": ids,
        # For several ranks: the number of them with a ring.
        "engine": rings.map(lambda many: "io_uring" if many else "threads").where(rings.notna()),
        "roof": roofs[run.ended["used"]].groupby(SERIES[:4]).median().reindex(said.index),
    }
    return plan_order(run, medians.join(pd.DataFrame(facts), on=SERIES[:4]))


def _declared(run: Run) -> pd.DataFrame:
    """Return declared values of an epoch of cases that read a disk, by `SERIES` but the basis."""
    said = declared(run)
    return said[said["declared_disk_payload_bytes"] > 0]
