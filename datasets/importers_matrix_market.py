"""Edges from a MatrixMarket file, the exchange format of the SuiteSparse collection.

The entry in row ``i`` and column ``j`` is the edge ``i -> j``: in compressed sparse columns, column
``j`` then lists the in-neighbours of ``j``. Format: Boisvert, Pozo and Remington, NISTIR 5935.
"""

from __future__ import annotations

from pathlib import Path

from gatherbench.datasets.importers_text import LARGEST_ID, Edges, Records, TextStream, text_stream
from gatherbench.datasets.source import Progress

_FIELDS = ("pattern", "real", "integer", "complex", "double")
_SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")


def read_matrix_market(path: Path, progress: Progress) -> Edges:
    """Read a square sparse matrix; values are ignored, symmetric entries count both ways.

    Raises:
        DatasetError: with line and column of what is wrong: no MatrixMarket header, a dense or
            rectangular matrix, a bad entry, or not as many entries as announced.
    """
    with text_stream(path, progress) as stream:
        symmetric = _read_banner(stream)
        size, entries = _read_size(stream)
        edges = Edges(num_nodes=size, one_based=True, both_ways=symmetric)
        stream.read_edges(edges, Records(0, (0, 1), 1, size))
        if len(edges) != entries:
            raise stream.error(f"the file ends after {len(edges)} entries of {entries} announced")
    return edges


def _read_banner(stream: TextStream) -> bool:
    line = stream.next_line()
    words = line.decode(errors="replace").lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        raise stream.error(f"expected '%%MatrixMarket matrix …', found {line[:60]!r}")
    if words[2] != "coordinate":
        raise stream.error(f"expected a sparse matrix ('coordinate'), found {words[2]!r}")
    if words[3] not in _FIELDS or words[4] not in _SYMMETRIES:
        raise stream.error(f"unknown kind of matrix: {' '.join(words[3:])!r}")
    return words[4] != "general"


def _read_size(stream: TextStream) -> tuple[int, int]:
    line = stream.next_record()
    try:
        rows, columns, entries = (int(word) for word in line.split())
    except ValueError:
        raise stream.error(f"expected 'rows columns entries', found {line[:60]!r}") from None
    if rows != columns:
        raise stream.error(f"a graph's matrix is square, this one is {rows} by {columns}")
    if not 1 <= rows <= LARGEST_ID + 1 or entries < 0:
        raise stream.error(f"{rows} rows and {entries} entries cannot be a graph")
    return rows, entries
