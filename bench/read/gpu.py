"""Derive from a run's frames the GPU's energy and power, and its link's traffic.

Energy comes from the stage ``energy``: a window over whole epochs, long enough for the counter
(:mod:`gatherbench.bench.run.untimed`). Power is energy over the window's length.

The sensors count the link's traffic; the strategies declare requests that were counted from the
ids. Agreement of both is the evidence for alignment, which only the second shows in advance. If
they disagree, the largest read that the GPU makes differs from the assumed one, or other traffic
crosses the link.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import pandas as pd

from gatherbench.bench.machine.pcie import UnknownLinkError, raw_rate
from gatherbench.bench.meters.pcie import DIRECTIONS
from gatherbench.bench.meters.trust import TRUSTED
from gatherbench.bench.read.derive import plan_order, spread
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES
from gatherbench.kernels.requests import COMPLETION_HEADER_BYTES

#: The rate of reads over a whole table, as a share of that over 64 MiB of it, if pages are large.
#: On an H200 0.49 to 0.59 over 16 to 48 GiB of managed memory, 0.04 to 0.06 of registered, 0.12
#: over 2 GiB of managed memory in pages of 4 KiB (``results/nvidia-h200``, 2026-11-26).
LARGE_PAGES = 0.25
#: Largest reads that a GPU may make, B; requests are declared for the first.
LARGEST_READS = (128, 64)
#: By calibration, for each source; a trusted one is right in both directions.
_RATIOS = [f"pcie_{direction}_ratio" for direction in DIRECTIONS]
_REQUESTS = re.compile(r"declared_gpu_requests_(\d+)b")


def idle_power_w(run: Run) -> float | None:
    """Return the GPU's power with an idle process on it, W; ``None``: not measured."""
    return _of_calibration(run, "idle_power")


def link_rate(run: Run) -> tuple[float | None, str]:
    """Return the raw rate of the link under load, B/s each way; or ``None``, and why."""
    gen, width = (_of_calibration(run, f"link_{x}_loaded") for x in ("gen", "width"))
    if gen is None or width is None:
        return None, "the calibration does not tell generation and width of the link"
    try:
        return raw_rate(int(gen), int(width)), ""
    except UnknownLinkError as unknown:
        return None, str(unknown)


def _of_calibration(run: Run, metric: str) -> float | None:
    whole = run.calibration
    found = whole[(whole["metric"] == metric) & (whole["status"] == "ok")]["value"]
    return float(found.iloc[-1]) if len(found) else None


def copied_ratio(run: Run) -> float | None:
    """Return the trusted sensor's bytes for each byte copied to the device, by calibration."""
    whole = run.calibration[run.calibration["status"] == "ok"]
    for _, ratios in whole[whole["metric"].isin(_RATIOS)].groupby("source", sort=False):
        if len(ratios) == len(_RATIOS) and ratios["value"].between(*TRUSTED).all():
            return float(ratios.set_index("metric")["value"][_RATIOS[0]])
    return None


def slow_pages(run: Run) -> pd.DataFrame:
    """Return series whose managed memory the GPU reads at the rate of small pages, as measured
    when the path opens: reads a second over the ``whole`` table, and over its ``near`` part.
    """
    names = {"setup_page_visit_rate_per_s": "whole", "setup_page_visit_rate_near_per_s": "near"}
    found = run.ended.groupby(SERIES)[["setup_managed_bytes", *names]].median()
    found = found.rename(columns=names)
    slow = found["setup_managed_bytes"].notna() & (found["whole"] < LARGE_PAGES * found["near"])
    return found[slow].reset_index()


def energy(run: Run) -> pd.DataFrame:
    """Return energy and power in each case's window of whole epochs, by `SERIES` and repeat.

    Columns: ``energy`` per epoch (J), mean ``power`` (W), and the ``time`` of an epoch (s) while
    its energy was read: these can be other epochs than the timed ones. Cases without a reading are
    left out.
    """
    window = run.ended[run.ended["used"] & run.ended["energy_gpu_energy_j"].notna()]
    joules, seconds = window["energy_gpu_energy_j"], window["energy_window_s"]
    epochs = window["energy_epochs"]
    parts = {"energy": joules / epochs, "power": joules / seconds, "time": seconds / epochs}
    return pd.DataFrame(parts)


def gpu_energy(run: Run) -> pd.DataFrame:
    """Return the GPU's energy per epoch, J: median and quartiles over repeats, and its idle part.

    Columns: those of :func:`gatherbench.bench.read.derive.spread`; and ``idle`` (the energy of an
    idle GPU in that time), ``above idle`` and ``not split`` (if the idle power was not measured),
    which add up to ``median``.
    """
    found = energy(run)
    return _with_idle(run, found["energy"], found["time"])


def gpu_power(run: Run) -> pd.DataFrame:
    """Return the GPU's mean power over an epoch, W, with the columns of :func:`gpu_energy`."""
    power = energy(run)["power"]
    return _with_idle(run, power, pd.Series(1.0, power.index))


def _with_idle(run: Run, values: pd.Series[float], seconds: pd.Series[float]) -> pd.DataFrame:
    table, watts = spread(values).set_index(SERIES), idle_power_w(run)
    idle = pd.Series(0.0, table.index)
    if watts is not None:
        idle = (seconds.groupby(SERIES).median() * watts).reindex(table.index)
        idle = idle.clip(upper=table["median"])
    rest = "not split" if watts is None else "above idle"
    table["idle"] = idle
    table["above idle"] = table["not split"] = 0.0
    table[rest] = table["median"] - idle
    return table.reset_index()


def requests_declared(columns: Iterable[object]) -> dict[int, str]:
    """Return the columns that count requests declared by cases, by the bytes of one request."""
    matches = map(_REQUESTS.fullmatch, map(str, columns))
    return {int(found[1]): found[0] for found in matches if found}


def link_bytes(run: Run) -> pd.DataFrame:
    """Return bytes from host to device in an epoch of each series whose traffic was measured.

    Columns: :data:`~gatherbench.bench.run.rows.SERIES`; ``payload`` (of the path's rows);
    ``read`` (whole sectors of its reads, and its copies, ids among them); ``link_128`` and
    ``link_64`` (that with the header of each completion, if these are the GPU's largest reads, and
    with the calibrated cost of a copied byte); ``median``, ``low``, ``high`` and
    ``count`` (measured, over epochs: quartiles). NaN if requests were not counted. Edges that
    are copied for training are measured and not counted: with sampling on the GPU there are none.
    Reads of neighbour lists in host memory, while a GPU draws, are counted as rows are.
    """
    found = spread(run.measured["link_rx_bytes"]).drop(columns=["min", "max"])
    keys = pd.MultiIndex.from_frame(found[SERIES[:3]])
    declared = run.declared_medians.droplevel("backend").reindex(keys).set_axis(found.index)
    copies, ratio = declared["declared_copy_engine_bytes"], copied_ratio(run) or 1.0
    counts = {size: declared[name] for size, name in requests_declared(declared).items()}
    by_reads = declared["declared_gpu_link_read_bytes"] > 0
    uncounted = by_reads & (declared[[of.name for of in counts.values()]].isna().all(axis=1))
    read = sum((size * count.fillna(0.0) for size, count in counts.items()), 0.0 * copies)
    found["payload"] = declared["declared_payload_bytes"]
    found["read"] = (read + copies).mask(uncounted)
    for largest in LARGEST_READS:
        whole = (math.ceil(size / largest) * of.fillna(0.0) for size, of in counts.items())
        headers = sum(whole, 0.0 * copies) * COMPLETION_HEADER_BYTES
        found[f"link_{largest}"] = (read + headers + copies * ratio).mask(uncounted)
    names = ["payload", "read", *(f"link_{size}" for size in LARGEST_READS)]
    return plan_order(run, found[[*SERIES, *names, "median", "low", "high", "count"]])
