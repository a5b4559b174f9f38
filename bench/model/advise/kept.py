"""Hot rows in GPU memory, of a graph that is not at hand: which share of the requests they hold.

Where the graph is there, ``cached_zero_copy`` counts on minibatches that were drawn. Otherwise its
law says how often a minibatch asks for a node of each class. Minibatches are then taken to be
independent of each other, as if training nodes lay anywhere. In a real graph they lie together, or
the hubs lie elsewhere, and a cache holds more or less: published rates of four graphs for a tenth
of the rows lie between 20 and 98 % (``results/reference/cache_hit_rates.csv``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import TypeGuard

from scipy.stats import binom

from gatherbench.bench.model.advise.question import Question
from gatherbench.bench.model.advise.sizes import MinibatchSizes
from gatherbench.bench.model.load import READS, MinibatchLoad, scaled
from gatherbench.strategies.base import Strategy, parameters
from gatherbench.strategies.cached_zero_copy import CachedZeroCopy

#: The policy whose rates are worked out here: the default, and the best of those by score.
POLICY = parameters(CachedZeroCopy)["policy"][0]


def from_the_law() -> Iterator[CachedZeroCopy]:
    """The variants that can be told from a law: by ``presampled``, a share of the table."""
    words = parameters(CachedZeroCopy)
    for ahead, share, memory in product(words["ahead"], words["share"], words["memory"]):
        if share != "free":  # of memory that only the running program knows
            yield CachedZeroCopy(POLICY, share, ahead, memory)  # type: ignore[arg-type]


def by_law(path: Strategy, sizes: MinibatchSizes) -> TypeGuard[CachedZeroCopy]:
    """Whether what the path keeps is told from the law of a graph that is not at hand."""
    return sizes.asked is not None and isinstance(path, CachedZeroCopy)


def share_of(path: CachedZeroCopy) -> float:
    return int(path.share.removesuffix("%")) / 100


def hit_rate(sizes: MinibatchSizes, share: float, batches: int) -> float:
    """Of the rows that minibatches ask for the part that ``presampled`` holds.

    It keeps the ``share`` of the table that an epoch of ``batches`` minibatches asked for most
    often; of rows that were asked for as often it keeps any.

    Args:
        sizes: of a law (:attr:`MinibatchSizes.asked`).
    """
    assert sizes.asked is not None
    nodes, chance = sizes.asked
    room, requests = share * float(nodes.sum()), float(nodes @ chance)
    if not requests:
        return 0.0

    def more(times: int) -> float:
        """Nodes that are expected to be asked for more than so many times."""
        return float(nodes @ binom.sf(times, batches, chance))

    low, high = -1, batches  # all nodes are above -1, none is above the number of minibatches
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if more(middle) <= room else (middle, high)
    exactly = binom.pmf(high, batches, chance)
    left = min(1.0, (room - more(high)) / max(float(nodes @ exactly), 1e-300))
    kept = binom.sf(high, batches, chance) + left * exactly
    return float((nodes * chance) @ kept) / requests


def keeping(load: MinibatchLoad, share: float, hit_rate: float) -> MinibatchLoad:
    """A zero-copy load where ``share`` of the table is kept, and holds ``hit_rate`` of the rows.

    Requests and page visits fall as the bytes that are read over the link do.
    """
    return replace(scaled(load, 1 - hit_rate, READS), gpu_table_bytes=share * load.table_bytes)


def kept_load(
    path: CachedZeroCopy, in_place: MinibatchLoad, question: Question, sizes: MinibatchSizes
) -> MinibatchLoad:
    """The average minibatch of such a path.

    Args:
        in_place: that of the same rows, none of which is kept.
    """
    rate = hit_rate(sizes, share_of(path), -(-question.batches // question.world))
    return replace(
        keeping(in_place, share_of(path), rate),
        lookahead=path.lookahead,
        gpu_share=path.gpu_share,
    )
