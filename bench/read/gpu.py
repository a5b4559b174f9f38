"""Derive from a run's frames the GPU's energy and power, and its link's traffic.

Energy comes from the stage ``energy``: a window over whole epochs, long enough for the counter
(:mod:`gatherbench.bench.run.untimed`). The sensors count the link's traffic; the strategies declare
requests that were counted from the ids. Agreement of both is the evidence for alignment. If they
disagree, the largest read that the GPU makes differs from the assumed one, or other traffic crosses
the link.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import pandas as pd

from gatherbench.bench.meters.pcie import DIRECTIONS
from gatherbench.bench.meters.trust import TRUSTED
from gatherbench.bench.read.derive import sort_series, spread
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES
from gatherbench.kernels.grid import COMPLETION_HEADER_BYTES

#: Largest reads that a GPU may make, B; requests are declared for the first.
LARGEST_READS = (128, 64)


def idle_power_w(run: Run) -> float | None:
    """Return the GPU's power with an idle process on it, W; ``None``: not measured."""
    readings = run.calibration.query("metric == 'idle_power' and status == 'ok'")["value"]
    return float(readings.iloc[-1]) if len(readings) else None


def copied_ratio(run: Run) -> float | None:
    """Return the trusted sensor's bytes for each byte copied to the device, by calibration.

    A sensor is trusted if it is right in both directions.
    """
    names = [f"pcie_{direction}_ratio" for direction in DIRECTIONS]
    table = run.calibration.query("metric in @names and status == 'ok'")
    for _, ratios in table.groupby("source", sort=False):
        if len(ratios) == len(names) and ratios["value"].between(*TRUSTED).all():
            return float(ratios.set_index("metric")["value"][names[0]])
    return None


def gpu_energy(run: Run) -> pd.DataFrame:
    """Return the GPU's energy per epoch, J: median and quartiles over repeats, and its idle part.

    Columns: those of :func:`gatherbench.bench.read.derive.spread`; and ``idle`` (the energy of an
    idle GPU in that time), ``above idle`` and ``not split`` (if the idle power was not measured),
    which add up to ``median``.
    """
    watts = idle_power_w(run)
    table = spread(run.ended.loc[run.ended["used"], "gpu_joules"])
    seconds = table.join(run.medians["metered_epoch"], on=SERIES)["metered_epoch"]
    idle = (seconds * (watts or 0.0)).clip(upper=table["median"])
    table["idle"], rest = idle, table["median"] - idle
    table["above idle"], table["not split"] = (0.0, rest) if watts is None else (rest, 0.0)
    return table


def requests_declared(columns: Iterable[object]) -> dict[int, str]:
    """Return the columns that count requests declared by cases, by the bytes of one request."""
    matches = (re.fullmatch(r"declared_gpu_requests_(\d+)b", str(name)) for name in columns)
    return {int(match[1]): match[0] for match in matches if match}


def link_bytes(run: Run) -> pd.DataFrame:
    """Return bytes from host to device in an epoch of each series whose traffic was measured.

    Columns: :data:`SERIES`; ``payload`` (of the path's rows); ``read`` (whole sectors of its reads,
    and its copies, ids among them); ``link_128`` and ``link_64`` (that with the header of each
    completion, if these are the GPU's largest reads, and with the calibrated cost of a copied
    byte); those of :func:`~gatherbench.bench.read.derive.spread` (measured, over epochs). NaN if
    requests were not counted. Edges that are copied for training are measured and not counted: with
    sampling on the GPU there are none. Reads of neighbour lists in host memory, while a GPU draws,
    are counted as rows are.
    """
    measured = spread(run.measured["link_rx_bytes"])
    table = measured.join(run.declared_medians.droplevel("backend"), on=SERIES[:3])
    copies, sizes = table["declared_copy_engine_bytes"], requests_declared(table)
    counts = table[[*sizes.values()]]
    uncounted = (table["declared_gpu_link_read_bytes"] > 0) & counts.isna().all(axis=1)
    counts = counts.fillna(0.0)
    links = {"payload": table["declared_payload_bytes"]}
    read = copies * 0.0 + counts.to_numpy() @ [*sizes]
    links["read"] = (read + copies).mask(uncounted)
    for largest in LARGEST_READS:
        completions = counts.to_numpy() @ [math.ceil(size / largest) for size in sizes]
        headers = completions * COMPLETION_HEADER_BYTES
        link = read + headers + copies * (copied_ratio(run) or 1.0)
        links[f"link_{largest}"] = link.mask(uncounted)
    return sort_series(table.assign(**links)[[*measured, *links]], run.workloads)
