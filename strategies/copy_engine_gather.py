"""Gather by the GPU's copy engine: one descriptor for each row.

The processor writes addresses and sizes; the copy engine moves the bytes, if wanted during
training. No multiprocessor reads host memory, and no row passes through a staging buffer. The cost
of a descriptor decides (``kernels/copy_batch.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from gatherbench.kernels.copy_batch import batch_refusal, copy_batch, copy_on_host, row_copies
from gatherbench.kernels.launch import bind_context
from gatherbench.kernels.mapped_memory import HostRegistration
from gatherbench.reason import Reason
from gatherbench.strategies.base import Fetcher, Residency, SetupStep, Strategy, Ticket
from gatherbench.strategies.cuda_fetcher import after, device_rows, event, found_at
from gatherbench.strategies.cuda_kernel_fetcher import IdBuffer
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.host_fetcher import HostFetcher, HostPath, PathFetcher, host_buffer
from gatherbench.strategies.knowledge import Knowledge
from gatherbench.strategies.places import path_skip, with_index


@dataclass(frozen=True)
class CopyEngineGather(Strategy):
    """``order`` takes rows as ``given``, or each ``unique`` row once in ascending order: then
    adjacent rows share a descriptor, and the batch is expanded on the GPU. ``ahead`` is the number
    of minibatches to prefetch; a thread writes their descriptors."""

    name: ClassVar[str] = "copy_engine_gather"
    summary: ClassVar[str] = "the copy engine takes the rows from the table, a descriptor each"
    colour: ClassVar[str] = "navy"

    order: Literal["given", "unique"] = "given"
    ahead: Literal["0", "1"] = "0"

    def skip(self, device: torch.device, table_bytes: int = 0) -> Reason | None:
        reason = path_skip(device)
        return reason if reason or device.type == "cpu" else batch_refusal()

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        read, expand = _read_order(ids, self.order)
        payload, brought = ids.numel() * row_bytes, read.size * row_bytes
        return DataPath(
            payload_bytes=payload,
            copy_engine_bytes=brought + (0 if expand is None else expand.nbytes),
            engine_row_bytes=brought,
            engine_copies=row_copies(read, row_bytes).size.size,
            gpu_memory_bytes=payload - brought,  # repeats of what was brought
            gpu_requests={},
        )

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        path = BatchPath(features, self.order)
        if device.type == "cuda":
            return CopyEngineFetcher(path, features, device, self.lookahead)
        return HostFetcher(path, features, self.lookahead)


def _read_order(ids: Tensor, order: str) -> tuple[np.ndarray, np.ndarray | None]:
    if order == "given":
        return ids.numpy(), None
    distinct, inverse = np.unique(ids.numpy(), return_inverse=True)
    return distinct, inverse.astype(np.int64, copy=False)


class BatchPath(HostPath):
    """Makes the descriptors and, on the host, carries them out in place of a copy engine."""

    def __init__(self, features: Tensor, order: str) -> None:
        super().__init__(features)
        self.order, self.row_bytes = order, features.shape[1] * features.element_size()
        self._distinct = host_buffer(features)
        copy_on_host(row_copies(np.empty(0, np.int64), 1), 0, 0)  # compiled before the first fetch

    def fetch(self, ids: Tensor, out: Tensor) -> None:
        read, expand = _read_order(ids, self.order)
        to = out if expand is None else self._distinct.rows(read.size)
        copies = row_copies(read, self.row_bytes)
        copy_on_host(copies, self.table.data_ptr(), to.data_ptr())
        if expand is not None:
            self.cpu.gather(to, torch.from_numpy(expand), out)


class CopyEngineFetcher(PathFetcher):
    """Sends the descriptors of ``path`` to the copy engine, on a separate stream; events protect
    the buffers, as in ``CudaStagedFetcher``."""

    def __init__(
        self, path: BatchPath, features: Tensor, device: torch.device, lookahead: int
    ) -> None:
        super().__init__(path, features, with_index(device), lookahead)
        self._batch, shape = path, (self.row_width,)
        self._memory = HostRegistration(features, self.device.index)
        clock = "time.perf_counter, cudaHostRegister"
        self.setup = [SetupStep("register_time", "s", self._memory.seconds, clock)]
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        places = range(lookahead + 1)
        self._rows = [device_rows(shape, self.dtype, self.device) for _ in places]
        self._distinct = device_rows(shape, self.dtype, self.device)
        self._expand = IdBuffer(torch.int64, self.device)
        self._copied, self._free = ([event() for _ in places] for _ in range(2))

    def residency(self) -> tuple[Residency, ...]:
        return (found_at(self._memory.address, "Host"),) if self._memory.size_bytes else ()

    def _submit(self, ids: Tensor) -> Ticket:
        place = self._ring.claim()
        out = self._rows[place].rows(ids.numel())
        out.record_stream(self._stream)
        free, copied = self._free[place], self._copied[place]
        free.record(torch.cuda.current_stream(self.device))

        def fetch(ids: Tensor) -> None:
            # A thread starts on device 0, and memory allocated here must belong to this stream.
            with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
                self._stream.wait_event(free)
                read, expand = _read_order(ids, self._batch.order)
                to = out if expand is None else self._distinct.rows(read.size)
                bind_context()
                copies = row_copies(read, self._batch.row_bytes)
                copy_batch(copies, self._memory.address, to.data_ptr(), self._stream.cuda_stream)
                if expand is not None:
                    places = self._expand.send(torch.from_numpy(expand), self._stream)
                    torch.index_select(to, 0, places, out=out)
                copied.record(self._stream)

        return self._issue(ids, fetch, lambda: after(copied, out))

    def _close(self) -> None:
        super()._close()
        torch.cuda.synchronize(self.device)  # nothing may read the table from here on
        self._rows.clear()
        self._memory.close()
