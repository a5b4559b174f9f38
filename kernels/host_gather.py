"""Gather on the CPU as fast as possible: compiled loops on every core, for tensors of any dtype.

A slow CPU gather would flatter every path that is compared with it. Two things make this one
faster than ``torch.index_select`` (``bench/regress/bench_gather.py``). The lines of a row some
distance ahead are prefetched while the current row is copied: the misses of many rows overlap. And
a row is copied by the C library's ``memcpy``, which picks the widest moves of the CPU at hand.
Streaming (non-temporal) stores do not pay: row by row they lose at most widths, and they leave
nothing in the caches for the next reader of the batch.

The threads are those of :mod:`gatherbench.kernels.native_threads`: numba's own parallel loops abort
the process when two Python threads enter them at once, as a background gather and a sampler do.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor

from gatherbench.kernels.native_threads import LINE_BYTES, Done, Job, NativeThreads, gather_here

#: The most that a thread takes at a time. A gather of at most that size stays in the calling
#: thread: waking another costs some 40 µs, in which one thread copies about as much.
CHUNK_BYTES = 512 << 10
#: In a shared gather each thread takes this many chunks, if no thread is late: all wait for the
#: last chunk, whose thread may not be running. Smaller chunks would lose the prefetching.
_CHUNKS, _LEAST_CHUNK_BYTES = 8, 64 << 10
#: Bytes to prefetch ahead (a third of an L1 cache), and the fewest and most rows: measured at row
#: sizes of 4 B to 8 KiB.
_AHEAD_BYTES, _MIN_AHEAD, _MAX_AHEAD = 16 << 10, 4, 32


def numbers_of_threads(cores: int) -> list[int]:
    """List the numbers to try: all cores, three quarters, half, and so on."""
    halves = [cores >> k for k in range(cores.bit_length())]
    return sorted({*halves, *(3 * n // 4 for n in halves if n >= 4)})


def available_cores() -> int:
    """Count the cores on which this process may run."""
    return len(os.sched_getaffinity(0))


class Begun:
    """A gather that threads do while the caller goes on; it keeps their tensors alive."""

    def __init__(self, threads: NativeThreads, number: int, tensors: Tensors) -> None:
        self._threads, self.number, self._tensors = threads, number, tensors
        # Reentrant: an interrupt as the turn ends leaves it with its thread, which waits again.
        self._turn, self._done = threading.RLock(), list[Done]()

    def result(self, *, help_first: bool = False) -> float:
        """Wait until it is done; return the seconds that it took (0 in later calls).

        It raises as :meth:`HostGather.gather`, and ``RuntimeError`` if the threads were closed
        before any had begun.
        """
        with self._turn:
            if first := not self._done:
                self._done.append(self._threads.done(self.number, help_first=help_first))
        (done,) = self._done
        self._tensors.require(done)
        return done.seconds if first else 0.0


class Tensors(NamedTuple):
    """The tensors of a gather, see :meth:`HostGather.gather`."""

    table: Tensor
    ids: Tensor
    out: Tensor
    positions: Tensor | None
    then: Tensor | None

    def require(self, done: Done) -> None:
        """Raise the error of a job that failed."""
        if done.dropped:
            raise RuntimeError("the fetcher was closed before this fetch began")
        if (at := done.bad) < 0:
            return
        wrong = f"ids[{at}] = {self.ids[at]}: the table has rows 0..{len(self.table) - 1}"
        if self.positions is not None:
            wrong += f"; positions[{at}] = {self.positions[at]} of {len(self.out)}"
        raise IndexError(wrong)


class HostGather(AbstractContextManager["HostGather"]):
    """Gathers rows and copies buffers in host memory on ``threads`` threads (default: all cores).

    It may be called from several threads at once, and after a fork: the child gets its own threads.
    It compiles its loops when made. Tuning changes ``threads``, the number in use.
    """

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads = {threads}: expected at least 1")
        self.threads = self._most = threads or available_cores()
        self._closed = False
        self.native = NativeThreads(self._most)
        row = torch.zeros((1, 1), dtype=torch.uint8, device="cpu")
        self.gather(row, torch.zeros(1, dtype=torch.int64, device="cpu"), row.clone())

    def gather(
        self,
        table: Tensor,
        ids: Tensor,
        out: Tensor,
        positions: Tensor | None = None,
        then: Tensor | None = None,
    ) -> None:
        """Write row ``ids[i]`` of ``table`` to row ``i`` of ``out``, or to row ``positions[i]``.

        Args:
            table: ``[N, D]``, any dtype.
            ids: ``[B]``, int32 or int64.
            out: ``[B, D]``, the table's dtype; must not overlap the table. With ``positions`` it
                may have more rows; rows without a position do not change.
            positions: int64 ``[B]``, distinct rows of ``out``.
            then: ``[B, D]``, only without ``positions``; each chunk is copied on to it while others
                are gathered.

        All lie in host memory and are contiguous. The calling thread releases Python's lock once.

        Raises:
            TypeError, ValueError: wrong dtype, shape, device or layout; nothing is written.
            IndexError: an id or a position lies outside; rows of ``out`` may have been written.
        """
        if positions is not None and then is not None:
            raise ValueError("then: chunks of out are copied in order; give no positions with it")
        tensors = Tensors(table, ids, out, positions, then)
        self._begin(tensors, helped=True).result(help_first=True)

    def rows(self, table: Tensor, ids: Tensor) -> Tensor:
        """Return the rows ``ids`` of ``table`` in fresh memory; see :meth:`gather`.

        A few rows are gathered in the calling thread by one call, and only the values of their ids
        are checked.
        """
        out = torch.empty((ids.numel(), table.shape[1]), dtype=table.dtype, device="cpu")
        if self.shares(ids.numel(), table.shape[1] * table.element_size()):
            self.gather(table, ids, out)
        else:
            self._usable()
            tensors = Tensors(table, ids, out, None, None)
            tensors.require(Done(gather_here(_job(tensors)), False, 0.0))
        return out

    def begin(self, table: Tensor, ids: Tensor, out: Tensor, then: Tensor | None = None) -> Begun:
        """Gather by other threads while this one goes on; the inputs must not change meanwhile."""
        return self._begin(Tensors(table, ids, out, None, then), helped=False)

    def _begin(self, tensors: Tensors, *, helped: bool) -> Begun:
        table, ids, out, positions, then = tensors
        _check_gather(table, ids, out, positions)
        if then is not None:
            _check_gather(table, ids, then, None)
        native, job = self._usable(), _job(tensors)
        cost = _cost(job.row_bytes)
        largest = max(1, CHUNK_BYTES // cost)
        pieces = -(-job.total // largest)
        threads = max(1, min(self.threads, pieces))
        even = -(-job.total // (threads * _CHUNKS))
        chunk = min(largest, max(even, 1, _LEAST_CHUNK_BYTES // cost)) if pieces > 1 else largest
        number = native.post(job._replace(chunk=chunk), threads, tensors, helped=helped)
        return Begun(native, number, tensors)

    def copy(self, source: Tensor, out: Tensor) -> None:
        """Copy ``source`` to ``out`` (contiguous, in host memory, no overlap), or raise
        ``ValueError`` for another size in bytes, device or layout."""
        size = source.numel() * source.element_size()
        if size != out.numel() * out.element_size():
            raise ValueError(f"out: expected {size} bytes as in the source")
        _check_host(source=source, out=out)
        # Long pieces: the C library's memcpy bypasses the caches only for one long copy.
        chunk = max(CHUNK_BYTES, -(-size // self.threads))
        job = Job(total=size, chunk=chunk, source=source.data_ptr(), out=out.data_ptr())
        native = self._usable()
        number = native.post(job, max(1, -(-size // chunk)), (source, out), helped=True)
        native.done(number, help_first=True)

    def shares(self, count: int, row_bytes: int) -> bool:
        """Tell whether several threads share a gather of ``count`` rows."""
        return count > max(1, CHUNK_BYTES // _cost(row_bytes))

    def close(self) -> None:
        """Join the threads. Safe to call twice."""
        self._closed = True
        self.native.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _usable(self) -> NativeThreads:
        if self._closed:
            raise RuntimeError("HostGather is closed")
        if not self.native.usable:  # after a fork: the parent's threads do not exist here
            self.native = NativeThreads(self._most)
        return self.native


def _cost(row_bytes: int) -> int:
    return max(row_bytes, LINE_BYTES)


def _job(tensors: Tensors) -> Job:
    """Return the whole gather as one chunk."""
    table, ids, out, positions, then = tensors
    count, row_bytes = ids.numel(), table.shape[1] * table.element_size()
    return Job(
        total=count if row_bytes else 0,
        chunk=count,
        source=table.data_ptr(),
        rows=table.shape[0],
        row_bytes=row_bytes,
        ids=ids.data_ptr(),
        id_bytes=ids.element_size(),
        positions=0 if positions is None else positions.data_ptr(),
        out=out.data_ptr(),
        out_rows=out.shape[0],
        then=0 if then is None else then.data_ptr(),
        ahead=max(_MIN_AHEAD, min(_MAX_AHEAD, _AHEAD_BYTES // _cost(row_bytes))),
    )


def _check_gather(table: Tensor, ids: Tensor, out: Tensor, positions: Tensor | None) -> None:
    _check_host(table=table, ids=ids, out=out)
    if table.dim() != 2:
        raise ValueError(f"table: expected shape [N, D], got {tuple(table.shape)}")
    if ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"ids: expected int32 or int64, got {ids.dtype}")
    if ids.dim() != 1:
        raise ValueError(f"ids: expected shape [B], got {tuple(ids.shape)}")
    if out.dtype != table.dtype:
        raise TypeError(f"out: expected {table.dtype} as in the table, got {out.dtype}")
    room = out.shape[0] if out.dim() == 2 and positions is not None else ids.numel()
    if tuple(out.shape) != (max(room, ids.numel()), table.shape[1]):
        expected = (ids.numel(), int(table.shape[1]))
        raise ValueError(f"out: expected shape {expected}, got {tuple(out.shape)}")
    if positions is not None:
        _check_host(positions=positions)
        if positions.dtype != torch.int64:
            raise TypeError(f"positions: expected int64, got {positions.dtype}")
        if positions.shape != ids.shape:
            raise ValueError(f"positions: expected shape {tuple(ids.shape)} as the ids")


def _check_host(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.device.type != "cpu":
            raise ValueError(f"{name}: expected in host memory, got {tensor.device}")
        if not tensor.is_contiguous():
            raise ValueError(f"{name}: expected a contiguous tensor; call .contiguous() first")
