"""What the cases share: the tables that they read, the clocks, the rounds, the file of rows."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import faulthandler
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from gatherbench.bench.read.points import COLUMNS, Point, PointRow
from gatherbench.kernels.host_gather import available_cores
from gatherbench.kernels.host_memory import available_bytes, empty_table
from gatherbench.kernels.managed_memory import managed_bytes, managed_table
from gatherbench.kernels.mapped_memory import HostRegistration

T = TypeVar("T")
MIB, GIB = 1 << 20, 1 << 30
#: Sizes of the tables: that a GPU reads, and that a processor does where there is no GPU.
SPANS = (256 * MIB, GIB, 4 * GIB, 16 * GIB, 32 * GIB)
HOST_SPANS = (4 * MIB, 32 * MIB, 256 * MIB, GIB, 2 * GIB)
#: Less than this fits the caches of large processors, and would time those.
LEAST_BYTES = 256 * MIB
#: Of free host memory, for the table that a GPU reads, and for the processor's.
SHARE_OF_MEMORY, HOST_SHARE = 0.6, 0.25
#: Of GPU memory, what is left free beside as much managed memory.
LEFT_BYTES = 4 * GIB
#: The largest buffer on the GPU: what a contiguous read brings.
OUT_BYTES = GIB
CLOCK, EVENTS = "time.perf_counter", "torch.cuda.Event"
#: A quarter of a millisecond at 2 GHz: two launches from Python take less.
_SPIN_CYCLES = 500_000
_CHUNK = 1 << 27


class ProbeError(RuntimeError):
    """Nothing can be measured, or no rows can be kept."""


class RefusedError(RuntimeError):
    """A point cannot be measured here, for this reason; others can."""


class WrongRowsError(RefusedError):
    """Other rows than the table's: what delivers them is not timed."""


class Observation(NamedTuple):
    """``amount``, in the unit of the case, took ``seconds``, by ``source``; ``None``: not timed."""

    amount: float
    seconds: float | None
    source: str


@dataclass(frozen=True, eq=False)
class Memory:
    """Host memory (uint8) that a GPU reads in place; it sees it at ``address``."""

    kind: str
    bytes: Tensor
    address: int


class Rig(ExitStack):
    """A machine ready to be measured; what a case makes with :meth:`once` is closed with it.

    Args:
        device: a CUDA device, or ``None``: the host alone.
        folder: whose disk is timed, if any.
        say: told what takes its time, or is left out.
        spans: sizes of the table, ascending; the largest that can be had is made.
    """

    def __init__(
        self,
        device: torch.device | None = None,
        folder: Path | None = None,
        say: Callable[[str], None] = print,
        spans: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.device, self.folder, self.say = device, folder, say
        self._sizes = spans or (SPANS if device else HOST_SPANS)
        self.cores = available_cores()
        self.random = torch.Generator().manual_seed(0)
        self._made: dict[Any, Any] = {}

    def once(self, make: Callable[..., T], *given: Any) -> T:
        """``make(*given)``, once; where it is refused, it is refused again without a try."""
        key = make, given
        if key not in self._made:
            try:
                made: Any = make(*given)
            except RefusedError as why:
                made = why
            self._made[key] = made
            if isinstance(made, AbstractContextManager):
                self.enter_context(made)
            elif hasattr(made, "close"):
                self.callback(made.close)
        if isinstance(self._made[key], RefusedError):
            raise self._made[key]
        return self._made[key]  # type: ignore[no-any-return]

    @property
    def table(self) -> Tensor:
        """What the processor reads, uint8: the GPU's own table where there is a GPU."""
        return self.registered.bytes if self.device else self.once(self._host_table)

    @property
    def spans(self) -> list[int]:
        """The sizes of table that there is memory for, ascending."""
        size = self.table.numel()
        return [span for span in self._sizes if span <= size]

    @property
    def registered(self) -> Memory:
        """The largest table that can be had, page-locked and mapped for the GPU.

        Raises:
            RefusedError: there is no memory, or it cannot be registered.
        """
        return self.once(self._register)

    @property
    def managed(self) -> Memory:
        """As much of it as can be had, in managed memory that stays on the host.

        Raises:
            RefusedError: none is to be had.
        """
        return self.once(self._bring_managed)

    @property
    def out(self) -> Tensor:
        """A buffer on the GPU, uint8."""
        return self.once(self._buffer)

    def managed_table(self, size: int) -> Memory:
        """``size`` bytes of their own; all together are never larger than what the GPU has free.

        Raises:
            RefusedError: more is not tried, or there is none.
        """
        assert self.device is not None
        room = torch.cuda.mem_get_info(self.device)[0] - LEFT_BYTES - managed_bytes()
        if size > room:
            why = "more managed memory than a GPU has free is not asked for"
            raise RefusedError(f"no_memory: {size >> 20} MiB, {max(0, room) >> 20} free; {why}")
        try:
            table = managed_table((1, size), torch.uint8, self.device.index or 0)[0]
        except (MemoryError, RuntimeError) as why:
            raise RefusedError(f"no_memory: {str(why).removeprefix('no_memory: ')}") from why
        return Memory("managed", table, table.data_ptr())

    def timed(self, amount: float, work: Callable[[], object]) -> Observation:
        """What ``work`` queues on the current stream, by the GPU's clock."""
        begin, end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        torch.cuda.synchronize(self.device)
        torch.cuda._sleep(_SPIN_CYCLES)  # type: ignore[no-untyped-call] # hides the queueing
        begin.record()
        work()
        end.record()
        end.synchronize()
        return Observation(amount, float(begin.elapsed_time(end)) / 1e3, EVENTS)

    def clocked(
        self, amount: float, work: Callable[[], object], *, wait: bool = True
    ) -> Observation:
        """``work``, and with ``wait`` what it queues on the GPU, by the host's clock."""
        if self.device is not None:
            torch.cuda.synchronize(self.device)
        begin = time.perf_counter()
        work()
        if self.device is not None and wait:
            torch.cuda.synchronize(self.device)
        return Observation(amount, time.perf_counter() - begin, CLOCK)

    def piece(self, table: Tensor, size: int) -> Tensor:
        """``size`` bytes of a table, on a page, somewhere else each time."""
        places = (table.numel() - size) // 4096 + 1
        begin = 4096 * int(torch.randint(places, (1,), generator=self.random))
        return table[begin : begin + size]

    def _host_table(self) -> Tensor:
        free = available_bytes()
        fits = [span for span in self._sizes if span <= free * HOST_SHARE]
        if not fits or fits[-1] < LEAST_BYTES:
            raise RefusedError(
                f"no_memory: {free / GIB:.1f} GiB are free, 1 GiB is needed: close other programs"
            )
        return filled_table(fits[-1])

    def _register(self) -> Memory:
        assert self.device is not None
        device = self.device

        def make(span: int) -> Memory:
            table = filled_table(span)
            memory = HostRegistration(table, device.index)
            self.push(self._unregister(memory))
            return Memory("registered", table, memory.address)

        most = SHARE_OF_MEMORY * available_bytes()
        return self._largest([span for span in self._sizes if span <= most], make)

    def _unregister(self, memory: HostRegistration) -> Callable[..., None]:
        def leave(exc_type: object, *_: object) -> None:
            # What has broken CUDA's context tells more than what then fails because of it.
            with contextlib.suppress(*((RuntimeError,) if exc_type is not None else ())):
                torch.cuda.synchronize(self.device)
                memory.close()

        return leave

    def _bring_managed(self) -> Memory:
        memory = self._largest(self.spans, self.managed_table)
        memory.bytes.copy_(self.table[: memory.bytes.numel()])
        return memory

    def _largest(self, spans: Sequence[int], make: Callable[[int], Memory]) -> Memory:
        why = RefusedError("no_memory: close other programs")
        for span in reversed(spans):
            try:
                return make(span)
            except (MemoryError, RuntimeError) as error:
                self.say(f"no table of {span / GIB:g} GiB: {error}")
                why = RefusedError(f"no_memory: {str(error).removeprefix('no_memory: ')}")
        raise why

    def _buffer(self) -> Tensor:
        return torch.empty(OUT_BYTES, dtype=torch.uint8, device=self.device)


def filled_table(size: int) -> Tensor:
    """``size`` bytes (a multiple of 8), uint8, in huge pages where the kernel grants them."""
    table = empty_table((size // 8, 1), torch.int64).view(-1).view(torch.uint8)
    fill(table)
    return table


def fill(table: Tensor) -> None:
    """Give each eight bytes of ``table`` (uint8) other ones: wrong rows are then noticed."""
    words = table.view(torch.int64)
    for start in range(0, words.numel(), _CHUNK):
        part = words[start : start + _CHUNK]
        torch.arange(start, start + part.numel(), out=part)
        part.mul_(-7046029254386353131)  # odd: still all different, and all bytes vary


def visit(
    points: Sequence[Point],
    measure: Callable[[Point], Observation],
    add: Callable[..., None],
    *,
    out_of_time: Callable[[], bool],
    most_rounds: int = 0,
) -> int:
    """Measure every point once a round until the time is spent; the number of whole rounds.

    Before round 1 all are measured without a row: that compiles kernels, takes memory, wakes the
    link. Each round has an order of its own: a drift of the machine (clocks, another guest's
    traffic) falls on all points alike, and what is cut short has measured them equally often.

    Args:
        add: is given a point, the number of the round and an observation, or a ``reason``.
        out_of_time: asked before each point; one round is measured whatever it says.
        most_rounds: end after so many (0: the time decides).

    A point that is refused is told with the reason, and is visited no more.
    """
    left, generator, number = list(points), random.Random(0), 0
    turn = list(points)
    while True:
        for point in turn:
            if number > 1 and out_of_time():
                return number - 1
            try:
                seen = measure(point)
            except RefusedError as why:
                left.remove(point)
                add(point, number, reason=str(why))
            except Exception as error:
                error.add_note(f"while measuring {point}")
                raise
            else:
                if number:
                    add(point, number, seen)
        if not left or number == (most_rounds or -1) or (number and out_of_time()):
            return number
        number += 1
        turn = generator.sample(left, len(left))


@contextlib.contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    """The block is left within ``seconds``, or the process says where it stands and ends.

    A call into a driver that hangs cannot be cancelled, and may hold Python's lock for ever: the
    interpreter's own watchdog needs no lock. Rows that were added are on disk by then.
    """
    faulthandler.dump_traceback_later(max(1e-3, seconds), exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Tell a file that cannot be written from everything else that the system refuses."""
    try:
        yield
    except OSError as error:
        what = f"cannot be written: {error.strerror}; choose a folder with --out"
        raise ProbeError(f"{path}: {what}") from error


def append_row(path: Path, row: PointRow) -> None:
    """Append a row to a table of points: it is on disk as soon as it is known."""
    point, *observed = (getattr(row, field.name) for field in dataclasses.fields(row))
    with writing(path), path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not file.tell():
            writer.writerow(COLUMNS)
        writer.writerow([*dataclasses.astuple(point), *observed])
