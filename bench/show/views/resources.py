"""Show an epoch's use of the processor and, in joules, of the GPU."""

from __future__ import annotations

from gatherbench.bench.read.derive import reasons_of, spread
from gatherbench.bench.read.gpu import gpu_energy, idle_power_w
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.show.charts import bars, drawn
from gatherbench.bench.show.drawing import Chart
from gatherbench.bench.show.view import View

_IDLE = {
    "idle": ("drawn by the idle GPU in that time", "grey"),
    "above idle": ("above idle", "vermilion"),
    "not split": ("idle part not measured", "sky"),
}


def gpu_energy_per_epoch(run: Run) -> Chart:
    """Draw joules of the GPU in an epoch, with the part of an idle GPU.

    A faster strategy saves part of the idle energy too, because the epoch is shorter; the part
    above idle is that of the work. Host and processors are excluded.
    """
    idle, values = idle_power_w(run), gpu_energy(run)
    why = reasons_of(run, "energy_gpu_energy_j", "gpu_energy_j")["reason"]
    return bars(
        run,
        values,
        title="Energy of the GPU per epoch",
        reading="The GPU alone, by its energy counter over windows of whole epochs, 10 s and more. "
        f"Idle power, with a process on the GPU: {'unknown' if idle is None else f'{idle:.0f} W'}. "
        "Medians of repeats; whiskers: quartiles.",
        quantity="energy per epoch",
        unit="J",
        legend={name: look for name, look in _IDLE.items() if (values[name] > 0).any()},
        absent=str(why.iloc[0]) if len(why) else "no energy of the GPU was read",
        predicted=False,
    )


def cpu_core_seconds(run: Run) -> Chart:
    """Draw core-seconds of the process tree in an epoch: the resource that zero-copy saves."""
    parts = run.medians[["cpu_user_s", "cpu_system_s"]].set_axis(["user", "system"], axis=1)
    return bars(
        run,
        spread(run.measured["cpu_s"]).join(parts, on=SERIES),
        title="Processor time per epoch",
        reading="Core-seconds of the process and its children: sampling, gather and training "
        "alike. Medians of user and system; whiskers: quartiles of their sum.",
        quantity="processor time per epoch",
        unit="s",
        legend={"user": ("user", "blue"), "system": ("system", "orange")},
        absent="processor time was not metered",
        predicted=False,
    )


ENERGY = View(
    "energy",
    "Energy of the GPU",
    lambda run: run.has_gpu,
    figure=lambda run: drawn(run, gpu_energy=gpu_energy_per_epoch),
)
PROCESSOR = View(
    "processor",
    "Processor",
    lambda run: len(run.measured) > 0,
    figure=lambda run: drawn(run, cpu_seconds=cpu_core_seconds),
)
