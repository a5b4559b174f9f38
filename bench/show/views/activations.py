"""Where a step's saved tensors lie until its backward pass: memory that saves, time that it takes.

Workloads that differ in ``activations`` alone train on the same minibatches to the same weights, so
their epochs may be compared. What is brought back shares the link, or the disk, with the rows: how
much longer the loop waits for them is the contention that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import pandas as pd

from gatherbench.bench.read.derive import ends_of, plan_order, repeat_logs, with_ends_of
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.show.chart import Axis, Chart, Line
from gatherbench.bench.show.charts import Fields, Names, chart_of, family_panel, typical
from gatherbench.bench.show.figures.draw import drawn
from gatherbench.bench.show.table import WHAT, Column, Table, tabulate, with_kind
from gatherbench.bench.show.view import View
from gatherbench.stats.interval import interval_of

STAGE, KEEP = "activations", "keep"


def _families(run: Run) -> Iterator[tuple[str, dict[str, str]]]:
    """Workloads that differ in where activations lie: by id, where that is."""
    for family, members in run.alike(activations=KEEP):
        yield family, {w: run.plan["workloads"][w].get("activations", KEEP) for w in members}


def activations_compared(run: Run) -> pd.DataFrame:
    """A line for each measured series of workloads that differ in where activations lie.

    Columns: ``family``, :data:`SERIES`, ``activations``, ``peak`` (B, of a step beyond what is
    there), ``out`` and ``in`` (B a step), ``forwarded`` (share of ``out``), ``stall`` (s a step),
    ``buffers`` (B), ``epoch`` (s), and ``longer`` and ``fetch`` (epoch and wait for rows over those
    of ``keep``) with their ends ``_low`` and ``_high``. NaN: not known.
    """
    logs = {
        name: repeat_logs(run.values(stage, "wall_time"), run.processes)
        for name, stage in (("longer", "epoch"), ("fetch", "fetch"))
    }
    steps = run.values("epoch", "minibatches")
    counted = {
        name: (run.values(STAGE, name) / steps).groupby(SERIES).median()
        for name in ("out", "in", "forwarded", "stall")
    }
    counted["peak"] = run.values(STAGE, "step_peak").groupby(SERIES).max()
    counted["buffers"] = run.values(STAGE, "buffers").groupby(SERIES).max()
    records = []
    for family, ways in _families(run):
        kept = next((workload for workload, way in ways.items() if way == KEEP), None)
        for key, mine in logs["longer"].items():
            if key.workload not in ways or tuple(key) not in counted["peak"].index:
                continue
            record = {"family": family, **key._asdict(), "activations": ways[key.workload]}
            record |= {name: values.get(tuple(key), math.nan) for name, values in counted.items()}
            record["forwarded"] /= record["out"] or math.nan
            ends = {"epoch": interval_of((1, mine)).ends}
            for name, of in logs.items():
                base = of.get(key._replace(workload=kept or ""))
                known = base is not None and key in of and key.workload != kept
                both = ((1, of[key]), (-1, base)) if known and base is not None else ()
                ends[name] = interval_of(*both).ends if both else (math.nan,) * 3
            records.append(record | with_ends_of(**ends))
    three = [column for name in ("epoch", *logs) for column in ends_of(name)]
    columns = ["family", *SERIES, "activations", *counted, *three]
    return plan_order(run, pd.DataFrame(records, columns=columns))


def _table(run: Run) -> Table:
    columns = [
        Column("activations", "activations", short="activations"),
        Column("peak", "a step’s memory at its most", "B", short="peak"),
        Column("out", "moved out a step", "B", short="out"),
        Column("in", "brought back a step", "B", short="in"),
        Column("forwarded", "handed back on its way", "share", short="forwarded"),
        Column("stall", "waited for a step", "s", short="stall"),
        Column("buffers", "buffers in host memory", "B"),
        Column("longer", "epoch over keep", "×", interval=True, short="epoch"),
        Column("fetch", "wait for rows over keep", "×", interval=True, short="fetch"),
    ]
    return tabulate(
        "activations",
        "Where activations lie: a step’s memory, bytes each way, and what waits",
        [*WHAT, *columns],
        with_kind(activations_compared(run)),
        title="Activations",
        note="Memory: of the device beyond what is there before the step, of one step of a copy of"
        " the model. Gradients are those of keep, bit for bit, where the host trains. Forwarded:"
        " wanted while still on its way, so not brought back. Wait for rows over keep: above 1,"
        " what moves shares link, disk or cores with the rows.",
    )


def activations_epochs(run: Run) -> Chart:
    """Epochs by where activations lie."""
    return _chart(
        run,
        "epoch",
        "s",
        ident="activations-epochs",
        title="Epoch time by where activations lie",
        reading="Means over repeats; whiskers: their 95 % interval. Shorter is faster.",
        quantity="time per epoch",
    )


def activations_memory(run: Run) -> Chart:
    """A step's memory by where activations lie."""
    return _chart(
        run,
        "peak",
        "B",
        ident="activations-memory",
        title="Memory of a training step by where activations lie",
        reading="Of the device, at its most, beyond what is there before the step.",
        quantity="memory of a step",
    )


def _chart(run: Run, value: str, unit: str, **of: str) -> Chart:
    table = activations_compared(run)
    if value == "peak":
        table = table.assign(peak_low=math.nan, peak_high=math.nan)

    def line(way: str, axis: Axis, names: Names, row: Fields | None, why: str) -> Line | None:
        if row is None:
            return Line(names[0], f"{way}, {names[1]}", missing=why)
        return typical(run, axis, row, value, why, f"{way}, {names[1]}")

    panels = []
    for family, ways in _families(run):
        if len(ways) > 1:
            steps = {workload: partial(line, way) for workload, way in ways.items()}
            panels.append(family_panel(run, family, steps, table, value, unit, []))
    return chart_of(run, panels, **of)


ACTIVATIONS = View(
    name="activations",
    title="Activations",
    applies=lambda run: not run.values(STAGE, "step_peak").empty,
    frame=lambda run: [_table(run)],
    figure=lambda run: drawn(
        run, activations_epochs=activations_epochs, activations_memory=activations_memory
    ),
)
