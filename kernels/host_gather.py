"""The CPU's gather at its best: compiled loops on every core, given tensors of any dtype.

A conventional pipeline is only as slow as its gather, and a benchmark that slows it down flatters
everything it is compared with. So this one is measured against ``torch.index_select`` and against
plain memcpy (``bench/regress/bench_gather.py``). Threads are our own and persistent: each gather
hands out shares and takes one itself; small gathers stay in the calling thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor

from gatherbench.kernels.host_kernels import copy_bytes, gather_rows, gather_rows_to

#: A share of less than this is not worth waking a thread for: measured, see `bench_gather.py`.
MIN_SHARE_BYTES = 512 << 10
#: Prefetch this much ahead, but no fewer and no more rows than the bounds that follow: measured
#: at row sizes of 4 B to 8 KiB; about a third of an L1 cache, and few rows gain beyond 32.
_AHEAD_BYTES, _MIN_AHEAD, _MAX_AHEAD = 16 << 10, 4, 32


def available_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0))


class HostGather:
    """Gathers rows and copies buffers in host memory on ``threads`` threads (default: all cores).

    May be called from several threads at once, and after a fork: the child gets threads of its
    own. Compiles its loops when made (the result is cached on disk), not during the first gather.
    """

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads = {threads}: expected at least 1")
        self.threads = threads or available_cores()
        self._pool: ThreadPoolExecutor | None = None
        self._pool_pid = 0
        self._closed = False
        _compile()

    def gather(
        self, table: Tensor, ids: Tensor, out: Tensor, positions: Tensor | None = None
    ) -> None:
        """Write row ``ids[i]`` of ``table`` to row ``i`` of ``out``, or to row ``positions[i]``.

        Args:
            table: ``[N, D]``, any dtype.
            ids: ``[B]``, int32 or int64.
            out: ``[B, D]``, the table's dtype; must not overlap the table.
            positions: int64 ``[B]``, a permutation of ``0 .. B - 1``.

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
        rows, source, target = table.shape[0], table.data_ptr(), out.data_ptr()
        id_array = ids.numpy()
        place = None if positions is None else positions.numpy()
        failed = np.full(self.threads, -1, np.int64)

        def share(worker: int, start: int, stop: int) -> None:
            part = id_array[start:stop]
            if place is None:
                to = target + start * row_bytes
                bad = gather_rows(source, rows, row_bytes, part, to, ahead)
            else:
                bad = gather_rows_to(
                    source, rows, row_bytes, part, place[start:stop], target, count, ahead
                )
            failed[worker] = bad if bad < 0 else start + bad

        self._split(share, count, row_bytes)
        if failed.max() >= 0:
            at = int(failed[failed >= 0].min())
            raise IndexError(
                f"ids[{at}] = {int(id_array[at])}: the table has rows 0..{rows - 1}"
                + ("" if place is None else f"; positions[{at}] = {place[at]} of {count}")
            )

    def copy(self, source: Tensor, out: Tensor) -> None:
        """Copy ``source`` to ``out`` (same size in bytes, host, contiguous, no overlap).

        Raises:
            ValueError: wrong size, device or layout; nothing is written.
        """
        size = source.numel() * source.element_size()
        if size != out.numel() * out.element_size():
            raise ValueError(f"out: expected {size} bytes as in the source")
        _check_host(source=source, out=out)
        of, to = source.data_ptr(), out.data_ptr()

        def share(_worker: int, start: int, stop: int) -> None:
            copy_bytes(of + start, to + start, stop - start)

        self._split(share, size, 1)

    def close(self) -> None:
        """Join the threads. Safe to call twice."""
        self._closed = True
        if self._pool is not None and self._pool_pid == os.getpid():
            self._pool.shutdown(wait=True)
        self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _split(self, share: Callable[[int, int, int], None], count: int, item_bytes: int) -> None:
        """Run ``share(worker, start, stop)`` over ``count`` items, one share in this thread."""
        if self._closed:
            raise RuntimeError("HostGather is closed")
        workers = max(1, min(self.threads, count, count * item_bytes // MIN_SHARE_BYTES))
        bounds = [count * k // workers for k in range(workers + 1)]
        if workers == 1:
            share(0, 0, count)
            return
        pool = self._live_pool()
        pending = [pool.submit(share, k, bounds[k], bounds[k + 1]) for k in range(1, workers)]
        share(0, bounds[0], bounds[1])
        for future in pending:
            future.result()

    def _live_pool(self) -> ThreadPoolExecutor:
        if self._pool is None or self._pool_pid != os.getpid():
            # After a fork the parent's threads do not exist here and its pool would wait for them.
            self._pool_pid = os.getpid()
            self._pool = ThreadPoolExecutor(
                max(1, self.threads - 1), thread_name_prefix="gatherbench-gather"
            )
        return self._pool


def _compile() -> None:
    """Compile (or load from numba's cache) every loop for every kind of ids."""
    source, out = np.zeros(1, np.uint8), np.zeros(1, np.uint8)
    of, to, place = source.ctypes.data, out.ctypes.data, np.zeros(1, np.int64)
    for dtype in (np.int32, np.int64):
        gather_rows(of, 1, 1, np.zeros(1, dtype), to, 1)
        gather_rows_to(of, 1, 1, np.zeros(1, dtype), place, to, 1, 1)
    copy_bytes(of, to, 1)


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
    if tuple(out.shape) != (ids.numel(), table.shape[1]):
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
