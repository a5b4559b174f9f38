"""Make ogbn-mag, a graph with types of nodes and kinds of edges, one graph with one table.

OGB has rows for papers alone. Types of nodes follow one another in one range of numbers; the
inverse of each edge is stored too, as another kind; a node without a row gets the mean of its
neighbours' rows, as in the baselines of MAG240M (Hu et al., OGB-LSC, NeurIPS 2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.arrays import class_numbers, explained
from gatherbench.datasets.columns import edge_keys
from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.download import Published
from gatherbench.datasets.ogb_source import (
    ANEW,
    check_release,
    downloaded,
    quiet,
)
from gatherbench.datasets.relations import write_edges
from gatherbench.datasets.source import Progress
from gatherbench.datasets.writer import DatasetWriter

Rows = NDArray[np.float32]
Triplet = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class MagSource(Published):
    """``ogbn-mag``: papers, authors, institutions and fields of study, through OGB's reader."""

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        raw, meta = downloaded(self, folder, progress)
        check_release(raw, meta, "triplet-type-list.csv.gz")
        progress(f"reading {raw}", 0.0)
        graph, labels, splits = _read(raw, meta["split"])
        # The type that has labels, and so the training nodes, comes first.
        (scored,) = labels
        counts: dict[str, int] = graph["num_nodes_dict"]
        types = [scored, *sorted(counts.keys() - {scored})]
        first = dict(zip(types, np.cumsum([0, *(counts[one] for one in types)]), strict=False))
        nodes = sum(counts.values())
        pairs, kinds, names = _edges(graph["edge_index_dict"], first)
        keys = edge_keys(pairs, len(kinds), nodes, str(raw))
        table = table_of(graph["node_feat_dict"], graph["edge_index_dict"], counts, types)
        spec = replace(
            self.estimate(1.0),
            num_nodes=nodes,
            num_edges=len(keys),
            feature_dim=table.shape[1],
            relations=names,
            node_types=tuple((one, counts[one]) for one in types),
        )
        of_nodes = np.full(nodes, -1, np.int64)
        of_nodes[: counts[scored]] = class_numbers(labels[scored], str(raw))
        with DatasetWriter(folder, spec) as writer:
            write_edges(writer, keys, kinds)
            writer.write_features(table)
            writer.write_labels(of_nodes)
            writer.write_splits(*(part[scored].astype(np.int64) for part in splits))


def _read(raw: Path, split: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]], tuple[Any, ...]]:
    """Read the graph, its labels by type, and its splits by type, as OGB has them."""
    from ogb.io.read_graph_raw import (
        read_csv_heterograph_raw,
        read_node_label_hetero,
        read_nodesplitidx_split_hetero,
    )

    with quiet(), explained(f"{raw}: ogb cannot read it", ANEW):
        graph = read_csv_heterograph_raw(str(raw / "raw"))[0]
        labels = read_node_label_hetero(str(raw / "raw"))
        splits = read_nodesplitidx_split_hetero(str(raw / "split" / split))
    if len(labels) != 1:
        raise DatasetError(f"{raw}: {len(labels)} types of nodes have labels, expected one; {ANEW}")
    return graph, labels, splits


def _edges(
    of_triplets: Mapping[Triplet, NDArray[np.int64]], first: Mapping[str, int]
) -> tuple[list[tuple[NDArray[np.int64], NDArray[np.int64]]], NDArray[np.int64], tuple[str, ...]]:
    """Return all edges both ways in the one range of numbers, their kinds, and the kinds' names."""
    pairs, kinds, names = [], [], list[str]()
    for (head, relation, tail), edges in sorted(of_triplets.items()):
        source, target = edges[0] + first[head], edges[1] + first[tail]
        for pair, name in (((source, target), relation), ((target, source), f"inverse {relation}")):
            pairs.append(pair)
            kinds.append(np.full(len(source), len(names), np.int64))
            names.append(name)
    return pairs, np.concatenate(kinds), tuple(names)


def table_of(
    given: Mapping[str, NDArray[Any]],
    of_triplets: Mapping[Triplet, NDArray[np.int64]],
    counts: Mapping[str, int],
    types: list[str],
) -> Rows:
    """Return the rows of all nodes, float32 ``[N, D]``, one type after the other.

    A type without rows gets the means of its neighbours' rows, once these have some; a node without
    such a neighbour gets zeros.

    Raises:
        DatasetError: every type lacks rows, or one has only neighbours that lack them.
    """
    from scipy.sparse import coo_array

    rows: dict[str, Rows] = {one: table.astype(np.float32) for one, table in given.items()}
    while lacking := [one for one in types if one not in rows]:
        found: dict[str, Rows] = {}
        for one in lacking:
            total = np.zeros((counts[one], 0), np.float32)
            degree = np.zeros((counts[one], 1), np.int64)
            for (head, _, tail), (source, target) in of_triplets.items():
                for mine, there, other, whose in (
                    (source, head, target, tail),
                    (target, tail, source, head),
                ):
                    if there == one and whose in rows:
                        shape = counts[one], counts[whose]
                        joined = coo_array((np.ones(len(mine), np.float32), (mine, other)), shape)
                        more = joined.tocsr() @ rows[whose]
                        total = total + more if total.size else more
                        degree += np.bincount(mine, minlength=counts[one])[:, None]
            if total.size:
                found[one] = (total / np.maximum(degree, 1)).astype(np.float32)
        if not found:
            raise DatasetError(f"no rows for nodes of type {', '.join(lacking)}")
        rows |= found
    return np.concatenate([rows[one] for one in types])
