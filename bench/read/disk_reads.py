"""Tables on disk: what a path reads there for the rows it is asked for, and what an epoch costs.

Bytes and requests are counted by the path itself, and bytes also by the kernel, for the process
(``/proc/self/io``) and for the device. All are set against the same payload: the rows that the path
did not find in memory of its own. Of a memory map nobody knows which rows the page cache held, so
that is all of them, and less than 1 B read for 1 B asked for means that it held some.
"""

from __future__ import annotations

import contextlib
from types import MappingProxyType

import pandas as pd

from gatherbench.bench.read.derive import (
    declared,
    plan_order,
)
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES

#: What is observed of an epoch: stage and metric.
_OBSERVED = MappingProxyType(
    {
        "payload": ("fetch", "payload"),
        "kept": ("fetch", "rows_in_memory"),
        "read": ("fetch", "disk_read"),
        "requests": ("fetch", "disk_requests"),
        "process_read": ("epoch", "disk_read_process"),
        "device_read": ("epoch", "disk_read_device"),
        "fetch": ("fetch", "wall_time"),
        "epoch": ("epoch", "wall_time"),
        "latency_median": ("fetch", "disk_latency_median"),
        "latency_99th": ("fetch", "disk_latency_99th"),
        "latency_mean": ("fetch", "disk_latency_mean"),
    }
)
_LATENCIES = ("latency_median", "latency_99th")


def disk_strategies(run: Run) -> list[str]:
    """Strategies of the plan that fetch off a disk: all that need a file, if one declared rows."""
    if not len(_declared(run)):
        return []
    from gatherbench.strategies.registry import build  # imports torch

    found = set(_declared(run).index.get_level_values("strategy"))
    for case in run.plan["cases"]:
        with contextlib.suppress(ValueError):  # of a package that is not installed here
            if "file" in build(case["strategy"], case["params"]).needs:
                found.add(case["strategy"])
    return sorted(found)


def disk_ratios(run: Run) -> pd.DataFrame:
    """What is derived of each epoch of a path that reads a disk: :data:`RATIOS`, and latencies (s).

    ``amplification``: bytes that the path read for each byte of the rows that it had to read;
    ``process`` and ``device``: the same by the kernel's counters. ``in_memory``: the share of the
    rows asked for that the path had kept. ``iops``: reads per second of the fetch, or of the whole
    epoch where fetches run ahead of it; ``in_flight``: reads that were under way in that time, on
    average (Little's law: their rate times their mean latency). NaN where nobody counts. Index: as
    ``Run.values``.
    """
    seen = pd.DataFrame({name: run.values(*what) for name, what in _OBSERVED.items()})
    keys, said = SERIES[:4], _declared(run)
    told = said.reindex(pd.MultiIndex.from_frame(seen.index.to_frame()[keys])).set_axis(seen.index)
    seen, told = seen[told["disk_payload"] > 0], told[told["disk_payload"] > 0]
    kept = seen["kept"].fillna(0) * told["row"]
    missed = (seen["payload"] - kept).where(lambda left: left > 0)
    time = seen["fetch"].where(told["lookahead"] == 0, seen["epoch"])
    derived = {
        "amplification": seen["read"] / missed,
        "process": seen["process_read"] / missed,
        "device": seen["device_read"] / missed,
        "in_memory": seen["kept"] * told["row"] / seen["payload"],
        "iops": seen["requests"] / time,
        "in_flight": seen["requests"] / time * seen["latency_mean"],
        **{name: seen[name] for name in _LATENCIES},
    }
    return pd.DataFrame(derived, seen.index)


def disk_reads(run: Run) -> pd.DataFrame:
    """A line for each measured series that reads a disk: medians of :func:`disk_ratios`.

    Columns: :data:`SERIES`, those, ``declared`` (the amplification that the path declared of the
    first measured epoch; NaN where the page cache decides), ``over`` (what ``iops`` is a rate of:
    ``fetch`` or ``epoch``), ``row_bytes``, ``rows`` (of the table), ``ids`` (of a minibatch),
    ``engine`` (``io_uring`` or ``threads``), ``roof`` (random reads of a block in a second that the
    disk itself gave beside these cases).
    """
    medians = disk_ratios(run).groupby(SERIES).median().reset_index()
    said = _declared(run)
    said["declared"] = said["disk_read"] / said["disk_payload"]
    said["over"] = said["lookahead"].map(lambda ahead: "epoch" if ahead else "fetch")
    for metric in ("table", "disk_io_uring"):
        of = run.select(stage="setup", metric=metric, status="ok").groupby(SERIES[:4])["value"]
        said[metric] = of.median().reindex(said.index)
    roofs = run.values("fetch", "disk_roof_reads") / run.values("fetch", "disk_roof_time")
    said["roof"] = roofs.groupby(SERIES[:4]).median().reindex(said.index)
    batches = run.values("epoch", "minibatches").groupby(SERIES[:4]).median()
    payload = run.values("fetch", "payload").groupby(SERIES[:4]).median()
    said["ids"] = payload / batches / said["row"]
    said["rows"] = said["table"] / said["row"]
    rings = said["disk_io_uring"].dropna()  # of several ranks: how many have one
    said["engine"] = rings.map(lambda many: "io_uring" if many else "threads").reindex(said.index)
    said = said.rename(columns={"row": "row_bytes"})
    facts = ["declared", "over", "row_bytes", "rows", "ids", "engine", "roof"]
    return plan_order(run, medians.join(said[facts], on=SERIES[:4]))


def _declared(run: Run) -> pd.DataFrame:
    """What cases that read a disk say of the fetches of an epoch, by :data:`SERIES` but basis."""
    said = declared(run).reindex(columns=["disk_payload", "disk_read", "row", "lookahead"])
    return said[said["disk_payload"] > 0]
