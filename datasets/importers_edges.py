"""Edges as a file has them, before its ids are understood; and those of an edge list."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.importers_text import Column, begin, text_stream
from gatherbench.datasets.layout import DatasetError
from gatherbench.datasets.source import Progress

#: Largest id: nodes are numbered by int32.
LARGEST_ID = 2**31 - 2

_SOURCES, _TARGETS = ("source", "src", "from", "head", "u"), ("target", "dst", "to", "tail", "v")


@dataclass(slots=True)
class Edges:
    """What a file says: edges ``source -> target``, in the ids of the file.

    Attributes:
        chunks: pairs of int32 arrays, in the order of the file.
        low, high: the smallest and the largest id; -1 where there are no edges.
        num_nodes: as declared by the file, if it does.
        one_based: whether ids count from 1, if the format says.
        both_ways: each edge stands for its reverse too (a symmetric matrix).
        extras: what else the file holds, by the names of PyG's ``Data``: ``x``, ``y``, masks.
    """

    chunks: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = field(default_factory=list)
    low: int = -1
    high: int = -1
    num_nodes: int | None = None
    one_based: bool | None = None
    both_ways: bool = False
    extras: dict[str, Any] = field(default_factory=dict)

    def add(self, source: NDArray[Any], target: NDArray[Any]) -> None:
        """Append a piece of the list; the arrays are int32 ``[n]`` or will be."""
        if len(source) == 0:
            return
        low = int(min(source.min(), target.min()))
        self.low = low if self.low < 0 else min(self.low, low)
        self.high = max(self.high, int(source.max()), int(target.max()))
        self.chunks.append((source.astype(np.int32), target.astype(np.int32)))

    def __len__(self) -> int:
        return sum(len(source) for source, _ in self.chunks)


def collect(
    where: str, pairs: Iterable[tuple[NDArray[Any], NDArray[Any]]], one_based: bool
) -> Edges:
    """Edges from runs of sources and targets.

    Raises:
        DatasetError: no edges, or one that names no node; names ``where`` and the edge.
    """
    edges, lowest, start = Edges(one_based=one_based), int(one_based), 0
    for source, target in pairs:
        outside = [(end < lowest) | (end > LARGEST_ID) for end in (source, target)]
        if (bad := outside[0] | outside[1]).any():
            at = int(bad.argmax())
            found = int((source if outside[0][at] else target)[at])
            from_0 = "its ids count from 0: leave out --one-based"
            raise DatasetError(
                f"{where}: edge {start + at} names node {found}, expected {lowest} to {LARGEST_ID};"
                f" {too_large_remedy(None) if found else from_0}"
            )
        edges.add(source, target)
        start += len(source)
    if not edges.chunks:
        raise DatasetError(f"{where}: holds no edges")
    return edges


def read_edge_list(
    path: Path,
    one_based: bool | None,
    num_nodes: int | None,
    header: bool | None,
    progress: Progress,
) -> Edges:
    """Read an edge list: text or CSV, gzipped or not.

    The separator is a comma or a semicolon if the first record has one, else blanks. A header is
    looked for in files called ``.csv`` or ``.tsv`` unless ``header`` says; its columns ``source``
    and ``target`` (or ``src``/``dst``, ``from``/``to``) are taken where it has both, else the
    first two. Further columns are ignored.

    Raises:
        DatasetError: with line and column of the first bad record; or no record at all.
    """
    edges = Edges(one_based=one_based)
    with text_stream(path, progress) as stream:
        separator, (source, target) = begin(stream, header, (_SOURCES, _TARGETS))
        lowest = 1 if one_based else 0
        highest = LARGEST_ID if num_nodes is None else num_nodes - 1 + (one_based is not False)
        remedy = too_large_remedy(num_nodes)
        columns = [Column(at, "node id", lowest, highest, remedy) for at in (source, target)]
        for run in stream.numbers(separator, columns):
            edges.add(run[:, 0], run[:, 1])
    if not edges.chunks:
        raise DatasetError(f"{path}: holds no edges")
    return edges


def too_large_remedy(num_nodes: int | None) -> str:
    """What to do about an id that is no node; ``num_nodes`` is what other files say, if they do."""
    if num_nodes is None:
        return "number the nodes from 0 first (numpy.unique(edges, return_inverse=True) does)"
    return (
        f"there are {num_nodes} nodes, as features and labels have one row for each; where ids have"
        " gaps, --relabel numbers those that occur"
    )
