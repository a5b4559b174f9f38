"""A graph ready for minibatch training: what every source is turned into."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """What ``spec.json`` says of a dataset folder.

    ``source`` names where graph, features and labels come from, ``notes`` what was done to them
    (undirected? self-loops? generated features?), in words for a reader.
    """

    name: str
    scale: float
    num_nodes: int
    num_edges: int
    feature_dim: int
    feature_dtype: str
    num_classes: int
    source: str
    licence: str
    notes: tuple[str, ...] = ()
    format_version: int = FORMAT_VERSION

    @property
    def row_bytes(self) -> int:
        """Bytes of one feature row."""
        return self.feature_dim * np.dtype(self.feature_dtype).itemsize

    @property
    def table_bytes(self) -> int:
        """Bytes of the whole feature table."""
        return self.num_nodes * self.row_bytes


@dataclass(frozen=True, slots=True, eq=False)
class GraphDataset:
    """A graph in compressed sparse column form: column ``v`` lists the in-neighbours of ``v``.

    The arrays are read-only memory maps of the folder's ``.npy`` files.

    Attributes:
        spec: sizes, names, provenance.
        folder: where the files lie.
        indptr: int64 ``[N + 1]``; the in-neighbours of ``v`` are
            ``indices[indptr[v]:indptr[v + 1]]``.
        indices: int32 or int64 ``[E]``.
        features: ``[N, D]``.
        labels: int64 ``[N]``; -1 where a node has no label.
        train_ids, val_ids, test_ids: int64, disjoint.
    """

    spec: DatasetSpec
    folder: Path
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32] | NDArray[np.int64]
    features: NDArray[np.generic]
    labels: NDArray[np.int64]
    train_ids: NDArray[np.int64]
    val_ids: NDArray[np.int64]
    test_ids: NDArray[np.int64]

    @property
    def name(self) -> str:
        return self.spec.name
