"""Overlap as the paper does: a separate process gathers, within a share of the GPU under MPS.

The producer registers the table for itself, because a registration belongs to a process. The row
buffers, which the producer writes through CUDA IPC, belong to the training process, and so do the
events that keep the order: nothing dangles when the producer dies. Waiting for such an event means
waiting for its last ``record`` before the wait. So each message follows the record that it is
about: the request follows "the buffer is free", the answer follows "the rows are there".
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import torch
import torch.multiprocessing  # registers how to send GPU tensors to a process
from torch import Tensor

from gatherbench.kernels.launch import gather_into
from gatherbench.strategies.base import ID_DTYPES, Fetcher, SetupStep, Ticket
from gatherbench.strategies.buffers import TicketRing
from gatherbench.strategies.cuda_fetcher import device_rows
from gatherbench.strategies.cuda_kernel_fetcher import IdBuffer, KernelFetcher
from gatherbench.strategies.mps_daemon import SHARE_VARIABLE
from gatherbench.strategies.mps_process import MAX_IDS, Producer, Start
from gatherbench.strategies.places import with_index
from gatherbench.strategies.shared_table import map_table, shared_file

_PLACES = 2


class MpsFetcher(Fetcher):
    """Lets another process fetch, one batch ahead, from a copy of the table that it can map.

    Args:
        side: this process's half of the shared device state, as :class:`CudaTrainingSide`.
        producer_side, arguments: the producer's half, as ``module:class``, and its arguments.
        environment: the environment of the producer.
    """

    lookahead = _PLACES - 1
    live = False

    def __init__(
        self,
        features: Tensor,
        device: torch.device,
        side: Any,
        producer_side: str,
        arguments: dict[str, object],
        environment: dict[str, str],
    ) -> None:
        super().__init__(features, device)
        self._side = side
        self._ring = TicketRing(_PLACES)
        self._waiting = [False] * _PLACES
        begin = time.perf_counter()
        with shared_file(features.nbytes) as table, shared_file(_PLACES * MAX_IDS * 8) as ids:
            map_table(table.fileno(), features.shape, features.dtype).copy_(features)
            shared = time.perf_counter()
            files, shape = (table.fileno(), ids.fileno()), (self.num_rows, self.row_width)
            start = Start(producer_side, *files, shape, self.dtype, _PLACES, arguments)
            self._ids = map_table(ids.fileno(), (_PLACES, MAX_IDS * 8), torch.uint8)
            self._producer = Producer(start, environment)
        clock, started = "time.perf_counter", time.perf_counter() - shared
        self.setup = [
            SetupStep("share_time", "s", shared - begin, f"{clock}, copy into shared memory"),
            SetupStep("shared", "B", features.nbytes, "bytes of the copy in shared memory"),
            SetupStep("producer_start_time", "s", started, f"{clock}, until ready"),
            *self._producer.steps,
        ]

    def _submit(self, ids: Tensor) -> Ticket:
        count = ids.numel()
        if count > MAX_IDS:
            raise ValueError(f"ids: {count} in one fetch, and {MAX_IDS} are the most")
        place = self._ring.claim()
        out, buffer = self._side.rows(place, count)
        if buffer is not None:
            self._producer.send(("buffer", place, buffer))
        size = count * ids.element_size()
        np.copyto(self._ids[place, :size].numpy(), ids.view(torch.uint8).numpy())
        self._side.free(place)
        self._producer.send(("fetch", place, count, ids.element_size()))
        self._waiting[place] = True
        return self._ring.issue(lambda: self._finish(place, out))

    def _finish(self, place: int, out: Tensor) -> Tensor:
        while self._waiting[place]:
            self._waiting[self._producer.queued()] = False
        self._side.arrived(place)
        return out

    def _close(self) -> None:
        self._ring.close()
        try:
            self._producer.close()
        finally:
            self._side.close()
            del self._ids


def open_mps(
    features: Tensor, device: torch.device, policy: str, percent: int, why: str
) -> MpsFetcher:
    """Open a fetcher whose producer runs on ``percent`` of the GPU's threads."""
    device = with_index(device)
    side = CudaTrainingSide(features, device)
    arguments = {"ordinal": device.index, "policy": policy, "events": side.handles()}
    environment = {**os.environ, SHARE_VARIABLE: str(percent)}
    producer_side = f"{CudaProducerSide.__module__}:{CudaProducerSide.__name__}"
    fetcher = MpsFetcher(features, device, side, producer_side, arguments, environment)
    how = f"{SHARE_VARIABLE} of the producer process; {why}"
    fetcher.setup.append(SetupStep("budget", "1", percent / 100, how))
    return fetcher


class CudaTrainingSide:
    """Holds buffers in this process's GPU memory, with two events for each: free and filled."""

    def __init__(self, features: Tensor, device: torch.device) -> None:
        self._device = device
        shape = (int(features.shape[1]),)
        self._buffers = [device_rows(shape, features.dtype, device) for _ in range(_PLACES)]
        self._sent = [0] * _PLACES
        make: Any = torch.cuda.Event
        self._free, self._gathered = (
            [make(interprocess=True) for _ in range(_PLACES)] for _ in range(2)
        )

    def handles(self) -> list[list[bytes]]:
        """Return the handles by which another process opens the events."""
        with torch.cuda.device(self._device):  # the first handle makes the event, on this device
            return [[event.ipc_handle() for event in ring] for ring in (self._free, self._gathered)]

    def rows(self, place: int, count: int) -> tuple[Tensor, Tensor | None]:
        """Return room for ``count`` rows, and the whole buffer if it is new to the producer."""
        out = self._buffers[place].rows(count)
        if count == 0 or self._sent[place] == out.data_ptr():
            return out, None
        self._sent[place] = out.data_ptr()
        return out, self._buffers[place].whole

    def free(self, place: int) -> None:
        """Mark that all readers of the place have been queued."""
        self._free[place].record(torch.cuda.current_stream(self._device))

    def arrived(self, place: int) -> None:
        """Make the current stream wait for the rows."""
        torch.cuda.current_stream(self._device).wait_event(self._gathered[place])

    def close(self) -> None:
        torch.cuda.synchronize(self._device)
        self._buffers.clear()


class CudaProducerSide:
    """The producer's half: gathers on a separate stream into buffers of the other process."""

    def __init__(self, table: Tensor, ordinal: int, policy: str, events: list[list[bytes]]) -> None:
        self._device = torch.device("cuda", ordinal)
        torch.cuda.set_device(self._device)
        self._fetcher: KernelFetcher = KernelFetcher.of(table, self._device, "registered", policy)
        self.steps = list(self._fetcher.setup)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._ids = [{k: IdBuffer(k, self._device) for k in ID_DTYPES} for _ in range(_PLACES)]
        self._out: dict[int, Tensor] = {}
        self._free, self._gathered = (
            [torch.cuda.Event.from_ipc_handle(self._device, handle) for handle in handles]  # type: ignore[no-untyped-call]
            for handles in events
        )

    def attach(self, place: int, buffer: Tensor) -> None:
        self._stream.synchronize()  # so nothing writes to the buffer that is freed here
        self._out[place] = buffer

    def gather(self, place: int, ids: Tensor) -> None:
        """Queue the rows; return when the ids may be overwritten and the work's order is fixed."""
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._free[place])
            if ids.numel():
                there = self._ids[place][ids.dtype].send(ids, self._stream)
                out = self._out[place][: ids.numel()]
                gather_into(out, self._fetcher.table, there, self._fetcher.points[ids.dtype])
            self._gathered[place].record(self._stream)

    def close(self) -> None:
        self._stream.synchronize()
        self._out.clear()
        self._fetcher.close()
