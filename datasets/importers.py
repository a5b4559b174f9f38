"""The way in for graphs of one's own: edges in a file of any kind become a dataset folder.

Whatever the file, the result has the format and the guarantees of every other dataset: sorted
columns, each edge once. Features, labels and splits come from files or are invented, and the notes
say which.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from gatherbench.datasets import generated
from gatherbench.datasets.asked import Import
from gatherbench.datasets.columns import columns
from gatherbench.datasets.dataset import (
    DatasetError,
    DatasetSpec,
    array_path,
    folder_bytes,
    not_ours,
)
from gatherbench.datasets.files import check_free_space, exclusive
from gatherbench.datasets.import_arrays import MASKS, Own
from gatherbench.datasets.import_attributes import (
    SPLIT_SHARES,
    check_features,
    classes_of,
    own_files,
    random_splits,
    splits_of,
)
from gatherbench.datasets.import_edges import (
    Graph,
    number_nodes,
    read_edges,
    read_kinds,
    refuse_gaps,
    relabel_nodes,
)
from gatherbench.datasets.registry import is_made
from gatherbench.datasets.relations import write_typed
from gatherbench.datasets.source import Progress, silent
from gatherbench.datasets.store import BadArrayError, dataset_folder
from gatherbench.datasets.writer import DatasetWriter

#: Width of the features that are generated, unless it is said; how many classes; and their seed.
DIM, CLASSES, SEED = 128, 16, 0


def import_graph(asked: Import, root: Path | None = None, progress: Progress = silent) -> Path:
    """Import a graph; the folder can then be used by its name like any other dataset.

    Text is read piece by piece; in memory are 16 bytes for each edge (24 if undirected).

    Args:
        root: instead of ``data_root()``.
        progress: called with what is being done and the fraction of it that is done.

    Raises:
        DatasetError: a bad file, naming line and column (or array and position) and what stands
            there; a name that is taken; sizes that do not fit together; a full disk.
    """
    path, name, dim, dtype = asked.path, asked.name, asked.dim, asked.dtype
    splits = {"train": asked.train, "val": asked.val, "test": asked.test}
    folder = dataset_folder(name, root=root)
    if is_made(name):
        raise DatasetError(f"{name!r} is the name of a built-in dataset: choose another")
    for file in (path, asked.features, asked.labels, *splits.values()):
        if file is not None and not os.path.isfile(file):  # noqa: PTH113  # raises for long names
            raise DatasetError(f"{file}: not a regular file; write a pipe's data to a file first")
    generated.check_features(DIM if dim is None else dim, dtype)
    with exclusive(folder):
        _refuse_taken(folder, asked.force)
        own = own_files(asked.features, asked.labels, splits)
        told = None if asked.relabel else _agreed(_claims(own))
        graph = read_edges(path, asked.one_based, told, "csr" if asked.csr else "csc", progress)
        read_kinds(path, graph, asked.relations)
        splits_given = any(mask in own for mask in MASKS)
        for field, extra in graph.extras.items():  # what the graph's file has beside the edges
            if not (splits_given and field in MASKS):
                own.setdefault(field, extra)
        ids = own["y"].ids if "y" in own else None
        claims = {str(path): graph.nodes or None, **_claims(own)}
        if asked.relabel:
            relabel_nodes(graph, ids)
            claims[f"{path} (ids that occur)"] = len(graph.ids)
        graph.nodes = _agreed(claims) or 0
        if not asked.relabel:
            number_nodes(path, graph, ids, progress)
        graph.both_ways |= asked.undirected
        if "x" in own:
            check_features(own["x"])
            dtype, width = own["x"].array.dtype.name, own["x"].array.shape[1]
            if dim not in (None, width):
                raise DatasetError(f"{own['x'].where}: rows of width {width}, but dim says {dim}")
            dim = width
        spec = DatasetSpec(
            name=name,
            scale=1.0,
            num_nodes=graph.nodes,
            num_edges=len(graph) * (2 if graph.both_ways else 1),
            feature_dim=dim or DIM,
            feature_dtype=dtype,
            num_classes=CLASSES,
            source=f"imported from {path.name}",
            licence="that of the imported file",
        )
        if not {"x", "y"} & own.keys():
            refuse_gaps(path, graph, spec.feature_dim * np.dtype(dtype).itemsize)
        check_free_space(folder.parent, folder_bytes(spec), name)  # before labels take memory
        try:
            _write(folder, spec, graph, own, progress)
        except BadArrayError as error:  # names the folder, which is not kept: name the user's file
            users = error.array == "features" and "x" in own
            where = own["x"].where if users else array_path(folder, error.array)
            raise DatasetError(f"{where}: {error.what}") from error
    return folder


def _refuse_taken(folder: Path, force: bool) -> None:
    if os.path.lexists(folder):
        if why := not_ours(folder):
            raise DatasetError(f"{why}; choose another name")
        if not force:
            raise DatasetError(f"{folder} is there already: choose another name, or --force")


def _claims(own: Mapping[str, Own]) -> dict[str, int | None]:
    """How many nodes there are, as those files say that have a row for each."""
    return {own[name].where: own[name].rows for name in ("x", "y") if name in own}


def _agreed(claims: Mapping[str, int | None]) -> int | None:
    """The one number of nodes that all claims name; ``None`` if there is no claim."""
    made = {who: nodes for who, nodes in claims.items() if nodes is not None}
    if len(set(made.values())) > 1:
        said = ", ".join(f"{who} says {nodes}" for who, nodes in made.items())
        raise DatasetError(f"how many nodes? {said}")
    return next(iter(made.values()), None)


def _write(
    folder: Path, spec: DatasetSpec, graph: Graph, own: Mapping[str, Own], progress: Progress
) -> None:
    """Write what there is, invent the rest, and note which is which."""
    if "y" in own:
        classes = classes_of(graph, own["y"])
        num_classes = max(1, int(classes.max(initial=0)) + 1)
    else:
        num_classes = spec.num_classes
        classes = generated.random_labels(spec.num_nodes, num_classes, SEED)
    splits = splits_of(graph, classes, own)
    shares = " / ".join(f"{share:.0%}" for share in SPLIT_SHARES)
    drawn = f"drawn at random from labelled nodes that have in-neighbours, {shares}"
    notes = (
        f"ids counted from {int(bool(graph.from_one))} in the file"
        if not len(graph.ids)
        else "ids of the file numbered anew, in ascending order",
        "undirected, stored both ways" if graph.both_ways else "directed",
        "repeated edges merged, self-loops kept",
        _origin("features", own, ("x",), "random, nothing can be learnt from them"),
        _origin("labels", own, ("y",), f"{num_classes} random classes, which nothing can learn"),
        _origin("splits", own, MASKS, drawn),
    )
    relations = graph.all_relations
    spec = replace(spec, num_classes=num_classes, notes=notes, relations=relations)
    with DatasetWriter(folder, spec, progress) as writer:
        progress("sort edges", 0.0)
        if relations:
            degree = write_typed(writer, graph.keys(), spec.num_nodes, len(relations))
        else:
            degree = writer.write_columns(columns(graph.keys(), spec.num_nodes))
        writer.write_labels(classes)
        writer.write_splits(*(splits or random_splits(np.where(classes >= 0, degree, 0), SEED)))
        if "x" in own:
            writer.write_features(own["x"].runs())
        else:
            sizes = spec.num_nodes, spec.feature_dim, spec.feature_dtype
            writer.write_features(generated.feature_rows(*sizes, SEED, progress))
        writer.note_content()


def _origin(what: str, own: Mapping[str, Own], names: tuple[str, ...], invented: str) -> str:
    files = [f"{own[n].path.name} {own[n].field}".strip() for n in names if n in own]
    return f"{what} from {', '.join(files)}" if files else f"{what} INVENTED: {invented}"
