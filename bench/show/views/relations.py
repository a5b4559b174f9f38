"""Models that tell kinds of edges apart, beside those that do not, on the same minibatches.

Training alone is compared: fetches are those of one path. Layers of the same values differ in time
and in the memory of a step; models in how often they are right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from gatherbench.bench.plan.workload import MODELS, RELATIONAL
from gatherbench.bench.read.derive import repeat_logs, with_ends_of
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import quantity
from gatherbench.bench.run.rows import SERIES, Key
from gatherbench.bench.show.chart import Chart, Line
from gatherbench.bench.show.charts import chart_of, panel_of
from gatherbench.bench.show.figures.draw import drawn
from gatherbench.bench.show.table import WHAT, Column, Table, tabulate, with_kind
from gatherbench.bench.show.view import View
from gatherbench.stats.interval import Interval, interval_of


@dataclass(frozen=True, slots=True)
class Trained:
    """A series of a graph on which a relational model was trained.

    Attributes:
        graph: what its workload shares with others, in words.
        model: of :data:`MODELS`.
        train: seconds of training an epoch: geometric mean over repeats of their medians.
        faster: so many times as long PyG's layer of the same values takes; ``None`` of that itself.
        peak: bytes that tensors of a step take at a time.
        distinct: pairs of a source and a kind, for each edge of a block.
        accuracy: share of test nodes, median over repeats.
    """

    key: Key
    graph: str
    model: str
    train: Interval
    faster: Interval | None
    peak: float | None
    distinct: float | None
    accuracy: float | None


def trained(run: Run) -> list[Trained]:
    """In the plan's order."""
    logs = repeat_logs(run.values("train", "wall_time"))
    accuracy = run.values("eval", "test_accuracy").groupby(SERIES).median()
    peak = run.values("train", "peak").groupby(SERIES).median()
    pairs, edges = (
        run.values("sample", metric, basis="declared").groupby("workload").median()
        for metric in ("pairs", "edges")
    )
    distinct = pairs / edges
    models = {ident: fields["model"] for ident, fields in run.plan["workloads"].items()}
    found = []
    for name, members in run.alike(model=""):
        if not any(models[one] in RELATIONAL for one in members):
            continue
        for key in (key for one in members for key in logs if key.workload == one):
            model = models[key.workload]
            base = next((one for one in members if models[one] == RELATIONAL.get(model)), "")
            theirs = logs.get(key._replace(workload=base)) if base != key.workload else None
            faster = interval_of((1, theirs), (-1, logs[key])) if theirs else None
            counted = peak.get(tuple(key)), distinct.get(key.workload), accuracy.get(tuple(key))
            graph, train = " ".join(name.split()), interval_of((1, logs[key]))
            found.append(Trained(key, graph, model, train, faster, *counted))
    return found


def _by_graph(run: Run) -> dict[str, list[Trained]]:
    found: dict[str, list[Trained]] = {}
    for one in trained(run):
        found.setdefault(one.graph, []).append(one)
    return found


def _fields(one: Trained) -> dict[str, object]:
    """Of a table's line."""
    ends = with_ends_of(
        train=one.train.ends, faster=one.faster.ends if one.faster else (math.nan,) * 3
    )
    said = {**one.key._asdict(), "workload": one.graph, "model": MODELS.get(one.model, one.model)}
    counted = {name: getattr(one, name) for name in ("peak", "distinct", "accuracy")}
    return {**said, **ends, **counted}


def _table(run: Run) -> Table:
    columns = [
        *WHAT,
        Column("model", "model", short="model"),
        Column("train", "training an epoch", "s", interval=True, short="train"),
        Column("faster", "PyG’s layer takes", "×", interval=True, short="PyG’s"),
        Column("peak", "peak of a step", "B", short="peak"),
        Column("distinct", "distinct source and kind an edge", "share", short="U/E"),
        Column("accuracy", "test nodes told rightly", "share", short="right"),
    ]
    return tabulate(
        "relations",
        "Training with the kinds of edges and without, on the same minibatches",
        columns,
        with_kind(pd.DataFrame([_fields(one) for one in trained(run)])),
        title="Kinds of edges",
        note="PyG’s: so many times as long PyG’s own layer of the same values trains. Peak: bytes"
        " of a step’s tensors at a time, counted on the first minibatch. U/E: distinct pairs of a"
        " source and a kind for each edge of a block, which compact layers compute once.",
    )


def relations(run: Run) -> Chart:
    panels = []
    for graph, mine in _by_graph(run).items():
        lines = [
            Line(
                MODELS.get(one.model, one.model),
                "" if one.peak is None else f"peak {quantity(one.peak, 'B')}",
                parts={one.key.strategy: one.train.value},
                ends=one.train.ends[1:],
            )
            for one in mine
        ]
        panels.append(panel_of(graph, "s", lines))
    return chart_of(
        run,
        panels,
        ident="relations",
        title="Training with the kinds of edges and without",
        reading="Bars: training of an epoch, whiskers its 95 % interval over repeats. Beside each"
        " name: the most memory that tensors of a step take at a time.",
        quantity="training per epoch",
    )


RELATIONS = View(
    name="relations",
    title="Kinds of edges",
    applies=lambda run: (
        any(fields["model"] in RELATIONAL for fields in run.plan["workloads"].values())
        and not run.values("train", "wall_time").empty
    ),
    frame=lambda run: [_table(run)],
    figure=lambda run: drawn(run, relations=relations),
)
