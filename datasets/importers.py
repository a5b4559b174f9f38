"""The way in for graphs of one's own: an edge list, a matrix or arrays become a dataset folder.

Whatever the file, the result is the same format with the same guarantees as every other dataset:
sorted columns, each edge once. Features and labels come from files or are generated.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets import generated
from gatherbench.datasets.columns import columns, edge_keys
from gatherbench.datasets.dataset import DatasetSpec
from gatherbench.datasets.importers_attributes import map_features, read_labels
from gatherbench.datasets.importers_matrix_market import read_matrix_market
from gatherbench.datasets.importers_numpy import read_numpy
from gatherbench.datasets.importers_text import Edges, read_edge_list
from gatherbench.datasets.layout import DatasetError
from gatherbench.datasets.registry import list_sources
from gatherbench.datasets.source import Progress, silent
from gatherbench.datasets.staging import exclusive
from gatherbench.datasets.store import dataset_folder
from gatherbench.datasets.writer import DatasetWriter

#: Shares of the nodes (those with in-neighbours) in training, validation and test.
SPLIT_SHARES = (0.6, 0.2, 0.2)


def import_graph(
    path: Path,
    name: str,
    *,
    dim: int | None = None,
    dtype: str = "float32",
    features: Path | None = None,
    labels: Path | None = None,
    num_classes: int = 16,
    num_nodes: int | None = None,
    one_based: bool | None = None,
    undirected: bool = False,
    header: bool | None = None,
    orientation: Literal["csc", "csr"] = "csc",
    seed: int = 0,
    root: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Import a graph; the folder can then be used by its name like any other dataset.

    The kind of file is told by its name: ``.mtx`` and ``.mtx.gz`` are MatrixMarket, ``.npz`` and
    ``.npy`` NumPy arrays, everything else an edge list ``source target`` (text or CSV, ``.gz`` or
    not). Text is read piece by piece; in memory are 16 bytes for each edge (24 if undirected).

    Args:
        path: the file.
        name: of the dataset; not one of the built-in names.
        dim, dtype: width and dtype of generated features (random normal values).
        features: a ``.npy`` ``[N, D]`` to take instead, with its own width and dtype.
        labels: a ``.npy`` ``[N]`` or a text file of one class a line, -1 for none; else random
            ones among ``num_classes``.
        num_nodes: where the file does not say; else the largest id decides. Ids beyond it are
            refused.
        one_based: whether ids count from 1. By default they do if no id is 0 and, where the number
            of nodes is known, an id equals it; or 1 is the smallest id, where it is not.
        undirected: store every edge both ways.
        header: whether a text file begins with a line of names; by default looked for in CSV.
        orientation: of NumPy arrays; see ``read_numpy``.
        seed: of what is generated: features, labels, splits.
        root: instead of ``data_root()``.
        force: replace a dataset of this name.
        progress: called with what is being done and the fraction of it that is done.

    Raises:
        DatasetError: a bad file, naming line and column (or array and position) and what stands
            there; a name that is taken; sizes that do not fit together; a full disk.
    """
    report = silent if progress is None else progress
    folder = dataset_folder(name, root=root)
    if name in {source.name for source in list_sources()}:
        raise DatasetError(f"{name!r} is the name of a built-in dataset: choose another")
    if folder.exists() and not force:
        raise DatasetError(f"{folder} is there already: choose another name, or replace it (force)")
    table = None if features is None else map_features(features)
    classes = None if labels is None else read_labels(labels)
    if table is None:
        if dim is None:
            raise DatasetError("say the width of the features to generate (dim), or give a file")
        generated.check_features(dim, dtype)
    elif dim is not None and dim != table.shape[1]:
        raise DatasetError(f"{features}: rows of width {table.shape[1]}, but dim says {dim}")
    known = _agreed_nodes(
        {
            "num_nodes": num_nodes,
            str(features): None if table is None else len(table),
            str(labels): None if classes is None else len(classes),
        }
    )

    def read(base: bool | None) -> Edges:
        if {".mtx"} & set(path.suffixes[-2:]):
            return read_matrix_market(path, report)
        if path.suffix in (".npz", ".npy"):
            return read_numpy(path, orientation)
        return read_edge_list(path, one_based=base, num_nodes=known, header=header, progress=report)

    edges = read(one_based)
    base = edges.one_based if edges.one_based is not None else _counts_from_one(edges, known)
    nodes = _agreed_nodes({str(path): edges.num_nodes, "the other files": known})
    if nodes is None:
        nodes = max(1, edges.high + (not base))
    elif edges.high - base >= nodes:
        edges = read(base)  # now that the base is known, the record at fault can be named
        raise DatasetError(f"{path}: id {edges.high} is too large for {nodes} nodes")

    both_ways = undirected or edges.both_ways
    if classes is None:
        classes = generated.random_labels(nodes, num_classes, seed)
    else:
        num_classes = max(1, int(classes.max(initial=0)) + 1)
    spec = DatasetSpec(
        name=name,
        scale=1.0,
        num_nodes=nodes,
        num_edges=len(edges) * (2 if both_ways else 1),
        feature_dim=dim or 0 if table is None else table.shape[1],
        feature_dtype=dtype if table is None else table.dtype.name,
        num_classes=num_classes,
        source=f"imported from {path.name}",
        licence="that of the imported file",
        notes=(
            f"ids counted from {int(base)} in the file",
            "undirected, stored both ways" if both_ways else "directed",
            "repeated edges merged, self-loops kept",
            f"features {_origin(features)}; labels {_origin(labels)}",
            "splits drawn at random from nodes that have in-neighbours: 60 % / 20 % / 20 %",
        ),
    )
    with exclusive(folder):
        _write(folder, spec, edges, int(base), both_ways, table, classes, seed, report)
    return folder


def _write(
    folder: Path,
    spec: DatasetSpec,
    edges: Edges,
    base: int,
    both_ways: bool,
    table: NDArray[Any] | None,
    classes: NDArray[np.int64],
    seed: int,
    report: Progress,
) -> None:
    nodes = spec.num_nodes
    degrees: list[NDArray[np.int64]] = []

    def graph() -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        for degree, rows in columns(_keys(edges, nodes, base, both_ways), nodes):
            degrees.append(degree)
            report("write edges", sum(map(len, degrees)) / nodes)
            yield degree, rows

    with DatasetWriter(folder, spec, report) as writer:
        writer.write_columns(graph())
        writer.write_labels(classes)
        degree = np.concatenate(degrees)
        connected = int(np.count_nonzero(degree))
        train, val = (int(share * connected) for share in SPLIT_SHARES[:2])
        sizes = (max(1, train), val, connected - train - val)
        writer.write_splits(*generated.random_splits(degree, sizes, seed))
        if table is None:
            rows = generated.feature_rows(
                nodes, spec.feature_dim, spec.feature_dtype, seed, progress=report
            )
            writer.write_features(rows)
        else:
            writer.write_features(table)


def _keys(edges: Edges, nodes: int, base: int, both_ways: bool) -> NDArray[np.int64]:
    """The sort keys of all edges; each chunk is let go once its keys are made."""
    keys = np.empty(len(edges) * (2 if both_ways else 1), np.int64)
    filled = 0
    while edges.chunks:
        source, target = edges.chunks.pop()
        part = edge_keys(source - base, target - base, nodes, "edges", both_ways)
        keys[filled : filled + len(part)] = part
        filled += len(part)
    return keys


def _counts_from_one(edges: Edges, num_nodes: int | None) -> bool:
    """See ``one_based`` of :func:`import_graph`."""
    if num_nodes is None:
        return edges.low == 1
    return edges.low >= 1 and edges.high == num_nodes


def _agreed_nodes(claims: dict[str, int | None]) -> int | None:
    """The one number of nodes that all claims name; ``None`` if there is no claim."""
    made = {who: nodes for who, nodes in claims.items() if nodes is not None}
    if len(set(made.values())) > 1:
        said = ", ".join(f"{who} says {nodes}" for who, nodes in made.items())
        raise DatasetError(f"how many nodes? {said}")
    return next(iter(made.values()), None)


def _origin(file: Path | None) -> str:
    return "are random: nothing can be learnt" if file is None else f"from {file.name}"
