"""Number, write and read the kinds of edges, which make a graph relational.

A relational graph has one more file, with a number for each edge in the order of ``indices``; the
spec names the kinds. An untyped model reads the graph as any other, so it has the same minibatches
as a relational one. Two nodes have one edge in each direction, of one kind: if a source has
several, the first of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.columns import Pairs, columns, edge_keys
from gatherbench.datasets.dataset import RELATIONS_FILE, DatasetError, GraphDataset, remedy
from gatherbench.datasets.files import check_memory
from gatherbench.datasets.writer import DatasetWriter

#: Edges that are numbered at a time.
_EDGES = 1 << 22


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

    Types follow one another in one range of numbers, in the order of ``counts``, their sizes.

    Args:
        both_ways: the inverse of each kind is stored, too, as another kind.

    Raises:
        DatasetError: a number exceeds its type's, so it would be a node of another type; or there
            is too little memory.
    """
    starts = np.cumsum([0, *counts.values()]).tolist()
    first = dict(zip(counts, starts, strict=False))
    count = (1 + both_ways) * sum(len(kind.ends) for kind in edges)
    check_memory((32 if both_ways else 8) * count, f"{edges[0].where}: its edges")

    def pairs() -> Pairs:
        for kind in edges:
            for inverse in (False, True)[: 1 + both_ways]:
                for at in range(0, len(kind.ends), _EDGES):
                    source, target = kind.ends[at : at + _EDGES].T.astype(np.int64)
                    for ids, node_type in ((source, kind.source), (target, kind.target)):
                        most = counts[node_type]
                        if (bad := ids[(ids < 0) | (ids >= most)]).size:
                            words = f"names node {bad[0]}, and its type has {most:,}"
                            raise DatasetError(f"{kind.where}: {words}")
                        np.add(ids, first[node_type], out=ids)
                    yield (target, source) if inverse else (source, target)

    keys = edge_keys(pairs(), count, starts[-1], "its edges")
    names = [f"{way}{kind.name}" for kind in edges for way in ("", "inverse ")[: 1 + both_ways]]
    sizes = [len(kind.ends) for kind in edges for _ in range(1 + both_ways)]
    return keys, np.repeat(np.arange(len(names), dtype=np.int16), sizes), tuple(names)


def write_edges(
    writer: DatasetWriter, keys: NDArray[np.int64], kinds: NDArray[np.integer[Any]] | None = None
) -> NDArray[np.int64]:
    """Write columns from the keys of ``edge_keys``, overwriting these; return the in-degrees.

    ``kinds`` are places in the ``relations`` of the writer's spec, if it has some.

    Raises:
        DatasetError: nodes and kinds are too many for keys of 63 bits.
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

    Raises:
        DatasetError: the graph has no kinds, or their file is damaged.
    """
    path, names = data.folder / RELATIONS_FILE, data.spec.relations
    if not names:
        raise DatasetError(
            f"{data.name}: its edges have no kinds, which a relational model needs; import it with"
            f" --relations, or {remedy(data.folder)}"
        )
    try:
        kinds: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        if kinds.dtype != np.int16 or kinds.shape != data.indices.shape:
            raise ValueError("no kind for each edge")
        if len(kinds) and not 0 <= kinds.min() <= kinds.max() < len(names):
            raise ValueError("a number of no kind")
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path}: unreadable ({error}); {remedy(data.folder)}") from error
    return kinds
