"""Show an epoch's use of the host: its processor, its gather alone and in the loop, launches to a
GPU; and the joules of the GPU.

A speed-up over a gather that sampling, training or the harness slow down is only in part the data
path's. The choice of threads measures what the machine gathers alone.
"""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.read.derive import gpu_energy, reasons_of, sort_series, spread
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.show.charts import bars, drawn
from gatherbench.bench.show.drawing import Chart
from gatherbench.bench.show.table import Table, table_of
from gatherbench.bench.show.view import View

_ISSUED = ("train", "fetch", "left")
_IDLE = {
    "idle": ("drawn by the idle GPU in that time", "grey"),
    "above idle": ("above idle", "vermilion"),
    "not split": ("idle part not measured", "sky"),
}


def gather_rates(run: Run) -> pd.DataFrame:
    """Return medians over repeats (and epochs) for the CPU's best conventional gathers.

    Columns: :data:`SERIES`, ``alone_B_per_s`` and ``in_the_loop_B_per_s`` (NaN where the table was
    too small to try), and ``loop_to_alone_share``.
    """
    names = {"gather_alone_rate": "alone_B_per_s", "gather_rate": "in_the_loop_B_per_s"}
    rates = run.medians.query("role == 'conventional'")[[*names]].rename(columns=names)
    table = rates.dropna(subset="in_the_loop_B_per_s").reset_index()
    share = table["in_the_loop_B_per_s"] / table["alone_B_per_s"]
    return sort_series(table.assign(loop_to_alone_share=share))


def _gathered(run: Run) -> Table:
    note = (
        "Medians over repeats, in the loop over epochs, too. Alone: random rows on as many"
        " threads. On one core, or of minibatches too small to share, it is not tried. In the loop"
        " sampling and training share cores and memory."
    )
    return table_of("gather", "The CPU's gather, alone and in the loop", gather_rates(run), note)


def _issued(run: Run) -> Table:
    names = {f"issue_{part}": f"{part}_share" for part in ("draw", "wait", *_ISSUED)}
    frame = run.medians[[*names]].dropna(subset=[f"issue_{part}" for part in _ISSUED])
    frame = sort_series(frame.rename(columns=names).reset_index())
    note = (
        "What the host needed of an epoch: medians over repeats and epochs, by the clock of the"
        " thread that trains. Draw: to draw minibatches, or have them drawn; wait: for minibatches;"
        " train, fetch: to issue them. If a path gathers on the CPU, its fetch includes that"
        " gather. Left: what the GPU needed when all was issued; where it is little, it waited."
    )
    return table_of("issue", "Issued by the host", frame, note)


def gpu_energy_per_epoch(run: Run) -> Chart:
    """Draw joules of the GPU in an epoch, with the part of an idle GPU.

    A faster strategy saves part of the idle energy too, because the epoch is shorter; the part
    above idle is that of the work. Host and processors are excluded.
    """
    watts, values = run.idle_power_w, gpu_energy(run)
    idle = "unknown" if pd.isna(watts) else f"{watts:.0f} W"
    why = reasons_of(run, "energy_gpu_energy_j", "gpu_energy_j")["reason"]
    return bars(
        run,
        values,
        title="Energy of the GPU per epoch",
        reading="The GPU alone, by its energy counter over windows of whole epochs, 10 s and more. "
        f"Idle power, with a process on the GPU: {idle}. "
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
GATHER = View("gather", "The CPU's gather", lambda run: not gather_rates(run).empty, _gathered)
ISSUE = View(
    "issue",
    "Issued by the host",
    lambda run: bool(run.measured["host_issue_train_s"].notna().any()),
    _issued,
)
