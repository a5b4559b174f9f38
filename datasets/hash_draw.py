"""Draw rows and edges of a hashed graph: each number from a hash, on all cores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets import generated
from gatherbench.datasets.generated import ALPHA, MOST, PRIME
from gatherbench.datasets.rmat_draw import splitmix
from gatherbench.datasets.source import Progress

_U64 = np.uint64
#: First counters of the hash: for rows, for in-degrees, for in-neighbours.
_ROWS, _DEGREES, _NEIGHBOURS = _U64(1 << 60), _U64(2 << 60), _U64(3 << 60)
#: Width of the uniform distribution around 0 that has standard deviation 1.
_WIDTH = np.float32(12**0.5)
#: Rows, and columns of the graph, that one thread makes at a time.
_PIECE = 1 << 15
_COLUMNS = 1 << 20
#: Modulus by which ranks are renumbered, so that hubs have any node number.
_PRIME = _U64(PRIME)


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


def columns(
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
    made = generated.in_order(run, ((first,) for first in firsts), generated.worker_count())
    for number, found in enumerate(made, start=1):
        yield found
        progress("draw edges", number / len(firsts))
