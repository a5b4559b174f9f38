"""The CPU's gather at its best: compiled loops on every core, given tensors of any dtype.

A conventional pipeline is only as slow as its gather, and a benchmark that slows it down flatters
everything it is compared with. So this one is measured against ``torch.index_select`` and against
plain memcpy (``bench/regress/bench_gather.py``).

Two things make it faster than ``torch.index_select``. The ids are known in advance, so the lines of
a row some distance ahead are prefetched while the current row is copied: the misses of many rows
overlap. And a row is copied by the C library's ``memcpy``, which picks the widest moves of the CPU
at hand. Streaming (non-temporal) stores were tried: row by row they lost at most widths, through a
block that fits the L1 cache they won or lost a tenth, and they leave nothing in the caches for
whoever reads the batch next.

The compiled loops know addresses and no dtypes. They hold no lock (``nogil``) and start no threads:
numba's parallel loops abort the process when two Python threads enter them at once, which is what a
background gather beside a sampler does. Threads are our own and persistent, and take chunks of a
job from a common counter: whoever comes late leaves more to the others. The caller begins at once,
and a small gather stays in the calling thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

T = TypeVar("T")
_NO_POSITIONS = np.empty(0, np.int64)

#: What a thread takes at a time, at most. A gather of no more stays in the calling thread:
#: waking another costs some 40 µs, in which one thread copies about as much.
CHUNK_BYTES = 512 << 10
#: Of a gather that is shared each thread takes so many chunks, if none is late: all wait for the
#: last one, and whoever holds that may not be running. Smaller ones would lose the prefetching.
_CHUNKS, _LEAST_CHUNK_BYTES = 8, 64 << 10
#: Prefetch this much ahead, but no fewer and no more rows than the bounds that follow: measured
#: at row sizes of 4 B to 8 KiB; about a third of an L1 cache, and few rows gain beyond 32.
_AHEAD_BYTES, _MIN_AHEAD, _MAX_AHEAD = 16 << 10, 4, 32
#: :meth:`HostGather.tune`: how long it may take, of which tables it is asked, bytes and rounds of a
#: gather, and by what share the fastest may beat the fewest threads. As much as a
#: minibatch of three layers has: of 8 MiB the threads' waking decided (on an H200's host 3 of 16
#: threads were chosen, with which the loop then had up to 1.5 times the rate told here).
TUNING_S, TUNED_BYTES = 1.0, 64 << 20
TUNED_WITH, _ROUNDS, _BEATS = 64 << 20, 7, 0.1
#: Bytes of a CPU's cache line.
LINE_BYTES = 64
_BYTE_POINTER = ir.IntType(8).as_pointer()

#: int32 or int64.
Ids = NDArray[Any]


def _define_prefetch(_typing: Any, _address: Any) -> Any:
    """Ask for the cache line at ``address``; never faults, whatever the address."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [_BYTE_POINTER, i32, i32, i32])
        declare: Any = cgutils.get_or_insert_function
        prefetch = declare(builder.module, kind, "llvm.prefetch.p0")
        read, near, data = i32(0), i32(3), i32(1)
        builder.call(prefetch, [builder.inttoptr(args[0], _BYTE_POINTER), read, near, data])
        return context.get_dummy_value()

    return types.void(types.intp), codegen


def _define_memcpy(_typing: Any, _target: Any, _source: Any, _size: Any) -> Any:
    """Copy ``size`` bytes from address ``source`` to address ``target``; they do not overlap."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        to, of = (builder.inttoptr(a, _BYTE_POINTER) for a in args[:2])
        emit: Any = cgutils.raw_memcpy
        emit(builder, to, of, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), codegen


def _define_take(_typing: Any, _counter: Any, _amount: Any) -> Any:
    """Add ``amount`` to the int64 at address ``counter``, atomically; returns what it was."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        counter = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", counter, args[1], "monotonic")

    return types.int64(types.intp, types.int64), codegen


_prefetch: Any = intrinsic(_define_prefetch)
memcpy: Any = intrinsic(_define_memcpy)
take: Any = intrinsic(_define_take)


@njit(nogil=True, cache=True, inline="always")
def _prefetch_row(address: Any, row_bytes: int) -> None:
    line = address & ~(LINE_BYTES - 1)
    while line < address + row_bytes:
        _prefetch(line)
        line += LINE_BYTES


@njit(nogil=True, cache=True)
def gather_rows(
    table: int,
    num_rows: int,
    row_bytes: int,
    ids: Ids,
    scatter: bool,
    positions: NDArray[np.int64],
    out: int,
    out_rows: int,
    ahead: int,
    chunk: int,
    counter: int,
) -> int:
    """Copy row ``ids[i]`` of the table at address ``table`` to row ``i`` at address ``out``.

    Takes ``chunk`` ids at a time from the int64 at address ``counter`` (0 at first) until there
    are none, and prefetches the row ``ahead`` ids ahead. With ``scatter`` the row goes to
    ``positions[i]`` (of ``out_rows``) instead. Returns -1, or the smallest ``i`` among
    those it took whose id is outside ``0 .. num_rows - 1`` or whose position is outside the
    output; these are neither read nor written.
    """
    count = ids.shape[0]
    first_bad = -1
    while True:
        start = take(counter, chunk)
        if start >= count:
            return first_bad
        stop = min(start + chunk, count)
        for i in range(start, min(start + ahead, stop)):
            _prefetch_row(table + np.intp(ids[i]) * row_bytes, row_bytes)
        for i in range(start, stop):
            if i + ahead < stop:
                _prefetch_row(table + np.intp(ids[i + ahead]) * row_bytes, row_bytes)
            row = np.intp(ids[i])
            to = np.intp(positions[i]) if scatter else i
            if 0 <= row < num_rows and 0 <= to < out_rows:
                memcpy(out + to * row_bytes, table + row * row_bytes, row_bytes)
            elif first_bad < 0:
                first_bad = i


@njit(nogil=True, cache=True)
def copy_bytes(source: int, out: int, size: int, chunk: int, counter: int) -> None:
    """Copy ``size`` bytes between two addresses, by chunks as :func:`gather_rows`."""
    while True:
        start = take(counter, chunk)
        if start >= size:
            return
        memcpy(out + start, source + start, min(chunk, size - start))


def _some_of(cores: int) -> list[int]:
    """Numbers of threads to try: all, three quarters, half, and so on."""
    halves = [cores >> k for k in range(cores.bit_length())]
    return sorted({*halves, *(3 * n // 4 for n in halves if n >= 4)})


def tuned_rows(table: Tensor) -> int:
    """Rows of :data:`TUNED_WITH` bytes, at least one."""
    return max(1, TUNED_WITH // (table.shape[1] * table.element_size()))


def available_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0))


class HostGather(AbstractContextManager["HostGather"]):
    """Gathers rows and copies buffers in host memory on ``threads`` threads (default: all cores).

    May be called from several threads at once, and after a fork: the child gets threads of its
    own. Compiles its loops when made (the result is cached on disk), not during the first gather.
    """

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads = {threads}: expected at least 1")
        self.threads = threads or available_cores()
        self._closed = False
        self._start_pool()
        _compile()

    def gather(
        self, table: Tensor, ids: Tensor, out: Tensor, positions: Tensor | None = None
    ) -> None:
        """Write row ``ids[i]`` of ``table`` to row ``i`` of ``out``, or to row ``positions[i]``.

        Args:
            table: ``[N, D]``, any dtype.
            ids: ``[B]``, int32 or int64.
            out: ``[B, D]``, the table's dtype; must not overlap the table. With ``positions`` it
                may have more rows, and those that no position names are left as they are.
            positions: int64 ``[B]``, distinct rows of ``out``.

        All lie in host memory and are contiguous.

        Raises:
            TypeError, ValueError: wrong dtype, shape, device or layout; nothing is written.
            IndexError: an id or a position lies outside; rows of ``out`` may have been written.
        """
        _check_gather(table, ids, out, positions)
        count, row_bytes = ids.numel(), table.shape[1] * table.element_size()
        if count == 0 or row_bytes == 0:
            return
        ahead = max(_MIN_AHEAD, min(_MAX_AHEAD, _AHEAD_BYTES // row_bytes))
        cost = max(row_bytes, LINE_BYTES)  # a row costs a line at least
        largest = max(1, CHUNK_BYTES // cost)
        pieces = -(-count // largest)
        even = -(-count // (min(self.threads, pieces) * _CHUNKS))
        chunk = min(largest, max(even, 1, _LEAST_CHUNK_BYTES // cost)) if pieces > 1 else largest
        rows, id_array, scatter = table.shape[0], ids.numpy(), positions is not None
        place = _NO_POSITIONS if positions is None else positions.numpy()

        def work(counter: NDArray[np.int64]) -> int:
            of, to = (table.data_ptr(), rows, row_bytes), (out.data_ptr(), out.shape[0])
            return gather_rows(
                *of, id_array, scatter, place, *to, ahead, chunk, counter.ctypes.data
            )

        found = [at for at in self.share(work, pieces) if at >= 0]
        if found:
            at = min(found)
            where = f"; positions[{at}] = {place[at]} of {out.shape[0]}" if scatter else ""
            raise IndexError(f"ids[{at}] = {id_array[at]}: the table has rows 0..{rows - 1}{where}")

    def copy(self, source: Tensor, out: Tensor) -> None:
        """Copy ``source`` to ``out`` (same size in bytes, host, contiguous, no overlap).

        Raises:
            ValueError: wrong size, device or layout; nothing is written.
        """
        size = source.numel() * source.element_size()
        if size != out.numel() * out.element_size():
            raise ValueError(f"out: expected {size} bytes as in the source")
        _check_host(source=source, out=out)
        if size == 0:
            return
        # Long copies: the C library's memcpy writes past the caches only when it sees them whole.
        chunk = max(CHUNK_BYTES, -(-size // self.threads))

        def work(counter: NDArray[np.int64]) -> None:
            copy_bytes(source.data_ptr(), out.data_ptr(), size, chunk, counter.ctypes.data)

        self.share(work, -(-size // chunk))

    def tune(self, table: Tensor) -> dict[int, float]:
        """Use as few threads as gather from ``table`` within a tenth of the fastest; by threads the
        seconds that about :data:`TUNED_WITH` bytes of random rows took them.

        More gain little and take cores from the training: beside an H200 8 of 16 cores gathered 16
        GB/s, all of them 18, and steps beside a gather ahead took 1.4 to 1.5 times as long to issue
        (results/nvidia-h200). It takes up to :data:`TUNING_S`. Nothing is tried of a table that the
        caches could hold, or that does not come from memory.

        Args:
            table: ``[N, D]``, as for :meth:`gather`.
        """
        if table.nbytes < TUNED_BYTES or self.threads == 1:
            return {}
        generator = torch.Generator().manual_seed(0)
        count = tuned_rows(table)
        out = torch.empty((count, table.shape[1]), dtype=table.dtype, device="cpu")
        every, deadline = self.threads, time.perf_counter() + TUNING_S
        seconds: dict[int, list[float]] = {some: [] for some in _some_of(every)}

        def others() -> Tensor:  # what was gathered before is in the caches
            return torch.randint(0, len(table), (count,), generator=generator, device="cpu")

        first = max(1, count // 64)
        if self._seconds(table, others()[:first], out[:first]) > TUNING_S / 16:
            return {}
        while time.perf_counter() < deadline and len(seconds[every]) < _ROUNDS:
            for self.threads, taken in seconds.items():
                taken.append(self._seconds(table, others(), out))
        medians = {n: sorted(of)[len(of) // 2] for n, of in seconds.items()}
        enough = min(medians.values()) * (1 + _BEATS)
        self.threads = min(n for n, taken in medians.items() if taken <= enough)
        return medians

    def _seconds(self, table: Tensor, ids: Tensor, out: Tensor) -> float:
        began = time.perf_counter()
        self.gather(table, ids, out)
        return time.perf_counter() - began

    def close(self) -> None:
        """Join the threads. Safe to call twice."""
        self._closed = True
        if self._pid == os.getpid():
            self._pool.shutdown(wait=True)

    def __exit__(self, *_: object) -> None:
        self.close()

    def share(self, work: Callable[[NDArray[np.int64]], T], chunks: int) -> list[T]:
        """Run ``work(common counter)`` here and in other threads, for its results.

        This thread begins at once and does not wait for those that have not begun when all is
        done: in a busy process they may be late by several milliseconds. ``work`` itself must
        hold the tensors whose addresses it passes on: should an interrupt end the wait for the
        helpers, these go on for a moment.
        """
        if self._closed:
            raise RuntimeError("HostGather is closed")
        counter = np.zeros(1, np.int64)
        helpers = min(self.threads, chunks) - 1
        pool = self._live_pool() if helpers else None
        pending = [pool.submit(work, counter) for _ in range(helpers)] if pool else []
        results = [work(counter)]
        return results + [future.result() for future in pending if not future.cancel()]

    def _start_pool(self) -> None:
        # Starts no thread yet.
        self._pool = ThreadPoolExecutor(
            max(1, self.threads - 1), thread_name_prefix="gatherbench-gather"
        )
        self._pid = os.getpid()

    def _live_pool(self) -> ThreadPoolExecutor:
        if self._pid != os.getpid():
            # After a fork the parent's threads do not exist here and its pool would wait for them.
            self._start_pool()
        return self._pool


def _compile() -> None:
    """Compile (or load from numba's cache) every loop for every kind of ids."""
    source, out = np.zeros(1, np.uint8), np.zeros(1, np.uint8)
    of, to = source.ctypes.data, out.ctypes.data
    for dtype in (np.int32, np.int64):
        counter = np.zeros(1, np.int64)
        ids = np.zeros(1, dtype)
        gather_rows(of, 1, 1, ids, False, _NO_POSITIONS, to, 1, 1, 1, counter.ctypes.data)
    copy_bytes(of, to, 1, 1, np.ones(1, np.int64).ctypes.data)


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
