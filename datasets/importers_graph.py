"""From a file of any kind to a graph whose nodes are numbered from 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.columns import all_keys
from gatherbench.datasets.importers_edges import Edges, read_edge_list, too_large_remedy
from gatherbench.datasets.importers_matrix_market import read_matrix_market
from gatherbench.datasets.importers_numpy import Orientation, read_npy, read_npz
from gatherbench.datasets.importers_torch import TORCH_FILES, read_torch_graph
from gatherbench.datasets.layout import DatasetError
from gatherbench.datasets.source import Progress


@dataclass(slots=True)
class Graph:
    """A file that was read and understood; ids are still those of the file, from ``base``.

    Attributes:
        ids: where ids were numbered anew, those of the file in ascending order; ``edges`` and
            ``base`` are of the new numbers then.
    """

    edges: Edges
    nodes: int
    base: int
    both_ways: bool
    ids: NDArray[np.int64] | None = None

    def number(self, ids: NDArray[Any], where: str) -> NDArray[np.int64]:
        """The nodes that have these ids in the file.

        Raises:
            DatasetError: one is no node; names ``where``.
        """
        if self.ids is None:
            found = ids.astype(np.int64) - self.base
            bad = (found < 0) | (found >= self.nodes)
        else:
            found = np.minimum(np.searchsorted(self.ids, ids), self.nodes - 1)
            bad = self.ids[found] != ids
        if bad.any():
            raise DatasetError(
                f"{where}: names node {ids[bad][0]}, which the graph does not have; ids are as in "
                "the graph's file"
            )
        return found

    def keys(self) -> NDArray[np.int64]:
        """The sort keys of all edges; each chunk is let go once its keys are made."""
        chunks, count = self.edges.chunks, len(self.edges)
        runs = (chunks.pop() for _ in range(len(chunks)))
        pairs = ((source - self.base, target - self.base) for source, target in runs)
        return all_keys(pairs, count, self.nodes, "edges", self.both_ways)


def read_edges(
    path: Path,
    one_based: bool | None,
    known_nodes: int | None,
    header: bool | None,
    orientation: Orientation,
    report: Progress,
) -> Edges:
    """Read a file of any kind."""
    if ".mtx" in path.suffixes[-2:]:
        return read_matrix_market(path, report)
    if path.suffix == ".npz":
        return read_npz(path, one_based is True, orientation)
    if path.suffix == ".npy":
        return read_npy(path, one_based is True, orientation)
    if path.suffix in TORCH_FILES:
        return read_torch_graph(path, one_based is True)
    return read_edge_list(path, one_based, known_nodes, header, report)


def numbered(
    path: Path,
    edges: Edges,
    known_nodes: int | None,
    labelled: NDArray[np.int64] | None,
    header: bool | None,
    report: Progress,
) -> Graph:
    """Find from which number ids count.

    Args:
        known_nodes: what other files say, if they do.
        labelled: ids of nodes with labels, which need not be in an edge.
    """
    if labelled is not None and len(labelled):
        edges.low = min(edges.low, int(labelled.min()))
        edges.high = max(edges.high, int(labelled.max()))
    nodes = agreed_nodes({str(path): edges.num_nodes, "the other files": known_nodes})
    from_one = edges.one_based
    if from_one is None:
        from_one = edges.low == 1 if nodes is None else edges.low >= 1 and edges.high == nodes
    if nodes is None:
        nodes = edges.high + (not from_one)
    elif edges.high - from_one >= nodes:
        if path.suffix in (".npy", ".npz", *TORCH_FILES):
            raise _no_node(path, edges, nodes, from_one)
        # Only now is it known that the largest id was one too many: find the record.
        read_edge_list(path, from_one, nodes, header, report)
    return Graph(edges, nodes, int(from_one), edges.both_ways)


def _no_node(path: Path, edges: Edges, nodes: int, from_one: bool) -> DatasetError:
    """The error of the first edge that names a node beyond the last."""
    start = 0
    for source, target in edges.chunks:
        bad = np.maximum(source, target) - from_one >= nodes
        if bad.any():
            at = int(bad.argmax())
            break
        start += len(source)
    from_1 = "; where they count from 1, --one-based" if edges.low == 1 and not from_one else ""
    return DatasetError(
        f"{path}: edge {start + at} goes from {source[at]} to {target[at]}, and node id "
        f"{max(source[at], target[at])} is too large: {too_large_remedy(nodes)}{from_1}"
    )


def relabelled(
    path: Path, edges: Edges, known_nodes: int | None, labelled: NDArray[np.int64] | None
) -> Graph:
    """The edges with their ids replaced by their ranks among those that occur."""
    extra = np.empty(0, np.int64) if labelled is None else labelled
    occurs = np.zeros(max(edges.high, int(extra.max(initial=0))) + 1, bool)
    occurs[extra] = True
    for source, target in edges.chunks:
        occurs[source] = occurs[target] = True
    ids = np.flatnonzero(occurs)
    claims = {f"{path} (ids that occur)": len(ids), "features or labels": known_nodes}
    nodes = agreed_nodes({**claims, str(path): edges.num_nodes}) or len(ids)
    edges.chunks = [
        (np.searchsorted(ids, u).astype(np.int32), np.searchsorted(ids, v).astype(np.int32))
        for u, v in edges.chunks
    ]
    return Graph(edges, nodes, 0, edges.both_ways, ids)


def agreed_nodes(claims: Mapping[str, int | None]) -> int | None:
    """The one number of nodes that all claims name; ``None`` if there is no claim."""
    made = {who: nodes for who, nodes in claims.items() if nodes is not None}
    if len(set(made.values())) > 1:
        said = ", ".join(f"{who} says {nodes}" for who, nodes in made.items())
        raise DatasetError(f"how many nodes? {said}")
    return next(iter(made.values()), None)
