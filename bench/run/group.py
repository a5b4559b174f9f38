"""The processes that train one model together, as the loop and the trainer see them.

``torch.distributed`` does the work: DDP averages the gradients, gloo carries them between processes
of a host and NCCL between GPUs. This module adds the clock. A rank that reaches the exchange of
gradients early waits for the slowest one. When each rank entered it, counted from the barrier with
which every epoch begins, separates that wait from the exchange itself.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.strategies.knowledge import Ranks

#: Stages within ``train``: the exchange of gradients once all ranks have entered, and the wait.
EXCHANGE, WAIT = "all_reduce", "wait"

#: A moment: of the host's clock, or an event on a GPU.
Mark = Any


class RanksDisagreeError(RuntimeError):
    """The data or the models of ranks that train together differ."""


class Alone:
    """One process, which neither waits nor exchanges."""

    ranks: Ranks | None = None

    @property
    def rank(self) -> int:
        return self.ranks.rank if self.ranks else 0

    @property
    def world(self) -> int:
        return self.ranks.world if self.ranks else 1

    def gathered(self, value: Any) -> list[Any]:
        """Return every rank's ``value``, by rank: JSON values, tuples as lists."""
        return [value]

    def cores_of(self, node: int | None) -> tuple[int, int]:
        """Return which part of a NUMA node's cores this rank takes, and of how many parts: ranks of
        a machine that are bound to one node, or to none, share its cores."""
        return 0, 1

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model as it is called in training."""
        return model

    def begin_epoch(self) -> None:
        """Wait until every rank begins."""

    def end_epoch(self) -> dict[str, list[float]]:
        """Return seconds of each step in :data:`EXCHANGE` and :data:`WAIT`; empty for one process.

        Raises:
            RanksDisagreeError: the ranks' parameters differ.
        """
        return {}

    def rows(self, make: RowMaker) -> Iterator[Row]:
        """Yield the rows that it declares of each step."""
        yield from ()


#: The group of everything that runs in one process.
ALONE = Alone()


class Together(Alone):
    """One rank among several; it has to be closed.

    Args:
        device: ``cpu`` or ``cuda``: gloo or NCCL.
        ranks: the rank of this process.
        store: where they meet.
        patience_s: the most seconds for a collective call.
    """

    def __init__(self, device: torch.device, ranks: Ranks, store: Store, patience_s: float) -> None:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=ranks.rank,
            world_size=ranks.world,
            timeout=timedelta(seconds=patience_s),
        )
        self.ranks: Ranks = ranks
        self._device, self._model = device, nn.Module()
        self._begin, self._entered, self._left = self._now(), list[Mark](), list[Mark]()

    def close(self) -> None:
        """Leave the group; the others go on without waiting."""
        with suppress(Exception):  # also leaves a broken group
            dist.destroy_process_group()

    def gathered(self, value: Any) -> list[Any]:
        # torch's all_gather_object would unpickle any received bytes.
        text = json.dumps(value)
        longest = max(map(int, self._all_gathered(torch.tensor([len(text)]))))
        padded = torch.tensor([*text.ljust(longest).encode()], dtype=torch.uint8)
        return [json.loads(bytes(text.tolist())) for text in self._all_gathered(padded)]

    def _all_gathered(self, own: Tensor) -> list[Tensor]:
        tensors = [torch.empty_like(own, device=self._device) for _ in range(self.world)]
        dist.all_gather(tensors, own.to(self._device))
        return [tensor.cpu() for tensor in tensors]

    def cores_of(self, node: int | None) -> tuple[int, int]:
        first = self.ranks.first
        nodes = self.gathered(node)[first : first + self.ranks.local_world]
        return nodes[: self.rank - first].count(node), nodes.count(node)

    def wrap(self, model: nn.Module) -> nn.Module:
        self._model = model
        parallel = DistributedDataParallel(model)
        # Hooks with annotations need types, but annotations are text in this module.
        parallel.register_comm_hook(None, lambda _state, bucket: self._exchange(bucket))
        return parallel

    def begin_epoch(self) -> None:
        self._entered, self._left = [], []
        dist.barrier()
        self._begin = self._now()

    def end_epoch(self) -> dict[str, list[float]]:
        entered, left = map(self._since_begin, (self._entered, self._left))
        times, digests = zip(*self.gathered((entered, self._digest())), strict=True)
        if len(set(digests)) > 1:
            raise RanksDisagreeError("the parameters differ from rank to rank after an epoch")
        last = list(map(max, zip(*times, strict=True)))
        return {
            EXCHANGE: [max(0.0, b - a) for a, b in zip(last, left, strict=True)],
            WAIT: [b - a for a, b in zip(entered, last, strict=True)],
        }

    def rows(self, make: RowMaker) -> Iterator[Row]:
        sent = sum(p.nbytes for p in self._model.parameters() if p.requires_grad)
        source = "parameters that want a gradient, a step and rank"
        yield make.ok(EXCHANGE, "payload", "B", sent, source)

    def _exchange(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Exchange a bucket of gradients as DDP does, and read the clock before and after."""
        if bucket.index() == 0:
            self._entered.append(self._now())
        future = allreduce_hook(cast("dist.ProcessGroup", dist.group.WORLD), bucket)
        if not bucket.is_last():
            return future

        def ended(done: torch.futures.Future[Tensor]) -> Tensor:
            self._left.append(self._now())
            return done.value()

        return future.then(ended)

    def _now(self) -> Mark:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _since_begin(self, marks: list[Mark]) -> list[float]:
        """Return seconds since the epoch began; on a GPU from events whose work has ended."""
        return [
            mark - self._begin if isinstance(mark, float) else self._begin.elapsed_time(mark) / 1e3
            for mark in marks
        ]

    def _digest(self) -> str:
        parameters = (p.detach().cpu().contiguous() for p in self._model.parameters())
        data = b"".join(p.view(torch.uint8).numpy().tobytes() for p in parameters)
        return hashlib.sha256(data).hexdigest()
