"""Keep frequently used rows in GPU memory, and read the rest in place by aligned zero-copy.

A few nodes of a real graph are in most minibatches. Data Tiering (Min et al., KDD 2022, arXiv
2111.05894) keeps those in GPU memory and so takes 87 to 95 % of the traffic off the link. A score
(``scores.py``) chooses them before training, once. One launch reads from both places.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gatherbench.kernels.host_memory import empty_table
from gatherbench.kernels.launch import Table, architecture, gather_into, launch_threads, load_from
from gatherbench.kernels.order import ReadOrder
from gatherbench.reason import Reason
from gatherbench.strategies.base import Fetcher, Minibatches, Residency, Role, SetupStep, Strategy
from gatherbench.strategies.cuda_fetcher import found_at
from gatherbench.strategies.cuda_kernel_fetcher import USUAL_BUDGET, IdBuffer, KernelFetcher
from gatherbench.strategies.data_path import DataPath, zero_copy_path
from gatherbench.strategies.host_fetcher import HostFetcher, HostPath
from gatherbench.strategies.knowledge import NOTHING, Knowledge, Need
from gatherbench.strategies.places import mapped_skip, no_room
from gatherbench.strategies.row_caches import RowCache
from gatherbench.strategies.scores import CONTROLS, NEEDS, Placed, placed

POLICY = "aligned"  #: The launch policy on a GPU.


@dataclass(frozen=True)
class CachedZeroCopy(Strategy):
    """``policy`` sets which rows are kept, ``share`` how many, ``ahead`` how far to prefetch.

    The score of a node is the number of minibatches that contain it in an epoch of another seed
    (``presampled``), the number of nodes that aggregate from it (``degree``), its
    ``reverse_pagerank``, also ``weighted`` towards the training nodes, a ``random`` number, or the
    number of measured minibatches that use it (``oracle``: the bound). With ``ahead`` 1 the fetch
    overlaps training, on a tenth of a GPU's threads. ``memory`` is that of the other rows, as in
    ``unified_zero_copy``.
    """

    name: ClassVar[str] = "cached_zero_copy"
    summary: ClassVar[str] = "hot rows kept in GPU memory, the rest aligned zero-copy"
    colour: ClassVar[str] = "vermilion"

    policy: Literal[
        "presampled", "degree", "reverse_pagerank", "weighted_reverse_pagerank", "random", "oracle"
    ] = "presampled"
    share: Literal["10%", "1%", "5%", "20%", "50%"] = "10%"
    ahead: Literal["0", "1"] = "0"
    memory: Literal["registered", "managed"] = "registered"

    def skip(self, device: torch.device, table_bytes: int = 0) -> Reason | None:
        kept = self.kept_bytes(table_bytes)
        reason = mapped_skip(device, self.memory)
        return reason or no_room(device, kept, "the part that is kept")

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset(NEEDS.get(self.policy, ()))

    @property
    def role(self) -> Role:
        return "control" if self.policy in CONTROLS else "zero_copy"

    def kept_bytes(self, table_bytes: int, knowledge: Knowledge = NOTHING) -> int:
        return table_bytes * int(self.share.removesuffix("%")) // 100

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        path = zero_copy_path(ids, row_bytes, POLICY, "given", self.memory)
        return replace(path, gpu_share=self.lookahead * USUAL_BUDGET / 100)

    def data_paths(self, minibatches: Minibatches) -> Iterator[DataPath]:
        kept = self._kept(minibatches.num_rows, minibatches.row_bytes, minibatches.knowledge)
        for ids in minibatches.batches:
            missing = ids[torch.from_numpy(kept.step(ids.numpy())[0] < 0)]
            cold = self.data_path(missing, minibatches.row_bytes)
            payload = ids.numel() * minibatches.row_bytes
            yield replace(
                cold,
                payload_bytes=payload,
                copy_engine_bytes=ids.numel() * ids.element_size(),
                gpu_memory_bytes=payload - cold.payload_bytes,
            )

    def _kept(self, num_rows: int, row_bytes: int, knowledge: Knowledge) -> Placed:
        count = self.kept_bytes(num_rows * row_bytes, knowledge) // row_bytes
        return placed(self.policy, count, num_rows, knowledge)

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        row_bytes = features.shape[1] * features.element_size()
        begin = time.perf_counter()
        kept = self._kept(len(features), row_bytes, knowledge)
        chosen_s = time.perf_counter() - begin
        if device.type != "cuda":
            path = CachedPath(features, kept)
            fetcher = HostFetcher(path, features, self.lookahead)
            fetcher.setup = kept_steps(kept, row_bytes, chosen_s, path.fill_seconds)
            return fetcher
        ahead = self.lookahead > 0
        opened = CachedFetcher.of(features, device, self.memory, POLICY, overlapped=ahead)
        try:
            filled_s = opened.keep(kept)
            if ahead:
                opened.take(USUAL_BUDGET, "the paper's share, as async_zero_copy begins with")
        except BaseException:
            opened.close()
            raise
        opened.setup += kept_steps(kept, row_bytes, chosen_s, filled_s)
        return opened


def kept_steps(
    kept: Placed | RowCache, row_bytes: int, chosen_s: float, filled_s: float
) -> list[SetupStep]:
    """Report the memory of the rows that are kept, and the seconds of choosing and copying them."""
    clock = "time.perf_counter"
    return [
        SetupStep("score_time", "s", chosen_s, f"{clock}, choosing the rows to keep"),
        SetupStep("kept", "B", kept.capacity * row_bytes, "rows kept × bytes of a row"),
        SetupStep("location", "B", kept.state_bytes, "of what says where a row lies"),
        SetupStep("fill_time", "s", filled_s, f"{clock}, copying the rows to keep"),
    ]


class CachedPath(HostPath):
    """Holds the kept rows in separate memory; each fetch reads from both places."""

    counted: ClassVar[str] = "rows_on_device"  #: The name in ``COUNTS`` of those found there.
    live = False

    def __init__(self, features: Tensor, kept: Placed | RowCache) -> None:
        super().__init__(features)
        self._kept = kept
        self._rows = empty_table((kept.capacity, features.shape[1]), features.dtype)
        begin = time.perf_counter()
        if isinstance(kept, Placed):
            self.read(torch.from_numpy(kept.ids), self._rows)
        self.fill_seconds = time.perf_counter() - begin
        self._hits = 0

    def read(self, ids: Tensor, out: Tensor, places: Tensor | None = None) -> None:
        """Read row ``ids[i]``, which is not kept, into row ``places[i]`` (or ``i``) of ``out``."""
        self.cpu.gather(self.table, ids, out, places)

    def fetch(self, ids: Tensor, out: Tensor) -> None:
        slots, fill = (torch.from_numpy(array) for array in self._kept.step(ids.numpy()))
        here, far = (torch.nonzero(where).view(-1) for where in (slots >= 0, slots < 0))
        self.cpu.gather(self._rows, slots[here], out, here)
        self.read(ids[far], out, far)
        self._hits += here.numel()
        new = torch.nonzero(fill >= 0).view(-1)
        self.cpu.gather(out, new, self._rows, fill[new])

    def counts(self) -> Mapping[str, float]:
        return {self.counted: self._hits}


class CachedFetcher(KernelFetcher):
    """Reads hot rows in GPU memory and the others in host memory, by one launch of the kernel.

    CUDA has one address space for both memories. The kernel finds a row at ``table + id × stride``,
    so hot rows that begin a whole number of strides from the table are rows of it under other ids.
    (For two launches the host would have to wait for the number of ids of each kind.) Ids of host
    rows come first: so a warp's rows lie in one memory, and the requests on the link equal those of
    a gather of the host rows alone, as they are counted.
    """

    live = False

    def keep(self, kept: Placed) -> float:
        """Allocate memory for the rows of ``kept`` and fill it; return the seconds."""
        began = time.perf_counter()
        row_bytes, count = self.table.row_bytes, kept.capacity
        self._room = torch.empty((count + 1) * row_bytes, dtype=torch.uint8, device=self.device)
        first = (self.memory.address - self._room.data_ptr()) % row_bytes
        self._address = self._room.data_ptr() + first  # an empty tensor has no address
        self._hot = self._room[first : first + count * row_bytes].view(count, row_bytes)
        self._slots = torch.from_numpy(kept.slots).to(self.device)
        self._gather_tells = None  # it would get the -1 that marks a bad id
        if count:  # the GPU gathers them: torch on one CPU thread would be slow
            # Whole rows from the table, so they are aligned as its rows are.
            ids = torch.from_numpy(kept.ids).to(self.device)
            gather_into(self._hot, self.table, ids, self.points[torch.int64])
        self._hits = torch.zeros((), dtype=torch.int64, device=self.device)
        # Rows are numbered from the place with the lower address, so no id is negative.
        here, there = self._address, self.memory.address
        base = min(here, there)
        self._first_here, self._first_there = ((at - base) // row_bytes for at in (here, there))
        ends = self._first_here + count, self._first_there + self.num_rows
        self.table = Table(base, max(ends), row_bytes, row_bytes)
        torch.cuda.synchronize(self.device)
        return time.perf_counter() - began

    def residency(self) -> tuple[Residency, ...]:
        kept = found_at(self._address, "Device", "the part that is kept")
        return (*super().residency(), kept)

    def counts(self) -> dict[str, int]:
        torch.cuda.synchronize(self.device)
        return {"rows_on_device": int(self._hits)}

    def _arrange(
        self, ids: Tensor, buffer: IdBuffer, stream: torch.cuda.Stream, place: int
    ) -> ReadOrder:
        ids = super()._arrange(ids, buffer, stream, place).ids
        with torch.cuda.stream(stream):
            rows = torch.empty(ids.numel(), dtype=torch.int64, device=self.device)
            near = torch.empty(ids.numel(), dtype=torch.int8, device=self.device)  # 1: kept
            if ids.numel():
                lookup = (ids, ids.element_size(), self.num_rows, self._slots)
                to = (self._first_here, self._first_there, rows, near, self._hits, self._bad_id)
                kernel = load_from("lookup.cu", "lookup_kernel", architecture(self.device))
                launch_threads(kernel, ids.numel(), (*lookup, *to), self.device)
            places = torch.sort(near.view(torch.uint8), stable=True).indices
            return ReadOrder(rows[places], out_rows=places)
