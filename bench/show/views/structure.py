"""Sampling that remembers: accuracy over time.

It trains on other minibatches: how long its epochs are says nothing of which
is better. How right the model is after as much time does, as a mean over the seeds of the plan.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import pandas as pd
from scipy import stats

from gatherbench.bench.model.predict import declared_facts
from gatherbench.bench.read.accuracy import accuracy_over_time
from gatherbench.bench.read.derive import ends_in, with_ends_of
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import quantity
from gatherbench.bench.show.chart import Chart, Line, Panel
from gatherbench.bench.show.charts import chart_of, panel_of, reference_of
from gatherbench.bench.show.figures.draw import drawn
from gatherbench.bench.show.table import Column, Table, tabulate
from gatherbench.bench.show.view import View

#: The table of what GraphSnapShot claims, of ``results/reference/``.
CLAIMED = "sampling_that_remembers"
#: What stands in place of parameters.
PLAIN = {"fbl": "plain sampling"}


def snapshots(run: Run) -> pd.DataFrame:
    """A line for each way of sampling of a run with ``sampling = "snapshot"``, over its seeds.

    Columns: ``family``, ``structure``, ``seeds``, ``distinct`` (neighbours seen an epoch),
    ``cache`` (B), ``sample`` and ``epoch`` (s), ``over`` (epoch over that of plain sampling with
    the seed), ``accuracy`` (at the end), ``by`` (s: the time that every way had), and ``then``
    (accuracy by that time, 0 to 1). ``over`` and ``then`` are means with ``…_low`` and ``…_high``:
    95 % of Student's t over the seeds, NaN with one.
    """
    families = {w: name for name, members in run.alike(structure="", seed=0) for w in members}
    facts = {key[0]: found for key, found in declared_facts(run).items()}
    curves = {
        name: mine.groupby("epoch")[["time_s", "accuracy"]].median()
        for name, mine in accuracy_over_time(run).groupby("workload")
    }
    times = {
        stage: run.values(stage, "wall_time").groupby("workload").median()
        for stage in ("sample", "epoch")
    }
    lines = [
        {
            "family": families[workload],
            "structure": fields.get("structure") or "fbl",
            "seed": fields.get("seed", 0),
            "distinct": facts[workload]["sample.distinct_neighbours"],
            "cache": facts[workload]["sample.structure_cache"],
            **{stage: of.get(workload, math.nan) for stage, of in times.items()},
            "curve": curves[workload],
        }
        for workload, fields in run.plan["workloads"].items()
        if workload in curves and "sample.distinct_neighbours" in facts.get(workload, {})
    ]
    records = []
    for family, mine in pd.DataFrame(lines).groupby("family", sort=False) if lines else ():
        by = min(float(curve["time_s"].iloc[-1]) for curve in mine["curve"])
        plain = mine[mine["structure"] == "fbl"].set_index("seed")["epoch"]
        for structure, seeds in mine.groupby("structure", sort=False):
            ends = [float(curve["accuracy"].iloc[-1]) for curve in seeds["curve"]]
            over = list(seeds.set_index("seed")["epoch"] / plain) if structure != "fbl" else []
            then = [accuracy_by(curve, by) for curve in seeds["curve"]]
            record = {"family": family, "structure": structure, "seeds": len(seeds), "by": by}
            record |= {n: seeds[n].mean() for n in ("distinct", "cache", *times)}
            record |= {"accuracy": sum(ends) / len(ends)}
            records.append(record | with_ends_of(over=mean_of(over), then=mean_of(then)))
    return pd.DataFrame(records).assign(basis="measured") if records else pd.DataFrame()


def accuracy_by(curve: pd.DataFrame, seconds: float) -> float:
    """The score that held at a time: that of the last epoch which had ended; 0 before the first."""
    before = curve[curve["time_s"] <= seconds]
    return float(before["accuracy"].iloc[-1]) if len(before) else 0.0


def mean_of(values: list[float]) -> tuple[float, float, float]:
    """Mean and the ends of its 95 % interval (Student's t); NaN for the ends of one value.

    Values that are NaN are left out; of none the mean is NaN, too.
    """
    series = pd.Series(values, dtype=float).dropna()
    mean, count = float(series.mean()), len(series)
    if count < 2:
        return mean, math.nan, math.nan
    half = float(stats.t.ppf(0.975, count - 1) * series.std(ddof=1) / math.sqrt(count))
    return mean, mean - half, mean + half


def _of_snapshots(run: Run) -> Table:
    columns = [
        Column("family", "workload"),
        Column("structure", "sampling"),
        Column("seeds", "seeds", "1"),
        Column("distinct", "distinct neighbours an epoch", "1", short="distinct"),
        Column("cache", "memory of the caches", "B", short="cache"),
        Column("sample", "sampling an epoch", "s", short="sample"),
        Column("epoch", "epoch", "s", short="epoch"),
        Column("over", "epoch over plain sampling", "×", interval=True, short="over fbl"),
        Column("accuracy", "test accuracy at the end", "share", short="at the end"),
        Column("by", "time that all had", "s"),
        Column("then", "test accuracy by then", "share", interval=True, short="by then"),
    ]
    return tabulate(
        "snapshots",
        "Sampling that remembers beside plain sampling (fbl): means over seeds",
        columns,
        snapshots(run),
        title="Sampling that remembers",
        note="Intervals: 95 % of Student's t over the seeds.",
    )


def named(structures: Iterable[str]) -> dict[str, tuple[str, str]]:
    """The policy of each, and of its parameters those in which it differs from others of that."""
    told = {words: words.split() for words in structures}
    names = {}
    for words, (policy, *parameters) in told.items():
        alike = [set(other) for other in told.values() if other[0] == policy]
        shared = set.intersection(*alike) if len(alike) > 1 else set()
        detail = " ".join(one for one in parameters if one not in shared)
        names[words] = policy, detail or PLAIN.get(words, "")
    return names


def _families(run: Run) -> list[tuple[str, pd.DataFrame]]:
    """The lines of :func:`snapshots` by family."""
    table = snapshots(run)
    return [(str(f), m) for f, m in table.groupby("family", sort=False)] if len(table) else []


def _mean(
    record: Mapping[Hashable, Any], value: str, most: float
) -> tuple[float, tuple[float, float] | None]:
    """A mean and its interval, as far as such values go; of one seed there is none."""
    mean, low, high = ends_in(record, value)
    return mean, None if math.isnan(low) else (max(0.0, low), min(most, high))


def _over_seeds(mine: pd.DataFrame, value: str, unit: str, title: str) -> Panel:
    """Bars of means with their intervals, as far as such values go."""
    names, most = named(mine["structure"]), 1.0 if unit == "share" else math.inf
    lines = []
    for record in mine.to_dict("records"):
        mean, ends = _mean(record, value, most)
        note = f"{quantity(float(record['distinct']), '1')} neighbours seen"
        lines.append(
            Line(*names[str(record["structure"])], "measured", {value: mean}, ends, note=note)
        )
    return panel_of(title, unit, lines)


def _after(mine: pd.DataFrame) -> str:
    return quantity(float(mine["by"].iloc[0]), "s")


def structure_accuracy(run: Run) -> Chart:
    """Test accuracy by a time that every way of sampling had."""
    return chart_of(
        run,
        [_over_seeds(m, "then", "share", f"{f}, after {_after(m)}") for f, m in _families(run)],
        ident="structure-accuracy",
        title="Test accuracy after as much time",
        reading="Means over seeds; whiskers: 95 % of Student's t. Longer is better.",
        quantity="test accuracy",
        legend={"then": ("test accuracy", "blue")},
    )


def structure_times(run: Run) -> Chart:
    """Epochs over those of plain sampling, beside what GraphSnapShot claims of them."""
    families, claimed = _families(run), reference_of(run)
    panels = [_over_seeds(m[m["over"].notna()], "over", "×", f) for f, m in families]
    claimed = claimed[(claimed["table"] == CLAIMED) & (claimed["metric"] == "wall_time_change")]
    for fanouts, theirs in claimed.groupby("workload", sort=False) if panels else ():
        lines = [
            Line(name, "GraphSnapShot", "published", {"over": 1 + x})
            for name, x in zip(theirs["variant"], theirs["value"], strict=True)
        ]
        panels.append(panel_of(f"published: {fanouts}", "×", lines, top=1.0))
    return chart_of(
        run,
        panels,
        ident="structure-times",
        title="Epoch time over that of plain sampling",
        reading="Means over seeds; whiskers: 95 % of Student's t. Below 1 is faster.",
        quantity="epoch over plain sampling",
        legend={"over": ("epoch over plain sampling", "blue")},
    )


STRUCTURE = View(
    name="structure",
    title="Sampling that remembers",
    applies=lambda run: bool(len(snapshots(run))),
    frame=lambda run: [_of_snapshots(run)],
    figure=lambda run: drawn(
        run, structure_accuracy=structure_accuracy, structure_times=structure_times
    ),
)
