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
#: Runs of sources and targets.
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


def columns(
    keys: NDArray[np.int64], num_nodes: int, kinds: int = 1
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int16]]]:
    """Yield the graph in runs: degrees, their rows, and the kind of each edge, one of ``kinds``.

    Rows ascend within a column, self-loops stay, and repeated edges count once, with their lowest
    kind. Sorts ``keys`` in place; with several kinds each must be ``key * kinds + kind``.
    """
    keys.sort()
    step = max(1, int(_CHUNK * num_nodes / max(1, len(keys))))
    for first in range(0, num_nodes, step):
        bounds = np.arange(first, min(first + step, num_nodes) + 1, dtype=np.int64) * num_nodes
        begin, end = np.searchsorted(keys, bounds[[0, -1]] * kinds)
        run, of_edges = keys[begin:end], np.zeros(end - begin, np.int16)
        if kinds > 1:
            run, of_edges = run // kinds, (run % kinds).astype(np.int16)
        new = np.diff(run, prepend=-1) != 0  # equal keys share a column, so a run
        run = run[new]
        yield np.diff(np.searchsorted(run, bounds)), run % num_nodes, of_edges[new]
