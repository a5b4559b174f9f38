"""Where neighbour lists lie, and sampling that remembers: reads over the link, accuracy over time.

Sampling that remembers trains on other minibatches: how long its epochs are says nothing of which
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
from gatherbench.bench.read.units import listed, quantity
from gatherbench.bench.run.declared_rows import requests_of
from gatherbench.bench.show.answer import Point
from gatherbench.bench.show.chart import Chart, Line, Panel
from gatherbench.bench.show.charts import chart_of, panel_of, reference_of
from gatherbench.bench.show.table import Column, Table, tabulate
from gatherbench.bench.show.view import View

#: The table of what GraphSnapShot claims, of ``results/reference/``.
CLAIMED = "sampling_that_remembers"
#: What stands in place of parameters.
PLAIN = {"fbl": "plain sampling", "uva": "all lists"}


def structure_reads(run: Run) -> pd.DataFrame:
    """What an epoch's sampling on a GPU reads of neighbour lists, as declared, by workload.

    Columns: ``workload`` (in words), ``structure``, ``lists`` and ``kept`` (B), ``wanted`` and
    ``read`` (B in host memory), ``requests``, ``on_gpu`` (share of the neighbours) and ``alone``
    (s, predicted; NaN: unknown).
    """
    timed = run.rows[run.rows["metric"] == "structure_time_alone"]
    alone, records = timed.groupby("workload")["value"].median(), dict[str, dict[str, Any]]()
    for (workload, *_), facts in declared_facts(run).items():
        if "sample.structure_read" not in facts:
            continue
        kept, wanted = facts["sample.structure_on_device"], facts["sample.structure_payload"]
        requests = requests_of("sample.structure", facts).values()
        record = {
            "workload": run.names[workload],
            "structure": run.plan["workloads"][workload].get("structure") or "uva",
            "lists": facts["sample.structure_lists"],
            "kept": facts["sample.structure_kept"],
            "wanted": wanted,
            "read": facts["sample.structure_read"],
            "requests": sum(map(facts.__getitem__, requests)),
            "on_gpu": kept / (kept + wanted) if kept + wanted else math.nan,
            "alone": alone.get(workload, math.nan),
        }
        records.setdefault(workload, record)
    return pd.DataFrame(records.values()).assign(basis="declared") if records else pd.DataFrame()


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


def _of_reads(run: Run) -> Table:
    columns = [
        Column("workload", "workload"),
        Column("structure", "neighbour lists"),
        Column("lists", "all lists", "B"),
        Column("kept", "of these on the GPU", "B", short="on GPU"),
        Column("on_gpu", "neighbours read there", "share", short="found"),
        Column("wanted", "wanted in host memory", "B"),
        Column("read", "read in host memory", "B", short="read"),
        Column("requests", "requests", "1", short="requests"),
        Column("alone", "that alone takes", "s", short="alone"),
    ]
    return tabulate(
        "structure-reads",
        "What drawing an epoch on a GPU reads of neighbour lists, over the rows' link",
        columns,
        structure_reads(run),
        title="Neighbour lists",
        note="Counted over the trace by the rule of rows, caches left out; the time is modelled."
        " Minibatches are the same wherever lists lie.",
    )


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


def structure_bytes(run: Run) -> Chart:
    """Bytes of neighbour lists that cross the link in an epoch."""
    reads = structure_reads(run).to_dict("records")
    names = named(str(one["structure"]) for one in reads)
    lines = [
        Line(
            *names[str(one["structure"])],
            "modelled",
            {"read": float(one["read"])},
            note=f"{quantity(float(one['kept']), 'B')} on the GPU",
        )
        for one in reads
    ]
    return chart_of(
        run,
        [panel_of("neighbour lists read in host memory", "B", lines)] if lines else [],
        ident="structure-bytes",
        title="Neighbour lists over the link in an epoch",
        reading="Counted over the trace: whole sectors. Shorter leaves more of the link to rows.",
        quantity="bytes in an epoch",
        legend={"read": ("read in host memory", "blue")},
    )


def structure_points(run: Run) -> list[Point]:
    """What keeping lists spares the link, and whose accuracy is the highest after as much time."""
    found, reads, families = list[Point](), structure_reads(run).to_dict("records"), _families(run)
    if reads:
        said = [
            f"{quantity(float(one['read']), 'B')} with {quantity(float(one['kept']), 'B')} of"
            f" {quantity(float(one['lists']), 'B')} of lists on the GPU"
            for one in reads
        ]
        found.append(Point(f"drawing an epoch on a GPU reads {listed(said)} of neighbour lists"))
    for family, mine in families:
        ordered = mine.sort_values("then", ascending=False)
        right = [_mean(one, "then", 1.0) for one in ordered.to_dict("records")]
        found.append(
            Point(
                f"test accuracy after {_after(mine)} of training{{on}}: {{each}}",
                subjects=tuple(map(str, ordered["structure"])),
                values=tuple((mean, *(ends or (mean, mean))) for mean, ends in right),
                unit="share",
                workloads=(family,) if len(families) > 1 else (),
            )
        )
    return found


STRUCTURE = View(
    name="structure",
    title="Neighbour lists, and sampling that remembers",
    applies=lambda run: bool(len(structure_reads(run)) or len(snapshots(run))),
    tables=lambda run: [
        *([_of_reads(run)] if len(structure_reads(run)) else []),
        *([_of_snapshots(run)] if len(snapshots(run)) else []),
    ],
    charts={
        "structure_accuracy": structure_accuracy,
        "structure_times": structure_times,
        "structure_bytes": structure_bytes,
    },
    points=structure_points,
)
