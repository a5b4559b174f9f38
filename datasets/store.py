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
    SPLITS,
    ArrayFile,
    DatasetError,
    GraphDataset,
    array_path,
    read_spec,
    remedy,
)
from gatherbench.plugins import require_read_back

#: Other folders of the data folder: downloads, and minibatches of earlier versions.
RESERVED = ("raw", "traces")
#: Entries of ``indices`` in one piece: indexing by int32 makes an int64 copy.
_ENTRIES = 1 << 22


def data_root() -> Path:
    """Return the parent of dataset folders: ``$GATHERBENCH_DATA``, or the user's cache folder."""
    if chosen := os.environ.get("GATHERBENCH_DATA"):
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("gatherbench")


def dataset_folder(name: str, scale: float = 1.0, root: Path | None = None) -> Path:
    """Return the folder of a dataset, e.g. ``<root>/products-like@0.01``; it may be missing.

    A name that could lead out of ``root`` or is one of :data:`RESERVED`, or a scale that is not
    positive and finite, is a ``DatasetError``.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        shown = name if len(name) <= 100 else f"{name[:40]}…"
        allowed = "letters, digits, '.', '_' and '-', at most 100"
        raise DatasetError(f"dataset name {shown!r}: expected {allowed}")
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

    Values were checked when the folder was written. An unfinished or damaged folder, or one of
    another format version, is a ``DatasetError`` that names the file and the remedy.
    """
    spec, files = read_spec(folder)
    arrays = {array: _map_array(folder, array, file) for array, file in files.items()}
    return GraphDataset(spec, folder, **arrays)


def _map_array(folder: Path, array: str, file: ArrayFile) -> NDArray[Any]:
    path = array_path(folder, array)
    try:
        if (size := path.stat().st_size) != file.bytes:
            raise ValueError(f"{size:,} bytes, and {SPEC_FILE} says {file.bytes:,}")
        values = np.lib.format.open_memmap(path, mode="r")
        if (layout := (values.dtype.str, values.shape)) != (file.dtype, file.shape):
            raise ValueError(f"holds {layout}, and {SPEC_FILE} says {file.dtype} {file.shape}")
    except (FileNotFoundError, ValueError) as error:
        fault = "missing" if isinstance(error, FileNotFoundError) else error
        raise DatasetError(f"{path}: {fault}; {remedy(folder)}") from error
    return values


def nodes_in_no_edge(data: GraphDataset) -> int:
    """Count the nodes that have neither in- nor out-neighbours."""
    connected = np.diff(data.indptr) > 0
    for start in range(0, len(data.indices), _ENTRIES):
        connected[data.indices[start : start + _ENTRIES]] = True
    return int(np.count_nonzero(~connected))


def describe(folder: Path) -> dict[str, Any]:
    """Return sizes, in-degrees, row layout and provenance of a dataset, in the order for printing;
    raises as :func:`open_dataset`."""
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
        **{f"{split}_nodes": len(getattr(data, f"{split}_ids")) for split in SPLITS},
        "source": spec.source,
        "licence": spec.licence,
        "notes": list(spec.notes),
    }
