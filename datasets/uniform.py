"""A table without a graph: every row is as likely as any other, and none has a neighbour.

What a data path does with such a table depends on nothing but the path: no sampler takes time, no
hub is asked for again and again. It is what the sensors of a GPU are held against.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gatherbench.datasets import generated
from gatherbench.datasets.dataset import DatasetError, DatasetSpec
from gatherbench.datasets.source import Progress
from gatherbench.datasets.writer import DatasetWriter

#: At scale 1: 8 GiB of rows of 400 B, as in ogbn-products; no multiple of a line of 128 B.
ROWS, WIDTH, CLASSES = (8 << 30) // 400, 100, 47


@dataclass(frozen=True, slots=True)
class UniformSource:
    """Random float32 features ``[scale × ROWS, WIDTH]``, no edges; every row is a training node."""

    name: str = "uniform"
    summary: str = "8 GiB of random rows without edges: the data path alone"
    scalable: bool = True

    def estimate(self, scale: float) -> DatasetSpec:
        """The sizes at this scale.

        Raises:
            DatasetError: no row is left, or more than an int32 can number.
        """
        rows = round(ROWS * scale)
        if not 1 <= rows <= np.iinfo(np.int32).max:
            raise DatasetError(f"{self.name} at scale {scale:g}: {rows:,} rows, not 1 to 2^31 - 1")
        return DatasetSpec(
            name=self.name,
            scale=scale,
            num_nodes=rows,
            num_edges=0,
            feature_dim=WIDTH,
            feature_dtype="float32",
            num_classes=CLASSES,
            source="generated, seed 0",
            licence="CC0-1.0 (generated)",
            notes=("features and labels are random: nothing can be learnt", "no edges"),
        )

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        """Write the table; see ``GraphSource.prepare``."""
        spec = self.estimate(scale)
        rows = spec.num_nodes
        none = np.empty(0, np.int64)
        with DatasetWriter(folder, spec, progress) as writer:
            writer.write_columns([(np.zeros(rows, np.int64), none)])
            writer.write_labels(generated.random_labels(rows, CLASSES, seed=0))
            writer.write_splits(np.arange(rows), none, none)
            writer.write_features(
                generated.feature_rows(rows, WIDTH, "float32", seed=0, progress=progress)
            )
