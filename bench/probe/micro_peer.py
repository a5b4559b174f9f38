"""A live peer beside our gather: WholeGraph's own library, where it is installed.

    python -m gatherbench.bench.probe.micro_peer --out FOLDER --budget 25

A launch policy "of WholeGraph" is our kernel; this is theirs. Both gather the same ids from host
tables with the same bytes, in turns. WholeGraph allocates its output and sorts ids as it sees fit
within the time; ours is timed without and with the sort. Before anything is timed the rows are
compared.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gatherbench.bench.probe.micro import SKIPPED
from gatherbench.bench.probe.micro_machine import prepare
from gatherbench.bench.probe.micro_rows import RowFile
from gatherbench.kernels.host_memory import empty_table
from gatherbench.kernels.launch import Table, gather_into, policy_point
from gatherbench.kernels.mapped_memory import HostRegistration
from gatherbench.kernels.order import as_order, read_order

SPAN_BYTES = 2 << 30
READ_BYTES = 128 << 20
#: Floats of a row.
WIDTHS = (16, 100, 128, 353, 602, 1024)
FEWEST_ROUNDS = 3
_SPIN_CYCLES = 200_000


@dataclass(frozen=True, slots=True)
class PeerRow:
    """One timed gather; ``gatherer`` says whose, ``order`` what was done to the ids in the time."""

    gatherer: str
    order: str
    row_bytes: int
    payload_bytes: int
    round: int
    time_s: float
    source: str


class WholeGraph:
    """Their library, started for one process."""

    def __init__(self) -> None:
        """Raises whatever importing and starting the library raises."""
        if importlib.util.find_spec("librmm") is not None:
            # Their own loader finds it by way of libraft, which they need for nothing else.
            importlib.import_module("librmm").load_library()
        self.version = str(importlib.import_module("pylibwholegraph").__version__)
        self._start = importlib.import_module("pylibwholegraph.torch.initialize")
        self._tensors = importlib.import_module("pylibwholegraph.torch.tensor")
        self._comm, _ = self._start.init_torch_env_and_create_wm_comm(
            0, 1, 0, 1, wm_log_level="warn"
        )

    def table(self, values: Tensor) -> Any:
        """A continuous table of theirs in host memory with these ``values`` ``[N, D]``."""
        rows, width = values.shape
        theirs = self._tensors.create_wholememory_tensor(
            self._comm, "continuous", "cpu", [rows, width], values.dtype, [width, 1]
        )
        local, _ = theirs.get_local_tensor(host_view=True)
        local.copy_(values)
        return theirs

    def free(self, table: Any) -> None:
        """Give the table back."""
        self._tensors.destroy_wholememory_tensor(table)

    def close(self) -> None:
        """End the library and its process group, which else complains, or waits, at exit."""
        self._start.finalize()


def measure_width(
    peer: WholeGraph, width: int, budget_s: float, add: Callable[[PeerRow], None]
) -> None:
    """Gather rows of ``width`` floats in turns until the time is spent; three rounds at least.

    Raises:
        RuntimeError: the two do not gather the same rows.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    row_bytes = 4 * width
    rows, count = SPAN_BYTES // row_bytes, READ_BYTES // row_bytes
    words = empty_table((rows, width), torch.int32)  # in huge pages, as the harness keeps a table
    torch.arange(rows * width, out=words.view(-1))
    table = words.view(torch.float32)
    theirs = peer.table(table)
    ids = torch.randperm(rows, device=device)[:count]  # each once, like a minibatch's
    result = torch.empty((count, width), device=device)
    with HostRegistration(table, device.index) as memory:
        seen = Table(memory.address, rows, row_bytes, row_bytes)
        point = policy_point("aligned", row_bytes, 4, memory.address % 16, 0, 8)

        def ours(word: str) -> Tensor:
            order = read_order(ids, as_order(word))
            gather_into(result, seen, order.ids, point, order.out_rows)
            return result

        work: dict[tuple[str, str], Callable[[], Tensor]] = {
            (f"WholeGraph {peer.version}", "its own"): lambda: theirs.gather(ids),
            ("aligned", "given"): lambda: ours("given"),
            ("aligned", "sorted"): lambda: ours("sorted"),
        }
        wanted = table[ids.cpu()].view(torch.int32)
        for (gatherer, order), gather in work.items():
            if not torch.equal(gather().cpu().view(torch.int32), wanted):
                raise RuntimeError(f"{gatherer}, {order}: other rows of {row_bytes} B")
        until = time.monotonic() + budget_s
        number = 0
        while number < FEWEST_ROUNDS or time.monotonic() < until:
            turn = list(work.items())
            random.Random(number).shuffle(turn)
            for (gatherer, order), gather in turn:
                spent, payload = _seconds(gather), count * row_bytes
                clock = "torch.cuda.Event"
                add(PeerRow(gatherer, order, row_bytes, payload, number, spent, clock))
            number += 1
    peer.free(theirs)


def _seconds(work: Callable[[], object]) -> float:
    begin, end = (
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(2)
    )
    torch.cuda.synchronize()
    torch.cuda._sleep(_SPIN_CYCLES)  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def table_of(rows: Sequence[PeerRow]) -> str:
    """Median GB/s of payload by width and gatherer."""
    times: dict[tuple[int, str, str], list[float]] = defaultdict(list)
    payload = {}
    for row in rows:
        times[row.row_bytes, row.gatherer, row.order].append(row.time_s)
        payload[row.row_bytes] = row.payload_bytes
    return "\n".join(
        f"{width:5d} B {gatherer}, {order}: {payload[width] / statistics.median(values) / 1e9:.1f}"
        " GB/s"
        for (width, gatherer, order), values in sorted(times.items())
    )


def main(arguments: Sequence[str]) -> int:
    """Measure and print; the exit status."""
    parser = argparse.ArgumentParser(prog="gpu-micro peer")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=25.0)
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("pylibwholegraph") is None:
        print(
            "unsupported: pylibwholegraph is not installed (pip install pylibwholegraph-cu13; for "
            "a machine without a network: make carry PEERS=1)"
        )
        return SKIPPED
    if (problem := prepare(options.out)) is not None:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    peer = WholeGraph()
    with RowFile(options.out / "peer.csv", PeerRow) as file:
        for width in WIDTHS:
            measure_width(peer, width, options.budget / len(WIDTHS), file.add)
    print(table_of(file.rows), flush=True)
    peer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
