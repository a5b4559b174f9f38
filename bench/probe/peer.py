"""A live peer beside our gather: WholeGraph's own library, where it is installed.

A launch policy "of WholeGraph" is our kernel; this is theirs. Both gather the same ids from host
tables with the same bytes, in turns. WholeGraph allocates its output and sorts ids as it sees fit
within the time; ours is timed without and with the sort. Before anything is timed the rows are
compared.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gatherbench.bench.probe.cases import OUR_BEST
from gatherbench.bench.probe.gpu import GpuStand, event_seconds
from gatherbench.bench.probe.stand import EVENTS, Observation, RefusedError, visit
from gatherbench.bench.read.points import Point, Row
from gatherbench.kernels.order import read_order
from gatherbench.strategies.knowledge import Ranks

SPAN_BYTES = 2 << 30
READ_BYTES = 128 << 20
#: Floats of a row.
WIDTHS = (16, 100, 128, 353, 602, 1024)
FEWEST_ROUNDS = 3


class WholeGraph:
    """Their library, started for one process, or for all ranks of ``torch.distributed``'s group."""

    def __init__(self, ranks: Ranks | None = None) -> None:
        """Raises whatever importing and starting the library raises."""
        if importlib.util.find_spec("librmm") is not None:
            # Their own loader finds it by way of libraft, which they need for nothing else.
            importlib.import_module("librmm").load_library()
        self.version = str(importlib.import_module("pylibwholegraph").__version__)
        self._start = importlib.import_module("pylibwholegraph.torch.initialize")
        self._tensors = importlib.import_module("pylibwholegraph.torch.tensor")
        self._joined = dist.is_initialized()
        if self._joined:
            ranks = ranks or Ranks(0, 1, 1)
            world = ranks.rank, ranks.world, ranks.rank % ranks.local_world, ranks.local_world
            self._start.init(*world, wm_log_level="warn")
            self._comm = self._start.get_global_communicator()
        else:
            self._comm, _ = self._start.init_torch_env_and_create_wm_comm(
                0, 1, 0, 1, wm_log_level="warn"
            )

    def table(self, values: Tensor, kind: str = "continuous", location: str = "cpu") -> Any:
        """A table of theirs with these ``values`` ``[N, D]``, of which a rank fills its part.

        Args:
            kind: ``continuous``: each rank sees all of it; or ``distributed``: they ask each other.
            location: ``cpu`` or ``cuda``.
        """
        rows, width = values.shape
        theirs = self._tensors.create_wholememory_tensor(
            self._comm, kind, location, [rows, width], values.dtype, [width, 1]
        )
        local, first = theirs.get_local_tensor(host_view=location == "cpu")
        local.copy_(values[first : first + len(local)])
        if self._joined:
            torch.cuda.synchronize()
            self._comm.barrier()
        return theirs

    def free(self, table: Any) -> None:
        """Give the table back."""
        self._tensors.destroy_wholememory_tensor(table)

    def close(self) -> None:
        """End the library and its process group, which else complains, or waits, at exit."""
        if self._joined:  # their own end would destroy the group that the ranks train in
            self._start.wmb.finalize()
            self._start.reset_communicators()
        else:
            self._start.finalize()


def measure(
    add: Callable[[Row], None], until: float, _wanted: Callable[[Point], bool], most_rounds: int = 0
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
    add: Callable[[Row], None],
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
