"""Edges from NumPy files: PyG's ``edge_index``, or compressed sparse columns or rows.

The former is a ``.npy`` of shape ``[2, E]``, or an array of that name in an ``.npz``. The latter
are read from ``.npz`` as SciPy's ``save_npz`` writes it (or any with ``indptr`` and ``indices``),
or from a pair of ``.npy`` files whose names differ in ``indptr`` and ``indices``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.importers_edges import LARGEST_ID, Edges, collect
from gatherbench.datasets.layout import DatasetError
from gatherbench.datasets.npz_stream import CHUNK, StoredArray, members, stored_array

#: Entries of indptr looked at at a time: their lists may be long.
_POINTERS = 1 << 18

Orientation = Literal["csc", "csr"]


def read_npy(path: Path, one_based: bool, orientation: Orientation) -> Edges:
    """Read an ``edge_index``, or ``….indptr.npy`` with ``….indices.npy`` beside it.

    Raises:
        DatasetError: naming file and position of the first bad entry.
    """
    if "indptr" in path.name:
        fellow = path.with_name(path.name.replace("indptr", "indices"))
        return _compressed(stored_array(path), stored_array(fellow), orientation)
    return _edge_index(stored_array(path), one_based)


def read_npz(path: Path, one_based: bool, orientation: Orientation) -> Edges:
    """Read a graph from ``.npz``, by the names of its arrays.

    Args:
        orientation: of compressed arrays. ``csc``: the list of a node holds its in-neighbours;
            ``csr``: the nodes that it has edges to. What the file says of itself (``format``)
            goes before.

    Raises:
        DatasetError: naming file, array and position of the first bad entry.
    """
    names = members(path)
    if "edge_index" in names:
        edges = _edge_index(stored_array(path, "edge_index"), one_based)
    elif {"indptr", "indices"} <= {*names}:
        said: str = orientation
        if "format" in names and stored_array(path, "format").dtype.itemsize < 64:
            said = (
                bytes(stored_array(path, "format").whole().tobytes()).replace(b"\0", b"").decode()
            )
        if said not in ("csc", "csr"):
            raise DatasetError(f"{path}: a matrix in format {said!r}, expected csc or csr")
        if "shape" in names:
            shape = stored_array(path, "shape")
            shape.expect("iu", 2)
            if len({*shape.whole().tolist()}) != 1:
                raise DatasetError(f"{path}: a graph's matrix is square, this is {shape.whole()}")
        arrays = stored_array(path, "indptr"), stored_array(path, "indices")
        edges = _compressed(*arrays, "csc" if said == "csc" else "csr")
    else:
        raise DatasetError(
            f"{path}: holds {', '.join(names[:5])}; expected edge_index, or indptr and indices (of "
            "a SciPy matrix, save matrix.tocsc())"
        )
    extras = ("x", "y", "train_mask", "val_mask", "test_mask")
    edges.extras = {name: stored_array(path, name) for name in extras if name in names}
    return edges


def _edge_index(array: StoredArray, one_based: bool) -> Edges:
    if len(array.shape) != 2 or 2 not in array.shape or array.dtype.kind not in "iu":
        pair = "; or name it with 'indptr' in its name and its fellow with 'indices'"
        raise DatasetError(
            f"{array.where}: holds {array.dtype} {array.shape}, expected an edge_index, whole "
            f"numbers of shape [2, E]{'' if array.member else pair}"
        )
    return collect(array.where, array.pairs(), one_based)


def _compressed(indptr: StoredArray, indices: StoredArray, orientation: Orientation) -> Edges:
    for array in (indptr, indices):
        array.expect("iu", None)
    nodes = indptr.shape[0] - 1
    if not 1 <= nodes <= LARGEST_ID + 1:
        raise DatasetError(f"{indptr.where}: has {nodes + 1} entries: {nodes} nodes are no graph")
    edges = Edges(num_nodes=nodes, one_based=False)
    for own, others in _lists(indptr, indices, nodes):
        edges.add(*((others, own) if orientation == "csc" else (own, others)))
    if not edges.chunks:
        raise DatasetError(f"{indices.where}: holds no edges")
    return edges


def _lists(
    indptr: StoredArray, indices: StoredArray, nodes: int
) -> Iterator[tuple[NDArray[np.int32], NDArray[Any]]]:
    """Runs of nodes and the entries of their lists, both files read side by side."""
    count = indices.shape[0]
    with indices.reader() as read:
        begin, first = 0, -1  # where the next list begins, and whose it is
        for pointers in indptr.flat(step=_POINTERS):
            ends = pointers.astype(np.int64)
            falls = np.flatnonzero(np.diff(ends, prepend=begin) < 0)
            if first < 0 and ends[0] != 0:
                raise DatasetError(f"{indptr.where}: begins with {ends[0]}, expected 0")
            if len(falls) or ends[-1] > count:
                at = int(falls[0]) if len(falls) else int(np.argmax(ends > count))
                raise DatasetError(
                    f"{indptr.where}: entry {first + 1 + at} is {ends[at]}, expected no less than "
                    f"the one before, and no more than the {count} of indices"
                )
            own = np.repeat(
                np.arange(first, first + len(ends), dtype=np.int32), np.diff(ends, prepend=begin)
            )
            for start in range(0, len(own), CHUNK):
                others = read(min(CHUNK, len(own) - start))
                if (bad := (others < 0) | (others >= nodes)).any():
                    at = int(bad.argmax())
                    raise DatasetError(
                        f"{indices.where}: entry {begin + start + at} is {others[at]}, no node of "
                        f"0..{nodes - 1}"
                    )
                yield own[start : start + CHUNK], others
            begin, first = int(ends[-1]), first + len(ends)
    if begin != count:
        raise DatasetError(f"{indptr.where}: ends with {begin}, expected the {count} of indices")
