"""Read Reddit, the dense graph of the paper's epochs, from the files that PyG fetches.

PyG's own loader keeps its result as a pickle in ``processed/`` and runs the code of a pickle that
it finds there. So this module reads only the arrays of ``raw/`` and ignores ``processed/``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gatherbench.datasets.arrays import member
from gatherbench.datasets.download import Published, require_folder
from gatherbench.datasets.edges import edge_keys
from gatherbench.datasets.source import Progress


@dataclass(frozen=True, slots=True)
class RedditSource(Published):
    """The files of ``torch_geometric.datasets.Reddit``, in its folder ``raw/reddit``."""

    name: str = "reddit"

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        known, room = self.known, folder.parent
        raw = room / "raw" / "reddit" / "raw"
        files = "reddit_data.npz", "reddit_graph.npz"
        require_folder(known["url"], ".", raw, files, progress, known["sha256"])
        data, graph = (raw / file for file in files)
        table = member(data, "feature", room, "f", None, None)
        nodes, width = table.shape
        classes, split = (member(data, name, room, "i", nodes) for name in ("label", "node_types"))
        row = member(graph, "row", room, "i", None)
        column = member(graph, "col", room, "i", len(row))
        progress(f"reading {raw}", 0.0)
        keys = edge_keys([(row, column)], len(row), nodes, str(graph))
        sizes = {"feature_dim": width, "num_classes": int(classes.max(initial=0)) + 1}
        splits = [np.flatnonzero(split == number) for number in (1, 2, 3)]
        self.write(folder, keys, table, classes, splits, **sizes)
        progress(f"reading {raw}", 1.0)
