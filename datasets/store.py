"""Locate, open and check dataset folders.

Every file is compared with the spec, and by default every element that can be invalid is checked. A
folder that passes records the lengths and modification times of its files; the check of elements
is repeated only after one of them changes.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.dataset import (
    ARRAYS,
    MARKER,
    SPEC_FILE,
    SPLITS,
    ArrayFile,
    DatasetError,
    GraphDataset,
    array_path,
    folder_bytes,
    read_spec,
    remedy,
)
from gatherbench.datasets.source import Progress, silent
from gatherbench.plugins import require_read_back

__all__ = ["DatasetError", "data_root", "dataset_folder", "folder_bytes", "open_dataset"]

#: Other folders of the data folder: downloads, and minibatches.
RESERVED = ("raw", "traces")
#: Bytes checked in one piece.
_CHUNK_BYTES = 32 << 20
#: Entries of ``indices`` in one piece: indexing by int32 makes an int64 copy.
_ENTRIES = 1 << 22
#: Bytes of a GPU cache line. Alignment matters for rows that are no multiple of it.
_LINE_BYTES = 128

#: Marks the bad elements of a piece of an array.
_Look = Callable[[NDArray[Any]], NDArray[np.bool_]]


def data_root() -> Path:
    """Return the parent of dataset folders: ``$GATHERBENCH_DATA``, or the user's cache folder."""
    chosen = os.environ.get("GATHERBENCH_DATA")
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("gatherbench")


def dataset_folder(name: str, scale: float = 1.0, root: Path | None = None) -> Path:
    """Return the folder of a dataset, e.g. ``<root>/products-like@0.01``; it may be missing.

    Raises:
        DatasetError: the name could lead out of ``root`` or is one of :data:`RESERVED`, or the
            scale is not positive and finite.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        shown = name if len(name) <= 100 else f"{name[:40]}…"
        raise DatasetError(
            f"dataset name {shown!r}: expected letters, digits, '.', '_' and '-', at most 100"
        )
    if name in RESERVED:
        raise DatasetError(f"{name!r} is a folder of gatherbench's own: choose another name")
    try:
        require_read_back(name)
    except ValueError as error:
        raise DatasetError(f"dataset name: {error}") from error
    if not 0 < scale < float("inf"):
        raise DatasetError(f"scale {scale}: expected a positive number, e.g. 0.01")
    suffix = "" if scale == 1 else f"@{scale:.12g}"
    return (data_root() if root is None else root) / f"{name}{suffix}"


def open_dataset(folder: Path, progress: Progress = silent, *, check: bool = True) -> GraphDataset:
    """Map a dataset folder, read-only, after checking it.

    Args:
        check: check every element, unless the folder records a passed check; cases of a run omit
            this, as the run's preparation does it.

    Raises:
        DatasetError: the folder is unfinished, damaged, of another format version, or holds an
            invalid value; the message names the file and the remedy.
    """
    spec, files = read_spec(folder)
    arrays = {array: map_array(folder, array, file) for array, file in files.items()}
    data = GraphDataset(spec, folder, **arrays)
    if check and not _is_remembered(folder):
        check_values(data, progress)
        remember(folder)
    return data


def map_array(folder: Path, array: str, file: ArrayFile) -> NDArray[Any]:
    """Map one ``.npy`` file, read-only, after comparing it with the spec.

    Raises:
        DatasetError: it is missing, truncated, too long, garbled, or of another dtype or shape.
    """
    path = array_path(folder, array)
    try:
        size = path.stat().st_size
        if size != file.bytes:
            raise ValueError(f"{size:,} bytes, and {SPEC_FILE} says {file.bytes:,}")
        found = np.lib.format.open_memmap(path, mode="r")
        if (found.dtype.str, found.shape) != (file.dtype, file.shape):
            raise ValueError(
                f"holds {found.dtype.str} {found.shape}, and {SPEC_FILE} says {file.dtype} "
                f"{file.shape}"
            )
    except FileNotFoundError:
        raise DatasetError(f"{path}: missing; {remedy(folder)}") from None
    except ValueError as error:
        raise DatasetError(f"{path}: {error}; {remedy(folder)}") from error
    return found


def check_values(data: GraphDataset, progress: Progress) -> None:
    """Check every value of a dataset's arrays that can be invalid.

    Raises:
        DatasetError: one is; it names the file and, except in split ids, the first bad element.
    """
    n, spec = data.spec.num_nodes, data.spec
    if data.indptr[0] != 0:
        _refuse(data, "indptr", f"begins with {data.indptr[0]}, expected 0")
    if data.indptr[-1] != spec.num_edges:
        _refuse(data, "indptr", f"ends with {data.indptr[-1]}, expected {spec.num_edges} edges")
    looks: dict[str, tuple[_Look, str]] = {
        "indptr": (_descents, "is smaller than the entry before it"),
        "indices": (_outside(0, n), "is no node"),
        "labels": (_outside(-1, spec.num_classes), "is no class"),
    }
    if data.features.dtype.kind == "f" and not spec.hashed:
        looks["features"] = (lambda piece: ~np.isfinite(piece), "is not finite")
    for array, (look, what) in looks.items():
        values: NDArray[Any] = getattr(data, array)
        for start, piece in _pieces(values, overlap=int(array == "indptr")):
            progress(f"check {array}", start / len(values))
            bad = look(piece)
            if bad.any():
                where = tuple(int(x) for x in np.argwhere(bad)[0])
                at = ", ".join(str(x) for x in (start + where[0], *where[1:]))
                _refuse(data, array, f"[{at}] = {piece[where]} {what}")
    seen = np.zeros(n, np.bool_)  # the ids are few, so none is left out
    for array in (f"{split}_ids" for split in SPLITS):
        ids: NDArray[np.int64] = getattr(data, array)
        if len(ids) and (ids.min() < 0 or ids.max() >= n):
            _refuse(data, array, "holds an id that is no node")
        before = np.count_nonzero(seen)
        seen[ids] = True
        if np.count_nonzero(seen) != before + len(ids):
            _refuse(data, array, "names a node twice, or one of another split")


def _pieces(values: NDArray[Any], overlap: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield runs of rows with their first row's number; ``overlap`` rows are in two runs."""
    rows = max(2, _CHUNK_BYTES // max(1, values.itemsize * int(np.prod(values.shape[1:]))))
    for start in range(0, len(values), rows - overlap):
        yield start, values[start : start + rows]


def _descents(piece: NDArray[Any]) -> NDArray[np.bool_]:
    return np.concatenate([[False], piece[1:] < piece[:-1]])


def _outside(low: int, high: int) -> _Look:
    return lambda piece: (piece < low) | (piece >= high)


class BadArrayError(DatasetError):
    """An array of a dataset holds an invalid value; ``what`` describes it."""

    def __init__(self, folder: Path, array: str, what: str) -> None:
        super().__init__(f"{array_path(folder, array)}: {what}; {remedy(folder)}")
        self.array, self.what = array, what


def _refuse(data: GraphDataset, array: str, what: str) -> None:
    raise BadArrayError(data.folder, array, what)


def _is_remembered(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / MARKER).read_bytes()) == _fingerprint(folder))
    except (OSError, ValueError):
        return False


def remember(folder: Path) -> None:
    """Record a passed full check, if the folder is writable."""
    try:
        (folder / MARKER).write_text(json.dumps(_fingerprint(folder)))
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise


def _fingerprint(folder: Path) -> dict[str, list[int]]:
    names = [SPEC_FILE, *(f"{array}.npy" for array in ARRAYS)]
    stats = {name: (folder / name).stat() for name in names}
    return {name: [s.st_size, s.st_mtime_ns] for name, s in stats.items()}


def nodes_in_no_edge(data: GraphDataset) -> int:
    """Return the number of nodes that have neither in- nor out-neighbours."""
    connected = np.diff(data.indptr) > 0
    for start in range(0, len(data.indices), _ENTRIES):
        connected[data.indices[start : start + _ENTRIES]] = True
    return int(np.count_nonzero(~connected))


def describe(folder: Path) -> dict[str, Any]:
    """Return sizes, in-degrees, row layout and provenance of a dataset.

    The keys are in the order for printing. Counts and sizes (``…_bytes``) are ``int``; scale,
    median and mean degree ``float``; ``row_is_multiple_of_128_bytes`` is ``bool``.

    Raises:
        DatasetError: the folder does not open; see ``open_dataset``.
    """
    data = open_dataset(folder)
    spec = data.spec
    degree = np.diff(data.indptr)
    return {
        "name": spec.name,
        "scale": spec.scale,
        "folder": str(folder),
        "num_nodes": spec.num_nodes,
        "num_edges": spec.num_edges,
        "degree_min": int(degree.min(initial=0)),
        "degree_median": float(np.median(degree)) if len(degree) else 0.0,
        "degree_mean": spec.num_edges / max(1, spec.num_nodes),
        "degree_max": int(degree.max(initial=0)),
        "nodes_without_in_neighbours": int(np.count_nonzero(degree == 0)),
        "nodes_in_no_edge": nodes_in_no_edge(data),
        "index_dtype": data.indices.dtype.name,
        "feature_dim": spec.feature_dim,
        "feature_dtype": spec.feature_dtype,
        "row_bytes": spec.row_bytes,
        "row_is_multiple_of_128_bytes": spec.row_bytes % _LINE_BYTES == 0,
        "table_bytes": spec.table_bytes,
        "disk_bytes": sum(file.stat().st_size for file in folder.iterdir()),
        "num_classes": spec.num_classes,
        "labelled_nodes": int(np.count_nonzero(data.labels >= 0)),
        "train_nodes": len(data.train_ids),
        "val_nodes": len(data.val_ids),
        "test_nodes": len(data.test_ids),
        "source": spec.source,
        "licence": spec.licence,
        "notes": list(spec.notes),
    }
