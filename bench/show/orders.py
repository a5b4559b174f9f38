"""What ``gatherbench orders`` prints, keeps and draws."""

from __future__ import annotations

import pandas as pd
from rich.console import Group, RenderableType
from rich.text import Text

from gatherbench.bench.model.estimate import Estimate
from gatherbench.bench.model.orders import GIVEN, PAGES, OrderCounts
from gatherbench.bench.read.units import quantity
from gatherbench.bench.show.chart import Axis, Chart, Line, Panel
from gatherbench.bench.show.terminal import frame


def render(counts: OrderCounts) -> RenderableType:
    """A line an order: pages that a minibatch touches, and what finding the order took."""
    heads = [f"{kind}: {_page(size)}" for kind, size in PAGES.items()]
    heads += [f"read from {kind}" for kind in PAGES]
    table = frame(f"{counts.workload.dataset}: distinct pages of a minibatch", "order",
                  numbers=(*heads, "found in"))  # fmt: skip
    given = counts.orders[0].pages
    for one in counts.orders:
        cells = [_cell(one.pages[kind], given[kind], one.order) for kind in PAGES]
        cells += [_modelled(one.read[kind]) for kind in PAGES]
        table.add_row(one.order, *cells, "–" if one.order == GIVEN else quantity(one.found_s, "s"))
    fewest = counts.orders[0].fewest
    table.add_row("fewest", *(f"{fewest[kind]:,.0f}" for kind in PAGES), "", "", "–")
    said = (
        f"{_counted(counts)} Fewest: as many pages as these rows fill side by side. Read: modelled"
        f" for profile {counts.profile}, not measured: a minibatch in ascending order."
    )
    return Group(table, Text(said))


def table_of(counts: OrderCounts) -> pd.DataFrame:
    """The counts as a tidy table: ``orders.csv``."""
    return pd.DataFrame(
        {
            "workload": counts.workload.trace_id,
            "order": one.order,
            "place": kind,
            "page_bytes": size,
            "pages_per_minibatch": one.pages[kind],
            "fewest": one.fewest[kind],
            "found_s": one.found_s,
            "basis": "measured",
            "source": "count over the minibatches; found_s: time.perf_counter",
            "modelled_read_s": one.read[kind].value,
            "modelled_for": counts.profile,
        }
        for one in counts.orders
        for kind, size in PAGES.items()
    )


def chart_of(counts: OrderCounts) -> Chart:
    """Bars of pages, a panel a kind of memory."""
    panels = []
    for kind, size in PAGES.items():
        values = [one.pages[kind] for one in counts.orders]
        given = values[0]
        lines = [
            Line(
                one.order,
                "" if one.order == GIVEN else f"found in {quantity(one.found_s, 's')}",
                parts={"pages": value},
                text=_cell(value, given, one.order),
            )
            for one, value in zip(counts.orders, values, strict=True)
        ]
        title = f"{kind} memory: {_page(size)}"
        panels.append(Panel(title, lines, Axis.of("1", values)))
    return Chart(
        "orders",
        f"Pages that a minibatch touches, by the order of the nodes: {counts.workload.dataset}",
        "Shorter is better: each page is an address that the GPU has to translate.",
        "distinct pages of a minibatch",
        panels,
        {"pages": ("counted", "blue")},
        foot=f"{_counted(counts)} {_reads(counts)}",
    )


def _reads(counts: OrderCounts) -> str:
    """What fewer pages gain, by the model, in words."""
    each = "; ".join(
        f"from {kind} memory "
        + ", ".join(f"{one.order} {_modelled(one.read[kind])}" for one in counts.orders)
        for kind in PAGES
    )
    return (
        f"Modelled for profile {counts.profile}, not measured: to read a minibatch in ascending"
        f" order takes {each}."
    )


def _modelled(seconds: Estimate) -> str:
    return "unknown" if seconds.value is None else quantity(seconds.value, "s")


def _page(size: int) -> str:
    return f"pages of {size >> 20} MiB" if size >= 1 << 20 else f"pages of {size >> 10} KiB"


def _cell(value: float, given: float, order: str) -> str:
    return f"{value:,.0f}" + ("" if order == GIVEN else f" ({value / given - 1:+.0%})")


def _counted(counts: OrderCounts) -> str:
    work = counts.workload
    fanouts = ",".join(map(str, work.fanouts))
    return (
        f"Counted on {counts.batches} minibatches of {counts.rows:,.0f} rows of"
        f" {counts.row_bytes:,} B (fan-outs {fanouts}, {work.batch_size} seed nodes, seed"
        f" {work.seed}), the same ones in every order."
    )
