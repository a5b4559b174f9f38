"""Sampling that remembers: draws from caches of neighbours, or again what was drawn before.

What is remembered begins anew with each epoch, and minibatches are drawn in their order. So an
epoch's depend on seed and number of the epoch alone, as those of plain sampling do, and not on the
number of threads. ``bench/plan/structure.py`` says what the policies are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.bench.plan.structure import Structure
from gatherbench.bench.sampling.kernels import _GOLDEN, _below, _choose, _mix, _u
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler, Targets
from gatherbench.bench.sampling.splitmix import derive

#: Apart from the keys of layers.
_CACHE, _KEPT = 101, 102
_ONE, _TURN = _u(1), _u(1 << 20)


class NumberedSeeds(NamedTuple):
    """Seed nodes of a minibatch that depends on those before it.

    ``nodes`` are int64 ``[S]``, ``number`` counts the epoch's minibatches, ``key`` is the epoch's.
    """

    nodes: Tensor
    number: int
    key: int


class _Cache:
    """Neighbours of the nodes that have one: ``[nodes, size]`` ids, and when each row was drawn."""

    def __init__(self, degrees: NDArray[np.int64], size: int, threshold: int, dtype: Any) -> None:
        hot = np.flatnonzero(degrees > max(threshold, size))
        self.slots = np.full(len(degrees), -1, np.int32)
        self.slots[hot] = np.arange(len(hot), dtype=np.int32)
        self.rows = np.zeros((len(hot), size), dtype)
        #: The number of the drawing, counted from 1; and how often the node was a target since.
        self.stamps, self.turns = np.zeros((2, len(hot)), np.int64)

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in (self.slots, self.rows, self.stamps, self.turns))


class SnapshotSampler(NeighborSampler):
    """Draws by the policy; arguments and errors beside ``structure`` are the plain sampler's.

    Raises:
        ValueError: minibatches are asked for in another order than theirs.
    """

    def __init__(
        self,
        structure: Structure,
        indptr: NDArray[np.int64],
        indices: NDArray[np.int32] | NDArray[np.int64],
        fanouts: Sequence[int],
        threads: int | None = None,
    ) -> None:
        self.structure = structure
        self._caches: list[_Cache] = []
        self._now, self._first_stamp, self._stamp = NumberedSeeds(Tensor(), -1, 0), 0, 0
        super().__init__(indptr, indices, fanouts, threads)
        if structure.policy in ("fcr", "otf"):
            degrees = np.diff(self._indptr)
            widths = {max(self.fanouts)} if structure.shared else self.fanouts
            self._caches = [
                _Cache(
                    degrees, math.ceil(structure.alpha * wide), structure.threshold, indices.dtype
                )
                for wide in widths
            ]

    def clone(self, threads: int) -> Self:
        """One more for another thread, with a memory of its own."""
        return type(self)(self.structure, self._indptr, self._indices, self.fanouts, threads)

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        made = (self.structure, self._indptr, self._indices, self.fanouts, self.threads)
        return type(self), made

    @property
    def cache_bytes(self) -> int:
        """Memory of all that is remembered, room for nodes that were never asked for among it."""
        return sum(cache.nbytes for cache in self._caches)

    def sample(self, seeds: NumberedSeeds, seed: int) -> MiniBatch:  # type: ignore[override]
        """Draw the minibatch of ``seeds``, the next of its epoch; or begin an epoch."""
        if seeds.number == 0:
            self._first_stamp = self._stamp = self._stamp + 1
        elif (seeds.number, seeds.key) != (self._now.number + 1, self._now.key):
            raise ValueError(
                f"minibatch {seeds.number} depends on the one before, and {self._now.number} was"
                " drawn last: they are drawn in their order, by one sampler"
            )
        elif self.structure.policy == "fcr" and seeds.number % self.structure.every == 0:
            self._stamp += 1
        self._now = seeds
        return super().sample(seeds.nodes, seed)

    def _draw_part(
        self,
        layer: int,
        key: np.uint64,
        targets: Targets,
        edges: NDArray[np.int64],
        places: NDArray[np.int64],
        used: NDArray[np.uint64],
    ) -> None:
        kind, now, of = self.structure, self._now, (self._indptr, self._indices, *targets)
        if kind.policy == "dependent":
            # A node draws with a key of its own for as many minibatches, from one of its own on.
            kept = (np.uint64(derive(now.key, layer, _KEPT)), now.number, kind.lifetime)
            _draw_kept(*of, *kept, edges[0], edges[1], used)
            return
        if not self._caches:  # while it is made
            super()._draw_part(layer, key, targets, edges, places, used)
            return
        which = 0 if kind.shared else layer
        cache, drawing = self._caches[which], self._stamp - self._first_stamp
        keys = (key, np.uint64(derive(now.key, which, drawing, _CACHE)))
        renewed = (kind.refresh, kind.fetch) if kind.policy == "otf" else (0.0, 0.0)
        held = (cache.slots, cache.rows, cache.stamps, cache.turns, self._stamp)
        _draw_cached(*of, *keys, edges[0], edges[1], used, *held, *renewed)


# Types are found out by the compiler.
@njit(nogil=True, cache=True)
def _draw_kept(  # type: ignore[no-untyped-def]
    indptr, indices, nodes, base, begins, offsets, first, last,
    key, number, lifetime, sources, targets, used,
):  # fmt: skip
    """As ``kernels.draw``, with a key of each node that lasts for ``lifetime`` minibatches."""
    for t in range(_u(first), _u(last)):
        v, begin, start, stop = _u(nodes[t]), _u(begins[t]), offsets[t], offsets[t + _ONE]
        targets[start:stop] = base + np.int64(t)
        own = _mix(key + _GOLDEN * (v + _ONE))
        state = _mix(own + _GOLDEN * ((_u(number) + own % _u(lifetime)) // _u(lifetime) + _ONE))
        _draw_whole(indices, begin, _u(indptr[v + _ONE]) - begin, state, sources[start:stop], used)


@njit(inline="always")
def _draw_whole(indices, begin, degree, state, drawn, used):  # type: ignore[no-untyped-def]
    """Neighbours of a whole list, all of them where there are no more."""
    if _u(len(drawn)) == degree:
        for j in range(len(drawn)):
            drawn[j] = begin + _u(j)
    else:
        _choose(begin, degree, state, indices, drawn, used)
    for j in range(len(drawn)):
        drawn[j] = indices[_u(drawn[j])]


@njit(inline="always")
def _times(share, many, state, draw):  # type: ignore[no-untyped-def]
    """``share`` of ``many`` as a whole number: rounded up as often as its fraction says."""
    exact = share * many
    whole = np.int64(exact)
    chance = _u((exact - whole) * 1048576.0)
    return whole + np.int64(_below(state, draw, _u(1048576)) < chance)


@njit(inline="always")
def _holds(row, node):  # type: ignore[no-untyped-def]
    found = False
    for one in row:
        found = found or one == node
    return found


@njit(inline="always")
def _renew(indices, begin, degree, row, own, refresh):  # type: ignore[no-untyped-def]
    """Draw a share of a row's entries anew; what is in it already changes nothing."""
    for j in range(_times(refresh, len(row), own, _u(0))):
        node = indices[begin + _below(own, _u(2 * j + 1), degree)]
        if not _holds(row, node):
            row[_below(own, _u(2 * j + 2), _u(len(row)))] = node


@njit(nogil=True, cache=True)
def _draw_cached(  # type: ignore[no-untyped-def]
    indptr, indices, nodes, base, begins, offsets, first, last,
    key, cache_key, sources, targets, used,
    slots, rows, stamps, turns, stamp, refresh, fetch,
):  # fmt: skip
    """As ``kernels.draw``; of a node with a slot from its row of ``rows``.

    A row whose stamp is not ``stamp`` is drawn first; others are renewed. A share ``fetch`` of a
    target's edges come from its whole list; for one that is there already an entry of the row
    stays.
    """
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
            if not _holds(drawn, node):
                drawn[j] = node
