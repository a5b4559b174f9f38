"""Zero-copy: GPU threads read the scattered rows in host memory themselves.

The CPU only sends the ids, and each byte crosses host memory once (Min et al., PVLDB 14(11) 2021).
On the host the path is one pass from the table into the output.

- Plain (``unified``): a warp starts wherever its row starts, so a row that begins inside a 128 B
  line is read in more and smaller requests.
- ``aligned``: every warp starts on a 128 B line, by the paper's circular shift. The host has no
  warps, so only the order of the ids matters there. ``sorted`` reads the table in ascending order
  and writes each row to its place; that gave DGL four times the bandwidth on a large table (DGL
  #6635). ``unique`` reads a row once even if the minibatch names it several times, and then expands
  the minibatch on the device.
- ``async``: the next batch is read while the model trains on this one. Reading over the link needs
  few of a GPU's multiprocessors (Min et al.: 10 to 15 % saturate PCIe), so both run at once, with
  two buffers used in turn. On the host a thread gathers in the background, and takes cores.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gatherbench.kernels.order import Order, read_order
from gatherbench.reason import Reason, unsupported
from gatherbench.strategies.base import Fetcher, Strategy
from gatherbench.strategies.cuda_kernel_fetcher import (
    USUAL_BUDGET,
    KernelFetcher,
    OverlappedFetcher,
)
from gatherbench.strategies.data_path import DataPath, zero_copy_path
from gatherbench.strategies.host_fetcher import DirectPath, HostFetcher, HostPath, host_buffer
from gatherbench.strategies.knowledge import Knowledge, Need
from gatherbench.strategies.mps import open_mps
from gatherbench.strategies.mps_daemon import mps_client, mps_skip
from gatherbench.strategies.places import mapped_skip, no_room

#: The launch policy of aligned reads, by grid.
POLICIES = {"ours": "aligned", "dgl": "aligned-block"}


@dataclass(frozen=True)
class UnifiedZeroCopy(Strategy):
    """``memory`` sets how the GPU gets access to the table: ``registered`` page-locks and maps it
    (cudaHostRegister); ``managed`` is unified memory with the CPU as preferred location and the GPU
    as an accessing device."""

    name: ClassVar[str] = "unified_zero_copy"
    summary: ClassVar[str] = "GPU threads read the rows in host memory, unaligned"
    colour: ClassVar[str] = "sky"
    role = "zero_copy"

    memory: Literal["registered", "managed"] = "registered"

    def skip(self, device: torch.device, table_bytes: int = 0) -> Reason | None:
        return mapped_skip(device, self.memory)

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        return zero_copy_path(ids, row_bytes, "unaligned", "given", self.memory)

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        if device.type == "cuda":
            return KernelFetcher.of(features, device, self.memory, "unaligned")
        return HostFetcher(DirectPath(features), features, lookahead=0)


@dataclass(frozen=True)
class AlignedZeroCopy(Strategy):
    """``order`` sets how rows are read: as ``given``, ``sorted``, or each ``unique`` row once.

    ``memory`` is as in ``unified_zero_copy``. ``grid`` sets the lanes: ``ours``, or DGL's for
    sorted ids, whose blocks leave lanes idle in place of the shift. On an H200 that read sorted
    rows of 16 to 512 B of a table of 32 GiB 15 to 44 % faster.
    """

    name: ClassVar[str] = "aligned_zero_copy"
    summary: ClassVar[str] = "GPU threads read the rows in host memory, each warp from a 128 B line"
    colour: ClassVar[str] = "blue"
    role = "zero_copy"

    order: Literal["given", "sorted", "unique"] = "given"
    memory: Literal["registered", "managed"] = "registered"
    grid: Literal["ours", "dgl"] = "ours"

    def skip(self, device: torch.device, table_bytes: int = 0) -> Reason | None:
        ours = self.grid == "ours"
        reason = mapped_skip(device, self.memory, None if ours else f"grid = {self.grid}")
        if reason is None and not ours and self.order != "sorted":
            return unsupported(f"grid = {self.grid} is for sorted ids", 'take order = "sorted"')
        return reason

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        return zero_copy_path(ids, row_bytes, POLICIES[self.grid], self.order, self.memory)

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        if device.type == "cuda":
            return KernelFetcher.of(features, device, self.memory, POLICIES[self.grid], self.order)
        given = self.order == "given"
        path = DirectPath(features) if given else OrderedPath(features, self.order)
        return HostFetcher(path, features, lookahead=0)


class OrderedPath(HostPath):
    """Reads rows in ascending order of the ids and writes each to its place in the minibatch; for
    ``unique`` each distinct row once, from which the repeats are then copied."""

    def __init__(self, features: Tensor, order: Order) -> None:
        super().__init__(features)
        self._order, self._distinct = order, host_buffer(features)

    def fetch(self, ids: Tensor, out: Tensor) -> None:
        order = read_order(ids, self._order)
        if order.expand is None:
            self.cpu.gather(self.table, order.ids, out, order.out_rows)
            return
        rows = self._distinct.rows(order.ids.numel())
        self.cpu.gather(self.table, order.ids, rows)
        self.cpu.gather(rows, order.expand, out)


@dataclass(frozen=True)
class AsyncZeroCopy(Strategy):
    """``provider`` sets how the gather gets its share of the GPU, ``budget`` how large that is.

    ``stream`` caps the kernel's grid; ``mps`` runs the gather in a separate process, as the paper
    does. ``budget`` is in per cent. ``auto`` begins with the paper's value, finds the smallest
    share that suffices beside training (``Fetcher.tune``), and records the result of each share. A
    process under MPS keeps the share with which it starts, and registers its own copy of the table.
    On the host ``budget`` must stay ``auto``. ``memory`` is as in ``unified_zero_copy``.
    """

    name: ClassVar[str] = "async_zero_copy"
    summary: ClassVar[str] = "aligned zero-copy one batch ahead, beside training, in two buffers"
    colour: ClassVar[str] = "green"
    role = "zero_copy"
    lookahead = 1

    provider: Literal["stream", "mps"] = "stream"
    budget: Literal["auto", "1", "2", "5", "10", "15", "25", "50"] = "auto"
    memory: Literal["registered", "managed"] = "registered"

    def skip(self, device: torch.device, table_bytes: int = 0) -> Reason | None:
        mps = self.provider == "mps"
        budget = None if self.budget == "auto" else f"budget = {self.budget}"
        on_gpu_only = f"provider = {self.provider}" if mps else budget
        reason = mapped_skip(device, self.memory, on_gpu_only)
        if not mps or device.type != "cuda":
            return reason
        if reason is not None:
            cause = f"{reason.cause} (asked under MPS, whose server may have failed to start)"
            return replace(reason, cause=cause)
        if self.memory != "registered":
            return unsupported("the process under MPS registers the copy that it is sent")
        what = "the copy that two processes share"
        return mps_skip(device) or no_room(torch.device("cpu"), table_bytes, what)

    def surroundings(self, device: torch.device) -> AbstractContextManager[object]:
        if device.type == "cuda" and self.provider == "mps":
            return mps_client(100 - self._percent)
        return nullcontext()

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"process"} if self.provider == "mps" else ())

    @property
    def _percent(self) -> int:
        """The budget in per cent to use before any tuning."""
        return USUAL_BUDGET if self.budget == "auto" else int(self.budget)

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        path = zero_copy_path(ids, row_bytes, "aligned", "given", self.memory)
        return replace(path, gpu_share=self._percent / 100)

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        if device.type != "cuda":
            return HostFetcher(DirectPath(features), features, self.lookahead)
        if self.provider == "mps":
            why = "the paper's 10:90" if self.budget == "auto" else "chosen by the user"
            return open_mps(features, device, "aligned", self._percent, why)
        fetcher = OverlappedFetcher.of(features, device, self.memory, "aligned", overlapped=True)
        fetcher.begin_with(self.budget)
        return fetcher
