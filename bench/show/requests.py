"""What ``gatherbench requests`` prints: each launch policy's requests on the link, row by row.

Computed by request accounting from the addresses that a gather's lanes load. Nothing is measured
and no GPU is needed, so the table can be had for a graph that one does not have yet.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from rich.table import Table

from gatherbench.bench.read.units import ITEM_BYTES
from gatherbench.bench.show.terminal import frame
from gatherbench.kernels.grid import LINE_BYTES, SECTOR_BYTES
from gatherbench.kernels.policies import POLICIES, Policy
from gatherbench.kernels.requests import RequestRow, request_table
from gatherbench.plugins import nearest

COMPUTED = "computed by request accounting, not measured"
MAX_REQUESTS = tuple(range(SECTOR_BYTES, LINE_BYTES + 1, SECTOR_BYTES))


class BadRequestError(ValueError):
    """What was asked for does not exist; the message names the nearest that does."""


def rows_of(
    dim: int, dtype: str, policies: Sequence[str] = (), max_request: int = LINE_BYTES
) -> list[RequestRow]:
    """The counts for rows of ``dim`` elements, uniform ids, a table on a line boundary.

    Args:
        policies: names; all for none.
        max_request: the largest read request on the link, 32, 64, 96 or 128 B.

    Raises:
        BadRequestError: no such dtype, policy or size.
    """
    item_bytes = ITEM_BYTES[_known("dtype", dtype, ITEM_BYTES)]
    chosen = [POLICIES[_known("policy", name, POLICIES)] for name in dict.fromkeys(policies)]
    if max_request not in MAX_REQUESTS:
        sizes = ", ".join(map(str, MAX_REQUESTS))
        raise BadRequestError(f"--max-request {max_request}: choose from {sizes} bytes")
    try:
        return request_table(dim, item_bytes, chosen or None, max_request=max_request)
    except ValueError as error:
        raise BadRequestError(str(error)) from error


def render(rows: Sequence[RequestRow], dim: int, dtype: str, max_request: int) -> Table:
    """The table for a reader; everything is per gathered row."""
    title = (
        f"{dim} × {dtype} = {rows[0].row_bytes:,} B a row: reads on the link per row, of up to"
        f" {max_request} B\n{COMPUTED}"
    )
    sizes = list(rows[0].counts.requests)
    numbers = ("sectors", "lines", "requests", *(f"{size} B" for size in sizes), "link B", "over")
    table = frame(title, "policy\nlaunch", numbers=numbers)
    table.columns[0].no_wrap = False  # and two lines: all stands in 80 columns
    for row in rows:
        counts = row.counts
        table.add_row(
            f"{row.policy.name}\n  {launch(row)}",
            *(
                f"{n / counts.rows:.2f}"
                for n in (
                    counts.sectors,
                    counts.lines,
                    counts.num_requests,
                    *(counts.requests[size] for size in sizes),
                )
            ),
            f"{counts.link_bytes() / counts.rows:,.0f}",
            f"{1 / row.link_efficiency - 1:+.0%}",
        )
    table.caption = (
        "A policy is how a system launches its gather, on our kernel: `gatherbench list policies`. "
        "A sector has 32 B, a line 128 B. Link bytes are the sectors that are read and 20 B of "
        "header for each request; “over” is by how much they exceed the row."
    )
    table.caption_justify = "left"
    return table


def launch(row: RequestRow) -> str:
    """The point of the grid in words: bytes a lane loads, mapping, shift, order of the ids."""
    point = row.point
    words = [f"{point.width} B", point.mapping]
    if point.shift != "none":
        words.append(point.shift)
    if row.policy.order_of(row.row_bytes) == "sorted":
        words.append("sorted")
    return " ".join(words)


def to_csv(rows: Sequence[RequestRow], dim: int, dtype: str, max_request: int) -> str:
    """The same as CSV, with the counts undivided: ``rows`` says by what."""
    sizes = list(rows[0].counts.requests)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["policy", "dim", "dtype", "row_bytes", "max_request_bytes", "access_bytes", "mapping"]
        + ["shift", "order", "rows", "sectors", "lines", "requests"]
        + [f"requests_{size}B" for size in sizes]
        + ["link_bytes", "payload_bytes", "source"]
    )
    for row in rows:
        counts, point = row.counts, row.point
        order = row.policy.order_of(row.row_bytes)
        writer.writerow(
            [row.policy.name, dim, dtype, row.row_bytes, max_request, point.width, point.mapping]
            + [point.shift, order, counts.rows, counts.sectors, counts.lines, counts.num_requests]
            + [counts.requests[size] for size in sizes]
            + [counts.link_bytes(), counts.rows * row.row_bytes, COMPUTED]
        )
    return text.getvalue()


def policies_table() -> Table:
    """Every launch policy, for ``gatherbench list policies``."""
    table = Table("policy", "whose", "launch")
    table.add_column("source", overflow="fold")
    for policy in POLICIES.values():
        table.add_row(policy.name, policy.label, _rule(policy), policy.source)
    return table


def _rule(policy: Policy) -> str:
    """What a policy decides before it has seen a table."""
    width = f"{policy.width} B" if isinstance(policy.width, int) else policy.width
    words = [f"{width} accesses", f"{policy.mapping} mapping"]
    if policy.shift != "none":
        words.append(f"{policy.shift} shift above {policy.shift_above} B")
    if policy.order != "given":
        words.append(policy.order)
    return ", ".join(words)


def _known(what: str, name: str, known: Iterable[str]) -> str:
    names = list(known)
    if name in names:
        return name
    there_are = f"there are {', '.join(names)}{nearest(name, names)}"
    raise BadRequestError(f"no {what} is called {name!r}; {there_are}")
