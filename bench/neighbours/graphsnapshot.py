"""Sampling with memory, which draws from caches of neighbours (NoakLiu/GraphSnapShot).

Minibatches, and so the models that they train, differ from those of plain sampling (:class:`FBL`):
for each node of a degree above ``threshold`` they are drawn from a cache of ``alpha`` × fan-out of
its neighbours. :class:`FCR` and :class:`OTF` renew it. Each layer has a cache of its own, or all
share one (``shared``, the paper's SC). The memory starts anew with each epoch, and minibatches are
drawn in their order: they depend only on the epoch's seed and number, whatever the number of
threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from numba import njit
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from gatherbench.bench.plan.doors import OwnSampler
from gatherbench.bench.sampling.kernels import _GOLDEN, Ids, Ints, _below, _choose, _mix, _u
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler, Targets
from gatherbench.bench.sampling.sampler import Counted, Tally
from gatherbench.bench.sampling.splitmix import derive

_CACHE, _REMEMBERED = 101, 6  #: Streams of random numbers other than an epoch's other draws.
_ONE, _TURN = _u(1), _u(1 << 20)


@dataclass(frozen=True)
class FBL(OwnSampler):
    """Draws from whole lists: plain sampling, with the counters of the others."""

    in_order = True
    # Of a policy that has no such parameter.
    shared, every, refresh, fetch = False, 1 << 32, 0.0, 0.0

    def open(
        self, indptr: Ids, indices: Ints, fanouts: Sequence[int], seed: int
    ) -> SnapshotSampler:
        return SnapshotSampler(self, indptr, indices, fanouts)


@dataclass(frozen=True)
class _FromCaches(FBL):
    alpha: Annotated[float, Field(ge=1)] = 2.0  #: Neighbours in a cache for each that is drawn.
    threshold: NonNegativeInt = 30  #: A node with no more neighbours has no cache.
    shared: bool = False  #: Whether all layers share one cache.


@dataclass(frozen=True)
class FCR(_FromCaches):
    """Draws from caches that are all drawn anew after ``every`` minibatches."""

    every: PositiveInt = 8


@dataclass(frozen=True)
class OTF(_FromCaches):
    """Draws a share ``refresh`` of a cache anew whenever its node is a target, and a share
    ``fetch`` of the node's edges from its whole list."""

    refresh: Annotated[float, Field(ge=0, le=1)] = 0.1
    fetch: Annotated[float, Field(ge=0, le=1)] = 0.1


class NumberedSeeds(NamedTuple):
    nodes: Tensor  #: Seed nodes of a minibatch, int64 ``[S]``.
    number: int  #: That of the minibatch in its epoch.
    key: int  #: That of the epoch.


class _Cache(NamedTuple):
    """Neighbours of the nodes that have a slot."""

    slots: NDArray[np.int32]  #: ``[N]``; -1: none.
    rows: NDArray[Any]  #: ``[nodes, size]`` ids.
    stamps: NDArray[np.int64]  #: Epoch × 2³² + drawing of each row, epochs counted from 1;
    turns: NDArray[np.int64]  #: and how often its node was a target since.

    @classmethod
    def of(cls, degrees: NDArray[np.int64], size: int, threshold: int, dtype: Any) -> _Cache:
        hot = np.flatnonzero(degrees > max(threshold, size))
        slots = np.full(len(degrees), -1, np.int32)
        slots[hot] = np.arange(len(hot), dtype=np.int32)
        return cls(slots, np.zeros((len(hot), size), dtype), *np.zeros((2, len(hot)), np.int64))


class SnapshotSampler(NeighborSampler):
    """Draws by a policy; the other arguments and errors are the plain sampler's."""

    def __init__(self, policy: FBL, indptr: Ids, indices: Ints, fanouts: Sequence[int]) -> None:
        self.policy, self._epochs, self._now = policy, 0, NumberedSeeds(Tensor(), -1, 0)
        self._caches: list[_Cache] = []
        super().__init__(indptr, indices, fanouts)
        if isinstance(policy, _FromCaches):
            if min(self.fanouts) < 0:
                raise ValueError(
                    f"fanouts = {self.fanouts}: {type(policy).__name__} keeps alpha × fan-out"
                    " neighbours; give a positive number for -1, or take FBL"
                )
            degrees = np.diff(self._indptr)
            widths = {max(self.fanouts)} if policy.shared else self.fanouts
            self._caches = [
                _Cache.of(degrees, math.ceil(policy.alpha * wide), policy.threshold, indices.dtype)
                for wide in widths
            ]

    def clone(self, threads: int) -> Self:
        other = type(self)(self.policy, self._indptr, self._indices, self.fanouts)
        other.threads = threads
        return other

    @property
    def cache_bytes(self) -> int:
        """The bytes of all that is remembered, including room for nodes that were never drawn."""
        return sum(array.nbytes for cache in self._caches for array in cache)

    def tally(self) -> Tally:
        return _Distinct(self)

    def tasks(
        self, steps: Sequence[Tensor], seed: int, epoch: int, rank: int
    ) -> Sequence[NumberedSeeds]:
        key = derive(seed, epoch, rank, _REMEMBERED)
        return [NumberedSeeds(nodes, number, key) for number, nodes in enumerate(steps)]

    def sample(self, seeds: NumberedSeeds, seed: int) -> MiniBatch:  # type: ignore[override]
        """Draw the minibatch of ``seeds``, the next of its epoch (else ``ValueError``), or begin an
        epoch."""
        if seeds.number == 0:
            self._epochs += 1
        elif (seeds.number, seeds.key) != (self._now.number + 1, self._now.key):
            raise ValueError(
                f"minibatch {seeds.number} depends on the one before, and {self._now.number} was"
                " drawn last: they are drawn in their order, by one sampler"
            )
        self._now = seeds
        return super().sample(seeds.nodes, seed)

    def _draw_part(self, layer: int, key: Any, targets: Targets, *into: Any) -> None:
        if not self._caches:  # the policy has none, or they are not made yet
            super()._draw_part(layer, key, targets, *into)
            return
        (edges, _, used), policy = into, self.policy
        which, drawing = 0 if policy.shared else layer, self._now.number // policy.every
        cache_key = np.uint64(derive(self._now.key, which, drawing, _CACHE))
        drawn = (self._indptr, self._indices, *targets, key, cache_key, edges[0], edges[1], used)
        renewed = (self._epochs << 32) + drawing, policy.refresh, policy.fetch
        _draw_cached(*drawn, *self._caches[which], *renewed)


class _Distinct(Tally):
    """Counts the distinct pairs of a node and a neighbour drawn for it, coded as one number."""

    def __init__(self, sampler: SnapshotSampler) -> None:
        self._sampler, self._drawn = sampler, np.empty(0, np.int64)

    def add(self, batch: MiniBatch) -> None:
        ids, nodes = batch.input_ids, self._sampler.num_nodes
        coded = [ids[targets] * nodes + ids[sources] for sources, targets in batch.edges]
        self._drawn = np.unique(np.concatenate([self._drawn, *coded]))

    def counted(self, scale: float) -> Iterator[Counted]:
        pairs = "count of the epoch: pairs of a node and a neighbour drawn for it, each once"
        caches = "nbytes of the sampler's caches"
        yield Counted("distinct_neighbours", "1", len(self._drawn), pairs)
        yield Counted("structure_cache", "B", self._sampler.cache_bytes, caches)


# The compiler infers types.
@njit(inline="always")
def _draw_whole(indices, begin, degree, state, drawn, used):  # type: ignore[no-untyped-def]
    """Draw neighbours from a whole list, all of them if it is no longer than the fan-out."""
    if _u(len(drawn)) == degree:
        for j in range(len(drawn)):
            drawn[j] = begin + _u(j)
    else:
        _choose(begin, degree, state, indices, drawn, used)
    for j in range(len(drawn)):
        drawn[j] = indices[_u(drawn[j])]


@njit(inline="always")
def _times(share, many, state, draw):  # type: ignore[no-untyped-def]
    """Return ``share`` of ``many`` as a whole number, rounded up as often as its fraction says."""
    exact = share * many
    whole = np.int64(exact)
    chance = _u((exact - whole) * 1048576.0)
    return whole + np.int64(_below(state, draw, _u(1048576)) < chance)


@njit(inline="always")
def _renew(indices, begin, degree, row, own, refresh):  # type: ignore[no-untyped-def]
    """Draw a share of a row's entries anew; an entry that is in it already changes nothing."""
    for j in range(_times(refresh, len(row), own, _u(0))):
        node = indices[begin + _below(own, _u(2 * j + 1), degree)]
        if node not in row:
            row[_below(own, _u(2 * j + 2), _u(len(row)))] = node


@njit(nogil=True, cache=True)
def _draw_cached(  # type: ignore[no-untyped-def]
    indptr, indices, nodes, base, begins, offsets, first, last,
    key, cache_key, sources, targets, used,
    slots, rows, stamps, turns, stamp, refresh, fetch,
):  # fmt: skip
    """Draw as ``kernels.draw``; for a node with a slot from its row of ``rows``, which is drawn
    first if its stamp is not ``stamp``, and else renewed. Of a share ``fetch``, drawn from the
    whole list, nodes that are already drawn leave an entry of the row."""
    size = rows.shape[1]
    fresh = np.empty(size, np.int64)
    for t in range(_u(first), _u(last)):
        v, begin, start, stop = _u(nodes[t]), _u(begins[t]), offsets[t], offsets[t + _ONE]
        targets[start:stop] = base + np.int64(t)
        degree, drawn, slot = _u(indptr[v + _ONE]) - begin, sources[start:stop], slots[v]
        state, many = _mix(key + _GOLDEN * (v + _ONE)), stop - start
        if slot < 0 or _u(many) == degree:
            _draw_whole(indices, begin, degree, state, drawn, used)
            continue
        row, own = rows[slot], _mix(cache_key + _GOLDEN * (v + _ONE))
        if stamps[slot] != stamp:
            _draw_whole(indices, begin, degree, own, fresh, used)
            row[:] = fresh
            stamps[slot], turns[slot] = stamp, 0
        elif refresh > 0:
            turns[slot] += 1
            _renew(indices, begin, degree, row, _mix(own + _GOLDEN * _u(turns[slot])), refresh)
        _draw_whole(row, _u(0), _u(size), state, drawn, used)
        whole = _times(fetch, many, state, _TURN)
        for j in range(many - whole, many):
            node = indices[begin + _below(state, _TURN + _u(j + 1), degree)]
            if node not in drawn:
                drawn[j] = node
