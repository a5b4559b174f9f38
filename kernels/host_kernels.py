"""The compiled loops of the host gather: they copy rows by address and know nothing of dtypes.

Two things make them faster than ``torch.index_select``. The ids are known in advance, so the
lines of a row some distance ahead are prefetched while the current row is copied: the misses of
many rows overlap instead of waiting for each other. And a row is copied by the C library's
``memcpy``, which picks the widest moves of the CPU at hand. Streaming (non-temporal) stores were
tried: row by row they lost at most widths, through a block that fits the L1 cache they won or lost
a tenth, and they leave nothing in the caches for whoever reads the batch next.

The loops hold no lock (``nogil``) and start no threads: numba's parallel loops abort the process
when two Python threads enter them at once, which is what a background gather beside a sampler
does. Threads that share a job take chunks of it from a common counter, without Python's lock:
whoever comes late or is held up leaves more to the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

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
_memcpy: Any = intrinsic(_define_memcpy)
_take: Any = intrinsic(_define_take)


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
        start = _take(counter, chunk)
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
                _memcpy(out + to * row_bytes, table + row * row_bytes, row_bytes)
            elif first_bad < 0:
                first_bad = i


@njit(nogil=True, cache=True)
def copy_bytes(source: int, out: int, size: int, chunk: int, counter: int) -> None:
    """Copy ``size`` bytes between two addresses, by chunks as :func:`gather_rows`."""
    while True:
        start = _take(counter, chunk)
        if start >= size:
            return
        _memcpy(out + start, source + start, min(chunk, size - start))
