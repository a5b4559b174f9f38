"""Models that tell kinds of edges apart, beside those that do not, on the same minibatches.

Training alone is compared: fetches are those of one path. Layers of the same values differ in time
and in the memory of a step; models in how often they are right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from gatherbench.bench.plan.workload import MODELS, RELATIONAL
from gatherbench.bench.read.derive import repeat_logs
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import quantity
from gatherbench.bench.run.rows import SERIES, Key
from gatherbench.bench.show.answer import Point
from gatherbench.bench.show.chart import Axis, Chart, Line, Panel
from gatherbench.bench.show.provenance import provenance, warnings_of
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


def _by_graph(run: Run) -> Iterator[tuple[str, list[Trained]]]:
    lines = trained(run)
    for graph in dict.fromkeys(one.graph for one in lines):
        yield graph, [one for one in lines if one.graph == graph]


def _fields(one: Trained) -> dict[str, object]:
    """Of a table's line."""
    ends = {"train": one.train.ends, "faster": one.faster.ends if one.faster else (None,) * 3}
    flat = {
        f"{name}{end}": value
        for name, three in ends.items()
        for end, value in zip(("", "_low", "_high"), three, strict=True)
    }
    said = {**one.key._asdict(), "workload": one.graph, "model": MODELS.get(one.model, one.model)}
    counted = {name: getattr(one, name) for name in ("peak", "distinct", "accuracy")}
    return {**said, **flat, **counted}


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
    for graph, mine in _by_graph(run):
        ends = [one.train.ends for one in mine]
        axis = Axis.of("s", [one.train.value for one in mine], [high for *_, high in ends])
        lines = [
            Line(
                MODELS.get(one.model, one.model),
                "" if one.peak is None else f"peak {quantity(one.peak, 'B')}",
                parts={one.key.strategy: value},
                ends=None if one.train.repeats == 1 else (low, high),
                text=axis.said(value),
            )
            for one, (value, low, high) in zip(mine, ends, strict=True)
        ]
        panels.append(Panel(graph, lines, axis))
    return Chart(
        "relations",
        "Training with the kinds of edges and without",
        "Bars: training of an epoch, whiskers its 95 % interval over repeats. Beside each name: the"
        " most memory that tensors of a step take at a time.",
        "training per epoch",
        panels,
        warnings=warnings_of(run),
        foot=provenance(run),
    )


def relations_points(run: Run) -> list[Point]:
    """For each graph the most accurate model with kinds and without, and the fastest layer."""
    found, several = list[Point](), len(list(_by_graph(run))) > 1
    for graph, mine in _by_graph(run):
        on = (graph,) if several else ()
        sides = [
            [
                one
                for one in mine
                if one.accuracy is not None and (one.model in RELATIONAL) is with_kinds
            ]
            for with_kinds in (True, False)
        ]
        if all(sides):
            best = [max(side, key=lambda one: one.accuracy or 0.0) for side in sides]
            shares = (one.accuracy or 0.0 for one in best)
            found.append(
                Point(
                    "test nodes told rightly{on}: {each}",
                    subjects=tuple(MODELS[one.model] for one in best),
                    values=tuple((share, share, share) for share in shares),
                    unit="share",
                    workloads=on,
                )
            )
        if sure := [one for one in mine if one.faster and one.faster.low > 1]:
            one = max(sure, key=lambda one: one.faster.value if one.faster else 0.0)
            found.append(
                Point(
                    "{names} trains{on}: {values}{as_fast}",
                    verdict="FAST",
                    subjects=(MODELS[one.model],),
                    values=(one.faster.ends,) if one.faster else (),
                    over="PyG’s layer",
                    workloads=on,
                )
            )
    return found


RELATIONS = View(
    name="relations",
    title="Kinds of edges",
    applies=lambda run: (
        any(fields["model"] in RELATIONAL for fields in run.plan["workloads"].values())
        and not run.values("train", "wall_time").empty
    ),
    tables=lambda run: [_table(run)],
    charts={"relations": relations},
    points=relations_points,
)
