"""Where neighbour lists lie, and sampling that remembers: reads over the link, accuracy over time.

Sampling that remembers trains on other minibatches: how long its epochs are says nothing of which
is better. How right the model is after as much time does, as a mean over the seeds of the plan.
"""

from __future__ import annotations

import math

import pandas as pd
from scipy import stats

from gatherbench.bench.model.predict import declared_facts
from gatherbench.bench.read.accuracy import accuracy_over_time
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import listed, quantity
from gatherbench.bench.run.declared_rows import requests_of
from gatherbench.bench.show.answer import Point
from gatherbench.bench.show.chart import Axis, Chart, Line, Panel
from gatherbench.bench.show.charts import chart_of
from gatherbench.bench.show.table import Column, Table, tabulate
from gatherbench.bench.show.view import View

#: What its paper claims of time at fan-outs 20, 20, 20; and of accuracy (EVIDENCE: its README).
CLAIMS = {"fcr": "7.1 % less time", "otf": "11.1 % less time"}
CLAIMED_ACCURACY = "0.710 in place of 0.718"
#: What drawing an epoch on a GPU reads of neighbour lists, a line for each workload.
_READS = [
    Column("workload", "workload"),
    Column("structure", "neighbour lists", short="lists"),
    Column("lists", "all lists", "B", short="all"),
    Column("kept", "of these on the GPU", "B", short="on GPU"),
    Column("on_gpu", "neighbours read there", "share", short="found"),
    Column("wanted", "wanted in host memory", "B"),
    Column("read", "read in host memory", "B", short="read"),
    Column("requests", "requests", "1", short="requests"),
    Column("alone", "that alone takes", "s", short="alone"),
]
_MEANS = ["distinct", "cache", "sample", "epoch"]
#: Ways of sampling beside each other, means over seeds.
_REMEMBERED = [
    Column("family", "workload"),
    Column("structure", "sampling", short="sampling"),
    Column("seeds", "seeds", "1"),
    Column("distinct", "distinct neighbours an epoch", "1", short="distinct"),
    Column("cache", "memory of the caches", "B", short="cache"),
    Column("sample", "sampling an epoch", "s", short="sample"),
    Column("epoch", "epoch", "s", short="epoch"),
    Column("accuracy", "test accuracy at the end", "share", short="at the end"),
    Column("by", "time that all had", "s"),
    Column("then", "test accuracy by then", "share", interval=True, short="by then"),
]


def structure_reads(run: Run) -> pd.DataFrame:
    """What an epoch's sampling on a GPU reads of neighbour lists, as declared: ``_READS``.

    ``alone`` is predicted; NaN: unknown.
    """
    records = []
    alone = run.rows[run.rows["metric"] == "structure_time_alone"].groupby("workload")["value"]
    predicted = alone.median()
    seen = set()
    for (workload, *_), facts in declared_facts(run).items():
        if "sample.structure_read" not in facts or workload in seen:
            continue
        seen.add(workload)
        kept, read = facts["sample.structure_on_device"], facts["sample.structure_payload"]
        requests = requests_of("sample.structure", facts)
        records.append(
            {
                "workload": run.names[workload],
                "structure": run.plan["workloads"][workload].get("structure") or "in place",
                "lists": facts["sample.structure_lists"],
                "kept": facts["sample.structure_kept"],
                "wanted": read,
                "read": facts["sample.structure_read"],
                "requests": sum(facts[name] for name in requests.values()),
                "on_gpu": kept / (kept + read) if kept + read else math.nan,
                "alone": predicted.get(workload, math.nan),
            }
        )
    return pd.DataFrame(records, columns=_fields(_READS)).assign(basis="declared")


def _fields(columns: list[Column]) -> list[str]:
    return [column.field for column in columns]


def snapshots(run: Run) -> pd.DataFrame:
    """A line for each way of sampling of a run with ``sampling = "snapshot"``, over its seeds.

    The fields of ``_REMEMBERED``: ``by`` is the time that every way had, ``then_low`` and
    ``then_high`` are 95 % of Student's t over the seeds, NaN with one.
    """
    families = {w: name for name, members in run.alike(structure="", seed=0) for w in members}
    facts = {key[0]: found for key, found in declared_facts(run).items()}
    scored = accuracy_over_time(run)
    lines = []
    times = {
        stage: run.values(stage, "wall_time").groupby("workload").median()
        for stage in ("sample", "epoch")
    }
    for workload, fields in run.plan["workloads"].items():
        mine = scored[scored["workload"] == workload]
        told = facts.get(workload, {})
        if "sample.distinct_neighbours" not in told or mine.empty:
            continue
        lines.append(
            {
                "family": families[workload],
                "structure": fields.get("structure") or "fbl",
                "distinct": told["sample.distinct_neighbours"],
                "cache": told["sample.structure_cache"],
                "sample": times["sample"].get(workload, math.nan),
                "epoch": times["epoch"].get(workload, math.nan),
                "curve": mine.groupby("epoch")[["time_s", "accuracy"]].median(),
            }
        )
    records = []
    frame = pd.DataFrame(lines, columns=["family", *_MEANS, "structure", "curve"])
    for family, mine in frame.groupby("family", sort=False):
        by = min(float(curve["time_s"].iloc[-1]) for curve in mine["curve"])
        for structure, seeds in mine.groupby("structure", sort=False):
            then = [accuracy_by(curve, by) for curve in seeds["curve"]]
            ends = [float(curve["accuracy"].iloc[-1]) for curve in seeds["curve"]]
            record = {"family": family, "structure": structure, "seeds": len(seeds), "by": by}
            record |= {name: seeds[name].mean() for name in _MEANS}
            record |= {"accuracy": sum(ends) / len(ends)}
            record |= dict(zip(("then", "then_low", "then_high"), mean_of(then), strict=True))
            records.append(record)
    names = [*_fields(_REMEMBERED), "then_low", "then_high"]
    return pd.DataFrame(records, columns=names).assign(basis="measured")


def accuracy_by(curve: pd.DataFrame, seconds: float) -> float:
    """The score that held at a time: that of the last epoch which had ended; 0 before the first."""
    before = curve[curve["time_s"] <= seconds]
    return float(before["accuracy"].iloc[-1]) if len(before) else 0.0


def mean_of(values: list[float]) -> tuple[float, float, float]:
    """Mean and the ends of its 95 % interval (Student's t); NaN for the ends of one value."""
    series = pd.Series(values)
    mean, count = float(series.mean()), len(values)
    if count < 2:
        return mean, math.nan, math.nan
    half = float(stats.t.ppf(0.975, count - 1) * series.std(ddof=1) / math.sqrt(count))
    return mean, mean - half, mean + half


def _tables(run: Run) -> list[Table]:
    claims = listed([f"{claim} of {name}" for name, claim in CLAIMS.items()])
    return [
        tabulate(
            "structure-reads",
            "What drawing an epoch on a GPU reads of neighbour lists, over the rows' link",
            _READS,
            structure_reads(run),
            title="Neighbour lists",
            note="Counted over the trace by the rule of rows, caches left out; the time is"
            " modelled. Minibatches are the same wherever lists lie.",
        ),
        tabulate(
            "snapshots",
            "Sampling that remembers beside plain sampling (fbl): means over seeds",
            _REMEMBERED,
            snapshots(run),
            title="Sampling that remembers",
            note=f"Interval: 95 % of Student's t over the seeds. GraphSnapShot claims {claims} at"
            f" fan-outs 20, 20, 20, and an accuracy of {CLAIMED_ACCURACY}.",
        ),
    ]


def _policy(words: str, bare: str) -> tuple[str, str]:
    """The policy and its parameters (``Structure.words``); without them, what ``bare`` is."""
    policy, _, parameters = words.partition(" ")
    return policy, parameters or bare


def structure_accuracy(run: Run) -> Chart:
    """Test accuracy by a time that every way of sampling had."""
    table, panels = snapshots(run), []
    for family, mine in table.groupby("family", sort=False):
        axis = Axis.of("share", mine["then"], mine["then_high"].dropna())
        lines = []
        for record in mine.to_dict("records"):
            ends = float(record["then_low"]), float(record["then_high"])
            lines.append(
                Line(
                    *_policy(record["structure"], "plain sampling"),
                    "measured",
                    {"accuracy": float(record["then"])},
                    ends=None if math.isnan(ends[0]) else (max(0.0, ends[0]), ends[1]),
                    text=axis.said(float(record["then"])),
                    note=f"{quantity(float(record['distinct']), '1')} distinct neighbours an epoch",
                )
            )
        by = quantity(float(mine["by"].iloc[0]), "s")
        panels.append(Panel(f"{family}, after {by}", lines, axis))
    return chart_of(
        run,
        panels,
        ident="structure-accuracy",
        title="Test accuracy after as much time",
        reading="Means over seeds; whiskers: 95 % of Student's t. Longer is better.",
        quantity="test accuracy",
        legend={"accuracy": ("test accuracy", "blue")},
    )


def structure_bytes(run: Run) -> Chart:
    """Bytes of neighbour lists that cross the link in an epoch."""
    table = structure_reads(run)
    axis = Axis.of("B", table["read"])
    lines = [
        Line(
            *_policy(line["structure"], "all lists"),
            "modelled",
            {"read": float(line["read"])},
            text=axis.said(float(line["read"])),
            note=f"{quantity(float(line['kept']), 'B')} of lists on the GPU",
        )
        for line in table.to_dict("records")
    ]
    return chart_of(
        run,
        [Panel("neighbour lists read in host memory", lines, axis)] if lines else [],
        ident="structure-bytes",
        title="Neighbour lists over the link in an epoch",
        reading="Counted over the trace: whole sectors. Shorter leaves more of the link to rows.",
        quantity="bytes in an epoch",
        legend={"read": ("read in host memory", "blue")},
    )


def structure_points(run: Run) -> list[Point]:
    """What keeping lists spares the link, and whose accuracy is the highest after as much time."""
    found, reads = list[Point](), structure_reads(run).to_dict("records")
    if reads:
        said = [
            f"{quantity(float(one['read']), 'B')} with {quantity(float(one['kept']), 'B')} of"
            f" {quantity(float(one['lists']), 'B')} of lists on the GPU"
            for one in reads
        ]
        found.append(Point(f"drawing an epoch on a GPU reads {listed(said)} of neighbour lists"))
    table = snapshots(run)
    for family, mine in table.groupby("family", sort=False):
        ordered = mine.sort_values("then", ascending=False)
        by = quantity(float(mine["by"].iloc[0]), "s")
        found.append(
            Point(
                f"test accuracy after {by} of training{{on}}: {{each}}",
                subjects=tuple(map(str, ordered["structure"])),
                values=tuple((float(x), float(x), float(x)) for x in ordered["then"]),
                unit="share",
                workloads=(str(family),) if table["family"].nunique() > 1 else (),
            )
        )
    return found


STRUCTURE = View(
    name="structure",
    title="Neighbour lists, and sampling that remembers",
    applies=lambda run: bool(len(structure_reads(run)) or len(snapshots(run))),
    tables=_tables,
    charts={"structure_accuracy": structure_accuracy, "structure_bytes": structure_bytes},
    points=structure_points,
)
