"""Edges from a MatrixMarket file, the exchange format of the SuiteSparse collection.

The entry in row ``i`` and column ``j`` is the edge ``i -> j``: in compressed sparse columns, column
``j`` then lists the in-neighbours of ``j``. SciPy reads the header; its ``mmread`` would hold a
value for each entry too, so the entries are read as those of an edge list are.
"""

from __future__ import annotations

from pathlib import Path

from gatherbench.datasets.importers_edges import LARGEST_ID, Edges
from gatherbench.datasets.importers_text import Column, text_stream
from gatherbench.datasets.layout import DatasetError
from gatherbench.datasets.source import Progress


def read_matrix_market(path: Path, progress: Progress) -> Edges:
    """Read a square sparse matrix; values are ignored, symmetric entries count both ways.

    Raises:
        DatasetError: no MatrixMarket header, a dense or rectangular matrix, not as many entries as
            announced, or (with line and column) a bad entry.
    """
    from scipy.io import mminfo

    try:
        rows, columns, entries, kind, _, symmetry = mminfo(path)
    except (OSError, ValueError, OverflowError) as error:
        raise DatasetError(f"{path}: no MatrixMarket header ({error})") from error
    if kind != "coordinate":
        raise DatasetError(f"{path}: expected a sparse matrix ('coordinate'), found {kind!r}")
    if rows != columns:
        raise DatasetError(f"{path}: a graph's matrix is square, this one is {rows} by {columns}")
    if not 1 <= rows <= LARGEST_ID + 1 or entries < 1:
        raise DatasetError(f"{path}: {rows} rows and {entries} entries cannot be a graph")
    edges = Edges(num_nodes=rows, one_based=True, both_ways=symmetry != "general")
    with text_stream(path, progress) as stream:
        stream.next_record()  # the sizes
        for run in stream.numbers(None, [Column(at, "node id", 1, rows) for at in (0, 1)]):
            edges.add(run[:, 0], run[:, 1])
        if len(edges) != entries:
            raise stream.error(f"the file ends after {len(edges)} entries of {entries} announced")
    return edges
