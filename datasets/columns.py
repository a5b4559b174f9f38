"""Convert published edge lists to the columns of the on-disk format.

An edge ``source -> target`` among ``N`` nodes becomes the key ``target * N + source``; sorting the
keys in place gives compressed sparse columns with ascending rows, and equal neighbours are
repetitions. That takes 8 bytes an edge and no second copy: the 1.6 billion edges of
ogbn-papers100M are sorted in 13 GB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.dataset import DatasetError

_CHUNK = 1 << 22
#: Runs of sources and targets, or of degrees and rows.
Pairs = Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]


def edge_keys(
    pairs: Iterable[tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]]]],
    count: int,
    num_nodes: int,
    what: str,
    undirected: bool = False,
) -> NDArray[np.int64]:
    """Return the keys of an edge list, ``[count]``, or ``[2 * count]`` with both directions.

    ``pairs`` are runs of sources and targets, ``count`` edges in all.

    Raises:
        DatasetError: an id lies outside ``0..num_nodes - 1``; the message begins with ``what``.
    """
    keys = np.empty(2 * count if undirected else count, np.int64)
    filled = 0
    for source, target in pairs:
        for ids in (source, target):
            if len(ids) and (ids.min() < 0 or ids.max() >= num_nodes):
                bad = ids[(ids < 0) | (ids >= num_nodes)][0]
                raise DatasetError(
                    f"{what}: an edge names node {bad}, but there are {num_nodes:,} nodes"
                )
        for u, v in ((source, target), (target, source)) if undirected else ((source, target),):
            part = keys[filled : filled + len(u)]
            np.multiply(v, num_nodes, out=part, dtype=np.int64)
            part += u
            filled += len(u)
    return keys


def columns(keys: NDArray[np.int64], num_nodes: int) -> Pairs:
    """Yield the graph for ``DatasetWriter.write_columns``: runs of degrees and their rows.

    Rows ascend within a column, repeated edges count once, self-loops stay. Sorts ``keys`` in
    place; the caller must not use them afterwards.
    """
    keys.sort()
    step = max(1, int(_CHUNK * num_nodes / max(1, len(keys))))
    for first in range(0, num_nodes, step):
        bounds = np.arange(first, min(first + step, num_nodes) + 1, dtype=np.int64) * num_nodes
        begin, end = np.searchsorted(keys, bounds[[0, -1]])
        run = keys[begin:end]
        run = run[np.diff(run, prepend=-1) != 0]  # equal keys share a column, so a run
        yield np.diff(np.searchsorted(run, bounds)), run % num_nodes


def typed_keys(
    keys: NDArray[np.int64], kinds: NDArray[np.integer[Any]], num_nodes: int, count: int, what: str
) -> NDArray[np.int64]:
    """Add to the keys, in place, their edges' kinds ``[E]`` of ``count``, for `typed_columns`.

    Raises:
        DatasetError: such keys exceed 63 bits; the message begins with ``what``.
    """
    if num_nodes**2 * count > np.iinfo(np.int64).max:
        sizes = f"{num_nodes:,} nodes with {count} kinds of edges"
        raise DatasetError(f"{what}: {sizes} are too many: keys of edges have 63 bits")
    keys *= count
    keys += kinds
    return keys


def typed_columns(
    keys: NDArray[np.int64], num_nodes: int, count: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
    """Yield, from :func:`typed_keys`, what :func:`columns` yields and the kinds of edges.

    A repeated edge has its lowest kind.
    """
    keys.sort()
    kinds = keys % count
    keys //= count
    first = np.diff(keys, prepend=-1) != 0
    keys, kinds = keys[first], kinds[first]
    begin = 0
    for degrees, rows in columns(keys, num_nodes):
        yield degrees, rows, kinds[begin : begin + len(rows)]
        begin += len(rows)
