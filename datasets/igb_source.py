"""Read IGB and IGBH (Khatua et al., KDD 2023), MLPerf's GNN graphs, from their folders.

``<size>/processed`` has a folder for each type of nodes (``paper/node_feat.npy``) and for each kind
of edges (``paper__cites__paper/edge_index.npy``, ``[E, 2]``). Rows of every type are 1,024 float32,
so one table holds them all. In the two largest sizes some files, labels among them, are float32
without a header.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.arrays import class_numbers, expect, mapped
from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.download import Published
from gatherbench.datasets.edges import EdgeKind, one_range
from gatherbench.datasets.source import Progress

WIDTH = 1024
#: Papers of IGB's full size that have one of the 19 labels; they come first.
LABELLED = 227_130_858
#: Rows that are read at a time.
_ROWS = 1 << 12
_CITES = "paper__cites__paper"
SIZES = ("tiny", "small", "medium", "large", "full")


@dataclass(frozen=True, slots=True)
class IgbSource(Published):
    """``igb-tiny`` to ``igb-full``: papers and citations; ``igbh-…``: all node and edge types."""

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        family, _, size = self.name.partition("-")
        whole = family == "igbh"
        place = folder.parent / "raw" / family / size / "processed"
        files = sorted(place.glob(f"{'*__*__*' if whole else _CITES}/edge_index.npy"))
        if not files:
            raise DatasetError(
                f"{place}: has no {_CITES}/edge_index.npy; download {self.name} as "
                f"{self.known['url']} says, so that its folder {size!r} lies in "
                f"{place.parents[1]}; a link to a folder that you have will do"
            )
        progress(f"reading {place}", 0.0)
        edges = []
        for file in files:
            source, name, *_, target = file.parent.name.split("__")
            ends = expect(mapped(file), str(file), "iu", None, 2)
            edges.append(EdgeKind(source, name, target, ends, str(file)))
        further = {node_type for kind in edges for node_type in (kind.source, kind.target)}
        tables = {}
        for node_type in ("paper", *sorted(further - {"paper"})):
            path = place / node_type / "node_feat.npy"
            tables[node_type] = expect(_floats(path, (-1, WIDTH)), str(path), "f", None, WIDTH)
        counts = {node_type: len(table) for node_type, table in tables.items()}
        keys, kinds, names = one_range(edges, counts, both_ways=whole)
        labels = np.full(sum(counts.values()), -1, np.int64)
        path, papers = place / "paper" / "node_label_19.npy", counts["paper"]
        classes = expect(_floats(path, (-1,)), str(path), "iuf", papers)
        labels[:papers] = class_numbers(classes, str(path))
        if size == "full":
            labels[LABELLED:] = -1
        labelled = np.flatnonzero(labels >= 0)
        splits = np.split(labelled, [int(len(labelled) * share) for share in (0.6, 0.8)])
        rows = (t[at : at + _ROWS] for t in tables.values() for at in range(0, len(t), _ROWS))
        types = {"relations": names if whole else (), "node_types": tuple(counts.items())}
        self.write(folder, keys, rows, labels, splits, kinds, **types)


def _floats(path: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    """Map a ``.npy``, or headerless float32 of that shape."""
    try:
        with path.open("rb") as file:
            has_header = file.read(6) == b"\x93NUMPY"
        return mapped(path) if has_header else np.memmap(path, np.float32, "r").reshape(shape)
    except (OSError, ValueError) as error:
        fault = f"neither a .npy nor bare float32 in rows of its width ({error}); fetch it anew"
        raise DatasetError(f"{path}: {fault}") from error
