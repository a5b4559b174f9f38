"""The node-classification graphs of the Open Graph Benchmark, from the archives that it publishes.

The package ``ogb`` is not used. It asks the network for a newer version when it is imported, its
loader takes graph and splits from pickles that it finds, which can run any code, and it holds every
array of a graph at once. Here the published text and arrays are read, and nothing else.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.columns import columns, edge_keys
from gatherbench.datasets.dataset import DatasetError, DatasetSpec
from gatherbench.datasets.download import fetch_folder, published, published_spec
from gatherbench.datasets.import_attributes import read_ids, read_labels
from gatherbench.datasets.import_edges import Graph, read_edges
from gatherbench.datasets.npz_stream import float_rows, stored_array
from gatherbench.datasets.source import Progress, silent
from gatherbench.datasets.writer import DatasetWriter

#: Rows of a feature table in text read at a time.
_ROWS = 1 << 17


@dataclass(frozen=True, slots=True)
class OgbSource:
    """``ogbn-arxiv``, ``ogbn-products`` or ``ogbn-papers100M``.

    OGB's own folder, e.g. ``ogbn_arxiv``, is looked for in ``raw/`` beside the dataset folders,
    and downloaded to there if it is missing.
    """

    name: str
    scalable: bool = False

    @property
    def summary(self) -> str:
        return str(published(self.name)["summary"])

    def estimate(self, scale: float) -> DatasetSpec:
        return published_spec(self.name, scale, "repeated edges merged, self-loops kept")

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        known = published(self.name)
        place = folder.parent / "raw" / self.name.replace("-", "_")
        if not place.exists():
            fetch_folder(known["url"], known["inside"], place, progress, known.get("sha256"))
        arrays = known["inside"].endswith("-bin")
        graph = ("data.npz",) if arrays else ("edge.csv.gz", "node-feat.csv.gz")
        for needed in ("RELEASE_v1.txt", *(f"raw/{file}" for file in graph)):
            if not (place / needed).is_file():
                raise DatasetError(
                    f"{place / needed}: missing; {place} is an unfinished or an older download: "
                    f"remove it, or put there what {known['url']} has in {known['inside']!r}"
                )
        split = place / "split" / known["split"]
        splits = [read_ids(split / f"{part}.csv.gz") for part in ("train", "valid", "test")]
        progress(f"reading {place}", 0.0)
        write = self._from_arrays if arrays else self._from_text
        write(place / "raw", folder, splits, progress)
        progress(f"reading {place}", 1.0)

    def _from_text(
        self, raw: Path, folder: Path, splits: list[NDArray[np.int64]], progress: Progress
    ) -> None:
        """Edges are read piece by piece, and so are features."""
        _, classes = read_labels(raw / "node-label.csv.gz")
        nodes = classes.shape[0]
        edges = read_edges(raw / "edge.csv.gz", False, nodes, False, "csc", silent)
        keys = Graph(edges, nodes, 0, published(self.name)["symmetrise"]).keys()
        with DatasetWriter(folder, self._spec(nodes, None, len(keys)), progress) as writer:
            writer.write_columns(columns(keys, nodes))
            del keys
            writer.write_features(_text_rows(raw / "node-feat.csv.gz"))
            writer.write_labels(classes)
            writer.write_splits(*splits)

    def _from_arrays(
        self, raw: Path, folder: Path, splits: list[NDArray[np.int64]], progress: Progress
    ) -> None:
        """8 bytes an edge in memory, and never more than some rows."""
        table = stored_array(raw / "data.npz", "node_feat")
        edges = stored_array(raw / "data.npz", "edge_index")
        labels = stored_array(raw / "node-label.npz", "node_label")
        nodes, width = table.expect("f", None, None)
        _, count = edges.expect("i", 2, None)
        labels.expect("fi", nodes, 1)
        with DatasetWriter(folder, self._spec(nodes, width, count), progress) as writer:
            writer.write_labels(_classes(labels.whole()))
            writer.write_splits(*splits)
            keys = edge_keys(edges.pairs(), count, nodes, edges.where)
            writer.write_columns(columns(keys, nodes))
            del keys
            writer.write_features(float_rows(table, progress))

    def _spec(self, nodes: int, width: int | None, edges: int) -> DatasetSpec:
        """The estimate with the sizes that the files have; merging may leave fewer edges."""
        known = self.estimate(1.0)
        width = known.feature_dim if width is None else width
        return replace(known, num_nodes=nodes, num_edges=edges, feature_dim=width)


def _classes(labels: NDArray[Any]) -> NDArray[np.int64]:
    """Labels ``[N, 1]``, NaN where there is none, as int64 ``[N]`` with -1 there."""
    flat = labels.reshape(-1)
    return np.where(np.isnan(flat), -1, flat).astype(np.int64)


def _text_rows(path: Path) -> Iterator[NDArray[np.float32]]:
    """A table of numbers in runs of rows.

    Raises:
        DatasetError: the file is damaged.
    """
    import pandas as pd

    try:
        for rows in pd.read_csv(path, header=None, chunksize=_ROWS):
            yield rows.to_numpy(np.float32)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DatasetError(
            f"{path}: cannot be read ({error}); remove {path.parents[1]} to download it anew"
        ) from error
