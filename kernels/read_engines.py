"""Keep many reads of a file in flight, by compiled loops over libc's ``pread`` and over io_uring.

A disk answers one read after some 100 µs, and many reads hardly later: the number of reads in
flight counts. Each read lands in a slot of aligned memory, and its rows are copied from there to
their places while the slot is still in the caches; then the slot takes another read. So the memory
depends only on the depth, however large a minibatch is.

The loops hold no lock (``nogil``). They get the addresses of ``pread`` and of liburing's functions
as arguments, so that numba can cache the compiled code on disk.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import math
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from gatherbench.kernels.native_threads import CLOCK_MONOTONIC, call, clock_gettime, memcpy, take
from gatherbench.kernels.table_file import LATENCY_BINS, TableFile
from gatherbench.plugins import installing

#: The number of reads that is worth another thread.
_READS_A_THREAD = 8
#: The largest size of a merged read: the next begins there, maybe with the same block.
MERGE_BYTES = 32 << 10
#: More than any ``struct io_uring`` of liburing takes.
_RING_BYTES = 4096
#: Liburing for callers that have no C headers, since its version 2.3.
_SYSTEM_LIBRARY = "liburing-ffi.so.2"
_RING_REMEDIES = {
    errno.EPERM: ": a container's seccomp profile or kernel.io_uring_disabled forbids it",
    errno.ENOSYS: ": the kernel has no io_uring",
    errno.ENOMEM: ": more memory may have to be locked (ulimit -l)",
}
#: Statuses of a ring after which the same call works.
_AGAIN = (-errno.EINTR, -errno.EAGAIN, -errno.EBUSY)
_errno_location: Any = types.ExternalFunction("__errno_location", types.intp())


class ReadPlan(NamedTuple):
    """The reads for a minibatch: read ``k`` brings rows ``starts[k]`` to ``starts[k + 1] - 1``."""

    order: NDArray[np.int64]  #: ``[B]``, the positions of the rows in reading order
    rows: NDArray[np.int64]  #: ``[B]``, the byte at which each begins in the file, in that order
    begins: NDArray[np.int64]  #: ``[R]``, the byte at which each read begins: that of a block
    sizes: NDArray[np.int64]  #: ``[R]``, its bytes: whole blocks
    starts: NDArray[np.int64]  #: ``[R + 1]``, the first row of each read


def plan_reads(ids: NDArray[np.int64], file: TableFile, block: int, merge: bool) -> ReadPlan:
    """Plan the reads of whole blocks for rows ``ids`` (int64 ``[B]``): one read a row.

    With ``merge`` rows are read in ascending order, and a row whose blocks overlap or touch those
    of the previous read joins it, up to :data:`MERGE_BYTES` in all.
    """
    order = np.argsort(ids) if merge else np.arange(len(ids))
    rows = file.offset + ids[order] * file.row_bytes
    firsts = rows // block * block
    lasts = -(-(rows + file.row_bytes) // block) * block
    if not merge:
        return ReadPlan(order, rows, firsts, lasts - firsts, np.arange(len(ids) + 1))
    return ReadPlan(order, rows, *_merged(firsts, lasts, MERGE_BYTES))


@njit(nogil=True, cache=True)
def _merged(
    firsts: NDArray[np.int64], lasts: NDArray[np.int64], limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return ``begins``, ``sizes`` and ``starts`` for rows that lie in these ascending bytes."""
    begins, ends = np.empty_like(firsts), np.empty_like(firsts)
    starts = np.empty(firsts.size + 1, np.int64)
    count = 0
    for i in range(firsts.size):
        joins = count > 0 and firsts[i] <= ends[count - 1]
        if joins and (lasts[i] <= ends[count - 1] or lasts[i] - begins[count - 1] <= limit):
            ends[count - 1] = lasts[i]
        else:
            begins[count], ends[count], starts[count] = firsts[i], lasts[i], i
            count += 1
    starts[count] = firsts.size
    return begins[:count], ends[:count] - begins[:count], starts[: count + 1]


class Reads(NamedTuple):
    """The reads to do, and where their rows go."""

    fd: int  #: the file, open with ``O_DIRECT``
    plan: ReadPlan
    places: NDArray[np.int64]  #: ``[B]``, the row of the output for each row
    row_bytes: int
    out: NDArray[np.uint8]  #: ``[M, row_bytes]``
    slots: NDArray[np.uint8]  #: aligned memory
    slot_bytes: int  #: the bytes of it for each read in flight
    latencies: NDArray[np.int64]  #: the histogram of latencies to add to, ``[LATENCY_BINS]``
    #: ``[4]``, zeros at first: the number of failures, and of the first one the read, ``errno`` (0:
    #: too few bytes came) and the bytes that came.
    failed: NDArray[np.int64]


@njit(nogil=True, cache=True)
def _now(moment: NDArray[np.int64]) -> int:
    """Return the monotonic clock in nanoseconds; ``moment`` is room for a ``timespec``."""
    clock_gettime(CLOCK_MONOTONIC, moment.ctypes.data)
    return moment[0] * 1_000_000_000 + moment[1]


@njit(nogil=True, cache=True)
def latency_bin(nanoseconds: int) -> int:
    """Return the bin of ``Fetcher.latencies``: four bins per doubling, from 1 µs on."""
    if nanoseconds < 1000:
        return 0
    return min(math.floor(4 * math.log2(nanoseconds / 1000)) + 1, LATENCY_BINS - 1)


@njit(nogil=True, cache=True)
def _finish(reads: Reads, k: int, slot: int, got: Any, error: Any, took: int) -> bool:
    """Finish read ``k``, which brought ``got`` bytes to ``slot``: count it and copy its rows."""
    take(reads.latencies, latency_bin(took), 1)
    begin, last = reads.plan.begins[k], reads.plan.starts[k + 1] - 1
    if got < reads.plan.rows[last] + reads.row_bytes - begin:
        if take(reads.failed, 0, 1) == 0:
            reads.failed[1], reads.failed[2], reads.failed[3] = k, error, got
        return False
    for i in range(reads.plan.starts[k], last + 1):
        to = reads.out.ctypes.data + reads.places[i] * reads.row_bytes
        memcpy(to, slot + reads.plan.rows[i] - begin, reads.row_bytes)
    return True


@njit(nogil=True, cache=True)
def read_by_thread(reads: Reads, pread: int, counters: NDArray[np.int64]) -> None:
    """Take reads, one at a time, until there are none, in each of several threads.

    ``counters``, int64 ``[2]``, zeros at first, count the reads and the slots that are taken.
    """
    slot = reads.slots.ctypes.data + take(counters, 1, 1) * reads.slot_bytes
    moment, error = np.empty(2, np.int64), np.zeros(1, np.int32)
    count = reads.plan.begins.shape[0]
    while True:
        k = take(counters, 0, 1)
        if k >= count:
            return
        began = _now(moment)
        got = call(pread, reads.fd, slot, reads.plan.sizes[k], reads.plan.begins[k])
        if got < 0:
            memcpy(error.ctypes.data, _errno_location(), 4)
        took = _now(moment) - began
        if not _finish(reads, k, slot, got, np.int64(error[0]), took):
            take(counters, 0, count)  # so the other threads stop as well
            return


class Liburing(NamedTuple):
    """The addresses of an open ring (``struct io_uring``), and of functions ``io_uring_…``."""

    ring: int
    get_sqe: int
    prep_read: int
    sqe_set_data64: int
    submit_and_wait: int
    peek_batch_cqe: int
    cq_advance: int


_URING = [f"io_uring_{name}" for name in Liburing._fields[1:]]


@njit(nogil=True, cache=True)
def read_by_ring(reads: Reads, depth: int, uring: Liburing) -> int:
    """Keep ``depth`` reads in flight until all have ended; return 0 or a broken ring's ``errno``.

    After a failure no further read begins, but this waits for those in flight: they write to slots.
    """
    moment, ended = np.empty(2, np.int64), np.empty(2, np.int64)
    entries = np.empty(depth, np.int64)  # where the kernel's completions lie
    reading, began = np.empty(depth, np.int64), np.empty(depth, np.int64)
    free = np.arange(depth)  # slots; those from free[in_flight] on are free
    in_flight, k, count, good = 0, 0, reads.plan.begins.shape[0], True
    while in_flight or (good and k < count):
        now = _now(moment)
        while good and k < count and in_flight < depth:
            entry = call(uring.get_sqe, uring.ring)
            if entry == 0:
                break
            slot = free[in_flight]
            at = reads.slots.ctypes.data + slot * reads.slot_bytes
            call(uring.prep_read, entry, reads.fd, at, reads.plan.sizes[k], reads.plan.begins[k])
            call(uring.sqe_set_data64, entry, slot)
            reading[slot], began[slot] = k, now
            in_flight += 1
            k += 1
        status: Any = np.int64(np.int32(call(uring.submit_and_wait, uring.ring, 1)))
        if status < 0 and status not in _AGAIN:
            return -status
        done = call(uring.peek_batch_cqe, uring.ring, entries.ctypes.data, depth) & 0xFFFFFFFF
        now = _now(moment)
        for i in range(done):
            memcpy(ended.ctypes.data, entries[i], 16)  # user_data, then res and flags
            slot, got = ended[0], np.int64(np.int32(ended[1]))
            at = reads.slots.ctypes.data + slot * reads.slot_bytes
            error = -got if got < 0 else np.int64(0)
            if not _finish(reads, reading[slot], at, got, error, now - began[slot]):
                good = False
            in_flight -= 1
            free[in_flight] = slot
        call(uring.cq_advance, uring.ring, done)
    return 0


class ThreadEngine:
    """Runs a thread for each read in flight; one thread at a time may use it."""

    name = "threads"

    def __init__(self, depth: int) -> None:
        (self._pread,) = _addresses(ctypes.CDLL(None), "pread")
        self._depth = depth
        self._pool = ThreadPoolExecutor(max(1, depth - 1), "gatherbench-gather")

    def run(self, reads: Reads) -> None:
        """Do the reads; return when none is in flight. ``reads.failed`` holds any failure."""
        job = reads, self._pread, np.zeros(2, np.int64)
        helpers = min(self._depth, -(-len(reads.plan.begins) // _READS_A_THREAD)) - 1
        pending = [self._pool.submit(read_by_thread, *job) for _ in range(helpers)]
        # This thread begins at once, and does not wait for those that have yet to begin: in a busy
        # process they may be late by several milliseconds.
        read_by_thread(*job)
        for future in pending:
            if not future.cancel():
                future.result()

    def close(self) -> None:
        self._pool.shutdown(wait=True)


class RingEngine:
    """Reads by io_uring from one thread; ``OSError`` with reason and remedy: liburing is not
    installed, or the kernel gives no ring."""

    name = "io_uring"

    def __init__(self, depth: int) -> None:
        self._depth, self._library = depth, _liburing()
        self._ring = np.zeros(_RING_BYTES // 8, np.int64)
        status = self._library.io_uring_queue_init(
            ctypes.c_uint(depth), ctypes.c_void_p(self._ring.ctypes.data), ctypes.c_uint(0)
        )
        if status < 0:
            remedy = _RING_REMEDIES.get(-status, "")
            raise OSError(-status, f"io_uring_setup: {os.strerror(-status)}{remedy}")
        self._calls = Liburing(self._ring.ctypes.data, *_addresses(self._library, *_URING))

    def run(self, reads: Reads) -> None:
        """Do the reads, as :meth:`ThreadEngine.run`; ``OSError`` if no read is possible at all."""
        if error := read_by_ring(reads, self._depth, self._calls):
            raise OSError(error, f"io_uring_enter: {os.strerror(error)}")

    def close(self) -> None:
        self._library.io_uring_queue_exit(ctypes.c_void_p(self._ring.ctypes.data))


def _addresses(library: ctypes.CDLL, *names: str) -> list[int]:
    return [ctypes.cast(getattr(library, n), ctypes.c_void_p).value or 0 for n in names]


def _liburing() -> ctypes.CDLL:
    """Load the system's liburing (the variant for callers without C headers) or the package's,
    whose own Python calls do not help: each costs about as much as a read of a fast disk."""
    package = importlib.util.find_spec("liburing")
    folders = (package.submodule_search_locations if package else None) or ()
    for library in (_SYSTEM_LIBRARY, *(f"{folder}/liburing.so" for folder in folders)):
        with suppress(OSError):
            loaded = ctypes.CDLL(library)
            if all(hasattr(loaded, name) for name in _URING):
                return loaded
    remedy = f"{_SYSTEM_LIBRARY} of the system's liburing 2.3 or newer, or {installing('disk')}"
    raise OSError(errno.ENOPKG, f"there is no liburing: {remedy}")


def open_engine(name: str, depth: int) -> tuple[ThreadEngine | RingEngine, str]:
    """Open the engine ``name``; if that fails, return threads and the reason."""
    if name != RingEngine.name:
        return ThreadEngine(depth), ""
    try:
        return RingEngine(depth), ""
    except OSError as error:
        return ThreadEngine(depth), error.strerror or str(error)
