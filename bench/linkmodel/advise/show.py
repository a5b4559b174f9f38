"""Advice for a reader, and as JSON for a program."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gatherbench.bench.linkmodel.advise.rank import MEASURED, Advice, Option, gib, seconds

#: Of the JSON: raised when a field changes its meaning or goes away.
SCHEMA_VERSION = 1


def render(advice: Advice) -> RenderableType:
    """The headline, the ranking, what could not be ranked, and what the answer stands on."""
    parts: list[RenderableType] = [Text(advice.headline, style="bold"), Text()]
    if advice.ranked:
        parts += [_ranking(advice), Text(), *_reasons(advice)]
    for option in advice.unranked:
        parts.append(Text(f"not ranked: {_name(option)}. {option.reason}", style="yellow"))
    parts += [Text(), Text(_stands_on(advice))]
    parts += [Text(f"assumed or left out: {remark}", style="dim") for remark in advice.remarks]
    return Group(*parts)


def to_json(advice: Advice) -> dict[str, Any]:
    """The same as plain values; times in seconds, sizes in bytes, ``null`` for what is not known.

    ``strategies`` stand in the order of their rank; those without one follow.
    """
    question, sizes = advice.question, advice.sizes
    asked = asdict(question)
    asked["graph"].pop("assumed")
    asked["graph"] |= {"row_bytes": question.graph.row_bytes}
    asked["graph"] |= {"table_bytes": question.graph.table_bytes}
    return {
        "schema_version": SCHEMA_VERSION,
        "headline": advice.headline,
        "table_fits_in_gpu": advice.table_fits,
        "question": asked,
        "minibatch": {
            "num_nodes": [round(n, 1) for n in sizes.num_nodes],
            "num_edges": [round(n, 1) for n in sizes.num_edges],
            "per_epoch": question.batches,
            "source": sizes.source,
        },
        "profile": {"name": advice.profile.name, "unknown": advice.profile.unknown()},
        "strategies": [
            {"rank": rank, **asdict(option)} for rank, option in enumerate(advice.ranked, start=1)
        ]
        + [{"rank": None, **asdict(option)} for option in advice.unranked],
        "remarks": list(advice.remarks),
    }


def _ranking(advice: Advice) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("", justify="right")
    table.add_column("strategy", no_wrap=True)
    for name in ("epoch", "GPU", "pinned"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for rank, option in enumerate(advice.ranked, start=1):
        table.add_row(
            str(rank),
            _name(option),
            seconds(option.epoch_s or 0.0),
            gib(option.gpu_bytes),
            gib(option.pinned_bytes) if option.pinned_bytes else "none",
            Text(option.basis, style="green" if option.basis == MEASURED else "cyan"),
        )
    return table


def _reasons(advice: Advice) -> list[Text]:
    """Why each stands where it does, by rank: sentences, which no column of a table would hold."""
    ranks: dict[str, list[str]] = {}
    for rank, option in enumerate(advice.ranked, start=1):
        why = option.reason if option.basis != MEASURED else f"{option.source}."
        ranks.setdefault(why, []).append(str(rank))
    return [Text(f"{', '.join(these)}: {why}") for why, these in ranks.items()]


def _stands_on(advice: Advice) -> str:
    question, sizes = advice.question, advice.sizes
    graph = question.graph
    what = f"{graph.name}: " if graph.name else ""
    gpus = f" on {question.gpus} GPUs" if question.gpus > 1 else ""
    if question.machines > 1:
        gpus += f"{' in each of' if gpus else ' on'} {question.machines} machines"
    return (
        f"{what}{graph.nodes:,} nodes, {graph.edges:,} edges, rows of {graph.row_bytes:,} B;"
        f" {question.batches:,} minibatches an epoch{gpus} of {sizes.rows:,.0f} rows each"
        f" ({sizes.source}). Modelled times: profile {advice.profile.name}"
        f" ({advice.profile.description}); they are predictions, and METHODOLOGY.md says how"
        " far such predictions are off."
    )


def _name(option: Option) -> str:
    return option.strategy if option.variant == "default" else f"{option.strategy} {option.variant}"
