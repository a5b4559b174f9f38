"""Edges from NumPy files: PyG's ``edge_index``, or compressed sparse columns or rows.

The former is one ``.npy`` of shape ``[2, E]``. The latter are read from ``.npz`` as SciPy's
``save_npz`` writes it (or any with ``indptr`` and ``indices``), or from a pair of ``.npy`` files
whose names differ in ``indptr`` and ``indices``.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.importers_text import LARGEST_ID, Edges, too_large_remedy
from gatherbench.datasets.layout import DatasetError

_CHUNK = 1 << 22


def read_edge_index(path: Path, one_based: bool = False) -> Edges:
    """Read a list of edges as PyG has it: whole numbers ``[2, E]`` (or ``[E, 2]``).

    Raises:
        DatasetError: naming file and position of the first bad entry.
    """
    try:
        array = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise DatasetError(f"{path}: cannot be read ({error})") from error
    if array.ndim != 2 or 2 not in array.shape or array.dtype.kind not in "iu":
        raise DatasetError(
            f"{path}: holds {array.dtype} {array.shape}, expected an edge_index, whole numbers of "
            "shape [2, E]; or name it with 'indptr' in its name and its fellow with 'indices'"
        )
    pairs = array if len(array) == 2 else array.T
    edges, lowest = Edges(one_based=one_based), int(one_based)
    for start in range(0, pairs.shape[1], _CHUNK):
        chunk = pairs[:, start : start + _CHUNK]
        bad = (chunk < lowest) | (chunk > LARGEST_ID)
        if bad.any():
            end, at = np.unravel_index(int(bad.argmax()), bad.shape)
            found = int(chunk[end, at])
            from_0 = "its ids count from 0: leave out --one-based"
            raise DatasetError(
                f"{path}: edge {start + at} names node {found}, expected {lowest} to {LARGEST_ID}; "
                f"{too_large_remedy(None) if found else from_0}"
            )
        edges.add(chunk[0], chunk[1])
    if not edges.chunks:
        raise DatasetError(f"{path}: holds no edges")
    return edges


def read_compressed(path: Path, orientation: Literal["csc", "csr"] = "csc") -> Edges:
    """Read a graph from ``.npz``, or from ``….indptr.npy`` with ``….indices.npy`` beside it.

    Args:
        path: the ``.npz``, or the ``.npy`` that has ``indptr`` in its name.
        orientation: ``csc``: the list of a node holds its in-neighbours; ``csr``: the nodes that
            it has edges to. What an ``.npz`` says of itself (``format``) goes before.

    Raises:
        DatasetError: naming file, array and position of the first bad entry.
    """
    indptr, indices, orientation = _load(path, orientation)
    for name, array in (("indptr", indptr), ("indices", indices)):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise DatasetError(
                f"{path}: {name} is {array.dtype} {array.shape}, expected whole numbers in a row"
            )
    nodes = len(indptr) - 1
    if not 1 <= nodes <= LARGEST_ID + 1:
        raise DatasetError(f"{path}: indptr has {len(indptr)} entries: {nodes} nodes are no graph")
    if indptr[0] != 0 or indptr[-1] != len(indices):
        raise DatasetError(
            f"{path}: indptr goes from {indptr[0]} to {indptr[-1]}, expected from 0 to the "
            f"{len(indices)} of indices"
        )
    falls = np.flatnonzero(indptr[1:] < indptr[:-1])
    if len(falls):
        at = int(falls[0]) + 1
        raise DatasetError(f"{path}: indptr[{at}] = {indptr[at]} is smaller than the one before")
    degrees = (indptr[1:] - indptr[:-1]).astype(np.int64)
    edges = Edges(num_nodes=nodes, one_based=False)
    lists = np.repeat(np.arange(nodes, dtype=np.int32), degrees)
    for start in range(0, len(indices), _CHUNK):
        others, own = indices[start : start + _CHUNK], lists[start : start + _CHUNK]
        bad = (others < 0) | (others >= nodes)
        if bad.any():
            at = int(bad.argmax())
            raise DatasetError(
                f"{path}: indices[{start + at}] = {others[at]} is no node of 0..{nodes - 1}"
            )
        edges.add(*((others, own) if orientation == "csc" else (own, others)))
    return edges


def _load(
    path: Path, orientation: Literal["csc", "csr"]
) -> tuple[NDArray[Any], NDArray[Any], Literal["csc", "csr"]]:
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                said = bytes(arrays["format"].tobytes()).replace(b"\0", b"") if (
                    "format" in arrays
                ) else orientation.encode()  # fmt: skip
                if said not in (b"csc", b"csr"):
                    raise DatasetError(f"{path}: a matrix in format {said!r}, expected csc or csr")
                if "shape" in arrays and len({*arrays["shape"].tolist()}) != 1:
                    raise DatasetError(
                        f"{path}: a graph's matrix is square, this is {arrays['shape']}"
                    )
                return arrays["indptr"], arrays["indices"], "csc" if said == b"csc" else "csr"
        fellow = path.with_name(path.name.replace("indptr", "indices"))
        return np.load(path, mmap_mode="r"), np.load(fellow, mmap_mode="r"), orientation
    except KeyError as error:
        raise DatasetError(f"{path}: {error.args[0]}; expected arrays indptr, indices") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(f"{path}: cannot be read ({error})") from error
