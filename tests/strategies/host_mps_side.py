"""Both halves of what a producer and its user share, in host memory: files instead of CUDA IPC.

The gather is done before the answer is sent, so events have nothing to do.
"""

import os
import signal
from pathlib import Path

import torch
from torch import Tensor

from gatherbench.kernels.reference import byte_rows
from gatherbench.strategies.base import SetupStep


def mapped(path: str, count: int, row_bytes: int) -> Tensor:
    whole = torch.from_file(path, shared=True, size=max(1, count * row_bytes), dtype=torch.uint8)
    return whole[: count * row_bytes].view(count, row_bytes)


class HostTrainingSide:
    def __init__(self, features: Tensor, folder: Path) -> None:
        self.dtype, self.width = features.dtype, int(features.shape[1])
        self.row_bytes = self.width * features.element_size()
        self.folder = folder
        self.buffers: dict[int, Tensor] = {}
        self.notes: list[tuple[str, int]] = []
        self.closed = False

    def rows(self, place: int, count: int) -> tuple[Tensor, tuple[str, int] | None]:
        payload = None
        if place not in self.buffers or len(self.buffers[place]) < count:
            path = str(self.folder / f"{place}-{count}")
            self.buffers[place] = mapped(path, count, self.row_bytes)
            payload = path, count
        return self.buffers[place][:count].view(self.dtype).view(count, self.width), payload

    def free(self, place: int) -> None:
        self.notes.append(("free", place))

    def arrived(self, place: int) -> None:
        self.notes.append(("arrived", place))

    def close(self) -> None:
        self.closed = True


class HostProducerSide:
    def __init__(self, table: Tensor, fails: str = "", dies_at: int = -1) -> None:
        if fails == "open":
            raise MemoryError("no room to lock the table")
        self.table = byte_rows(table)
        self.steps = [SetupStep("register_time", "s", 0.5, "a stand-in")]
        self.fails, self.dies_at, self.fetches = fails, dies_at, 0
        self.out: dict[int, Tensor] = {}

    def attach(self, place: int, buffer: tuple[str, int]) -> None:
        self.out[place] = mapped(*buffer, self.table.shape[1])

    def gather(self, place: int, ids: Tensor) -> None:
        if self.fails == "gather":
            raise ValueError("an illegal memory access")
        if self.fetches == self.dies_at:
            print("about to die", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        self.fetches += 1
        if ids.numel():
            self.out[place][: ids.numel()] = self.table[ids.long()]

    def close(self) -> None: ...
