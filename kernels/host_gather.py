"""The CPU's gather at its best: compiled loops on every core, given tensors of any dtype.

A conventional pipeline is only as slow as its gather, and a benchmark that slows it down flatters
everything it is compared with. So this one is measured against ``torch.index_select`` and against
plain memcpy (``bench/regress/bench_gather.py``). Threads are our own and persistent: the
caller begins at once, the others help, and a small gather stays in the calling thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.kernels.host_kernels import LINE_BYTES, copy_bytes, gather_rows

T = TypeVar("T")
_NO_POSITIONS = np.empty(0, np.int64)

#: What a thread takes at a time. A gather of no more than this stays in the calling thread:
#: waking another costs some 40 µs, in which one thread copies about as much.
CHUNK_BYTES = 512 << 10
#: Prefetch this much ahead, but no fewer and no more rows than the bounds that follow: measured
#: at row sizes of 4 B to 8 KiB; about a third of an L1 cache, and few rows gain beyond 32.
_AHEAD_BYTES, _MIN_AHEAD, _MAX_AHEAD = 16 << 10, 4, 32


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
        chunk = max(1, CHUNK_BYTES // max(row_bytes, LINE_BYTES))  # a row costs a line at least
        rows, id_array, scatter = table.shape[0], ids.numpy(), positions is not None
        place = _NO_POSITIONS if positions is None else positions.numpy()

        def work(counter: NDArray[np.int64]) -> int:
            of, to = (table.data_ptr(), rows, row_bytes), (out.data_ptr(), out.shape[0])
            return gather_rows(
                *of, id_array, scatter, place, *to, ahead, chunk, counter.ctypes.data
            )

        found = [at for at in self._share(work, -(-count // chunk)) if at >= 0]
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

        self._share(work, -(-size // chunk))

    def close(self) -> None:
        """Join the threads. Safe to call twice."""
        self._closed = True
        if self._pid == os.getpid():
            self._pool.shutdown(wait=True)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _share(self, work: Callable[[NDArray[np.int64]], T], chunks: int) -> list[T]:
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
