"""The node-classification graphs of the Open Graph Benchmark, from the files that it publishes.

OGB's own package asks the network for a newer version when it is imported, saves a second copy of
the graph as a pickle, and holds every array of ogbn-papers100M at once. Its files are plain: CSV,
or arrays in an ``.npz``, which is read piece by piece.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gatherbench.datasets.columns import columns, edge_keys
from gatherbench.datasets.dataset import DatasetError, DatasetSpec
from gatherbench.datasets.download import fetch_folder, published, published_spec
from gatherbench.datasets.npz_stream import float_rows, stored_array
from gatherbench.datasets.source import Progress
from gatherbench.datasets.writer import DatasetWriter


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
        raw, packed = place / "raw", known["packed"]
        if not place.exists():
            fetch_folder(known["url"], known["inside"], place, progress, known.get("sha256"))
        for needed in ("RELEASE_v1.txt", "raw/data.npz" if packed else "raw/edge.csv.gz"):
            if not (place / needed).is_file():
                raise DatasetError(
                    f"{place / needed}: missing; {place} is an unfinished or an older download: "
                    f"remove it, or put there what {known['url']} has in {known['inside']!r}"
                )
        progress(f"reading {place}", 0.0)
        split = place / "split" / known["split"]
        splits = [read_csv(split / f"{part}.csv.gz")[:, 0] for part in ("train", "valid", "test")]
        table: Any
        if packed:
            stored = stored_array(raw / "data.npz", "node_feat")
            edges = stored_array(raw / "data.npz", "edge_index")
            classes = stored_array(raw / "node-label.npz", "node_label")
            nodes, width = stored.expect("f", None, None)
            _, count = edges.expect("i", 2, None)
            classes.expect("fi", nodes, 1)
            pairs, labels, table = edges.pairs(), classes.whole(), float_rows(stored, progress)
        else:
            ends = read_csv(raw / "edge.csv.gz")
            table = read_csv(raw / "node-feat.csv.gz", np.float32)
            labels = read_csv(raw / "node-label.csv.gz", np.float64)
            pairs, count, (nodes, width) = iter([(ends[:, 0], ends[:, 1])]), len(ends), table.shape
        both = known["symmetrise"]
        spec = replace(
            self.estimate(scale),
            num_nodes=nodes,
            num_edges=count * (1 + both),  # merging may leave fewer
            feature_dim=width,
        )
        with DatasetWriter(folder, spec, progress) as writer:
            writer.write_labels(np.nan_to_num(labels.reshape(-1), nan=-1).astype(np.int64))
            writer.write_splits(*splits)
            writer.write_columns(columns(edge_keys(pairs, count, nodes, str(raw), both), nodes))
            writer.write_features(table)
        progress(f"reading {place}", 1.0)


def read_csv(path: Path, dtype: DTypeLike = np.int64) -> NDArray[Any]:
    """A table of numbers without a header, ``[N, D]``.

    Raises:
        DatasetError: the file is missing or damaged.
    """
    import pandas as pd

    try:
        return pd.read_csv(path, header=None, dtype=np.dtype(dtype)).to_numpy()
    except FileNotFoundError:
        raise DatasetError(f"{path}: missing; remove the download to fetch it anew") from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DatasetError(
            f"{path}: cannot be read ({error}); remove the download to fetch it anew"
        ) from error
