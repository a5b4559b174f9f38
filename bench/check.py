"""Correctness before timing: the rows that a data path delivers, and the memory that it reads."""

from __future__ import annotations

from torch import Tensor

from gatherbench.bench.rows import Row, RowMaker
from gatherbench.bench.trace import Trace
from gatherbench.kernels.reference import reference_gather, same_bytes
from gatherbench.strategies.base import Fetcher, Ticket


class WrongRowsError(RuntimeError):
    """A data path delivered other bytes than the table holds."""


class WrongMemoryError(RuntimeError):
    """The table does not lie in the memory that the strategy says it reads."""


def check_rows(fetcher: Fetcher, table: Tensor, trace: Trace, batches: int) -> int:
    """Compare the first minibatches' rows with a plain gather; how many were compared.

    They are kept in flight as the loop keeps them, so that buffers are reused as in the run.

    Raises:
        WrongRowsError: names the minibatch, the row and the column of the first difference.
    """
    ids = [trace.input_ids(i) for i in range(min(len(trace), max(batches, fetcher.lookahead + 2)))]
    tickets: list[Ticket] = []
    for i, wanted in enumerate(ids):
        while len(tickets) <= min(i + fetcher.lookahead, len(ids) - 1):
            tickets.append(fetcher.submit(ids[len(tickets)].to(fetcher.ids_device)))
        got = tickets[i].result()
        if got.device.type != fetcher.device.type:
            raise WrongRowsError(f"minibatch {i} lies on {got.device}, not on {fetcher.device}")
        difference = same_bytes(got.cpu(), reference_gather(table, wanted))
        if difference is not None:
            raise WrongRowsError(f"minibatch {i} of the trace: {difference}")
    return len(ids)


def residency_row(fetcher: Fetcher, make: RowMaker) -> Row:
    """That the table lies where the strategy says; the row's source says where that is.

    Raises:
        WrongMemoryError: it lies elsewhere, so what would be timed is another data path.
    """
    residency = fetcher.residency()
    if residency is None:
        reason = (
            "unsupported: an empty table, or one that only the CPU or another process reads:"
            " CUDA has nothing to say of it here"
        )
        return make.missing("check", "residency", "1", "cudaPointerGetAttributes", reason)
    if residency.found != residency.expected:
        raise WrongMemoryError(
            f"the table lies in {residency.found} memory by {residency.source}, "
            f"and the strategy reads {residency.expected} memory: not timed"
        )
    return make.ok("check", "residency", "1", 1, f"{residency.source}: {residency.found}")
