"""Rows read off a disk into GPU memory by GPUDirect Storage, through kvikio.

The disk's own engine writes to the GPU, and no byte passes through host memory. That holds for long
reads: below 16 KiB kvikio reads by POSIX into a bounce buffer of the host, and rows are short. So
this is what a training gets from GPUDirect Storage as it stands, not what the hardware could do.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from gatherbench.kernels.disk_read import DiskReadError, block_bytes
from gatherbench.kernels.read_engines import ReadPlan, plan_reads
from gatherbench.kernels.table_file import TableFile
from gatherbench.reason import Reason, unsupported
from gatherbench.strategies.base import Fetcher, Minibatches, Residency, Strategy, Ticket
from gatherbench.strategies.buffers import TicketRing
from gatherbench.strategies.cuda_fetcher import device_rows
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.disk_direct import DiskDirect
from gatherbench.strategies.host_fetcher import on_disk
from gatherbench.strategies.knowledge import Knowledge
from gatherbench.strategies.places import path_skip, with_index

#: Reads under way at a time; what they bring takes up to 32 KiB each of GPU memory.
GROUP = 4096


@dataclass(frozen=True)
class DiskGds(Strategy):
    """Rows of a block share a read, as with ``disk_direct``; a fetch waits for them."""

    name: ClassVar[str] = "disk_gds"
    summary: ClassVar[str] = "rows read off the disk into GPU memory by GPUDirect Storage (kvikio)"
    colour: ClassVar[str] = "vermilion"
    needs = frozenset({"file"})

    def skip(self, device: torch.device, table_bytes: int = 0) -> Reason | None:
        if (reason := path_skip(device)) is not None:
            return reason
        if device.type == "cpu":
            return unsupported("GPUDirect Storage reads into GPU memory")
        if importlib.util.find_spec("kvikio") is None:
            return Reason("not_installed", "kvikio (pip install kvikio-cu13)")
        return None

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        return _past_the_cpu(DiskDirect().data_path(ids, row_bytes))

    def _data_paths(self, of: Minibatches) -> Iterator[DataPath]:
        return map(_past_the_cpu, DiskDirect()._data_paths(of))

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        import kvikio  # needs a driver

        assert knowledge.file is not None
        return GdsFetcher(kvikio, knowledge.file, features, with_index(device))


def _past_the_cpu(path: DataPath) -> DataPath:
    """Whole blocks cross the link, and the CPU gathers nothing."""
    return replace(path, cpu_read_bytes=0, copy_engine_bytes=path.disk_bytes or 0)


class GdsFetcher(Fetcher):
    """Blocks into a buffer on the device, and the rows out of them.

    Args:
        kvikio: the module.
    """

    def __init__(
        self, kvikio: Any, file: TableFile, features: Tensor, device: torch.device
    ) -> None:
        super().__init__(features, device)
        self._table, self._block = file, block_bytes(file.path)
        self._file = kvikio.CuFile(str(file.path), "r")
        self._blocks = device_rows((), torch.uint8, device)
        self._rows = device_rows((self.row_width,), self.dtype, device)
        self._ring = TicketRing(1)
        self._counts = {"disk_read": 0, "disk_requests": 0}

    def residency(self) -> tuple[Residency, ...]:
        return on_disk(self._table.path)

    def counts(self) -> dict[str, int]:
        return dict(self._counts)

    def _submit(self, ids: Tensor) -> Ticket:
        self._ring.claim()
        out = self._rows.rows(ids.numel())
        plan = plan_reads(ids.long().numpy(), self._table, self._block, merge=True)
        for first in range(0, len(plan.begins), GROUP):
            self._bring(plan, slice(first, first + GROUP), out.view(torch.uint8))
        return self._ring.issue(lambda: out)

    def _bring(self, plan: ReadPlan, reads: slice, out: Tensor) -> None:
        """The rows of some reads into their places of ``out``, uint8 ``[B, row_bytes]``."""
        begins, sizes = plan.begins[reads], plan.sizes[reads]
        at = np.cumsum(sizes) - sizes
        blocks = self._blocks.rows(int(sizes.sum()))
        if self.device.type == "cuda":
            # Reads wait for no stream, and the rows before may still be on their way out of here.
            torch.cuda.current_stream(self.device).synchronize()
        asked = list(zip(at.tolist(), begins.tolist(), sizes.tolist(), strict=True))
        coming = [
            self._file.pread(blocks[to : to + size], size, begin) for to, begin, size in asked
        ]
        arrived = np.array([future.get() for future in coming])
        wanted = np.minimum(sizes, self._table.end - begins)  # the file may end within a block
        if (short := np.flatnonzero(arrived < wanted)).size:
            raise DiskReadError(
                f"{self._table.path}: {arrived[short[0]]} of {wanted[short[0]]} bytes came from"
                f" byte {begins[short[0]]} on: it was cut short, or its disk fails"
            )
        self._counts["disk_read"] += int(sizes.sum())
        self._counts["disk_requests"] += len(sizes)
        starts = plan.starts[reads.start : reads.start + len(sizes) + 1]
        rows = slice(starts[0], starts[-1])
        moved = np.repeat(at - begins, np.diff(starts))
        # A window of a row's length at every byte: no row has to lie at a multiple of anything.
        width = self._table.row_bytes
        windows = blocks.as_strided((len(blocks) - width + 1, width), (1, 1))
        found = torch.from_numpy(plan.rows[rows] + moved).to(self.device)
        places = torch.from_numpy(plan.order[rows]).to(self.device)
        out.index_copy_(0, places, windows.index_select(0, found))

    def _close(self) -> None:
        self._ring.close()
        self._file.close()
