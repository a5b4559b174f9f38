"""Gather and copy on threads that run only compiled code, and so never take Python's lock.

A helper thread of Python takes Python's lock twice for each minibatch, and the thread that launches
the training's work wants it, too. The threads here wait for jobs on a futex(2), take chunks of a
job from a common counter, so that the others do the work of a late one, and record its end in
memory. A caller waits for that end in one call that holds no lock. No compiler is needed: the loops
are numba's, the threads libc's.

A job lies in one of :data:`SLOTS` slots, rows of 64-bit words of one array; row 0 is the header. A
thread enters a slot before it reads it, and leaves it afterwards. A slot takes its next job when
its last one is done and every thread that had entered has left, so threads that have not begun
cause no delay. Each thread visits the jobs in the order in which they were posted.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import cfunc, njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.numpy_support import carray
from numba.np.unsafe.ndarray import to_fixed_tuple
from numpy.typing import NDArray

#: The threads' name in the kernel (15 bytes), by which meters recognise them.
NAME = "gatherbench-gat"
#: The most jobs in flight; one more waits for the first of them.
SLOTS = 64
_WORDS = 26
#: Words of the header: jobs posted so far, a flag to stop.
_POSTED, _STOP = range(2)
#: Words of a slot that change during a job.
_ENTERED, _LEFT, _DONE, _WAITING, _CURSOR, _FINISHED, _BAD, _HELPERS = range(8)
_BEGAN, _ENDED = 8, 10  # as timespec has them: seconds and nanoseconds
#: The job's number, the most threads besides the caller, and from _JOB on :class:`Job`.
_NUMBER, _LIMIT, _JOB = 12, 13, 14
_CLOSED = 1 << 40
#: Values in place of the first bad id's place: no id is bad; the job was dropped.
_NONE, DROPPED = (1 << 62), -1
#: futex(2): the call's number (arch/*/entry/syscalls in Linux), and its operations.
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0)
_WAIT, _WAKE, _ALL = 128, 129, 0x7FFFFFFF
CLOCK_MONOTONIC = 1
#: Bytes of a CPU's cache line.
LINE_BYTES = 64
_INT32, _INT64, _BYTE_POINTER = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()


class Job(NamedTuple):
    """Rows to gather, or bytes to copy; memory is given by address."""

    total: int  #: ids, or bytes of a copy
    chunk: int  #: ids or bytes that a thread takes at a time
    source: int  #: the table, or the bytes to copy
    rows: int = 0
    row_bytes: int = 0  #: 0: the job is a copy
    ids: int = 0
    id_bytes: int = 0  #: 4 or 8
    positions: int = 0  #: int64 rows of the output; 0: in order
    out: int = 0
    out_rows: int = 0
    then: int = 0  #: where each chunk of the output is copied, too; 0: nowhere
    ahead: int = 0  #: rows to prefetch ahead


class Done(NamedTuple):
    """The end of a job."""

    bad: int  #: the place of the first bad id; -1: none
    dropped: bool
    seconds: float  #: from the first chunk's begin to the last one's end


def _compiled(emit: Callable[..., Any]) -> Any:
    """Define a compiled function of integers: ``emit(builder, *arguments)`` gives the LLVM code of
    its int64 result."""
    unpack: Any = cgutils.unpack_tuple
    packed_as: Any = types.StarArgTuple

    def define(_typing: Any, *arguments: Any) -> Any:
        def codegen(_context: Any, builder: Any, _signature: Any, packed: Any) -> Any:
            return emit(builder, *unpack(builder, packed[0]))

        return types.int64(packed_as([types.int64] * len(arguments))), codegen

    return intrinsic(define)


def _emit_prefetch(builder: Any, address: Any) -> Any:
    kind = ir.FunctionType(ir.VoidType(), [_BYTE_POINTER, *[_INT32] * 3])
    insert: Any = cgutils.get_or_insert_function
    read, near, data = (ir.Constant(_INT32, x) for x in (0, 3, 1))
    prefetch = insert(builder.module, kind, "llvm.prefetch.p0")
    builder.call(prefetch, [builder.inttoptr(address, _BYTE_POINTER), read, near, data])
    return address


def _emit_call(builder: Any, address: Any, *arguments: Any) -> Any:
    kind = ir.FunctionType(_INT64, [_INT64] * len(arguments))
    return builder.call(builder.inttoptr(address, kind.as_pointer()), arguments)


def _atomic(operation: str) -> Any:
    """Define atomic ``operation(array, index, value)`` on int64 ``[N]``, in one order for all
    threads; it returns the value before."""

    def define(_typing: Any, array: Any, _index: Any, _value: Any) -> Any:
        def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            items = context.make_array(array)(context, builder, args[0])
            at = builder.gep(items.data, [args[1]])
            return builder.atomic_rmw(operation, at, args[2], "seq_cst")

        return types.int64(array, types.intp, types.int64), codegen

    return intrinsic(define)


#: Prefetch the cache line at an address, which never faults, whatever the address.
_prefetch: Any = _compiled(_emit_prefetch)
#: Call the C function at an address with integers.
call: Any = _compiled(_emit_call)
#: Atomic add, exchange and minimum; each returns the value before.
take, _exchange, _least = (_atomic(name) for name in ("add", "xchg", "min"))
#: Read the int64 and the int32 at an address.
_word: Any = _compiled(lambda b, at: b.load(b.inttoptr(at, _INT64.as_pointer()), align=8))
_half: Any = _compiled(lambda b, at: b.sext(b.load(b.inttoptr(at, _INT32.as_pointer())), _INT64))
_job_words: Any = to_fixed_tuple
#: The C library's memcpy picks the widest moves of the CPU at hand.
memcpy: Any = types.ExternalFunction("memcpy", types.int64(*[types.int64] * 3))
_syscall: Any = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))
clock_gettime: Any = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))
_yield: Any = types.ExternalFunction("sched_yield", types.int32())


@njit(nogil=True, cache=True)
def _sleep(words: Any, at: int, seen: int) -> None:
    """Sleep until a thread wakes those at a word; return at once if its value is not ``seen``."""
    _syscall(_FUTEX, words.ctypes.data + 8 * at, _WAIT, seen & 0xFFFFFFFF, 0, 0, 0)


@njit(nogil=True, cache=True)
def _wake(words: Any, at: int, count: int) -> None:
    _syscall(_FUTEX, words.ctypes.data + 8 * at, _WAKE, count, 0, 0, 0)


@njit(nogil=True, cache=True)
def _note_time(slot: Any, at: int) -> None:
    clock_gettime(CLOCK_MONOTONIC, slot.ctypes.data + 8 * at)


@njit(nogil=True, cache=True, inline="always")
def _prefetch_row(address: Any, row_bytes: int) -> None:
    line = address & ~(LINE_BYTES - 1)
    while line < address + row_bytes:
        _prefetch(line)
        line += LINE_BYTES


@njit(nogil=True, cache=True, inline="always")
def _id(job: Job, i: int) -> int:
    return _word(job.ids + 8 * i) if job.id_bytes == 8 else _half(job.ids + 4 * i)


@njit(nogil=True, cache=True)
def _gather_rows(job: Job, start: int, stop: int) -> int:
    """Copy rows of ids ``start`` to ``stop - 1``, except for bad ids; return the first bad id's
    place, or ``_NONE``."""
    table, ahead, row_bytes = job.source, job.ahead, job.row_bytes
    first_bad = _NONE
    for i in range(start, min(start + ahead, stop)):
        _prefetch_row(table + _id(job, i) * row_bytes, row_bytes)
    for i in range(start, stop):
        if i + ahead < stop:
            _prefetch_row(table + _id(job, i + ahead) * row_bytes, row_bytes)
        row = _id(job, i)
        to = _word(job.positions + 8 * i) if job.positions != 0 else i
        if 0 <= row < job.rows and 0 <= to < job.out_rows:
            memcpy(job.out + to * row_bytes, table + row * row_bytes, row_bytes)
        elif first_bad == _NONE:
            first_bad = i
    return first_bad


@njit(nogil=True, cache=True)
def _chunk(slot: Any, job: Job, start: int, stop: int) -> None:
    if job.row_bytes == 0:
        memcpy(job.out + start, job.source + start, stop - start)
        return
    bad = _gather_rows(job, start, stop)
    if bad != _NONE:
        _least(slot, _BAD, bad)
    if job.then != 0:
        begin, size = start * job.row_bytes, (stop - start) * job.row_bytes
        memcpy(job.then + begin, job.out + begin, size)


@njit(nogil=True, cache=True)
def _visit(slot: Any, own: bool) -> None:
    """Take chunks of the slot's job until none is left; the thread of the last one records the end.
    Unless ``own`` is true, the thread skips the job if enough others do it."""
    entered = take(slot, _ENTERED, 1)
    if entered & _CLOSED:
        return
    if own or take(slot, _HELPERS, 1) < slot[_LIMIT]:
        job, done = Job(*_job_words(slot[_JOB:], 12)), 0
        while True:
            start = take(slot, _CURSOR, job.chunk)
            if start >= job.total:
                break
            if start == 0:
                _note_time(slot, _BEGAN)
            stop = min(start + job.chunk, job.total)
            _chunk(slot, job, start, stop)
            done += stop - start
        if done > 0 and take(slot, _FINISHED, done) + done == job.total:
            _tell_end(slot, slot[_NUMBER])
    take(slot, _LEFT, 1)


@njit(nogil=True, cache=True)
def _tell_end(slot: Any, number: int) -> None:
    _note_time(slot, _ENDED)
    _exchange(slot, _DONE, number + 1)
    if _exchange(slot, _WAITING, 0):
        _wake(slot, _DONE, _ALL)


@njit(nogil=True, cache=True)
def _serve(state: Any) -> None:
    """Run a thread: visit each posted job until the flag to stop is set."""
    header, number = state[0], 0
    while True:
        posted = take(header, _POSTED, 0)
        if take(header, _STOP, 0):
            return
        if posted == number:
            _sleep(header, _POSTED, posted)
            continue
        number = max(number, posted - SLOTS)  # all earlier jobs are done
        _visit(state[1 + number % SLOTS], False)
        number += 1


@njit(cache=True)
def _post(state: Any, words: NDArray[np.int64], woken: int) -> None:
    """Put number, limit and job into their slot, whose last job is done; wake ``woken`` threads."""
    slot = state[1 + words[0] % SLOTS]
    entered = take(slot, _ENTERED, _CLOSED)
    while take(slot, _LEFT, 0) != entered:
        _yield()
    for k in range(words.size):
        _exchange(slot, _NUMBER + k, words[k])
    for word in (_LEFT, _CURSOR, _FINISHED, _HELPERS):
        _exchange(slot, word, 0)
    _exchange(slot, _BAD, _NONE)
    if slot[_JOB] == 0:  # nothing to gather
        _note_time(slot, _BEGAN)
        _tell_end(slot, words[0])
    _exchange(slot, _ENTERED, 0)
    take(state[0], _POSTED, 1)
    if woken > 0:
        _wake(state[0], _POSTED, woken)


@njit(nogil=True, cache=True)
def _finish(state: Any, number: int, visit: bool) -> None:
    """Wait until the job is done, even if still to be posted; with ``visit`` first take part."""
    slot = state[1 + number % SLOTS]
    if visit:
        _visit(slot, True)
    while True:
        done = take(slot, _DONE, 0)
        if done > number:
            return
        _exchange(slot, _WAITING, 1)
        if take(slot, _DONE, 0) == done:
            _sleep(slot, _DONE, done)


def gather_here(job: Job) -> int:
    """Gather in the calling thread alone; return the place of the first bad id, or -1."""
    bad = _gather_rows(job, 0, job.total)
    return -1 if bad == _NONE else int(bad)


@functools.cache
def _entry() -> int:
    """Return the address of :func:`_serve` as a C function, which returns null."""

    words: Any = types.CPointer  # untyped

    @cfunc(types.intp(words(types.int64)), cache=True)
    def serve(base: Any) -> Any:
        _serve(carray(base, (1 + SLOTS, _WORDS)))
        return 0

    return int(serve.address or 0)


class NativeThreads:
    """Up to ``threads`` threads and their jobs; they start with the first job that needs them.
    Several Python threads may use it at once."""

    def __init__(self, threads: int) -> None:
        if not _FUTEX:
            raise RuntimeError(f"no number of futex(2) is known on {platform.machine()}")
        self._state, self._most = np.zeros((1 + SLOTS, _WORDS), np.int64), threads
        self._handles: list[int] = []
        self._posting, self._pid = threading.Lock(), os.getpid()
        #: By number: the memory that a job reads and writes, until the job is known to be done.
        self._held: dict[int, object] = {}
        self._ended: dict[int, Done] = {}
        self._stop = weakref.finalize(self, _end, self._state, self._handles, self._held, self._pid)

    @property
    def usable(self) -> bool:
        """True if the threads run in this process; false after a fork and after ``close``."""
        return self._pid == os.getpid() and self._stop.alive

    @property
    def posted(self) -> int:
        """The next job's number, from the threads' own count, which no interrupt can skew."""
        return int(self._state[0, _POSTED])

    def post(self, job: Job, threads: int, held: object, *, helped: bool) -> int:
        """Post a job for ``threads`` threads, of which the caller is one if ``helped``; return its
        number, for :meth:`done`. ``held``, the memory that it uses, is kept alive until then."""
        others = threads - helped
        with self._posting:
            number = self.posted
            if number - SLOTS in self._held:
                self._note(number - SLOTS, visit=True)
            if others:
                self._start(min(others, self._most))
            words = np.array((number, others, *job), np.int64)
            self._held[number] = held  # no call before it is posted, so no interrupt
            _post(self._state, words, others)
        return number

    def done(self, number: int, *, help_first: bool = False) -> Done:
        """Wait for the job and return how it ended; take Python's lock once."""
        if number not in self._ended:
            self._note(number, visit=help_first)
        return self._ended.pop(number)

    def settle(self, under_way: int) -> None:
        """Wait for all jobs if more than ``under_way`` of them are not known to be done: an
        interrupt may have abandoned one that still writes to a buffer."""
        if len(self._held) > under_way:
            for number in sorted(self._held):
                self._note(number, visit=True)

    def wait(self, number: int) -> None:
        """Wait until job ``number`` is done or dropped, even if it has yet to be posted."""
        _finish(self._state, number, False)

    def _note(self, number: int, *, visit: bool) -> None:
        slot = self._state[1 + number % SLOTS]
        if visit or slot[_DONE] <= number:
            _finish(self._state, number, visit)
        words = slot[:_NUMBER].tolist()
        seconds = words[_ENDED] - words[_BEGAN] + (words[_ENDED + 1] - words[_BEGAN + 1]) / 1e9
        bad = words[_BAD]
        self._ended[number] = Done(-1 if bad == _NONE else bad, bad == DROPPED, seconds)
        self._held.pop(number, None)

    def _start(self, count: int) -> None:
        missing = count - len(self._handles)
        if missing <= 0:
            return
        libc = ctypes.CDLL(None)
        # Python's threads handle signals: block them here, which the new threads inherit.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            for _ in range(missing):
                handle = ctypes.c_ulong()
                where, base = ctypes.byref(handle), ctypes.c_void_p(self._state.ctypes.data)
                if error := libc.pthread_create(where, None, ctypes.c_void_p(_entry()), base):
                    raise RuntimeError(f"pthread_create: {os.strerror(error)}")
                libc.pthread_setname_np(handle, NAME.encode())
                self._handles.append(handle.value)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def close(self) -> None:
        """End the threads; a job that none of them has begun is dropped. Safe to call twice."""
        self._stop()


def _end(state: NDArray[np.int64], handles: list[int], held: dict[int, object], pid: int) -> None:
    """Stop and join the threads, then mark the remaining jobs as dropped; it also runs at the end
    of the process, while the compiled code still exists."""
    if pid != os.getpid():
        return
    _halt(state)
    libc = ctypes.CDLL(None)
    for handle in handles:
        libc.pthread_join(ctypes.c_ulong(handle), None)
    for number in list(held):
        if state[1 + number % SLOTS, _CURSOR] == 0:
            _drop(state, number)
    _drop(state, int(state[0, _POSTED]) - 1)  # the next job, for whose end a caller may wait


@njit(cache=True)
def _halt(state: Any) -> None:
    _exchange(state[0], _STOP, 1)
    take(state[0], _POSTED, 1)  # a thread that is about to sleep sees the change
    _wake(state[0], _POSTED, _ALL)


@njit(cache=True)
def _drop(state: Any, number: int) -> None:
    slot = state[1 + number % SLOTS]
    if take(slot, _DONE, 0) <= number:
        _exchange(slot, _BAD, DROPPED)
        _tell_end(slot, number)
