"""Each rank has a part of the table, and rows go from rank to rank.

A table that fits into no machine's memory, or no GPU's, may fit into those of all ranks together.
Each distinct row that a minibatch asks for crosses once, from the rank that has it
(``rank_exchange.py``). What all ranks ask for often, each may keep: then only the rest travels.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gatherbench.kernels.host_gather import HostGather
from gatherbench.kernels.host_memory import resident_copy
from gatherbench.kernels.launch import Table, gather_into
from gatherbench.kernels.managed_memory import Memory, empty
from gatherbench.kernels.mapped_memory import DeviceCopy
from gatherbench.kernels.order import ReadOrder
from gatherbench.reason import Reason, unsupported
from gatherbench.strategies.base import Fetcher, Minibatches, Residency, SetupStep, Strategy
from gatherbench.strategies.cuda_fetcher import found_at
from gatherbench.strategies.cuda_kernel_fetcher import KernelFetcher
from gatherbench.strategies.cuda_overlap import USUAL_BUDGET, take_usual_share
from gatherbench.strategies.data_path import DataPath, zero_copy_path
from gatherbench.strategies.host_fetcher import HostFetcher, HostPath, host_buffer
from gatherbench.strategies.knowledge import NOTHING, Knowledge, Need, Ranks, current_ranks
from gatherbench.strategies.places import mapped_skip, no_room, with_index
from gatherbench.strategies.rank_exchange import Asked, Exchange, Round, split
from gatherbench.strategies.scores import Placed, placed

#: The launch policy on a GPU, where the rows lie in host memory and where they lie in its own, and
#: how the GPU comes to see them.
POLICIES = {"host": "aligned", "managed": "aligned", "gpu": "unaligned"}
_MAPPED = {"host": "registered", "managed": "managed", "gpu": "resident"}
#: One process alone.
ALONE = Ranks(0, 1, 1)


@dataclass(frozen=True)
class Sharded(Strategy):
    """``memory``: where a rank has its part, ``ahead``: minibatches ahead, ``hot``: kept by all.

    Row ``i`` lies with rank ``i % world``. In ``host`` memory, which is registered, or in
    ``managed`` memory the GPU of the rank that has a row reads it in place to send it. The ``hot``
    rows are those of ``cached_zero_copy`` by ``presampled``, in the GPU memory of every rank. One
    rank alone has the whole table: its rows are those of ``aligned_zero_copy`` (``unique``) or
    ``all_in_gpu``, a pass over them more.
    """

    name: ClassVar[str] = "sharded"
    summary: ClassVar[str] = "rows spread over the ranks, each sent once by the rank that has it"
    colour: ClassVar[str] = "grey"
    collective = True

    memory: Literal["host", "gpu", "managed"] = "host"
    ahead: Literal["1", "0"] = "1"
    hot: Literal["0", "10%"] = "0"

    def skip(self, device: torch.device, table_bytes: int = 0) -> Reason | None:
        if (reason := mapped_skip(device, self.memory)) is not None:
            return reason
        try:
            ranks = current_ranks()
        except ValueError as error:
            return unsupported(str(error))
        kept = self.gpu_table_bytes(table_bytes, Knowledge(ranks=ranks))
        if (reason := no_room(device, kept, "the part that a rank keeps")) is not None:
            return reason
        # A rank copies its part out of the table first, wherever it is to lie.
        parts = table_bytes * ranks.local_world // ranks.world if ranks.world > 1 else 0
        return no_room(torch.device("cpu"), parts, "what the ranks of a machine keep")

    @property
    def needs(self) -> frozenset[Need]:
        hot: tuple[Need, ...] = ("earlier", "graph") if self.hot != "0" else ()
        return frozenset(("ranks", *hot))

    @property
    def lookahead(self) -> int:
        return int(self.ahead)

    @property
    def gpu_share(self) -> float:
        return self.lookahead * USUAL_BUDGET / 100

    def gpu_table_bytes(self, table_bytes: int, knowledge: Knowledge = NOTHING) -> int:
        ranks = knowledge.ranks or ALONE
        part = -(-table_bytes // ranks.world) if self.memory == "gpu" else 0
        return part + self._hot_bytes(table_bytes, ranks)

    def _hot_bytes(self, table_bytes: int, ranks: Ranks) -> int:
        if self.hot == "0" or (self.memory == "gpu" and ranks.world == 1):  # all of them are there
            return 0
        return table_bytes * int(self.hot.removesuffix("%")) // 100

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        """Of one rank that keeps no hot rows."""
        return self._path(ids, row_bytes, ALONE, None)

    def _data_paths(self, of: Minibatches) -> Iterator[DataPath]:
        """What the rank asks for. What it does for the others, which ask it, they declare."""
        kept = self._kept(of.num_rows, of.row_bytes, of.knowledge)
        slots = None if kept is None else torch.from_numpy(kept.slots)
        ranks = of.knowledge.ranks or ALONE
        return (self._path(ids, of.row_bytes, ranks, slots) for ids in of.batches)

    def _path(self, ids: Tensor, row_bytes: int, ranks: Ranks, slots: Tensor | None) -> DataPath:
        asked = split(ids, ranks, max(1, len(ids)), slots)
        here = ranks.machine(ranks.rank)
        near = sum(n for rank, n in enumerate(asked.counts.tolist()) if ranks.machine(rank) == here)
        own = asked.rows[asked.parts[1]]
        path = DataPath(0, gpu_requests={})
        if self.memory != "gpu":
            mapped = _MAPPED[self.memory]
            path = zero_copy_path(own, row_bytes, POLICIES[self.memory], "given", mapped)
        payload = ids.numel() * row_bytes
        return replace(
            path,
            payload_bytes=payload,
            copy_engine_bytes=ids.numel() * ids.element_size(),
            gpu_memory_bytes=payload - path.gpu_link_read_bytes - asked.sent * row_bytes,
            peer_bytes=near * row_bytes,
            network_bytes=(asked.sent - near) * row_bytes,
        )

    def _kept(self, num_rows: int, row_bytes: int, knowledge: Knowledge) -> Placed | None:
        """The hot rows; ranks that know the same keep the same. ``None`` where none are kept."""
        count = self._hot_bytes(num_rows * row_bytes, knowledge.ranks or ALONE) // row_bytes
        return placed("presampled", count, num_rows, knowledge) if count else None

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        assert knowledge.ranks is not None
        row_bytes = features.shape[1] * features.element_size()
        begin = time.perf_counter()
        kept = self._kept(len(features), row_bytes, knowledge)
        scored = time.perf_counter()
        managed = with_index(device).index if self.managed else None
        shard = own_rows(features, knowledge.ranks, managed)
        hot = kept_rows(features, kept)
        copied = time.perf_counter()
        exchange = Exchange(knowledge.ranks, device, row_bytes)
        clock = "time.perf_counter"
        setup = [
            SetupStep("score_time", "s", scored - begin, f"{clock}, choosing the rows to keep"),
            SetupStep("shard_time", "s", copied - scored, f"{clock}, copying this rank's rows"),
            SetupStep("group_time", "s", time.perf_counter() - copied, f"{clock}, joining a group"),
            SetupStep("shard", "B", shard.nbytes, "rows of this rank × bytes of a row"),
            SetupStep("kept", "B", hot.nbytes, "rows kept × bytes of a row"),
        ]
        slots = None if kept is None else torch.from_numpy(kept.slots)
        part = Part(len(features), shard, hot, slots, exchange)
        try:
            return self._fetcher(part, features, device, setup)
        except BaseException:
            exchange.close()
            raise

    def _fetcher(
        self, part: Part, features: Tensor, device: torch.device, setup: list[SetupStep]
    ) -> Fetcher:
        in_gpu, ahead = self.memory == "gpu", self.lookahead > 0
        if device.type == "cuda":
            memory, policy = _MAPPED[self.memory], POLICIES[self.memory]
            opened = ShardedFetcher.of(
                part.rows, device, memory, policy, "unique", overlapped=ahead
            )
            opened.join(part, in_gpu)
            opened.setup += setup
            if ahead:
                take_usual_share(opened)
            return opened
        if in_gpu and part.rows is features:
            part = replace(part, rows=resident_copy(features))
        fetcher = HostFetcher(ShardedPath(part, in_gpu), features, self.lookahead)
        fetcher.setup = setup
        return fetcher


def own_rows(features: Tensor, ranks: Ranks, managed: int | None = None) -> Tensor:
    """This rank's rows, in memory of their own unless it has all: ``managed`` by that GPU's driver,
    or anonymous."""
    if ranks.world == 1:
        return features
    count = len(features)
    return _rows(features, torch.arange(min(ranks.rank, count), count, ranks.world), managed)


def kept_rows(features: Tensor, kept: Placed | None) -> Tensor:
    """The rows that are kept, in the order of their slots."""
    return features[:0] if kept is None else _rows(features, torch.from_numpy(kept.ids))


def _rows(features: Tensor, ids: Tensor, managed: int | None = None) -> Tensor:
    memory: Memory = "anonymous" if managed is None else "managed"
    shape = (len(ids), features.shape[1])
    rows = empty(shape, features.dtype, memory=memory, device=managed)
    with HostGather() as cpu:
        cpu.gather(features, ids, rows)
    return rows


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What one rank has of a table of ``num_rows`` rows.

    Attributes:
        rows: ``[n, D]``, the rows ``rank``, ``rank + world``, …, in host memory.
        hot: ``[K, D]``, rows that every rank keeps, and ``slots``: see :func:`split`.
        exchange: brings the other ranks' rows.
    """

    num_rows: int
    rows: Tensor
    hot: Tensor
    slots: Tensor | None
    exchange: Exchange


class ShardedPath(HostPath):
    """Brings the rows of other ranks, reads its own, and expands the minibatch from both."""

    collective: ClassVar[bool] = True
    live = False

    def __init__(self, part: Part, in_gpu: bool) -> None:
        super().__init__(part.rows)
        self._part, self._in_gpu = part, in_gpu
        self._distinct, self._served = host_buffer(part.rows), host_buffer(part.rows)
        self._hits = 0

    def fetch(self, ids: Tensor, out: Tensor) -> None:
        exchange = self._part.exchange
        asked = exchange.split(ids, self._part.slots)
        rows = self._distinct.rows(len(asked.rows))
        exchange.bring(asked, exchange.rounds(asked), rows, self._serve)
        _, own, hot = asked.parts
        self.cpu.gather(self.table, asked.rows[own], rows[own])
        self.cpu.gather(self._part.hot, asked.rows[hot], rows[hot])
        self.cpu.gather(rows, asked.expand, out)
        self._hits += asked.on_device(self._in_gpu)

    def _serve(self, wanted: Tensor) -> Tensor:
        rows = self._served.rows(len(wanted))
        self.cpu.gather(self.table, wanted, rows)
        return rows

    def counts(self) -> dict[str, int]:
        return {"rows_on_device": self._hits}

    def close(self) -> None:
        super().close()
        self._part.exchange.close()


class ShardedFetcher(KernelFetcher):
    """This rank's rows read by our kernel, for itself and for the others; NCCL sends them.

    Ids go to the GPU and are arranged there, on a stream that holds nothing else, as for ``unique``
    rows. The host waits for it to learn how many rows there are, and for all ranks to tell each
    other. Everything is submitted by the caller's thread, in the same order on all ranks: NCCL asks
    for that where a program has several groups, and DDP has one of its own.
    """

    live = False
    _asked: Asked
    _rounds: list[Round]

    def join(self, part: Part, in_gpu: bool) -> None:
        """Fetch rows of the whole table from now on."""
        self.num_rows, self._exchange, self._in_gpu = part.num_rows, part.exchange, in_gpu
        self.ids_device = torch.device("cpu")  # where they are checked: to split them follows each
        self._hot = DeviceCopy(part.hot, self.device)
        self._slots = None if part.slots is None else part.slots.to(self.device)
        self._served = self._buffer()
        self._hits = 0

    def residency(self) -> tuple[Residency, ...]:
        found = super().residency()
        if self._hot.size_bytes == 0:
            return found
        return (*found, found_at(self._hot.address, "Device", "the part that is kept"))

    def counts(self) -> dict[str, int]:
        return {"rows_on_device": self._hits}

    def _ordered(self, ids: Tensor) -> ReadOrder:
        asked = self._asked = self._exchange.split(ids, self._slots)
        self._rounds = self._exchange.rounds(asked)
        self._hits += asked.on_device(self._in_gpu)
        return ReadOrder(asked.rows, expand=asked.expand)

    def _gather(self, order: ReadOrder, out: Tensor) -> None:
        assert order.expand is not None
        asked, row_bytes = self._asked, self.table.row_bytes
        rows = self._distinct.rows(len(asked.rows))
        rows.record_stream(torch.cuda.current_stream(self.device))
        self._exchange.bring(asked, self._rounds, rows, self._serve)
        _, own, hot = asked.parts
        gather_into(rows[own], self.table, asked.rows[own], self.points[torch.int64])
        for read, ids, to in (
            (self._hot.tensor, asked.rows[hot], rows[hot]),
            (rows, order.expand, out),
        ):
            table = Table(read.data_ptr(), len(read), row_bytes, row_bytes)
            gather_into(to, table, ids, self._expansion)

    def _serve(self, wanted: Tensor) -> Tensor:
        rows = self._served.rows(len(wanted))
        rows.record_stream(torch.cuda.current_stream(self.device))
        gather_into(rows, self.table, wanted, self.points[torch.int64])
        return rows

    def _close(self) -> None:
        try:
            super()._close()
        finally:
            self._hot.close()
            self._exchange.close()
