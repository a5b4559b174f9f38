"""What ``gatherbench hits`` prints, keeps and draws: hit rates over the share that is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Group, RenderableType
from rich.text import Text

from gatherbench.bench.model.advise.question import Graph
from gatherbench.bench.model.hits import (
    COLUMNS,
    SHOWN,
    WORTH,
    Hits,
    KeptShare,
    policies,
    simulated,
)
from gatherbench.bench.read.reference import load_reference
from gatherbench.bench.read.units import quantity, span
from gatherbench.bench.show.figures.curves import CurveAxes, curves
from gatherbench.bench.show.looks import FAINT
from gatherbench.bench.show.terminal import frame
from gatherbench.strategies.cached_zero_copy import CachedZeroCopy
from gatherbench.strategies.disk_cached import DiskCached

#: The table of published hit rates, below ``results/reference``.
PUBLISHED = "cache_hit_rates"
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
#: Points whose hit rates differ by less (%) share a name in the picture.
_CLOSE = 12
#: The share at which the published graphs are named (%).
_NAMED_AT = 10.0


def table_of(hits: Hits) -> pd.DataFrame:
    """The rates as a tidy table, in SI units: ``hits.csv``."""
    first = {"workload": hits.workload.trace_id, "dataset": hits.graph.name}
    first["scale"] = f"{hits.workload.scale:g}"
    kept = hits.rates["rows_kept"] * hits.graph.row_bytes
    counted = hits.rates.assign(bytes_kept=kept, basis="measured", source=_counted(hits))
    return pd.concat([pd.DataFrame(first, index=counted.index), counted], axis=1)


def to_json(hits: Hits, kept: KeptShare | None, remarks: Sequence[str] = ()) -> dict[str, Any]:
    """The same as plain values; ``kept`` and ``remarks`` as in :func:`render`."""
    return {
        "workload": asdict(hits.workload),
        "counted": _counted(hits),
        "rates": table_of(hits)[[*COLUMNS, "bytes_kept", "basis"]].to_dict("records"),
        "kept_share": kept and {**asdict(kept), "basis": "modelled", "enough_percent": kept.enough},
        "remarks": list(remarks),
    }


def render(hits: Hits, kept: KeptShare | None, remarks: Sequence[str] = ()) -> RenderableType:
    """The rates at the usual shares, and at which share more is not worth it.

    Args:
        kept: what the rates are worth on a machine.
        remarks: on that machine's profile.
    """
    title = (
        f"{_graph(hits)}: hit rate in %, per fetched row / per distinct row,\n"
        "by the share of the table that is kept in memory"
    )
    table = frame(title, "policy", numbers=(f"{share / 10:g} %" for share in SHOWN))
    rates = hits.rates.set_index(["policy", "share"])
    for name in hits.rates["policy"].unique():
        found = [rates.loc[(name, share / 1000)] for share in SHOWN]
        cells = [f"{100 * one.per_fetched:.1f} / {100 * one.per_distinct:.1f}" for one in found]
        table.add_row(str(name), *cells)
    parts: list[RenderableType] = [table, Text(f"{_counted(hits)}. {_asides(hits)}".strip())]
    if kept is not None:
        parts += [Text(), Text(worth(kept, hits.graph))]
        said = (*remarks, *kept.remarks)
        parts += [Text(f"assumed or left out: {remark}", style="dim") for remark in said]
    return Group(*parts)


def worth(kept: KeptShare, graph: Graph) -> str:
    """At which share one more percent of the table is not worth it, in words."""
    said = f"Modelled, profile {kept.profile}, rows by {kept.policy}: "
    if kept.unknown:
        return f"{said}no epoch is known, for want of {'; '.join(kept.unknown)}."
    if not kept.epochs_s:
        return f"{said}the GPU has not even memory for the training."
    ends = [line[0] for line in kept.epochs_s], [line[-1] for line in kept.epochs_s]
    last = len(kept.epochs_s[0]) - 1
    said += (
        f"a whole epoch takes {_span(ends[0])} with nothing kept and {_span(ends[1])} with {last} %"
    )
    said += f" of the table ({quantity(last / 100 * graph.table_bytes, 'B')}). "
    lines = zip(kept.enough, kept.epochs_s, strict=True)
    found = {(p, line[p]) for p, line in lines if p is not None}
    if found:
        percents, seconds = zip(*sorted(found), strict=True)
        ends_of = " to ".join(f"{p} %" for p in dict.fromkeys((percents[0], percents[-1])))
        said += (
            f"At {ends_of}, where it takes {_span(seconds)}, one more percent first shortens it by"
            f" less than {100 * WORTH:g} %: gains are small from there on, but they add up. "
        )
    if len(found) < len(kept.enough):
        said += f"{'Or, by its ranges, e' if found else 'E'}ach percent shortens it by more. "
    if kept.room is None:
        return f"{said}The profile does not say how much memory the GPU has."
    if last < 100:
        return f"{said}There the GPU's memory ends."
    return f"{said}The GPU has memory for the whole table."


def figure_of(hits: Hits, reference: Path) -> Figure:
    """Hit rate over share, a line a policy, beside published ones (rows in ``reference``)."""
    known = policies()
    # Bound and control last, so that the others keep their colours without them.
    counted = hits.rates.sort_values(
        "policy",
        key=lambda names: names.map(lambda name: known[name].aside is not None),
        kind="stable",
    )
    counted = counted.assign(
        kind="measured",
        series=counted["policy"].map(_named),
        x=100 * counted["share"],
        y=100 * counted["per_fetched"],
    )
    published = published_rates(reference)
    figure = curves(
        pd.concat([counted, published]),
        {"published": f"{PUBLISHED}.csv is not in {reference}"},
        CurveAxes(
            "share of the rows that are kept (%)", "hit rate per fetched row (%)", _TICKS, True
        ),
        title=f"How many of the rows that training asks for a cache holds: {_graph(hits)}",
        foot=f"Left: {_counted(hits)}. Right: other graphs, with three layers;"
        " the random policy is the same on each, and what is not at 10 % is papers100M.",
        kinds=("measured", "published"),
        names={"measured": f"{_graph(hits)}, counted"},
        styles={_named(name): _style(path) for name, path in known.items()},
    )
    _name_graphs(figure, published)
    return figure


def published_rates(reference: Path) -> pd.DataFrame:
    """Published hit rates: ``kind``, ``series``, ``graph``, ``x`` and ``y`` (per cent)."""
    rows = load_reference(reference)
    rows = rows[rows["table"] == PUBLISHED]
    words = [str(variant).split(",") for variant in rows["variant"]]  # policy, share
    return pd.DataFrame(
        {
            "kind": "published",
            "series": [_named(policy) for policy, _ in words],
            "graph": rows["dataset"],
            "x": [float(share.removesuffix("%")) for _, share in words],
            "y": 100 * rows["value"],
        }
    )


def _name_graphs(figure: Figure, published: pd.DataFrame) -> None:
    """Each graph's name beside its points at 10 %, once for points that lie close together.

    What holds no more than its share, as rows by lot do, is the same on every graph.
    """
    named = published[(published["x"] == _NAMED_AT) & (published["y"] > _NAMED_AT + 1)]
    for graph, points in named.groupby("graph"):
        heights = points["y"].sort_values()
        for _, near in heights.groupby((heights.diff() > _CLOSE).cumsum()):
            figure.axes[-1].annotate(
                str(graph).removeprefix("ogbn-"), (_NAMED_AT, near.max()), xytext=(5, 0),
                textcoords="offset points", va="center", fontsize=6.5, color=FAINT,
            )  # fmt: skip


def _graph(hits: Hits) -> str:
    scale = hits.workload.scale
    return hits.graph.name + ("" if scale == 1 else f"@{scale:g}")


def _named(policy: str) -> str:
    aside = policies()[policy].aside
    return f"{policy}, {aside}" if aside else policy


def _style(path: CachedZeroCopy | DiskCached) -> dict[str, Any]:
    """Bound and control are dashed; only what was simulated at few shares has markers."""
    dashed = (0, (4, 2)) if path.aside else "-"
    return {"marker": "o" if simulated(path) else "", "linestyle": dashed}


def _counted(hits: Hits) -> str:
    workload = hits.workload
    return (
        f"Counted on {hits.batches} minibatches that ask for {hits.fetched:,} rows (fan-outs"
        f" {','.join(map(str, workload.fanouts))}, {workload.batch_size} seed nodes, seed"
        f" {workload.seed}); policies that learn have seen others"
    )


def _asides(hits: Hits) -> str:
    known = policies()
    asides = {name: known[name].aside for name in hits.rates["policy"].unique()}
    if "belady" in asides:
        told = f"it hears of {DiskCached().superbatch} minibatches beforehand"
        asides["belady"] = f"{told} and replaces rows, so it may hold more than the oracle"
    return "".join(f"{name}: {aside}. " for name, aside in asides.items() if aside)


def _span(values: Sequence[float]) -> str:
    return span(min(values), max(values), "s")
