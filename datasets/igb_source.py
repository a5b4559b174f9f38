"""Read IGB and IGBH (Khatua et al., KDD 2023), MLPerf's GNN graphs, from their folders.

``<size>/processed`` has a folder for each type of nodes (``paper/node_feat.npy``) and for each kind
of edges (``paper__cites__paper/edge_index.npy``, ``[E, 2]``). Rows of every type are 1,024 float32,
so one table holds them all: types follow one another in one range of numbers. In the two largest
sizes some files, labels among them, are float32 without a header.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.arrays import class_numbers, expect, mapped
from gatherbench.datasets.columns import edge_keys
from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.download import Published
from gatherbench.datasets.files import check_memory
from gatherbench.datasets.relations import write_edges
from gatherbench.datasets.source import Progress
from gatherbench.datasets.writer import DatasetWriter

WIDTH = 1024
#: Papers of IGB's full size that have one of the 19 labels; they come first.
LABELLED = 227_130_858
#: Edges, and rows, that are read at a time.
_EDGES, _ROWS = 1 << 22, 1 << 12
_CITES = "paper__cites__paper"

Pairs = Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]


@dataclass(frozen=True, slots=True)
class IgbSource(Published):
    """``igb-tiny`` to ``igb-full``: papers and citations; ``igbh-…``: all node and edge types."""

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        family, _, size = self.name.partition("-")
        place = folder.parent / "raw" / family / size / "processed"
        files = sorted(place.glob("*__*__*/edge_index.npy"))
        if family == "igb":
            files = [file for file in files if file.parent.name == _CITES]
        if not files:
            raise DatasetError(
                f"{place}: has no {_CITES}/edge_index.npy; download {self.name} as "
                f"{self.known['url']} says, so that its folder {size!r} lies in "
                f"{place.parents[1]}; a link to a folder that you have will do"
            )
        progress(f"reading {place}", 0.0)
        triplets = [tuple(file.parent.name.split("__")) for file in files]
        types = sorted({one for head, *_, tail in triplets for one in (head, tail)} - {"paper"})
        tables = {one: _rows(place / one / "node_feat.npy") for one in ["paper", *types]}
        starts = np.cumsum([0, *map(len, tables.values())])
        first, nodes = dict(zip(tables, starts.tolist(), strict=False)), int(starts[-1])
        ends = [expect(mapped(file), str(file), "iu", None, 2) for file in files]
        both = 2 if family == "igbh" else 1
        count = both * sum(map(len, ends))
        check_memory((32 if both == 2 else 8) * count, f"{place}: its edges")

        def pairs() -> Pairs:
            for file, array, (head, *_, tail) in zip(files, ends, triplets, strict=True):
                for inverse in range(both):
                    for part in _parts(array, str(file), len(tables[head]), len(tables[tail])):
                        source, target = part[0] + first[head], part[1] + first[tail]
                        yield (target, source) if inverse else (source, target)

        keys = edge_keys(pairs(), count, nodes, str(place))
        names = tuple(
            f"{'inverse ' * inverse}{relation}"
            for _, relation, *_ in triplets
            for inverse in range(both)
        )
        many = [len(array) for array in ends for _ in range(both)]
        kinds = np.repeat(np.arange(len(names), dtype=np.int8), many) if both == 2 else None
        labels = np.full(nodes, -1, np.int64)
        labels[: len(tables["paper"])] = _labels(place / "paper", len(tables["paper"]))
        if size == "full":
            labels[LABELLED:] = -1
        labelled = np.flatnonzero(labels >= 0)
        splits = np.split(labelled, [int(len(labelled) * share) for share in (0.6, 0.8)])
        spec = replace(
            self.estimate(1.0),
            num_nodes=nodes,
            num_edges=count,
            relations=names if both == 2 else (),
            node_types=tuple((one, len(table)) for one, table in tables.items()),
        )
        with DatasetWriter(folder, spec) as writer:
            write_edges(writer, keys, kinds)
            del keys, kinds
            writer.write_features(
                table[at : at + _ROWS]
                for table in tables.values()
                for at in range(0, len(table), _ROWS)
            )
            writer.write_labels(labels)
            writer.write_splits(*splits)


def igb_sources() -> tuple[IgbSource, ...]:
    """Return the sources of both families in all sizes, the smallest first."""
    sizes = ("tiny", "small", "medium", "large", "full")
    return tuple(IgbSource(f"{family}-{size}") for family in ("igb", "igbh") for size in sizes)


def _parts(
    array: NDArray[Any], where: str, heads: int, tails: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield runs of sources and targets, numbered within their types.

    Raises:
        DatasetError: a number exceeds its type's, so it would be a node of another type.
    """
    for at in range(0, len(array), _EDGES):
        source, target = array[at : at + _EDGES].T.astype(np.int64)
        for ids, most in ((source, heads), (target, tails)):
            if ids.min() < 0 or ids.max() >= most:
                bad = ids[(ids < 0) | (ids >= most)][0]
                raise DatasetError(f"{where}: names node {bad}, and its type has {most:,}")
        yield source, target


def _rows(path: Path) -> NDArray[np.float32]:
    """Map a table ``[N, 1024]``, with NumPy's header or without."""
    return expect(_floats(path, (-1, WIDTH)), str(path), "f", None, WIDTH)


def _labels(folder: Path, papers: int) -> NDArray[np.int64]:
    """Read the classes ``[papers]``, one of 19 subjects, or -1 for none."""
    path = folder / "node_label_19.npy"
    return class_numbers(expect(_floats(path, (-1,)), str(path), "iuf", papers), str(path))


def _floats(path: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    """Map a ``.npy``, or headerless float32 of that shape.

    Raises:
        DatasetError: the file is missing, or of another kind.
    """
    try:
        with path.open("rb") as file:
            begin = file.read(6)
        if begin == b"\x93NUMPY":
            return mapped(path)
        return np.memmap(path, np.float32, "r").reshape(shape)
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"{path}: neither a .npy nor bare float32 in rows of its width ({error}); fetch it anew"
        ) from error
