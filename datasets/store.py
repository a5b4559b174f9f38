"""Locate, open and describe dataset folders."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.dataset import (
    SPEC_FILE,
    ArrayFile,
    DatasetError,
    GraphDataset,
    array_path,
    folder_bytes,
    read_spec,
    remedy,
)
from gatherbench.plugins import require_read_back

__all__ = ["DatasetError", "data_root", "dataset_folder", "folder_bytes", "open_dataset"]

#: Other folders of the data folder: downloads, and minibatches of earlier versions.
RESERVED = ("raw", "traces")
#: Entries of ``indices`` in one piece: indexing by int32 makes an int64 copy.
_ENTRIES = 1 << 22


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


def open_dataset(folder: Path) -> GraphDataset:
    """Map a dataset folder, read-only, after comparing the spec's checksum and each file's size.

    Values were checked when the folder was written.

    Raises:
        DatasetError: the folder is unfinished, damaged, or of another format version; the message
            names the file and the remedy.
    """
    spec, files = read_spec(folder)
    arrays = {array: _map_array(folder, array, file) for array, file in files.items()}
    return GraphDataset(spec, folder, **arrays)


def _map_array(folder: Path, array: str, file: ArrayFile) -> NDArray[Any]:
    path = array_path(folder, array)
    try:
        size = path.stat().st_size
        if size != file.bytes:
            raise ValueError(f"{size:,} bytes, and {SPEC_FILE} says {file.bytes:,}")
        values = np.lib.format.open_memmap(path, mode="r")
        if (layout := (values.dtype.str, values.shape)) != (file.dtype, file.shape):
            raise ValueError(f"holds {layout}, and {SPEC_FILE} says {file.dtype} {file.shape}")
    except FileNotFoundError:
        raise DatasetError(f"{path}: missing; {remedy(folder)}") from None
    except ValueError as error:
        raise DatasetError(f"{path}: {error}; {remedy(folder)}") from error
    return values


def nodes_in_no_edge(data: GraphDataset) -> int:
    """Count the nodes that have neither in- nor out-neighbours."""
    connected = np.diff(data.indptr) > 0
    for start in range(0, len(data.indices), _ENTRIES):
        connected[data.indices[start : start + _ENTRIES]] = True
    return int(np.count_nonzero(~connected))


def describe(folder: Path) -> dict[str, Any]:
    """Return sizes, in-degrees, row layout and provenance of a dataset, in the order for printing.

    It raises as :func:`open_dataset`.
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
        "row_is_multiple_of_128_bytes": spec.row_bytes % 128 == 0,
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
