"""PyG's loaders with features that a strategy fetches, one batch ahead where it can.

Keep the data, sampler, loader and loop, but leave ``x`` out of the data and wrap the loader::

    features = gatherbench.unified(x, strategy="async_zero_copy")
    loader = FeatureLoader(NodeLoader(data, sampler, batch_size=1024), features)
    for batch in loader:          # batch.x is there, and everything lies on features.device

It wraps as PyG's own ``PrefetchLoader`` does. PyG's ``FeatureStore`` and the loaders' ``transform``
could bring the rows too. But both are called only when the loop already waits for the batch, and by
default in a loader's worker processes, which cannot use the GPU or the strategy's threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import LinkLoader, NodeLoader

from gatherbench.checks import check_nodes
from gatherbench.strategies.unified_tensor import UnifiedTensor


class FeatureLoader:
    """Iterates over ``loader`` and gives each batch its ``x``, with everything on the device.

    With a strategy that overlaps, the rows of the next ``features.lookahead`` batches are being
    fetched while the caller trains on this one. ``loader`` is one of a homogeneous graph whose data
    holds no ``x``; its worker processes only sample.

    Raises:
        TypeError: ``features`` is a plain tensor; or, while iterating, a batch is no ``Data``
            with ``n_id``, as of a heterogeneous graph; or, for ``len``, the loader has no length.
        ValueError: the loader's data has another number of nodes than ``features`` has rows;
            or, while iterating, a batch has features already, or the loader is an iterator that
            is used up.
    """

    def __init__(self, loader: Iterable[Any], features: UnifiedTensor) -> None:
        if isinstance(features, Tensor):
            raise TypeError("features: expected what gatherbench.unified(x) gives, got a Tensor")
        if isinstance(loader, NodeLoader | LinkLoader) and isinstance(loader.data, Data):
            check_nodes(loader.data, len(features))
        self.loader = loader
        self.features = features

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]  # which raises, if it has no length

    def __iter__(self) -> Iterator[Data]:
        ahead: deque[Data] = deque()
        batches, batch = iter(self.loader), None
        for batch in batches:
            check_batch(batch)
            self.features.prefetch(batch.n_id)
            ahead.append(batch)
            while len(ahead) > self.features.lookahead:
                yield self._complete(ahead.popleft())
        if batch is None and batches is self.loader:
            raise ValueError("the loader is an iterator, and it is used up: give a loader")
        while ahead:
            yield self._complete(ahead.popleft())

    def _complete(self, batch: Data) -> Data:
        batch.x = self.features[batch.n_id]
        return batch.to(self.features.device, non_blocking=True)


def check_batch(batch: Any) -> None:
    """Refuse a loader's batch that has no place for fetched rows."""
    if not isinstance(batch, Data):
        raise TypeError(
            f"expected a torch_geometric.data.Data with n_id, got {type(batch).__name__}: only "
            "PyG's loaders of homogeneous graphs are served"
        )
    if "n_id" not in batch:
        raise TypeError(
            "the batch does not say which nodes it has (n_id): before the loader is made, set "
            "data.n_id = torch.arange(data.num_nodes), and each batch has its part"
        )
    if "x" in batch:
        raise ValueError(
            "the batch has features already, which the loader gathered: leave x out of its data "
            "(and set num_nodes)"
        )
