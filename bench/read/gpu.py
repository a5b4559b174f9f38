"""Derive from a run's rows what its GPU drew and what crossed its link.

Energy comes from the stage ``energy``: a window over whole epochs, long enough for the counter
(:mod:`gatherbench.bench.run.untimed`). Power is energy over the window's length.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from gatherbench.bench.machine.pcie import UnknownLinkError, raw_rate
from gatherbench.bench.read.derive import spread
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES

DIRECTIONS = ("host_to_device", "device_to_host")
#: Of the reads a second over 64 MiB of a table, what is left over all of it where pages are large.
#: On an H200 0.49 to 0.59 over 16 to 48 GiB of managed memory, 0.04 to 0.06 of registered, 0.12
#: over 2 GiB of managed memory in pages of 4 KiB (``results/nvidia-h200``, 2026-11-26).
LARGE_PAGES = 0.25


def idle_power_w(run: Run) -> float | None:
    """What the GPU drew with a process on it that did nothing, W; ``None``: not measured."""
    return _of_calibration(run, "idle_power")


def link_rate(run: Run) -> tuple[float | None, str]:
    """Raw rate of the link as it was under load, B/s each way; or ``None``, and why."""
    gen, width = (_of_calibration(run, f"link_{x}_loaded") for x in ("gen", "width"))
    if gen is None or width is None:
        return None, "the calibration does not tell generation and width of the link"
    try:
        return raw_rate(int(gen), int(width)), ""
    except UnknownLinkError as unknown:
        return None, str(unknown)


def slow_pages(run: Run) -> pd.DataFrame:
    """Series whose managed memory the GPU reads no faster than by small pages, as measured when the
    path opened: reads a second over the ``whole`` table, and over the ``near`` part of it.
    """
    setup = run.select(stage="setup", basis="measured")
    rates = setup.pivot_table("value", SERIES, "metric", "median").reindex(
        columns=["managed", "page_visit_rate", "page_visit_rate_near"]
    )
    slow = rates["page_visit_rate"] < LARGE_PAGES * rates["page_visit_rate_near"]
    found = rates[rates["managed"].notna() & slow].reset_index()
    return found.rename(columns={"page_visit_rate": "whole", "page_visit_rate_near": "near"})


def block_values(run: Run, quantity: str) -> pd.Series[float]:
    """The GPU's energy an epoch (``energy``, J) or mean power (``power``, W) of each case.

    ``time`` is how long an epoch took while its energy was read, s: these can be other epochs than
    the timed ones. Indexed by :data:`gatherbench.bench.run.rows.SERIES` and repeat; cases without a
    reading are left out.
    """
    blocks = _blocks(run)
    part, of = {
        "energy": ("gpu_energy", "epochs"),
        "power": ("gpu_energy", "window_time"),
        "time": ("window_time", "epochs"),
    }[quantity]
    return (blocks[part] / blocks[of])[blocks["gpu_energy"].notna()].rename(quantity)


def gpu_energy(run: Run) -> pd.DataFrame:
    """Energy of the GPU an epoch, J: median and quartiles over repeats, and its idle part.

    Columns: those of :func:`gatherbench.bench.read.derive.epoch_times`; and ``idle`` (what the GPU
    would have drawn in that time doing nothing), ``above idle`` and ``not split`` (where the idle
    power was not measured), which add up to ``median``.
    """
    blocks = _blocks(run)
    return _with_idle(run, block_values(run, "energy"), blocks["window_time"] / blocks["epochs"])


def gpu_power(run: Run) -> pd.DataFrame:
    """Mean power of the GPU over an epoch, W, with the columns of :func:`gpu_energy`."""
    power = block_values(run, "power")
    return _with_idle(run, power, pd.Series(1.0, power.index))


def link_rates(timeline: pd.DataFrame) -> pd.DataFrame:
    """Rates between the readings of a counter: of one epoch and metric, in the order of time.

    Returns:
        ``begin_s``, ``end_s``, ``rate`` (B/s).
    """
    time_s, bytes_ = timeline["time_s"].to_numpy(), timeline["value"].to_numpy()
    steps = np.diff(time_s)
    kept = steps > 0  # two readings with one stamp have no rate
    return pd.DataFrame(
        {
            "begin_s": time_s[:-1][kept],
            "end_s": time_s[1:][kept],
            "rate": np.diff(bytes_)[kept] / steps[kept],
        }
    )


def _blocks(run: Run) -> pd.DataFrame:
    """A line for each case that has energy: what its window held, by metric."""
    metrics = ["gpu_energy", "epochs", "window_time"]
    rows = run.select(stage="energy", metric=metrics, status="ok", used=True)
    table = rows.pivot(index=[*SERIES, "repeat"], columns="metric", values="value")
    return table.reindex(columns=metrics).astype(float)


def _with_idle(run: Run, values: pd.Series[float], seconds: pd.Series[float]) -> pd.DataFrame:
    table = spread(values).set_index(SERIES)
    watts = idle_power_w(run)
    idle = pd.Series(0.0, table.index)
    if watts is not None:
        idle = seconds.reindex(values.index).groupby(SERIES).median() * watts
        idle = idle.reindex(table.index).clip(upper=table["median"])
    rest = "not split" if watts is None else "above idle"
    table["idle"] = idle
    table["above idle"] = table["not split"] = 0.0
    table[rest] = table["median"] - idle
    return table.reset_index()


def _of_calibration(run: Run, metric: str) -> float | None:
    whole = run.whole
    found = whole[(whole["metric"] == metric) & (whole["status"] == "ok")]["value"]
    return float(found.iloc[-1]) if len(found) else None


def per_epoch(run: Run, stage: str, metric: str) -> pd.Series[float]:
    """Each epoch's value of a quantity.

    The stage ``energy`` has ``energy`` an epoch and mean ``power`` of the GPU, the metric ``cpu``
    is ``cpu_user`` and ``cpu_system`` together.
    """
    if stage == "energy":
        return block_values(run, metric)
    if metric == "cpu":
        return run.values(stage, "cpu_user") + run.values(stage, "cpu_system")
    return run.values(stage, metric)
