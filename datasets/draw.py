"""Draw generated graphs and rows fast, with the same result for every number of threads.

Each number is a function of the seed and its place alone (splitmix64 as a counter-based generator).
Draw ``i`` of RMAT is one of the seed and ``i``, so workers share no stored draws: the columns of
the matrix are cut into blocks, and each block's worker repeats *all* draws and keeps those in its
columns. That costs time and saves memory: each worker holds at most 64 M draws. Rows, in-degrees
and in-neighbours of a hashed graph follow from their own places.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.generated import ALPHA, MOST, PRIME, in_order, worker_count
from gatherbench.datasets.rmat import Rmat
from gatherbench.datasets.source import Progress, silent

#: Draws in one block on average (8 B each in memory, and twice while repetitions are dropped): the
#: most, and the least that a smaller block, made to give every worker one, may have.
_BLOCK_ENTRIES, _SMALL_BLOCK = 1 << 26, 1 << 20
_LEVELS_AT_ONCE = 4
_OUTCOMES = 4**_LEVELS_AT_ONCE

_U64 = np.uint64
# splitmix64: Steele, Lea and Flood, OOPSLA 2014; constants as in Vigna's reference code.
_GAMMA, _MIX1, _MIX2 = _U64(0x9E3779B97F4A7C15), _U64(0xBF58476D1CE4E5B9), _U64(0x94D049BB133111EB)
#: First counters of the hash: for rows, for in-degrees, for in-neighbours.
_ROWS, _DEGREES, _NEIGHBOURS = _U64(1 << 60), _U64(2 << 60), _U64(3 << 60)
#: Width of the uniform distribution around 0 that has standard deviation 1.
_WIDTH = np.float32(12**0.5)
#: Rows, and columns of a hashed graph, that one thread makes at a time.
_PIECE, _COLUMNS = 1 << 15, 1 << 20
#: Modulus by which ranks are renumbered, so that hubs have any node number.
_PRIME = _U64(PRIME)


def rmat_columns(
    law: Rmat, draws: int, seed: int, threads: int | None = None, progress: Progress = silent
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint32]]]:
    """Yield the graph of the first ``draws`` draws for ``DatasetWriter.write_columns``.

    Self-loops and draws outside the matrix are dropped, repeated ones merged; the in-neighbours
    of a column are sorted. Node numbers are scrambled by seed, as RMAT's own put the hubs first.
    """
    workers = worker_count(threads)
    entries = draws * (2 if law.undirected else 1)
    blocks = max(-(-entries // _BLOCK_ENTRIES), min(workers, -(-entries // _SMALL_BLOCK)))
    bounds = np.linspace(0, law.num_nodes, min(blocks, law.num_nodes) + 1).astype(int).tolist()
    chance, other = alias_table()
    seed64 = _U64(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])

    def block(low: int, high: int) -> tuple[NDArray[Any], NDArray[Any]]:
        drawn = int(entries * (high - low) / law.num_nodes * 1.1) + 4096
        keys = np.empty(0, np.uint64)
        while drawn > len(keys):  # a block with hubs exceeds the average
            keys = np.empty(drawn, np.uint64)
            drawn = _draw(
                keys, draws, seed64, chance, other, law.levels, law.num_nodes, low, high,
                law.undirected,
            )  # fmt: skip
        keys = keys[:drawn]
        keys.sort()
        keys = keys[np.append(True, keys[1:] != keys[:-1])[:drawn]]  # each once
        starts = np.arange(high - low + 1, dtype=np.uint64) << _U64(32)
        return np.diff(np.searchsorted(keys, starts)), keys.astype(np.uint32)

    progress("draw edges", 0.0)
    for number, run in enumerate(in_order(block, itertools.pairwise(bounds), workers)):
        progress("draw edges", (number + 1) / (len(bounds) - 1))
        yield run


def rmat_graph(num_nodes: int, num_edges: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Make a directed graph in memory: ``indptr [N + 1]``, ``indices [E]``, ``E`` to about 0.1 %
    ``num_edges``."""
    law = Rmat(num_nodes, undirected=False)
    columns = zip(*rmat_columns(law, law.draws_for(num_edges), seed=0), strict=True)
    degrees, neighbours = map(np.concatenate, columns)
    return np.append(0, np.cumsum(degrees)), neighbours.astype(np.int32)


def alias_table() -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """Return Walker's alias table for four levels of the recursion in one step.

    It has for each of the 256 outcomes (four bits of the row, then four of the column) the chance
    in units of 2^-24 that a slot keeps its own outcome, and the outcome it yields otherwise.
    """
    outcome, weight = np.arange(_OUTCOMES), np.ones(_OUTCOMES)
    quadrant = np.array([Rmat.a, Rmat.b, Rmat.b, Rmat.d])
    for level in range(_LEVELS_AT_ONCE):
        row, column = outcome >> (_LEVELS_AT_ONCE + level) & 1, outcome >> level & 1
        weight *= quadrant[2 * row + column]
    share = weight * _OUTCOMES  # 1 on average: the rich fill up the slots of the poor
    other, chance = outcome.copy(), np.ones(_OUTCOMES)
    poor = [i for i in outcome if share[i] < 1]
    rich = [i for i in outcome if share[i] >= 1]
    while poor and rich:
        slot, giver = poor.pop(), rich[-1]
        chance[slot], other[slot] = share[slot], giver
        share[giver] -= 1 - share[slot]
        if share[giver] < 1:
            poor.append(rich.pop())
    return np.round(chance * 2**24).astype(np.uint32), other.astype(np.uint8)


@numba.njit(inline="always")
def splitmix(counter: Any, seed: Any = _U64(0)) -> Any:  # noqa: B008  # a constant
    """Hash a counter, uint64, by splitmix64."""
    z = seed + counter * _GAMMA
    z = (z ^ (z >> _U64(30))) * _MIX1
    z = (z ^ (z >> _U64(27))) * _MIX2
    return z ^ (z >> _U64(31))


@numba.njit(inline="always")
def _scramble(node: Any, num_nodes: Any, levels: Any, seed: Any) -> Any:
    """Map a node by a bijection of ``0..num_nodes - 1``: mix below 2^levels until in range."""
    mask = (_U64(1) << levels) - _U64(1)
    half = (levels + _U64(1)) >> _U64(1)
    x = node
    while True:
        # Odd factors, and shifts of half the bits, are invertible modulo the power of two.
        x = (x * (_MIX1 | _U64(1)) + seed) & mask
        x ^= x >> half
        x = (x * (_MIX2 | _U64(1)) + (seed >> _U64(32))) & mask
        x ^= x >> half
        x = (x * (_GAMMA | _U64(1)) + (seed >> _U64(16))) & mask
        x ^= x >> half
        if x < num_nodes:
            return x


@numba.njit(nogil=True, cache=True)
def _draw(
    keys: Any, draws: int, seed: Any, chance: Any, other: Any, depth: int, nodes: int, low_: int,
    high_: int, undirected: bool,
) -> int:  # fmt: skip
    """Write ``column << 32 | row``, column from ``low_``, of each draw in the block's columns.

    Return the number of these draws; only the first ``len(keys)`` are written.
    """
    steps = (depth + 3) // 4
    words = _U64((steps + 1) // 2)
    spare = _U64(4 * steps - depth)  # surplus levels; dropping them keeps the law
    levels, num_nodes, low, high = _U64(depth), _U64(nodes), _U64(low_), _U64(high_)
    count = 0
    for draw in range(draws):
        counter = _U64(draw) * words
        row = column = _U64(0)
        word = _U64(0)
        for step in range(steps):
            if step & 1:
                word >>= _U64(32)
            else:
                word = splitmix(counter + _U64(step >> 1), seed)
            slot = word & _U64(_OUTCOMES - 1)
            alias = _U64(other[slot])  # loaded first, so the choice has no branch
            outcome = slot if (word >> _U64(8)) & _U64(0xFFFFFF) < chance[slot] else alias
            row = (row << _U64(4)) | (outcome >> _U64(4))
            column = (column << _U64(4)) | (outcome & _U64(15))
        row >>= spare
        column >>= spare
        if row >= num_nodes or column >= num_nodes or row == column:
            continue
        new_column = _scramble(column, num_nodes, levels, seed)
        here = low <= new_column < high
        if not (here or undirected):
            continue
        new_row = _scramble(row, num_nodes, levels, seed)
        if here:
            if count < len(keys):
                keys[count] = (new_column - low) << _U64(32) | new_row
            count += 1
        if undirected and low <= new_row < high:
            if count < len(keys):
                keys[count] = (new_row - low) << _U64(32) | new_column
            count += 1
    return count


@numba.njit(nogil=True, cache=True)
def _fill(out: Any, first: int) -> None:
    rows, width = out.shape
    words = _U64((width + 1) // 2)
    for i in range(rows):
        base = _ROWS + _U64(first + i) * words
        for j in range(width):
            z = splitmix(base + _U64(j >> 1))
            bits = (z >> _U64(40)) if j & 1 else (z & _U64(0xFFFFFF))
            out[i, j] = (np.float32(bits) * np.float32(2.0**-24) - np.float32(0.5)) * _WIDTH


def fill(table: NDArray[np.float32], first: int = 0) -> None:
    """Write rows ``first``, ``first + 1``, … of a table to ``table`` ``[n, D]``, on all cores.

    Values are uniform with mean 0 and standard deviation 1.
    """

    def piece(at: int) -> None:
        _fill(table[at : at + _PIECE], first + at)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as cores:
        list(cores.map(piece, range(0, len(table), _PIECE)))


@numba.njit(nogil=True, cache=True)
def _degrees(out: Any, first: int, least: float, power: float, most: int) -> None:
    for i in range(len(out)):
        u = (np.float64(splitmix(_DEGREES + _U64(first + i)) >> _U64(11)) + 1.0) * 2.0**-53
        out[i] = min(np.int64(least * u**power), most)


@numba.njit(nogil=True, cache=True)
def _neighbours(out: Any, degrees: Any, first: int, nodes: int, skew: float) -> None:
    at = 0
    for i in range(len(degrees)):
        for k in range(degrees[i]):
            z = splitmix(_NEIGHBOURS + (_U64(first + i) << _U64(14)) + _U64(k))
            u = np.float64(z >> _U64(11)) * 2.0**-53
            rank = _U64(np.float64(nodes) * u * u * (u if skew == 3.0 else u ** (skew - 2.0)))
            out[at] = rank * _PRIME % _U64(nodes)
            at += 1


def hashed_columns(
    nodes: int, least: float, skew: float, progress: Progress
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield for ``DatasetWriter.write_columns`` in-degrees and in-neighbours of runs of nodes.

    In-neighbours are unsorted and may repeat. In-degrees of Pareto's law are ``least`` or more; an
    in-neighbour's rank is ``nodes`` times the power ``skew`` of a uniform number.
    """

    def run(first: int) -> tuple[NDArray[Any], NDArray[Any]]:
        degrees = np.empty(min(_COLUMNS, nodes - first), np.int64)
        _degrees(degrees, first, least, -1 / ALPHA, MOST)  # cached code keeps old constants
        rows = np.empty(int(degrees.sum()), np.uint32)
        _neighbours(rows, degrees, first, nodes, skew)
        return degrees, rows

    firsts = range(0, nodes, _COLUMNS)
    made = in_order(run, ((first,) for first in firsts), worker_count())
    for number, columns in enumerate(made, start=1):
        yield columns
        progress("draw edges", number / len(firsts))
