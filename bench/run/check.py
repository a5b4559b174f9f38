"""Correctness: check that a data path delivers the right rows and reads the memory it claims.

A path may be right only while it is checked. Rows are compared before anything is timed, in the
warm-up, and after the last epoch. In each timed epoch a few rows of randomly drawn minibatches are
copied, and compared when the clock has stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from random import Random
from typing import NamedTuple, Self

import torch
from torch import Tensor

from gatherbench.bench.run.loop import Watch
from gatherbench.bench.run.part import CHECK_STAGE
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.kernels.host_memory import available_bytes
from gatherbench.kernels.reference import byte_rows, reference_gather, same_bytes
from gatherbench.reason import Reason
from gatherbench.strategies.base import Fetcher, not_plain
from gatherbench.strategies.bounds import ready_ids

#: Why `no_fetch` has no score: it trains on rows that do not belong to the minibatch.
NO_SCORE = "not_applicable: no_fetch trains on the same rows, whatever it is asked for"
COMPARED = "fetched rows compared bit for bit with a plain gather"
_NOWHERE = (
    "unsupported: an empty table, or one that only the CPU or another process reads: CUDA has"
    " nothing to say of it here"
)
#: Minibatches of a timed epoch that are checked, and rows of each; it takes some ten microseconds.
SPOT_BATCHES, SPOT_ROWS = 3, 32
#: The most bytes of rows that are copied for later: to compare them at once would give a prefetch
#: more time during the training than it has in a timed epoch. Scarce memory lowers it to a share.
_KEPT_BYTES, _KEPT_SHARE = 128 << 20, 1 / 8
#: Rows that are gathered at a time: reused memory costs no page faults.
_BLOCK = 4096
#: The growth of a GPU's memory outside torch's that is allowed while managed memory is read: by
#: kernels that are loaded, and by a share of the table. A smaller table could move undetected.
GROWTH_BYTES, GROWTH_SHARE = 1 << 30, 0.1


class WrongRowsError(RuntimeError):
    """A data path delivered bytes that differ from the table's."""

    #: Of the row of stage ``check`` that reports it.
    metric, source = "rows", COMPARED


class WrongThreadsError(WrongRowsError):
    """The rows are right, but torch's number of threads is not the one given to the case."""

    metric, source = "threads", "torch.get_num_threads"


class WrongMemoryError(WrongRowsError):
    """The table is not in the memory that the strategy claims to read."""

    metric, source = "memory", "where CUDA and its memory in use say that the table lies"


@contextmanager
def threads_kept(work: str) -> Iterator[None]:
    """Refuse work that changes torch's number of threads.

    torch, numba and other libraries share one OpenMP runtime, and the last setting of its threads
    wins: a call that only queries numba for a number gives torch all cores back. All rows are right
    then, and every time is wrong.

    Raises:
        WrongThreadsError: it did; the number is restored.
    """
    given = torch.get_num_threads()
    try:
        yield
    finally:
        if (threads := torch.get_num_threads()) != given:
            torch.set_num_threads(given)
    if threads != given:
        raise WrongThreadsError(
            f"torch had {given} threads and now has {threads}: a call in {work}() changed them"
        )


class _KeptRows(NamedTuple):
    """Rows as the training had them; ``ids`` as the path got them, ``left`` after the fetch."""

    where: str
    numbers: range
    ids: Tensor
    left: Tensor
    rows: Tensor


class RowChecker(Watch):
    """Compares the rows that the loop trains on with the table ``[N, D]``, bit for bit.

    Rows are copied alternately before their step, when a path may have handed them out too early,
    and after it, when a fetch in flight may have overwritten them. The checked rows are drawn anew
    for each epoch and case, so that no path can predict them. They have to be on ``device``; those
    of ``no_fetch`` must not depend on the ids. ``rows`` counts those that have been compared.
    """

    def __init__(self, table: Tensor, device: torch.device, *, no_fetch: bool = False) -> None:
        self.rows, self.no_fetch, self.draw = 0, no_fetch, Random()
        self._table, self._device = table, device
        self._most_kept = min(_KEPT_BYTES, int(_KEPT_SHARE * available_bytes()))

    @contextmanager
    def watching(
        self, when: str, few_of: int | None = None, first: Callable[[], None] | None = None
    ) -> Iterator[Self]:
        """Keep rows of one epoch, and compare them at its end, or before if memory is short.

        Args:
            few_of: check a few rows of some of so many minibatches; by default all rows of each.
            first: called once rows have been fetched, and before any is compared: comparing reads
                the table, through the page cache if it is in a file.

        Raises:
            WrongRowsError: on leaving the block; it gives ``when``, and the minibatch, the row
                and the column of the first difference.
        """
        self._when, self._first, self._chosen = when, first, None
        if few_of is not None:
            self._chosen = self.draw.sample(range(few_of), min(SPOT_BATCHES, few_of))
        self._begin, self._kept = self.draw.randrange(2), list[_KeptRows]()
        #: The rows of a minibatch that are checked, and their ids before a path had them.
        self._handed: dict[int, tuple[range, Tensor]] = {}
        try:
            yield self
            self._compare_kept()
        finally:  # a failed case must not hold rows in the GPU's memory
            self._kept.clear()

    def handed(self, number: int, ids: Tensor) -> None:
        if self._chosen is None or number in self._chosen:
            stride = 1 if self._chosen is None else max(1, len(ids) // SPOT_ROWS)
            numbers = range(self.draw.randrange(stride), len(ids), stride)
            self._handed[number] = numbers, ids[numbers.start :: stride].clone()

    def looked_at(self, number: int, ids: Tensor, x: Tensor) -> AbstractContextManager[object]:
        if (why := not_plain(x)) is not None:
            raise WrongRowsError(f"minibatch {number}, {self._when}: {why}")
        handed = self._handed.pop(number, None)
        return nullcontext() if handed is None else self._keep(number, ids, x, *handed)

    @contextmanager
    def _keep(
        self, number: int, ids: Tensor, x: Tensor, numbers: range, before: Tensor
    ) -> Iterator[None]:
        if x.device.type != self._device.type:
            raise WrongRowsError(f"minibatch {number} lies on {x.device}, not {self._device}")
        late = (self._begin + number) % 2
        if late:
            yield
        left = ids[numbers.start :: numbers.step].clone()
        copy = x[numbers.start :: numbers.step].clone(memory_format=torch.contiguous_format)
        where = f"minibatch {number}, {self._when}"
        self._kept.append(_KeptRows(where, numbers, before, left, copy))
        if not late:
            del x  # the step frees it, as without a check
            yield
        if sum(seen.rows.nbytes for seen in self._kept) > self._most_kept:
            self._compare_kept()

    def _compare_kept(self) -> None:
        if self._first is not None:
            self._first()
            self._first = None
        for seen in self._kept:
            self._compare(seen)
        self._kept.clear()

    def _compare(self, seen: _KeptRows) -> None:
        where, rows, table, ids = seen.where, seen.rows.cpu(), self._table, seen.ids.cpu()
        if not torch.equal(seen.left.cpu(), ids):
            raise WrongRowsError(f"{where}: the path changed the ids that it was handed")
        if self.no_fetch:
            last = seen.numbers[-1] if len(seen.numbers) else -1
            ids = ready_ids(last + 1, len(table))[seen.numbers.start :: seen.numbers.step]
        blocks = zip(torch.split(rows, _BLOCK), torch.split(ids, _BLOCK), strict=False)
        alike = (rows.dtype, rows.shape) == (table.dtype, (len(ids), *table.shape[1:]))
        if not alike or not all(
            torch.equal(byte_rows(got), byte_rows(reference_gather(table, wanted)))
            for got, wanted in blocks
        ):
            difference = same_bytes(rows, reference_gather(table, ids), seen.numbers)
            raise WrongRowsError(f"{where}: {difference}")
        self.rows += len(ids)


def memory_beside_torch(device: torch.device) -> int:
    """Return the bytes of GPU memory that are in use by all processes, without torch's own."""
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)


def growth_row(grown: int, table_bytes: int, make: RowMaker) -> Row:
    """Check that a table in managed memory did not move to the GPU while a path read it.

    ``grown``: :func:`memory_beside_torch` before the path is closed, less that before it opened.

    Raises:
        WrongMemoryError: it grew by a sizeable part of the table.
    """
    if grown > max(GROWTH_BYTES, GROWTH_SHARE * table_bytes):
        raise WrongMemoryError(
            f"GPU memory grew by {grown:,} B beside torch's while a table of {table_bytes:,} B was"
            " read in managed memory: it moved there, or another program came: not shown"
        )
    source = "torch.cuda.mem_get_info less memory_reserved, since the path was opened"
    return make.ok(CHECK_STAGE, "gpu_memory_growth", "B", grown, source)


def residency_row(fetcher: Fetcher, make: RowMaker, cached: Reason | None = None) -> Row:
    """Check that each part of the table is where the strategy says; the row's source says where.

    ``cached``: why pages of a table on disk are in memory, whichever path is measured.

    Raises:
        WrongMemoryError: it is elsewhere, so that another data path would be timed.
    """
    parts, columns = fetcher.residency(), (CHECK_STAGE, "residency", "1")
    if not parts:
        return make.missing(*columns, "cudaPointerGetAttributes", _NOWHERE)
    if cached is not None:
        return make.missing(*columns, parts[0].source, cached)
    for part in parts:
        if part.found != part.expected:
            raise WrongMemoryError(
                f"{part.part} was found in {part.found} by {part.source}, "
                f"and the strategy reads it in {part.expected}: not timed"
            )
    where = ", ".join(f"{part.part} in {part.found}" for part in parts)
    return make.ok(*columns, 1, f"{parts[0].source}: {where}")
