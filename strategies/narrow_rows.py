"""Rows that travel in a narrower type and are widened where the model is: fewer bytes, lossy.

A table of float32 is kept in host memory a second time, as float16, bfloat16 or int8 with a scale
for each row, and another path fetches its rows. They are widened on the device, behind the gather.
The model trains on rounded values, so such a path is never ranked with those that bring the rows as
they are: what it costs is accuracy, and that is to be looked at beside the time
(``eval_every_epoch``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.kernels.managed_memory import Memory, empty
from gatherbench.kernels.modes import plain_torch
from gatherbench.reason import Reason, unsupported
from gatherbench.strategies.aligned_zero_copy import AlignedZeroCopy
from gatherbench.strategies.async_zero_copy import AsyncZeroCopy
from gatherbench.strategies.base import (
    Fetcher,
    Minibatches,
    Residency,
    Role,
    SetupStep,
    Strategy,
    Ticket,
)
from gatherbench.strategies.buffers import TicketRing
from gatherbench.strategies.cached_zero_copy import CachedZeroCopy
from gatherbench.strategies.cpu_gather import CpuGather
from gatherbench.strategies.cuda_fetcher import device_rows
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.host_fetcher import host_buffer
from gatherbench.strategies.knowledge import NOTHING, Knowledge, Need
from gatherbench.strategies.places import with_index

#: Bytes of a row's scale, behind its int8 values.
_SCALE_BYTES = 4
#: The largest value of int8 that is used: as many below zero as above.
_MOST = 127
#: Bytes of the table that are narrowed at a time: what that takes beside it is a few times as many.
_PIECE = 4 << 20
_FLOATS = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class NarrowRows(Strategy):
    """``dtype``: what the rows travel as, ``path``: how, and ``memory``: from where.

    ``int8`` has a scale for each row: its largest value over 127. ``path`` is that of the strategy
    of this name: ``aligned`` zero-copy, ``async`` beside training, ``cached`` with hot rows on the
    GPU, ``cached-ahead`` both, or ``pinned``, gathered by the CPU, which has no ``memory``.
    """

    name: ClassVar[str] = "narrow_rows"
    summary: ClassVar[str] = "rows travel as float16, bfloat16 or int8 and are widened: lossy"
    colour: ClassVar[str] = "brown"
    unsaid = frozenset({"memory"})

    dtype: Literal["float16", "bfloat16", "int8"] = "float16"
    path: Literal["aligned", "async", "cached", "pinned", "cached-ahead"] = "aligned"
    memory: Literal["registered", "managed"] = "registered"

    @property
    def inner(self) -> Strategy:
        """The path that fetches the narrow rows."""
        if self.path == "pinned":
            return CpuGather()
        if self.path.startswith("cached"):
            ahead: Literal["0", "1"] = "1" if self.path == "cached-ahead" else "0"
            return CachedZeroCopy(ahead=ahead, memory=self.memory)
        return (AsyncZeroCopy if self.path == "async" else AlignedZeroCopy)(memory=self.memory)

    @property
    def role(self) -> Role:
        return self.inner.role

    @property
    def lossy(self) -> bool:
        return True

    @property
    def aside(self) -> str | None:
        return f"lossy: rows travel as {self.dtype}"

    @property
    def needs(self) -> frozenset[Need]:
        return self.inner.needs

    @property
    def lookahead(self) -> int:
        return self.inner.lookahead

    @property
    def gpu_share(self) -> float:
        return self.inner.gpu_share

    def skip(self, device: torch.device, table_bytes: int = 0) -> Reason | None:
        reason = self.inner.skip(device, self.travelling_bytes(table_bytes))
        if reason is None and self.memory == "managed" and self.path == "pinned":
            return unsupported("path = pinned has no parameter memory")
        return reason

    def travelling_bytes(self, row_bytes: int) -> int:
        values = -(-row_bytes // torch.float32.itemsize)
        if self.dtype in _FLOATS:
            return values * _FLOATS[self.dtype].itemsize
        return _scale_at(values) + _SCALE_BYTES

    def delivered(self, rows: Tensor) -> Tensor:
        out = torch.empty_like(rows)
        widen(narrowed(rows, self.dtype), out)
        return out

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        return self.inner.data_path(ids, self.travelling_bytes(row_bytes))

    def _data_paths(self, of: Minibatches) -> Iterator[DataPath]:
        narrow = self.travelling_bytes(of.row_bytes)
        return self.inner.data_paths(of.batches, narrow, of.num_rows, of.knowledge, of.before)

    def kept_bytes(self, rows: int, row_bytes: int, knowledge: Knowledge = NOTHING) -> int:
        return self.inner.kept_bytes(rows, self.travelling_bytes(row_bytes), knowledge)

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        begin = time.perf_counter()
        managed = with_index(device).index if self.managed else None
        table = narrow_table(features, self.dtype, managed)
        seconds = time.perf_counter() - begin
        inner = self.inner.open(table, device, knowledge)
        steps = [
            SetupStep("narrow_time", "s", seconds, f"time.perf_counter, table to {self.dtype}"),
            SetupStep("narrow_table", "B", table.nbytes, "tensor.nbytes, beside the table"),
        ]
        return WideningFetcher(features, table, inner, steps)


def narrow_table(features: Tensor, dtype: str, managed: int | None = None) -> Tensor:
    """The table ``[N, D]`` in a narrower type, in memory of its own: see :func:`narrowed`.

    Args:
        managed: the GPU by whose driver it is had; ``None``: it is anonymous.

    Raises:
        ValueError: it is no float32, or holds what the type cannot.
        CudaCallError, MemoryError: see ``managed_table``.
    """
    if features.dtype != torch.float32:
        raise ValueError(f"narrow_rows: the table is {features.dtype}, expected torch.float32")
    few = narrowed(features[:0], dtype)
    memory: Memory = "anonymous" if managed is None else "managed"
    table = empty((len(features), few.shape[1]), few.dtype, memory=memory, device=managed)
    rows = max(1, _PIECE // max(1, features.shape[1] * features.itemsize))
    for first in range(0, len(features), rows):
        table[first : first + rows] = narrowed(features[first : first + rows], dtype)
    return table


def narrowed(rows: Tensor, dtype: str) -> Tensor:
    """Float32 rows ``[B, D]`` in a narrower type, each by itself.

    Returns:
        float16 or bfloat16 ``[B, D]``; of ``int8`` uint8 ``[B, P]``: the values as int8, filled up
        to a multiple of 4, then the row's scale as float32.

    Raises:
        ValueError: a value that is not finite, or beyond the type's largest.
    """
    largest = rows.abs().amax(1) if rows.numel() else rows.new_empty(len(rows))
    most = torch.finfo(_FLOATS.get(dtype, torch.float32)).max
    if not bool((largest <= most).all()):  # neither is NaN
        bad = int((~(largest <= most)).nonzero()[0])
        raise ValueError(
            f"narrow_rows: a row holds {float(largest[bad]):g}, and {dtype} holds finite values up"
            f" to {most:g}" + ("; bfloat16 and int8 hold more" if dtype == "float16" else "")
        )
    if dtype in _FLOATS:
        return rows.to(_FLOATS[dtype])
    values = rows.shape[1]
    scale = largest / _MOST
    whole = rows / torch.where(scale > 0, scale, 1.0)[:, None]
    packed = torch.zeros((len(rows), _scale_at(values) + _SCALE_BYTES), dtype=torch.uint8)
    packed[:, :values] = whole.round_().clamp_(-_MOST, _MOST).to(torch.int8).view(torch.uint8)
    packed[:, _scale_at(values) :] = scale[:, None].view(torch.uint8)
    return packed


def widen(narrow: Tensor, out: Tensor) -> None:
    """Write rows of :func:`narrowed` as float32 into ``out`` ``[B, D]``, on their device.

    One operation a minibatch, each value rounded at most once, so every device has the same bits.
    """
    if narrow.dtype != torch.uint8:
        out.copy_(narrow)
        return
    values = out.shape[1]
    scale = narrow[:, _scale_at(values) :].view(torch.float32)
    torch.mul(narrow[:, :values].view(torch.int8), scale, out=out)


def _scale_at(values: int) -> int:
    """Where the scale of a row of so many int8 values lies: at a multiple of 4 bytes."""
    return -(-values // 4) * 4


class WideningFetcher(Fetcher):
    """Fetches narrow rows by ``inner``, and widens them on the stream of whoever takes them.

    Args:
        features: the table as it is given.
        narrow: the one that ``inner`` reads; it lives as long as this.
    """

    live = False

    def __init__(
        self, features: Tensor, narrow: Tensor, inner: Fetcher, setup: list[SetupStep]
    ) -> None:
        super().__init__(features, inner.device)
        self._inner, self._narrow = inner, narrow
        self.lookahead, self.announced = inner.lookahead, inner.announced
        self.tunable, self.ids_device = inner.tunable, inner.ids_device
        self.setup = [*setup, *inner.setup]
        places = inner.lookahead + 1
        self._ring = TicketRing(places)
        shape = (self.row_width,)
        if self.device.type == "cuda":
            self._rows = [device_rows(shape, self.dtype, self.device) for _ in range(places)]
            self._free = [torch.cuda.Event() for _ in range(places)]  # type: ignore[no-untyped-call]
        else:
            self._rows = [host_buffer(features) for _ in range(places)]

    def _submit(self, ids: Tensor) -> Ticket:
        place = self._ring.claim()
        ticket = self._inner._submit(ids)
        out = self._rows[place].rows(ids.numel())
        if self.device.type == "cuda":
            # By the contract of `Ticket`, what reads the buffer's earlier rows is queued by now.
            self._free[place].record(torch.cuda.current_stream(self.device))
        return self._ring.issue(_once(lambda: self._widened(ticket, place, out)))

    def _widened(self, ticket: Ticket, place: int, out: Tensor) -> Tensor:
        narrow = ticket.result()
        if self.device.type == "cuda":
            current = torch.cuda.current_stream(self.device)
            current.wait_event(self._free[place])
            out.record_stream(current)
        with plain_torch():
            widen(narrow, out)
        return out

    def check_fetched(self) -> None:
        self._inner.check_fetched()

    def tune(self, ids: Tensor, beside: Callable[[], object]) -> list[SetupStep]:
        return self._inner.tune(ids, beside)

    def announce(self, ids: Tensor) -> None:
        self._inner.announce(ids)

    def forget(self) -> None:
        self._inner.forget()

    def begin_epoch(self) -> None:
        self._inner.begin_epoch()

    def counts(self) -> Mapping[str, float]:
        return self._inner.counts()

    def latencies(self) -> NDArray[np.int64] | None:
        return self._inner.latencies()

    def residency(self) -> tuple[Residency, ...]:
        return self._inner.residency()

    def _close(self) -> None:
        self._ring.close()
        self._inner.close()
        self._rows.clear()


def _once(make: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """What ``make`` gives when it is first called."""
    made: list[Tensor] = []

    def get() -> Tensor:
        if not made:
            made.append(make())
        return made[0]

    return get
