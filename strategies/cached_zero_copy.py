"""Rows that are asked for often stay in GPU memory; the rest is read in place, aligned.

Few nodes of a real graph are in most minibatches. Data Tiering (Min et al., KDD 2022, arXiv
2111.05894) keeps those in GPU memory and so takes 87 to 95 % of the traffic off the link. Which
ones, a score says before training (``scores.py``), and then nothing moves; or a cache finds out
while it fetches (``set_cache.py``). One launch reads both places.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.kernels.host_memory import empty_table
from gatherbench.strategies.base import Fetcher, Minibatches, SetupStep, Strategy
from gatherbench.strategies.cuda_cached import open_cached
from gatherbench.strategies.cuda_overlap import USUAL_BUDGET
from gatherbench.strategies.data_path import DataPath, zero_copy_path
from gatherbench.strategies.host_fetcher import HostFetcher, HostPath
from gatherbench.strategies.knowledge import NOTHING, Knowledge, Need
from gatherbench.strategies.places import kernel_skip, no_room
from gatherbench.strategies.scores import (
    Kept,
    Placed,
    hottest,
    out_degree,
    random_scores,
    reverse_pagerank,
    times_asked,
)
from gatherbench.strategies.set_cache import Policy, SetCache

#: The launch policy on a GPU.
POLICY = "aligned"
#: Epochs that ``presampled`` draws to count: of GNNLab's PreSC#K the K.
SAMPLED_EPOCHS = 1
#: Part of the free memory that ``free`` fills: the training needs the rest.
SHARE_OF_FREE = 0.5

#: What a static policy has to know.
NEEDS: dict[str, tuple[Need, ...]] = {
    "presampled": ("earlier", "graph"),
    "degree": ("graph",),
    "reverse_pagerank": ("graph",),
    "weighted_reverse_pagerank": ("graph", "training_ids"),
    "oracle": ("measured",),
}
#: Policies that rank the rows before training.
SCORED = (*NEEDS, "random")
#: Policies that nobody would train with.
ASIDE = {
    "oracle": "the bound: it knows the minibatches that are measured",
    "random": "the control: rows drawn by lot",
}


@dataclass(frozen=True)
class CachedZeroCopy(Strategy):
    """``policy``: which rows are kept, ``share``: how many of all, ``ahead``: minibatches ahead.

    By score: in how many minibatches of an epoch of another seed a node was (``presampled``), how
    many aggregate from it (``degree``), its ``reverse_pagerank``, also ``weighted`` towards the
    training nodes, none (``random``), or how often the measured minibatches ask for it
    (``oracle``: the bound). Or by use: ``lru`` and ``lfu``. A ``share`` of ``free`` fills half of
    the memory that is free when the path is opened. With ``ahead`` the fetch runs beside training,
    on a tenth of a GPU's threads.
    """

    name: ClassVar[str] = "cached_zero_copy"
    summary: ClassVar[str] = "hot rows kept in GPU memory, the rest aligned zero-copy"
    colour: ClassVar[str] = "vermilion"

    policy: Literal[
        "presampled",
        "degree",
        "reverse_pagerank",
        "weighted_reverse_pagerank",
        "random",
        "oracle",
        "lru",
        "lfu",
    ] = "presampled"
    share: Literal["10%", "1%", "5%", "20%", "50%", "free"] = "10%"
    ahead: Literal["0", "1"] = "0"

    def skip(self, device: torch.device, table_bytes: int = 0) -> str | None:
        kept = self.gpu_table_bytes(table_bytes)
        return kernel_skip(device) or no_room(device, kept, "the part that is kept")

    @property
    def needs(self) -> frozenset[Need]:
        room: tuple[Need, ...] = ("room_bytes",) if self.share == "free" else ()
        return frozenset((*NEEDS.get(self.policy, ()), *room))

    @property
    def aside(self) -> str | None:
        return ASIDE.get(self.policy)

    @property
    def learns(self) -> bool:
        return self.policy in ("lru", "lfu")

    @property
    def lookahead(self) -> int:
        return int(self.ahead)

    @property
    def gpu_share(self) -> float:
        return self.lookahead * USUAL_BUDGET / 100

    def gpu_table_bytes(self, table_bytes: int, knowledge: Knowledge = NOTHING) -> int:
        if self.share == "free":
            return min(table_bytes, int(SHARE_OF_FREE * (knowledge.room_bytes or 0)))
        return table_bytes * int(self.share.removesuffix("%")) // 100

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        return zero_copy_path(ids, row_bytes, POLICY, "given")

    def _data_paths(self, of: Minibatches) -> Iterator[DataPath]:
        kept = self._kept(of.num_rows, of.row_bytes, of.knowledge)
        if self.learns:
            for ids in itertools.chain.from_iterable(of.before):
                kept.step(ids.numpy())
        for ids in of.batches:
            missing = ids[torch.from_numpy(kept.step(ids.numpy())[0] < 0)]
            cold = self.data_path(missing, of.row_bytes)
            payload = ids.numel() * of.row_bytes
            yield replace(
                cold,
                payload_bytes=payload,
                copy_engine_bytes=ids.numel() * ids.element_size(),
                gpu_memory_bytes=payload - cold.payload_bytes,
            )

    def _kept(self, num_rows: int, row_bytes: int, knowledge: Knowledge) -> Placed | SetCache:
        count = self.gpu_table_bytes(num_rows * row_bytes, knowledge) // row_bytes
        if self.learns:
            return SetCache(count, cast("Policy", self.policy))
        return placed(self.policy, count, num_rows, knowledge)

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        row_bytes = features.shape[1] * features.element_size()
        begin = time.perf_counter()
        kept = self._kept(len(features), row_bytes, knowledge)
        seconds = time.perf_counter() - begin
        setup = [
            SetupStep("score_time", "s", seconds, "time.perf_counter, choosing the rows to keep"),
            SetupStep("kept", "B", kept.capacity * row_bytes, "rows kept × bytes of a row"),
            SetupStep("location", "B", kept.state_bytes, "of what says where a row lies"),
        ]
        if device.type == "cuda":
            return open_cached(features, device, POLICY, kept, setup, self.lookahead)
        path = CachedPath(features, kept)
        fetcher = HostFetcher(path, features, self.lookahead)
        clock = "time.perf_counter, copying the rows that are kept"
        fetcher.setup = [*setup, SetupStep("fill_time", "s", path.fill_seconds, clock)]
        return fetcher


def placed(policy: str, count: int, num_rows: int, knowledge: Knowledge) -> Placed:
    """The ``count`` rows with the highest scores.

    Raises:
        ValueError: the graph has another number of nodes than the table has rows.
    """
    graph = knowledge.graph
    if graph is not None and len(graph.indptr) != num_rows + 1:
        nodes = len(graph.indptr) - 1
        raise ValueError(f"the graph has {nodes} nodes and the table {num_rows} rows")
    hot = np.empty(0, np.int64)
    if count:
        hot = hottest(scores(policy, num_rows, knowledge), count)
    slots = np.full(num_rows, -1, np.int32)
    slots[hot] = np.arange(len(hot), dtype=np.int32)
    return Placed(hot, slots)


@functools.lru_cache(maxsize=4)  # paths that keep more or fewer rows have the same scores
def scores(policy: str, num_rows: int, known: Knowledge) -> NDArray[Any]:
    """How much each row deserves to be kept, by a static policy: ``[N]``."""
    if policy == "random":
        return random_scores(num_rows, seed=0)
    if policy == "oracle":
        assert known.measured is not None
        return times_asked(known.measured, num_rows)
    assert known.graph is not None
    indptr, indices = known.graph.indptr, known.graph.indices
    if policy == "presampled":
        assert known.earlier is not None
        drawn = (ids for epoch in range(SAMPLED_EPOCHS) for ids in known.earlier(epoch))
        # Rows that were asked for as often, or never, go by their degree.
        times, degree = times_asked(drawn, num_rows), out_degree(indptr, indices)
        found: NDArray[np.float64] = times + degree / (degree.max(initial=0) + 1.0)
        return found
    if policy == "degree":
        return out_degree(indptr, indices)
    restart = known.training_ids if policy == "weighted_reverse_pagerank" else None
    return reverse_pagerank(indptr, indices, restart)


class CachedPath(HostPath):
    """Rows that are kept lie in memory of their own; each fetch reads both places."""

    #: What the rows are called that are found there: of ``COUNTS``.
    counted: ClassVar[str] = "rows_on_device"

    def __init__(self, features: Tensor, kept: Kept) -> None:
        super().__init__(features)
        self._kept = kept
        self._rows = empty_table((kept.capacity, features.shape[1]), features.dtype)
        begin = time.perf_counter()
        if isinstance(kept, Placed):
            self._read_far(torch.from_numpy(kept.ids), self._rows)
        self.fill_seconds = time.perf_counter() - begin
        self._hits = 0

    def _read_far(self, ids: Tensor, out: Tensor, places: Tensor | None = None) -> None:
        """Row ``ids[i]``, which is not kept, into row ``places[i]`` of ``out``, or row ``i``."""
        self.cpu.gather(self.table, ids, out, places)

    def fetch(self, ids: Tensor, out: Tensor) -> None:
        slots, fill = (torch.from_numpy(found) for found in self._kept.step(ids.numpy()))
        here, far = (torch.nonzero(where).view(-1) for where in (slots >= 0, slots < 0))
        self.cpu.gather(self._rows, slots[here], out, here)
        self._read_far(ids[far], out, far)
        self._hits += here.numel()
        new = torch.nonzero(fill >= 0).view(-1)
        self.cpu.gather(out, new, self._rows, fill[new])

    def counts(self) -> dict[str, int]:
        return {self.counted: self._hits}
