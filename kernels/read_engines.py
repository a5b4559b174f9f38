"""Many reads of a file in flight at once: compiled loops over libc's ``pread`` and over io_uring.

A disk answers a read after some 100 µs, and many reads in hardly more: what counts is how many are
under way. Both loops take the same :class:`Reads`. Each read lands in a slot of aligned memory, and
its rows are copied from there to where they belong while the slot is still in the caches; then the
slot takes another read. So memory for the depth is all that is needed, however large a minibatch.

The loops hold no lock (``nogil``), and know the C functions by their addresses, which are arguments
and no constants: so numba can keep the compiled code on disk, and a test can hand in a function
that fails. Integer arguments travel in registers, where one too many does no harm (x86-64, arm64).
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from gatherbench.kernels.host_gather import memcpy, take
from gatherbench.kernels.table_file import LATENCY_BINS

_CLOCK_MONOTONIC = 1


def _define_call(_typing: Any, _function: Any, _1: Any, _2: Any, _3: Any, _4: Any, _5: Any) -> Any:
    """Call the C function at an address with five integers; what it returns, as an int64."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        i64 = ir.IntType(64)
        kind = ir.FunctionType(i64, [i64] * 5)
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), list(args[1:]))

    return types.int64(*[types.int64] * 6), codegen


_call: Any = intrinsic(_define_call)


class Libc(NamedTuple):
    """Addresses of functions of the C library."""

    pread: int
    errno: int
    clock: int


def libc() -> Libc:
    """Those of this process."""
    library = ctypes.CDLL(None)
    return Libc(
        *(address_of(library, name) for name in ("pread", "__errno_location", "clock_gettime"))
    )


def address_of(library: ctypes.CDLL, name: str) -> int:
    """Where a function lies.

    Raises:
        AttributeError: the library has none of that name.
    """
    return int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0)


class Reads(NamedTuple):
    """What is to be read: read ``k`` brings rows ``starts[k]`` to ``starts[k + 1] - 1``.

    Attributes:
        fd: the file, open with ``O_DIRECT``.
        begins, sizes: bytes, whole blocks, int64 ``[R]``.
        starts: int64 ``[R + 1]``.
        rows: the byte at which each row begins in the file, int64 ``[B]``.
        places: to which row of the output it goes, int64 ``[B]``.
        row_bytes: of a row.
        out: address of the output.
        slots, slot_bytes: address and size of the aligned memory of each read in flight.
        latencies: how many reads took how long, int64 ``[LATENCY_BINS]``; added to.
        failed: of the first failure: how many failed, which read, ``errno`` (0: too few bytes came)
            and how many bytes came. int64 ``[4]``, zeros at first.
    """

    fd: int
    begins: NDArray[np.int64]
    sizes: NDArray[np.int64]
    starts: NDArray[np.int64]
    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    row_bytes: int
    out: int
    slots: int
    slot_bytes: int
    latencies: NDArray[np.int64]
    failed: NDArray[np.int64]


@njit(nogil=True, cache=True)
def plan_reads(
    rows: NDArray[np.int64],
    row_bytes: int,
    block: int,
    limit: int,
    merge: bool,
    begins: NDArray[np.int64],
    sizes: NDArray[np.int64],
    starts: NDArray[np.int64],
) -> int:
    """Which whole blocks to read for rows that begin at the bytes ``rows``; how many reads.

    One read a row. With ``merge`` (the rows ascend) a row whose blocks overlap or touch those of
    the read before joins it, as long as that grows to no more than ``limit`` bytes.
    """
    count = 0
    end = np.int64(-1)
    for i in range(rows.shape[0]):
        first = rows[i] // block * block
        last = (rows[i] + row_bytes + block - 1) // block * block
        if merge and first <= end and last - begins[count - 1] <= limit:
            end = max(end, last)
            sizes[count - 1] = end - begins[count - 1]
        else:
            begins[count], sizes[count], starts[count] = first, last - first, i
            end = last
            count += 1
    starts[count] = rows.shape[0]
    return count


@njit(nogil=True, cache=True)
def _now(clock: int, moment: NDArray[np.int64]) -> int:
    """Nanoseconds; ``moment`` is room for a ``timespec``."""
    _call(clock, _CLOCK_MONOTONIC, moment.ctypes.data, 0, 0, 0)
    return moment[0] * 1_000_000_000 + moment[1]


@njit(nogil=True, cache=True)
def latency_bin(nanoseconds: int) -> int:
    """The bin of ``Fetcher.latencies``: four to a doubling, from 1 µs on."""
    if nanoseconds < 1000:
        return 0
    return min(math.floor(4 * math.log2(nanoseconds / 1000)) + 1, LATENCY_BINS - 1)


@njit(nogil=True, cache=True)
def _finish(reads: Reads, k: int, slot: int, got: int, errno: int, took: int) -> bool:
    """Read ``k`` has ended with ``got`` bytes in ``slot``: count it and copy its rows."""
    take(reads.latencies.ctypes.data + 8 * latency_bin(took), 1)
    begin, last = reads.begins[k], reads.starts[k + 1] - 1
    if got < reads.rows[last] + reads.row_bytes - begin:
        if take(reads.failed.ctypes.data, 1) == 0:
            reads.failed[1], reads.failed[2], reads.failed[3] = k, errno, got
        return False
    for i in range(reads.starts[k], last + 1):
        to = reads.out + reads.places[i] * reads.row_bytes
        memcpy(to, slot + reads.rows[i] - begin, reads.row_bytes)
    return True


@njit(nogil=True, cache=True)
def read_by_thread(reads: Reads, libc: Libc, counter: int, slot_counter: int) -> None:
    """Take reads, one at a time, from the int64 at ``counter`` until there are none.

    Called from as many threads as reads shall be in flight; each takes a slot of its own.
    """
    slot = reads.slots + take(slot_counter, 1) * reads.slot_bytes
    moment, errno = np.empty(2, np.int64), np.zeros(1, np.int32)
    count = reads.begins.shape[0]
    while True:
        k = take(counter, 1)
        if k >= count:
            return
        began = _now(libc.clock, moment)
        got = _call(libc.pread, reads.fd, slot, reads.sizes[k], reads.begins[k], 0)
        if got < 0:
            memcpy(errno.ctypes.data, _call(libc.errno, 0, 0, 0, 0, 0), 4)
        took = _now(libc.clock, moment) - began
        if not _finish(reads, k, slot, got, np.int64(errno[0]), took):
            take(counter, count)  # the others stop as well
            return
