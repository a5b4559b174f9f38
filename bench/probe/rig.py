"""Provide what all cases use: the tables that they read, and the clocks."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from gatherbench.kernels.host_gather import available_cores
from gatherbench.kernels.host_memory import available_bytes, empty_table
from gatherbench.kernels.managed_memory import managed_bytes, managed_table
from gatherbench.kernels.mapped_memory import HostRegistration

T = TypeVar("T")
Say = Callable[[str], None]
MIB, GIB = 1 << 20, 1 << 30
#: Sizes of the tables: those that a GPU reads, and the processor's where there is no GPU.
SPANS = (256 * MIB, GIB, 4 * GIB, 16 * GIB, 32 * GIB)
HOST_SPANS = (4 * MIB, 32 * MIB, 256 * MIB, GIB, 2 * GIB)
#: The smallest table: less fits the caches of large processors, and would time those.
LEAST_BYTES = 256 * MIB
#: Shares of free host memory for the table that a GPU reads, and for the processor's.
SHARE_OF_MEMORY, HOST_SHARE = 0.6, 0.25
#: Bytes of GPU memory that must remain after all managed memory is subtracted from the free part.
LEFT_BYTES = 4 * GIB
#: Bytes of the largest buffer on the GPU: the target of a contiguous read.
OUT_BYTES = GIB
CLOCK, EVENTS = "time.perf_counter", "torch.cuda.Event"
#: A quarter of a millisecond at 2 GHz: two launches from Python take less.
_SPIN_CYCLES = 500_000
_CHUNK = 1 << 27


class RefusedError(RuntimeError):
    """A point cannot be measured here, for the reason in the message; others can."""


class WrongRowsError(RefusedError):
    """A kernel delivers other rows than the table's, so it is not timed."""


class Observation(NamedTuple):
    """``amount``, in the case's unit, took ``time_s`` by the clock ``source``."""

    amount: float
    time_s: float
    source: str


class Memory(NamedTuple):
    """Host memory (uint8) that a GPU reads in place, at ``address``."""

    kind: str
    bytes: Tensor
    address: int


class Rig(ExitStack):
    """A machine ready for measurements; it closes at the end what a case makes with :meth:`once`.

    Its tables raise a :class:`RefusedError` where there is too little memory for the smallest.

    Args:
        device: a CUDA device, or ``None`` for the host alone.
        say: gets messages about slow steps and about what is left out.
    """

    def __init__(self, device: torch.device | None = None, say: Say = print) -> None:
        super().__init__()
        self.device, self.say = device, say
        self.index = (device and device.index) or 0
        self._sizes = SPANS if device else HOST_SPANS
        self.cores = available_cores()
        self.random = torch.Generator().manual_seed(0)
        self._made: dict[Any, Any] = {}

    def once(self, make: Callable[..., T], *arguments: Any) -> T:
        """Return ``make(*arguments)``, called only once; a refusal is raised again."""
        key = make, arguments
        if key not in self._made:
            try:
                self._made[key] = made = make(*arguments)
            except RefusedError as refusal:
                self._made[key] = made = refusal  # type: ignore[assignment]
            if hasattr(made, "close"):
                self.callback(made.close)
        if isinstance(self._made[key], RefusedError):
            raise self._made[key]
        return self._made[key]  # type: ignore[no-any-return]

    @property
    def table(self) -> Tensor:
        """The table that the processor reads, uint8: the GPU's own table where there is a GPU."""
        return self.registered.bytes if self.device else self.once(self._host_table)

    @property
    def spans(self) -> list[int]:
        """The sizes up to that of the table, ascending."""
        size = self.table.numel()
        return [span for span in self._sizes if span <= size]

    @property
    def registered(self) -> Memory:
        """The largest table that fits, page-locked and mapped for the GPU."""
        return self.once(self._register)

    @property
    def managed(self) -> Memory:
        """A copy of the table, as large as fits, in managed memory that stays on the host."""
        return self.once(self._bring_managed)

    @functools.cached_property
    def out(self) -> Tensor:
        """A buffer on the GPU, uint8."""
        return torch.empty(OUT_BYTES, dtype=torch.uint8, device=self.device)

    def timed(self, amount: float, work: Callable[[], object]) -> Observation:
        """Time the GPU work that ``work`` queues on the current stream, with CUDA events."""
        make: Any = torch.cuda.Event
        begin, end = make(enable_timing=True), make(enable_timing=True)
        torch.cuda.synchronize(self.device)
        torch.cuda._sleep(_SPIN_CYCLES)  # type: ignore[no-untyped-call] # hides the queueing
        begin.record()
        work()
        end.record()
        end.synchronize()
        return Observation(amount, float(begin.elapsed_time(end)) / 1e3, EVENTS)

    def clocked(self, amount: float, work: Callable[[], object], wait: bool = True) -> Observation:
        """Time ``work`` by the host's clock, with ``wait`` including the work that it queues."""
        if self.device is not None:
            torch.cuda.synchronize(self.device)
        begin = time.perf_counter()
        work()
        if self.device is not None and wait:
            torch.cuda.synchronize(self.device)
        return Observation(amount, time.perf_counter() - begin, CLOCK)

    def piece(self, table: Tensor, size: int) -> Tensor:
        """Return ``size`` bytes of a table from a page boundary, at a random place each time."""
        places = (table.numel() - size) // 4096 + 1
        begin = 4096 * int(torch.randint(places, (1,), generator=self.random))
        return table[begin : begin + size]

    def managed_table(self, size: int) -> Memory:
        """Allocate ``size`` bytes of managed memory; the total must fit the free memory of the GPU.

        Raises:
            MemoryError: the GPU has too little free memory, or the allocation fails.
        """
        room = torch.cuda.mem_get_info(self.device)[0] - LEFT_BYTES - managed_bytes()
        if size > room:
            free = f"the {max(0, room) >> 20} MiB of GPU memory that are free"
            raise MemoryError(f"{size >> 20} MiB of managed memory do not fit {free}")
        table = managed_table((1, size), torch.uint8, self.index)[0]
        return Memory("managed", table, table.data_ptr())

    def largest(self, spans: Sequence[int], make: Callable[[int], Memory]) -> Memory:
        """Return the largest memory of ``spans`` that can be had; ``RefusedError`` if none can."""
        cause = "close other programs"
        for span in reversed(spans):
            try:
                return make(span)
            except (MemoryError, RuntimeError) as error:
                self.say(f"no table of {span / GIB:g} GiB: {error}")
                cause = str(error).removeprefix("no_memory: ")
        raise RefusedError(f"no_memory: {cause}")

    def _host_table(self) -> Tensor:
        free = available_bytes()
        fits = [span for span in self._sizes if span <= free * HOST_SHARE]
        if not fits or fits[-1] < LEAST_BYTES:
            cause = f"{free / GIB:.1f} GiB are free, 1 GiB is needed"
            raise RefusedError(f"no_memory: {cause}: close other programs")
        return filled_table(fits[-1])

    def _register(self) -> Memory:
        def make(size: int) -> Memory:
            table = filled_table(size)
            memory = HostRegistration(table, self.index)
            self.callback(release, memory)
            return Memory("registered", table, memory.address)

        def release(memory: HostRegistration) -> None:
            # Where CUDA's context is lost, the error that broke it is raised already.
            with contextlib.suppress(RuntimeError):
                torch.cuda.synchronize(self.device)
                memory.close()

        limit = SHARE_OF_MEMORY * available_bytes()
        return self.largest([span for span in self._sizes if span <= limit], make)

    def _bring_managed(self) -> Memory:
        memory = self.largest(self.spans, self.managed_table)
        memory.bytes.copy_(self.table[: memory.bytes.numel()])
        return memory


def filled_table(size: int) -> Tensor:
    """Return ``size`` bytes (a multiple of 8), uint8, in huge pages where the kernel grants any."""
    table = empty_table((size // 8, 1), torch.int64).view(-1).view(torch.uint8)
    fill(table)
    return table


def fill(table: Tensor) -> None:
    """Give each eight bytes of ``table`` (uint8) a different value, so wrong rows are noticed."""
    words = table.view(torch.int64)
    for start in range(0, words.numel(), _CHUNK):
        part = words[start : start + _CHUNK]
        torch.arange(start, start + part.numel(), out=part)
        part.mul_(-7046029254386353131)  # odd, so values stay distinct and all bytes vary
