"""A live peer beside our gather: WholeGraph's own library, where it is installed.

A launch policy "of WholeGraph" is our kernel; this is theirs. Both gather the same ids from host
tables with the same bytes, in turns. WholeGraph allocates its output and sorts ids as it sees fit
within the time; ours is timed without and with the sort. Before anything is timed the rows are
compared.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable

import torch
from torch import Tensor

from examples.peers.gatherbench_peers import WholeGraph
from gatherbench.bench.probe.cases import OUR_BEST
from gatherbench.bench.probe.gpu import GpuStand, event_seconds
from gatherbench.bench.probe.stand import EVENTS, Observation, RefusedError, visit
from gatherbench.bench.read.points import Point, PointRow
from gatherbench.kernels.order import read_order

SPAN_BYTES = 2 << 30
READ_BYTES = 128 << 20
#: Floats of a row.
WIDTHS = (16, 100, 128, 353, 602, 1024)
FEWEST_ROUNDS = 3


def measure(
    add: Callable[[PointRow], None],
    until: float,
    _wanted: Callable[[Point], bool],
    most_rounds: int = 0,
) -> None:
    """Measure rows of each width for an equal share of the time; three rounds at least.

    Raises:
        RefusedError: the library is not installed.
        RuntimeError: the two do not gather the same rows.
    """
    if importlib.util.find_spec("pylibwholegraph") is None:
        raise RefusedError(
            "unsupported: pylibwholegraph is not installed (pip install pylibwholegraph-cu13; for "
            "a machine without a network: make carry PEERS=1)"
        )
    device = torch.device("cuda", torch.cuda.current_device())
    peer = WholeGraph()
    began = time.monotonic()
    with GpuStand((SPAN_BYTES,), device) as stand:
        for number, width in enumerate(WIDTHS, 1):
            end = began + (until - began) * number / len(WIDTHS)
            measure_width(peer, stand, width, add, end, most_rounds)
    peer.close()


def measure_width(
    peer: WholeGraph,
    stand: GpuStand,
    width: int,
    add: Callable[[PointRow], None],
    until: float,
    most_rounds: int,
) -> None:
    """Gather rows of ``width`` floats in turns until the time is spent.

    Raises:
        RuntimeError: the two do not gather the same rows.
    """
    device, row_bytes = stand.device, 4 * width
    rows, count = SPAN_BYTES // row_bytes, READ_BYTES // row_bytes
    table = stand.bytes[: rows * row_bytes].view(torch.float32).view(rows, width)
    theirs = peer.table(table)
    ids = torch.randperm(rows, device=device)[:count]  # each once, like a minibatch's
    result = stand.out[: count * row_bytes].view(torch.float32).view(count, width)

    def ours(word: str) -> Tensor:
        order = read_order(ids, word)
        stand.gather(OUR_BEST, row_bytes, order.ids, result, rows=rows, places=order.out_rows)
        return result

    gathers: dict[tuple[str, str], Callable[[], Tensor]] = {
        (f"WholeGraph {peer.version}", "its own"): lambda: theirs.gather(ids),
        (OUR_BEST, "given"): lambda: ours("given"),
        (OUR_BEST, "sorted"): lambda: ours("sorted"),
    }
    expected = table[ids.cpu()].view(torch.int32)
    for (whose, order), gather in gathers.items():
        if not torch.equal(gather().cpu().view(torch.int32), expected):
            raise RuntimeError(f"{whose}, {order}: other rows of {row_bytes} B")

    def timed(one: Point) -> Observation:
        seconds = event_seconds(gathers[one.policy, one.order], device)
        return Observation(count * row_bytes, seconds, EVENTS)

    visit(
        [
            Point("peer_gather", row_bytes, SPAN_BYTES, policy=whose, order=order)
            for whose, order in gathers
        ],
        timed,
        add,
        out_of_time=lambda: time.monotonic() > until,
        least_rounds=FEWEST_ROUNDS,
        most_rounds=most_rounds,
    )
    peer.free(theirs)
