"""Make ogbn-mag, a graph with types of nodes and kinds of edges, one graph with one table.

OGB has rows for papers alone. A node without a row gets the mean of its neighbours' rows, as in the
baselines of MAG240M (Hu et al., OGB-LSC, NeurIPS 2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.arrays import class_numbers, explained
from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.download import Published
from gatherbench.datasets.ogb_source import ANEW, downloaded, quiet
from gatherbench.datasets.relations import EdgeKind, one_range, write_edges
from gatherbench.datasets.source import Progress
from gatherbench.datasets.writer import DatasetWriter

Triplet = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class MagSource(Published):
    """``ogbn-mag``: papers, authors, institutions and fields of study, through OGB's reader."""

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        raw, meta = downloaded(self, folder, progress, "triplet-type-list.csv.gz")
        progress(f"reading {raw}", 0.0)
        graph, labels, splits = _read(raw, meta["split"])
        # The type that has labels, and so the training nodes, comes first.
        (scored,) = labels
        numbers: dict[str, int] = graph["num_nodes_dict"]
        types = [scored, *sorted(numbers.keys() - {scored})]
        counts = {node_type: numbers[node_type] for node_type in types}
        triplets = sorted(graph["edge_index_dict"].items())
        edges = [EdgeKind(a, name, b, ends.T, str(raw)) for (a, name, b), ends in triplets]
        keys, kinds, names = one_range(edges, counts, both_ways=True)
        table = table_of(graph["node_feat_dict"], graph["edge_index_dict"], counts)
        spec = replace(
            self.estimate(1.0),
            num_nodes=len(table),
            num_edges=len(keys),
            feature_dim=table.shape[1],
            relations=names,
            node_types=tuple(counts.items()),
        )
        of_nodes = np.full(len(table), -1, np.int64)
        of_nodes[: counts[scored]] = class_numbers(labels[scored], str(raw))
        with DatasetWriter(folder, spec) as writer:
            write_edges(writer, keys, kinds)
            writer.write_features(table)
            writer.write_labels(of_nodes)
            writer.write_splits(*(part[scored].astype(np.int64) for part in splits))


def _read(raw: Path, split: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]], tuple[Any, ...]]:
    """Read the graph, its labels by type, and its splits by type, as OGB has them."""
    from ogb.io import read_graph_raw as ogb

    with quiet(), explained(f"{raw}: ogb cannot read it", ANEW):
        graph = ogb.read_csv_heterograph_raw(str(raw / "raw"))[0]
        labels = ogb.read_node_label_hetero(str(raw / "raw"))
        splits = ogb.read_nodesplitidx_split_hetero(str(raw / "split" / split))
    if len(labels) != 1:
        raise DatasetError(f"{raw}: {len(labels)} types of nodes have labels, expected one; {ANEW}")
    return graph, labels, splits


def table_of(
    given: Mapping[str, NDArray[Any]],
    triplets: Mapping[Triplet, NDArray[np.int64]],
    counts: Mapping[str, int],
) -> NDArray[np.float32]:
    """Return the rows of all nodes, float32 ``[N, D]``, one type after the other.

    A type without rows gets the means of its neighbours' rows, once these have some; a node without
    such a neighbour gets zeros.

    Raises:
        DatasetError: every type lacks rows, or one has only neighbours that lack them.
    """
    from scipy.sparse import coo_array

    rows = {node_type: table.astype(np.float32) for node_type, table in given.items()}
    ways = [(head, ends[0], tail, ends[1]) for (head, _, tail), ends in triplets.items()]
    ways = [way for a, u, b, v in ways for way in ((a, u, b, v), (b, v, a, u))]
    while lacking := [node_type for node_type in counts if node_type not in rows]:
        found: dict[str, NDArray[np.float32]] = {}
        for node_type in lacking:
            size, sums = counts[node_type], []
            degree = np.zeros((size, 1), np.int64)
            for own_type, own, other_type, others in ways:
                if own_type == node_type and other_type in rows:
                    shape = size, counts[other_type]
                    joined = coo_array((np.ones(len(own), np.float32), (own, others)), shape)
                    sums.append(joined.tocsr() @ rows[other_type])
                    degree += np.bincount(own, minlength=size)[:, None]
            if sums:
                found[node_type] = (sum(sums) / np.maximum(degree, 1)).astype(np.float32)
        if not found:
            raise DatasetError(f"no rows for nodes of type {', '.join(lacking)}")
        rows |= found
    return np.concatenate([rows[node_type] for node_type in counts])
