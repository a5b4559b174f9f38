"""The CPU sampler's loops over part of a layer's targets: compiled by numba, serial, no GIL.

They are serial on purpose. numba's own ``prange`` aborts the process when two Python threads
enter it at once (its workqueue layer) or hangs after a fork (GNU OpenMP), and a sampler shares
its process with a gathering thread or runs inside forked ``NodeLoader`` workers. The sampler splits
the targets over its own threads.

Random numbers are counters, not streams: draw ``j`` for target ``v`` of layer ``l`` is a hash of
``(seed, l, v, j)``, the SplitMix64 finaliser of Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014, with the constants of Vigna's public-domain
``splitmix64.c``. So the order of the work, and thus the number of threads, has no effect.

Every number that indexes an array is unsigned: numba gives signed ones Python's wrap-around from
the end, which doubled the time of these loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from gatherbench.bench.sampling.splitmix import GOLDEN, MULTIPLIER_1, MULTIPLIER_2

_u = np.uint64
Ids = NDArray[np.int64]
Ints = NDArray[np.int32] | NDArray[np.int64]
Words = NDArray[np.uint64]

_GOLDEN, _M1, _M2 = _u(GOLDEN), _u(MULTIPLIER_1), _u(MULTIPLIER_2)
_0, _1, _6, _63, _64 = _u(0), _u(1), _u(6), _u(63), _u(64)
_27, _30, _31, _32, _LOW = _u(27), _u(30), _u(31), _u(32), _u(0xFFFFFFFF)
#: Targets per block: enough to overlap cache misses, few enough to stay in the L1 cache.
_BLOCK = _u(64)
#: How many steps ahead :func:`count` and :func:`relabel` prefetch cache lines.
_AHEAD = 24
#: What :func:`relabel` returns on success.
OK = -1


def _prefetch(_context: Any, array: Any, index: Any) -> Any:
    """Return the signature of the intrinsic, and the function that generates its code."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        line = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        # https://llvm.org/docs/LangRef.html#llvm-prefetch-intrinsic
        kind = ir.FunctionType(ir.VoidType(), [line.type, number, number, number])
        call = builder.module.declare_intrinsic("llvm.prefetch", [line.type], kind)
        for_reading, keep, data_cache = number(0), number(3), number(1)
        builder.call(call, [line, for_reading, keep, data_cache])
        return context.get_dummy_value()

    return types.void(array, index), generate


#: ``prefetch(array, index)`` inside a compiled loop prefetches the cache line of ``array[index]``
#: for a read. The array is one-dimensional and contiguous; an index outside it is harmless.
prefetch: Any = intrinsic(_prefetch)


@njit(inline="always")
def _mix(z: _u) -> _u:
    z = (z ^ (z >> _30)) * _M1
    z = (z ^ (z >> _27)) * _M2
    return z ^ (z >> _31)


@njit(inline="always")
def _below(state: _u, draw: _u, bound: _u) -> _u:
    """Return a uniform integer in [0, bound), bound < 2^32: a 64 × 32 bit product's high word."""
    z = _mix(state + _GOLDEN * (draw + _1))
    return ((z >> _32) * bound + (((z & _LOW) * bound) >> _32)) >> _32


@njit(nogil=True, cache=True)
def max_degree(indptr: Ids) -> int:
    """Return the largest in-degree, or -1 when ``indptr`` decreases somewhere."""
    largest = 0
    for v in range(len(indptr) - 1):
        degree = indptr[v + 1] - indptr[v]
        if degree < 0:
            return -1
        largest = max(largest, degree)
    return largest


@njit(nogil=True, cache=True)
def count(indptr: Ids, targets: Ids, fanout: int, begins: Ids, offsets: Ids) -> np.int64:
    """Write where each target's list (``begins``) and edges (``offsets``) begin; count edges."""
    most = np.int64(fanout) if fanout >= 0 else np.iinfo(np.int64).max
    total = np.int64(0)
    offsets[0] = total
    for t in range(len(targets)):
        if t + _AHEAD < len(targets):
            prefetch(indptr, _u(targets[t + _AHEAD]))
        v = _u(targets[t])
        begins[t] = indptr[v]
        total += min(indptr[v + _1] - indptr[v], most)
        offsets[t + 1] = total
    return total


@njit(nogil=True, cache=True)
def _choose(begin: _u, degree: _u, state: _u, indices: Ints, chosen: Ids, used: Words) -> None:
    """Put ``len(chosen)`` of the places ``begin .. begin + degree - 1`` into ``chosen``.

    All subsets are equally likely: Floyd's algorithm (Bentley and Floyd, "A sample of brilliance",
    CACM 30(9), 1987), which needs one draw for each chosen place, whatever the degree. The chosen
    places are marked in a register for degrees up to 64, and in the bits of ``used`` beyond.
    """
    highest = degree - _u(len(chosen))
    taken = _0
    for i in range(len(chosen)):
        place = _below(state, _u(i), highest + _1)
        if degree <= _64:
            place = highest if (taken >> place) & _1 else place
            taken |= _1 << place
        else:
            place = highest if (used[place >> _6] >> (place & _63)) & _1 else place
            used[place >> _6] |= _1 << (place & _63)
        chosen[i] = begin + place
        prefetch(indices, begin + place)
        highest += _1
    if degree > _64:
        for i in range(len(chosen)):
            used[(_u(chosen[i]) - begin) >> _6] = _0


@njit(nogil=True, cache=True)
def draw(
    indptr: Ids, indices: Ints,
    nodes: Ids, base: int, begins: Ids, offsets: Ids, first: int, last: int,
    key: _u, sources: Ids, targets: Ids, places: Ids, used: Words,
) -> None:  # fmt: skip
    """Draw neighbours of ``nodes[first:last]``, of which ``nodes[t]`` has the number ``base + t``.

    ``sources`` ``[E]`` get their global ids, ``targets`` the local numbers, and ``places`` (unless
    empty) the places in ``indices``, at ``offsets[first]:offsets[last]`` of :func:`count`. Lists no
    longer than the fan-out are copied whole, in their order. ``key`` is the layer's; ``used`` has a
    bit for every place in the longest list, all zero before and after.
    """
    # First choose the places for a block of targets and prefetch their cache lines, then read them.
    for block in range(_u(first), _u(last), _BLOCK):
        end = min(block + _BLOCK, _u(last))
        for t in range(block, end):
            v, begin, start, stop = _u(nodes[t]), _u(begins[t]), offsets[t], offsets[t + _1]
            targets[start:stop] = base + np.int64(t)
            degree = _u(indptr[v + _1]) - begin
            if _u(stop - start) == degree:
                prefetch(indices, begin)
                for j in range(_0, degree):
                    sources[_u(start) + j] = begin + j
            else:
                state = _mix(key + _GOLDEN * (v + _1))
                _choose(begin, degree, state, indices, sources[start:stop], used)
        start, stop = offsets[block], offsets[end]
        if len(places):
            places[start:stop] = sources[start:stop]
        for e in range(_u(start), _u(stop)):
            sources[e] = indices[_u(sources[e])]


@njit(nogil=True, cache=True)
def relabel(sources: Ids, ids: Ids, known: int, table: NDArray[np.int32]) -> tuple[np.int64, int]:
    """Replace global ids by local numbers, and append new nodes in the order of their appearance.

    ``table[v]`` (``[N]``, zeros at first) is the place of ``v`` in ``ids`` if that place is below
    ``known`` and holds ``v``; otherwise it has no meaning. This is a sparse set (Briggs and
    Torczon, "An efficient representation for sparse sets", LOPLAS 2, 1993), which is never cleared
    and survives failures. ``ids`` has room for ``known + len(sources)`` and never becomes shorter.

    Returns:
        The number of known nodes; and the column of a source outside the graph, or ``OK``.
    """
    n, nodes = _u(known), _u(len(table))
    for e in range(len(sources)):
        v = _u(sources[e])
        if v >= nodes:
            return np.int64(n), e
        if e + _AHEAD < len(sources):
            prefetch(table, _u(sources[e + _AHEAD]))
        place = _u(table[v])
        if place < n and _u(ids[place]) == v:
            sources[e] = place
        else:
            ids[n] = v
            table[v] = n
            sources[e] = n
            n += _1
    return np.int64(n), OK
