"""Reddit, the dense graph on which the paper measured its epochs, read by PyG itself."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass, replace
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from gatherbench.datasets.columns import columns, edge_keys
from gatherbench.datasets.dataset import DatasetSpec
from gatherbench.datasets.download import fetch_folder, published
from gatherbench.datasets.layout import DatasetError
from gatherbench.datasets.source import Progress
from gatherbench.datasets.writer import DatasetWriter

_RAW_FILES = ("reddit_data.npz", "reddit_graph.npz")


@dataclass(frozen=True, slots=True)
class RedditSource:
    """``torch_geometric.datasets.Reddit``; its folder is ``raw/reddit`` beside the datasets."""

    name: str = "reddit"
    scalable: bool = False

    @property
    def summary(self) -> str:
        return str(published(self.name)["summary"])

    def estimate(self, scale: float) -> DatasetSpec:
        known = published(self.name)
        return DatasetSpec(
            name=self.name,
            scale=scale,
            num_nodes=known["nodes"],
            num_edges=known["edges"],
            feature_dim=known["feature_dim"],
            feature_dtype="float32",
            num_classes=known["num_classes"],
            source=known["source"],
            licence=known["licence"],
            notes=tuple(known["notes"]),
        )

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        try:
            import scipy.sparse  # noqa: F401  # PyG reads the adjacency with it, unasked
        except ModuleNotFoundError as error:
            raise DatasetError(
                f"PyG reads Reddit with SciPy ({error}); pip install scipy"
            ) from error
        from torch_geometric.datasets import Reddit

        root = folder.parent / "raw" / "reddit"
        raw = root / "raw"
        if not raw.exists():
            fetch_folder(Reddit.url, ".", raw, progress)
        for file in _RAW_FILES:
            if not (raw / file).is_file():
                raise DatasetError(
                    f"{raw / file}: missing; remove {raw}, or put there what {Reddit.url} has"
                )
        progress(f"reading {raw}", 0.0)
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                data = Reddit(str(root))[0]
        except (OSError, EOFError, KeyError, ValueError, RuntimeError, BadZipFile) as error:
            raise DatasetError(
                f"{root}: PyG cannot read it ({error}); remove {root / 'processed'}, which PyG "
                f"makes again, or all of {root} to download it anew"
            ) from error
        source, target = data.edge_index.numpy()
        features = data.x.numpy()
        spec = replace(
            self.estimate(scale),
            num_nodes=len(features),
            num_edges=len(source),
            feature_dim=features.shape[1],
            num_classes=int(data.y.max()) + 1,
        )
        masks = (data.train_mask, data.val_mask, data.test_mask)
        with DatasetWriter(folder, spec, progress) as writer:
            writer.write_columns(
                columns(edge_keys(source, target, spec.num_nodes, str(raw)), spec.num_nodes)
            )
            writer.write_features(features)
            writer.write_labels(data.y.numpy())
            writer.write_splits(*(np.flatnonzero(mask.numpy()) for mask in masks))
        progress(f"reading {raw}", 1.0)
