"""Show an epoch's use of the processor, in all and by thread, and of the GPU: joules and watts."""

from __future__ import annotations

from typing import Any

import pandas as pd

from gatherbench.bench.read.derive import cores_of, cpu_seconds, reasons_of, thread_seconds
from gatherbench.bench.read.gpu import gpu_energy, gpu_power, idle_power_w
from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.charts import bars, drawn, polled
from gatherbench.bench.show.drawing import Chart
from gatherbench.bench.show.view import View

_IDLE = {
    "idle": ("drawn by the idle GPU in that time", "grey"),
    "above idle": ("above idle", "vermilion"),
    "not split": ("idle part not measured", "sky"),
}
_THREADS = {
    "main": ("main thread (the loop)", "blue"),
    "gather": ("gather", "vermilion"),
    "sampler": ("sampler", "sky"),
    "torch": ("torch’s own", "green"),
    "rest": ("other", "grey"),
    "unused": ("not used", "pale"),
}


def gpu_energy_per_epoch(run: Run) -> Chart:
    """Draw joules of the GPU in an epoch, with the part of an idle GPU.

    A faster strategy saves part of the idle energy too, because the epoch is shorter; the part
    above idle is that of the work. Host and processors are excluded.
    """
    words = {"title": "Energy of the GPU per epoch", "quantity": "energy per epoch"}
    return _of_the_gpu(run, gpu_energy(run), unit="J", **words)


def gpu_mean_power(run: Run) -> Chart:
    """Draw the mean watts of the GPU over an epoch."""
    words = {"title": "Mean power of the GPU", "quantity": "mean power over an epoch"}
    return _of_the_gpu(run, gpu_power(run), unit="W", **words)


def _of_the_gpu(run: Run, values: pd.DataFrame, **words: Any) -> Chart:
    idle = idle_power_w(run)
    why = reasons_of(run, "energy_gpu_energy_j", "gpu_energy_j")["reason"]
    return bars(
        run,
        values,
        reading="The GPU alone, by its energy counter over windows of whole epochs, 10 s and more. "
        f"Idle power, with a process on the GPU: {'unknown' if idle is None else f'{idle:.0f} W'}. "
        "Medians of repeats; whiskers: quartiles.",
        legend={name: look for name, look in _IDLE.items() if (values[name] > 0).any()},
        absent=str(why.iloc[0]) if len(why) else "no energy of the GPU was read",
        predicted=False,
        **words,
    )


def power_over_time(run: Run) -> Chart:
    """Draw the watts that the GPU drew in an epoch."""
    return polled(
        run,
        lambda readings: list(zip(readings["time_s"], readings["value"], strict=True)),
        {"gpu_power": ("power", "vermilion")},
        "W",
        title="Power of the GPU during an epoch",
        reading="Power that the driver reports at an instant. The first polled epoch of each"
        " series.",
        quantity="power",
    )


def cpu_core_seconds(run: Run) -> Chart:
    """Draw core-seconds of the process tree in an epoch: the resource that zero-copy saves."""
    return bars(
        run,
        cpu_seconds(run),
        unit="s",
        title="Processor time per epoch",
        reading="Core-seconds of the process and its children: sampling, gather and training "
        "alike. Medians of user and system; whiskers: quartiles of their sum.",
        quantity="processor time per epoch",
        legend={"user": ("user", "blue"), "system": ("system", "orange")},
        absent="processor time was not metered",
        predicted=False,
    )


def cpu_by_thread(run: Run) -> Chart:
    """Draw core-seconds of an epoch by group of threads, and the unused part of its cores."""
    cores = cores_of(run)
    return bars(
        run,
        thread_seconds(run),
        unit="s",
        title="Processor time per epoch, by thread",
        reading=f"Core-seconds of the case’s threads on {cores} core{'s' * (cores != 1)}; "
        "what they did not use was idle, or with other programs. Medians of each group; number and "
        "whiskers: median and quartiles of what was used. Threads of torch that spin while they "
        "wait for work count as busy.",
        quantity="processor time per epoch",
        legend=_THREADS,
        absent="threads were not metered",
        predicted=False,
        suffix=" used",
    )


_GPU = {"gpu_energy": gpu_energy_per_epoch, "gpu_power": gpu_mean_power}
ENERGY = View(
    "energy",
    "Energy and power of the GPU",
    lambda run: run.has_gpu,
    figure=lambda run: drawn(run, **_GPU, power_over_time=power_over_time),
)
PROCESSOR = View(
    "processor",
    "Processor",
    lambda run: len(run.measured) > 0,
    figure=lambda run: drawn(run, cpu_seconds=cpu_core_seconds, cpu_threads=cpu_by_thread),
)
