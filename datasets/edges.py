"""Convert edge lists to the columns of the on-disk format, and read and write kinds of edges.

An edge ``source -> target`` among ``N`` nodes becomes the key ``target * N + source``; sorting the
keys in place gives compressed sparse columns with ascending rows, and equal neighbours are
repetitions. That takes 8 bytes an edge and no second copy: the 1.6 billion edges of
ogbn-papers100M are sorted in 13 GB.

A relational graph has one more file, with the kind of each edge as a number, in the order of
``indices``; the spec names the kinds. An untyped model reads the graph as any other, so it has the
same minibatches as a relational one. Two nodes have one edge in each direction, of one kind: if a
source has several, the first of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.dataset import RELATIONS_FILE, DatasetError, GraphDataset, remedy
from gatherbench.datasets.files import check_memory
from gatherbench.datasets.writer import DatasetWriter

#: Edges that are handled at a time.
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

    ``pairs`` are runs of sources and targets, ``count`` edges in all. An id outside
    ``0..num_nodes - 1`` is a ``DatasetError`` that begins with ``what``.
    """
    keys = np.empty(2 * count if undirected else count, np.int64)
    filled = 0
    for source, target in pairs:
        for ids in (source, target):
            if len(ids) and (ids.min() < 0 or ids.max() >= num_nodes):
                bad = ids[(ids < 0) | (ids >= num_nodes)][0]
                nodes = f"there are {num_nodes:,} nodes"
                raise DatasetError(f"{what}: an edge names node {bad}, but {nodes}")
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


class EdgeKind(NamedTuple):
    """Edges of one kind: ``ends`` ``[E, 2]``, each end numbered within its type of nodes."""

    source: str
    name: str
    target: str
    ends: NDArray[Any]
    where: str


def one_range(
    edges: Sequence[EdgeKind], counts: Mapping[str, int], both_ways: bool
) -> tuple[NDArray[np.int64], NDArray[np.int16], tuple[str, ...]]:
    """Return the keys, kinds and names of kinds of edges between nodes of several types.

    Types follow one another in one range of numbers, in the order of ``counts``, their sizes. With
    ``both_ways`` the inverse of each kind is stored, too, as another kind. A number that exceeds
    its type's, and so would be a node of another type, or too little memory is a ``DatasetError``.
    """
    starts = np.cumsum([0, *counts.values()]).tolist()
    first = dict(zip(counts, starts, strict=False))
    count = (1 + both_ways) * sum(len(kind.ends) for kind in edges)
    check_memory((32 if both_ways else 8) * count, f"{edges[0].where}: its edges")

    def pairs() -> Pairs:
        for kind in edges:
            for inverse in (False, True)[: 1 + both_ways]:
                for at in range(0, len(kind.ends), _CHUNK):
                    source, target = kind.ends[at : at + _CHUNK].T.astype(np.int64)
                    for ids, node_type in ((source, kind.source), (target, kind.target)):
                        if (bad := ids[(ids < 0) | (ids >= counts[node_type])]).size:
                            words = f"names node {bad[0]}, and its type has {counts[node_type]:,}"
                            raise DatasetError(f"{kind.where}: {words}")
                        np.add(ids, first[node_type], out=ids)
                    yield (target, source) if inverse else (source, target)

    keys = edge_keys(pairs(), count, starts[-1], "its edges")
    names = [f"{way}{kind.name}" for kind in edges for way in ("", "inverse ")[: 1 + both_ways]]
    sizes = np.repeat([len(kind.ends) for kind in edges], 1 + both_ways)
    return keys, np.repeat(np.arange(len(names), dtype=np.int16), sizes), tuple(names)


def write_edges(
    writer: DatasetWriter, keys: NDArray[np.int64], kinds: NDArray[np.integer[Any]] | None = None
) -> NDArray[np.int64]:
    """Write columns from the keys of ``edge_keys``, overwriting these; return the in-degrees.

    ``kinds`` are places in the ``relations`` of the writer's spec, if it has some. Too many nodes
    and kinds for keys of 63 bits are a ``DatasetError``.
    """
    nodes, count = writer.spec.num_nodes, len(writer.spec.relations)
    if kinds is None or not count:
        return writer.write_columns(run[:2] for run in columns(keys, nodes))
    if nodes**2 * count > np.iinfo(np.int64).max:
        sizes = f"{nodes:,} nodes with {count} kinds of edges"
        raise DatasetError(f"{writer.spec.name}: {sizes} are too many: keys of edges have 63 bits")
    keys *= count
    keys += kinds
    of_edges: list[NDArray[np.int16]] = []

    def untyped() -> Pairs:
        for degrees, rows, part in columns(keys, nodes, count):
            of_edges.append(part)
            yield degrees, rows

    degrees = writer.write_columns(untyped())
    writer.keep(RELATIONS_FILE, np.concatenate(of_edges))
    return degrees


def read_relations(data: GraphDataset) -> NDArray[np.int16]:
    """Map the kind of each edge, a place in ``spec.relations``, int16 ``[E]``.

    A graph without kinds, or with a damaged file of them, is a ``DatasetError``.
    """
    path, names = data.folder / RELATIONS_FILE, data.spec.relations
    if not names:
        lack = f"{data.name}: its edges have no kinds, which a relational model needs"
        raise DatasetError(f"{lack}; import it with --relations, or {remedy(data.folder)}")
    try:
        kinds: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        if kinds.dtype != np.int16 or kinds.shape != data.indices.shape:
            raise ValueError("no kind for each edge")
        if len(kinds) and not 0 <= kinds.min() <= kinds.max() < len(names):
            raise ValueError("a number of no kind")
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path}: unreadable ({error}); {remedy(data.folder)}") from error
    return kinds
