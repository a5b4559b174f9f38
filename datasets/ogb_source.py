"""The node-classification graphs of the Open Graph Benchmark, from the files that OGB publishes.

They are text in columns, or arrays, so pandas and NumPy read them. OGB's own package asks the
network for a newer version when it is imported, asks on the terminal before it downloads, and takes
splits from a pickle that it finds, which can run any code: an unattended run can have none of that.
The table of ogbn-papers100M is read row by row, as it would not fit into memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.arrays import explained, member, streamed
from gatherbench.datasets.columns import columns, edge_keys
from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.download import Published, fetch_folder
from gatherbench.datasets.source import Progress
from gatherbench.datasets.writer import DatasetWriter


@dataclass(frozen=True, slots=True)
class OgbSource(Published):
    """``ogbn-arxiv``, ``ogbn-products`` or ``ogbn-papers100M``.

    OGB's own folder, e.g. ``ogbn_arxiv``, is looked for in ``raw/`` beside the dataset folders,
    and downloaded to there if it is missing.
    """

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        known, place = self.known, folder.parent / "raw" / self.name.replace("-", "_")
        if not place.exists():
            checksum = known.get("sha256")
            fetch_folder(known["url"], known["inside"], place, progress, checksum)
        raw, data = place / "raw", place / "raw" / "data.npz"
        packed = known["inside"].endswith("-bin")
        first = [data] if packed else [raw / "edge.csv.gz", raw / "node-feat.csv.gz"]
        for needed in (place / "RELEASE_v1.txt", *first):
            if not needed.is_file():
                raise DatasetError(
                    f"{needed}: missing; {place} is an unfinished or an older download: remove it, "
                    f"or put there what {known['url']} has in {known['inside']!r}"
                )
        split = place / "split" / known["split"]
        splits = [_text(split / f"{part}.csv.gz")[:, 0] for part in ("train", "valid", "test")]
        progress(f"reading {raw}", 0.0)
        table: Any
        if packed:
            labels = member(raw / "node-label.npz", "node_label", folder.parent, "fi", None, 1)
            source, target = member(data, "edge_index", folder.parent, "i", 2, None)
            shape, table = streamed(data, "node_feat", len(labels))
        else:
            labels = _text(raw / "node-label.csv.gz")
            source, target = _text(raw / "edge.csv.gz").T
            table = _text(raw / "node-feat.csv.gz", np.float32)
            shape = table.shape
        nodes, width = shape
        keys = edge_keys([(source, target)], len(source), nodes, str(raw), known["symmetrise"])
        del source, target  # and with them 26 GB of disk, before the table takes 57
        spec = replace(self.estimate(1.0), num_nodes=nodes, num_edges=len(keys), feature_dim=width)
        with DatasetWriter(folder, spec, progress) as writer:
            writer.write_labels(_classes(labels))
            writer.write_splits(*splits)
            writer.write_columns(columns(keys, nodes))
            del keys
            writer.write_features(table)
        progress(f"reading {raw}", 1.0)


def _text(path: Path, dtype: type = np.int64) -> NDArray[Any]:
    """The rows of a ``.csv.gz`` without a header.

    Raises:
        DatasetError: it is not there, or damaged, or holds other numbers.
    """
    import pandas as pd

    with explained(f"{path}: cannot be read", "remove its folder to download it anew"):
        return pd.read_csv(path, header=None, dtype=dtype).to_numpy()


def _classes(labels: NDArray[Any]) -> NDArray[np.int64]:
    """OGB's labels ``[N, 1]``, NaN where there is none, as int64 ``[N]`` with -1 there."""
    flat = labels.reshape(-1)
    return np.where(np.isnan(flat), -1, flat).astype(np.int64)
