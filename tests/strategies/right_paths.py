"""A right path for tests to change, and what a wrong one may hand out in place of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gatherbench.strategies.base import Fetcher, Strategy, Ticket
from gatherbench.strategies.buffers import TicketRing
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.knowledge import Knowledge

from .host_paths import through_the_host


class RightFetcher(Fetcher):
    """A fetcher without mistakes, for the others to spoil one method of."""

    def __init__(self, features: Tensor, device: torch.device) -> None:
        super().__init__(features, device)
        self.table = features
        self.ring = TicketRing(self.lookahead + 1)

    def rows(self, ids: Tensor) -> Tensor:
        return self.table[ids]

    def _submit(self, ids: Tensor) -> Ticket:
        self.ring.claim()
        rows = self.rows(ids)
        return self.ring.issue(lambda: rows)

    def _close(self) -> None:
        self.ring.close()


@dataclass(frozen=True)
class Made(Strategy):
    """Opens whatever fetcher its subclass names."""

    name: ClassVar[str] = "made"
    summary: ClassVar[str] = "for tests"
    fetcher: ClassVar[type[Fetcher]] = RightFetcher

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        return through_the_host(ids.numel() * row_bytes)

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        return self.fetcher(features, device)


class WhenUsed(Tensor):
    """Rows that are gathered by the first operation on them."""

    gather: Callable[[], Tensor]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        gathered = [one.gather() if isinstance(one, WhenUsed) else one for one in args]
        return func(*gathered, **(kwargs or {}))
