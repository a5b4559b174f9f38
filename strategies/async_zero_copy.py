"""Zero-copy that overlaps training: the next batch is read while the model trains on this one.

Reading over the link needs few of a GPU's multiprocessors (Min et al., PVLDB 14(11) 2021: 10 to
15 % saturate PCIe). So gather and training run at the same time, with two buffers used in turn. On
the host a thread gathers in the background: it takes cores from training as the gather kernel
takes multiprocessors.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gatherbench.reason import Reason, unsupported
from gatherbench.strategies.base import Fetcher, Strategy
from gatherbench.strategies.cuda_kernel_fetcher import USUAL_BUDGET
from gatherbench.strategies.cuda_overlap import OverlappedFetcher
from gatherbench.strategies.data_path import DataPath, zero_copy_path
from gatherbench.strategies.host_fetcher import DirectPath, HostFetcher
from gatherbench.strategies.knowledge import Knowledge, Need
from gatherbench.strategies.mps import open_mps
from gatherbench.strategies.mps_daemon import mps_client, mps_skip
from gatherbench.strategies.places import mapped_skip, no_room

#: The launch policy on a GPU.
POLICY = "aligned"


@dataclass(frozen=True)
class AsyncZeroCopy(Strategy):
    """``provider`` sets how the gather gets its share of the GPU, ``budget`` how large that is.

    ``stream`` caps the kernel's grid; ``mps`` runs the gather in a separate process, as the paper
    does. ``budget`` is in per cent. ``auto`` begins with the paper's value, finds the smallest
    share that suffices beside training (``Fetcher.tune``), and records the result of each share. A
    process under MPS keeps the share with which it starts. On the host ``budget`` must stay
    ``auto``. ``memory`` sets how the GPU gets access to the table, as in
    ``unified_zero_copy``; the process under MPS registers its own copy.
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
        on_gpu_only = None
        if self.provider != "stream":
            on_gpu_only = f"provider = {self.provider}"
        elif self.budget != "auto":
            on_gpu_only = f"budget = {self.budget}"
        reason = mapped_skip(device, self.memory, on_gpu_only)
        if reason is not None and device.type == "cuda" and self.provider == "mps":
            cause = f"{reason.cause} (asked under MPS, whose server may have failed to start)"
            return replace(reason, cause=cause)
        if reason is not None or device.type != "cuda" or self.provider == "stream":
            return reason
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
        path = zero_copy_path(ids, row_bytes, POLICY, "given", self.memory)
        return replace(path, gpu_share=self._percent / 100)

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        if device.type == "cuda":
            if self.provider == "mps":
                why = "the paper's 10:90" if self.budget == "auto" else "chosen by the user"
                return open_mps(features, device, POLICY, self._percent, why)
            fetcher = OverlappedFetcher.of(features, device, self.memory, POLICY, overlapped=True)
            fetcher.begin_with(self.budget)
            return fetcher
        return HostFetcher(DirectPath(features), features, self.lookahead)
