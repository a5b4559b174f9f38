"""The way in for graphs of one's own: an edge list, a matrix or arrays become a dataset folder.

Whatever the file, the result is the same format with the same guarantees as every other dataset:
sorted columns, each edge once. Features and labels come from files or are generated.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets import generated
from gatherbench.datasets.columns import columns, edge_keys
from gatherbench.datasets.dataset import DatasetSpec
from gatherbench.datasets.importers_attributes import (
    NOT_TORCH,
    TORCH_FILES,
    map_features,
    read_labels,
)
from gatherbench.datasets.importers_matrix_market import read_matrix_market
from gatherbench.datasets.importers_numpy import read_compressed, read_edge_index
from gatherbench.datasets.importers_text import Edges, read_edge_list, too_large_remedy
from gatherbench.datasets.layout import DatasetError, array_path, remedy
from gatherbench.datasets.registry import list_sources
from gatherbench.datasets.source import Progress, silent
from gatherbench.datasets.staging import exclusive
from gatherbench.datasets.store import dataset_folder
from gatherbench.datasets.writer import DatasetWriter

#: Shares of the labelled nodes with in-neighbours in training, validation and test.
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
    relabel: bool = False,
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
    ``.npy`` NumPy arrays (a ``.npy`` without ``indptr`` in its name an ``edge_index``), everything
    else an edge list ``source target`` (text or CSV, ``.gz`` or
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
        one_based: whether ids count from 1. By default those of text do if no id is 0 and, where
            the number of nodes is known, an id equals it; or 1 is the smallest id, where it is not.
            NumPy's count from 0 by default.
        relabel: number only the ids that occur, in ascending order: for ids with gaps. Row ``k`` of
            features and labels then belongs to the k-th smallest id.
        undirected: store every edge both ways.
        header: whether a text file begins with a line of names; by default looked for in CSV.
        orientation: of compressed NumPy arrays; see ``read_compressed``.
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
        raise DatasetError(f"{folder} is there already: choose another name, or --force")
    if num_classes < 1 or (num_nodes is not None and num_nodes < 1):
        raise DatasetError(f"{num_nodes} nodes of {num_classes} classes: expected 1 or more")
    table = _table(features, dim, dtype)
    classes = None if labels is None else read_labels(labels)
    known = _agreed_nodes(
        {
            "num_nodes": num_nodes,
            str(features): None if table is None else len(table),
            str(labels): None if classes is None else len(classes),
        }
    )
    if relabel:
        graph = _relabelled(path, _edges(path, None, None, header, orientation, report), known)
    else:
        graph = _read(path, one_based, known, header, orientation, report)
    graph.both_ways |= undirected
    if classes is None:
        classes = generated.random_labels(graph.nodes, num_classes, seed)
    else:
        num_classes = max(1, int(classes.max(initial=0)) + 1)
    spec = DatasetSpec(
        name=name,
        scale=1.0,
        num_nodes=graph.nodes,
        num_edges=len(graph.edges) * (2 if graph.both_ways else 1),
        feature_dim=dim or 0 if table is None else table.shape[1],
        feature_dtype=dtype if table is None else table.dtype.name,
        num_classes=num_classes,
        source=f"imported from {path.name}",
        licence="that of the imported file",
        notes=(
            "ids of the file numbered anew, in ascending order"
            if relabel
            else f"ids counted from {graph.base} in the file",
            "undirected, stored both ways" if graph.both_ways else "directed",
            "repeated edges merged, self-loops kept",
            f"features {_origin(features)}; labels {_origin(labels)}",
            "splits drawn at random from labelled nodes that have in-neighbours, "
            + " / ".join(f"{share:.0%}" for share in SPLIT_SHARES),
        ),
    )
    try:
        with exclusive(folder), DatasetWriter(folder, spec, report) as writer:
            report("sort edges", 0.0)
            degree = writer.write_columns(columns(_keys(graph), graph.nodes))
            writer.write_labels(classes)
            writer.write_splits(*_splits(np.where(classes >= 0, degree, 0), seed))
            if table is None:
                dim = spec.feature_dim
                rows = generated.feature_rows(graph.nodes, dim, dtype, seed, progress=report)
                writer.write_features(rows)
            else:
                writer.write_features(table)
            writer.note_content()
    except DatasetError as error:  # names the folder, which is not kept: name the user's file
        said = str(error).removesuffix(f"; {remedy(folder)}")
        said = said.replace(str(array_path(folder, "features")), str(features))
        raise DatasetError(said) from error
    return folder


@dataclass(slots=True)
class _Graph:
    """A file that was read and understood; ids are still those of the file, from ``base``."""

    edges: Edges
    nodes: int
    base: int
    both_ways: bool


def _read(
    path: Path,
    one_based: bool | None,
    known_nodes: int | None,
    header: bool | None,
    orientation: Literal["csc", "csr"],
    report: Progress,
) -> _Graph:
    """Read a file and number its ids; ``known_nodes`` is what the other files say, if they do."""
    edges = _edges(path, one_based, known_nodes, header, orientation, report)
    nodes = _agreed_nodes({str(path): edges.num_nodes, "the other files": known_nodes})
    from_one = edges.one_based
    if from_one is None:
        from_one = edges.low == 1 if nodes is None else edges.low >= 1 and edges.high == nodes
    if nodes is None:
        nodes = edges.high + (not from_one)
    elif edges.high - from_one >= nodes:
        if path.suffix == ".npy":
            from_1 = "; where they count from 1, --one-based" if edges.low == 1 else ""
            raise DatasetError(
                f"{path}: node id {edges.high} is too large: {too_large_remedy(nodes)}{from_1}"
            )
        # Only now is it known that the largest id was one too many: find the record.
        read_edge_list(path, from_one, nodes, header, report)
    return _Graph(edges, nodes, int(from_one), edges.both_ways)


def _relabelled(path: Path, edges: Edges, known_nodes: int | None) -> _Graph:
    """The edges with their ids replaced by their ranks among those that occur."""
    if not edges.chunks:
        raise DatasetError(f"{path}: holds no edges")
    occurs = np.zeros(edges.high + 1, bool)
    for source, target in edges.chunks:
        occurs[source] = occurs[target] = True
    ids = np.flatnonzero(occurs)
    claims = {f"{path} (ids that occur)": len(ids), "features or labels": known_nodes}
    nodes = _agreed_nodes(claims) or len(ids)
    edges.chunks = [
        (np.searchsorted(ids, u).astype(np.int32), np.searchsorted(ids, v).astype(np.int32))
        for u, v in edges.chunks
    ]
    return _Graph(edges, nodes, 0, edges.both_ways)


def _edges(
    path: Path,
    one_based: bool | None,
    known_nodes: int | None,
    header: bool | None,
    orientation: Literal["csc", "csr"],
    report: Progress,
) -> Edges:
    """Read a file of any kind."""
    if ".mtx" in path.suffixes[-2:]:
        return read_matrix_market(path, report)
    if path.suffix == ".npz" or (path.suffix == ".npy" and "indptr" in path.name):
        return read_compressed(path, orientation)
    if path.suffix == ".npy":
        return read_edge_index(path, one_based is True)
    if path.suffix in TORCH_FILES:
        raise DatasetError(f"{path}: {NOT_TORCH}")
    return read_edge_list(path, one_based, known_nodes, header, report)


def _keys(graph: _Graph) -> NDArray[np.int64]:
    """The sort keys of all edges; each chunk is let go once its keys are made."""
    chunks, both = graph.edges.chunks, graph.both_ways
    keys = np.empty(len(graph.edges) * (2 if both else 1), np.int64)
    filled = 0
    while chunks:
        source, target = chunks.pop()
        part = edge_keys(source - graph.base, target - graph.base, graph.nodes, "edges", both)
        keys[filled : filled + len(part)] = part
        filled += len(part)
    return keys


def _splits(
    eligible: NDArray[np.int64], seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Splits by :data:`SPLIT_SHARES` among the nodes whose ``eligible`` ``[N]`` is not 0."""
    count = int(np.count_nonzero(eligible))
    train, val = (max(1, int(share * count)) for share in SPLIT_SHARES[:2])
    return generated.random_splits(eligible, (train, val, count), seed)


def _table(features: Path | None, dim: int | None, dtype: str) -> NDArray[Any] | None:
    """The feature file, mapped; ``None`` if features of a valid ``dim`` are to be generated."""
    if features is None:
        if dim is None:
            raise DatasetError("say the width of the features to generate (dim), or give a file")
        generated.check_features(dim, dtype)
        return None
    table = map_features(features)
    if dim not in (None, table.shape[1]):
        raise DatasetError(f"{features}: rows of width {table.shape[1]}, but dim says {dim}")
    return table


def _agreed_nodes(claims: dict[str, int | None]) -> int | None:
    """The one number of nodes that all claims name; ``None`` if there is no claim."""
    made = {who: nodes for who, nodes in claims.items() if nodes is not None}
    if len(set(made.values())) > 1:
        said = ", ".join(f"{who} says {nodes}" for who, nodes in made.items())
        raise DatasetError(f"how many nodes? {said}")
    return next(iter(made.values()), None)


def _origin(file: Path | None) -> str:
    return "are random: nothing can be learnt" if file is None else f"from {file.name}"
