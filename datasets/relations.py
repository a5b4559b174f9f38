"""Write and read the kinds of edges, which make a graph relational.

A file next to the arrays of every graph has one number an edge, in the order of ``indices``; the
spec names the kinds. An untyped model reads the graph as any other, so it has the same minibatches
as a relational one. Two nodes have one edge in each direction, of one kind: if a source has
several, the first of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.columns import columns, typed_columns, typed_keys
from gatherbench.datasets.dataset import RELATIONS_FILE, DatasetError, GraphDataset, remedy
from gatherbench.datasets.writer import DatasetWriter

#: The most kinds that the file's dtype can number.
MOST = 2**15


def write_edges(
    writer: DatasetWriter,
    keys: NDArray[np.int64],
    kinds: NDArray[np.integer[Any]] | None = None,
) -> NDArray[np.int64]:
    """Write columns from the keys of ``edge_keys``, overwriting these; return the in-degrees.

    Args:
        kinds: of the edges, as places in the ``relations`` of the writer's spec, if it has some.
    """
    nodes, count = writer.spec.num_nodes, len(writer.spec.relations)
    if kinds is None or not count:
        return writer.write_columns(columns(keys, nodes))
    typed_keys(keys, kinds, nodes, count, writer.spec.name)
    found: list[NDArray[np.int16]] = []

    def untyped() -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        for degrees, rows, of_edges in typed_columns(keys, nodes, count):
            found.append(of_edges.astype(np.int16))
            yield degrees, rows

    degrees = writer.write_columns(untyped())
    writer.keep(RELATIONS_FILE, np.concatenate(found))
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
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path}: unreadable ({error}); {remedy(data.folder)}") from error
    if kinds.dtype != np.int16 or kinds.shape != data.indices.shape:
        raise DatasetError(f"{path}: no kind for each edge; {remedy(data.folder)}")
    if len(kinds) and not (kinds.min() >= 0 and kinds.max() < len(names)):
        raise DatasetError(f"{path}: holds what is no kind of edge; {remedy(data.folder)}")
    return kinds
