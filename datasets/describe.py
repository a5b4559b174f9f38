"""A dataset folder in words, for ``gatherbench datasets info``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.store import open_dataset

#: Bytes of a GPU cache line. Rows that are no multiple of it are where alignment matters.
LINE_BYTES = 128


#: Entries of ``indices`` looked at at a time: indexing by int32 makes an int64 copy.
_CHUNK = 1 << 22


def nodes_in_no_edge(data: GraphDataset) -> int:
    """How many nodes have neither in- nor out-neighbours."""
    connected = np.diff(data.indptr) > 0
    for start in range(0, len(data.indices), _CHUNK):
        connected[data.indices[start : start + _CHUNK]] = True
    return int(np.count_nonzero(~connected))


def describe(folder: Path) -> dict[str, Any]:
    """Sizes, degrees, row layout and provenance of a dataset; degrees are in-degrees.

    The keys are ready to be printed in their order; counts are ``int``, the mean degree ``float``,
    sizes in bytes end in ``_bytes``.

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
        "row_is_multiple_of_128_bytes": spec.row_bytes % LINE_BYTES == 0,
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
