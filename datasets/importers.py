"""The way in for graphs of one's own: edges in a file of any kind become a dataset folder.

Whatever the file, the result has the format and the guarantees of every other dataset: sorted
columns, each edge once. Features, labels and splits come from files or are invented, and the notes
say which.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from gatherbench.checks import same_nodes
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
    EDGE_BYTES,
    Graph,
    number_nodes,
    read_edges,
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
            there; what cannot be told, with the option that says it; a name that is taken; sizes
            that do not fit together; too little memory or disk.
    """
    folder = dataset_folder(asked.name, root=root)
    if is_made(asked.name):
        raise DatasetError(f"{asked.name!r} is the name of a built-in dataset: choose another")
    generated.check_features(DIM if asked.dim is None else asked.dim, asked.dtype)
    try:
        with exclusive(folder):
            _refuse_taken(folder, asked.force)
            _import(asked, folder, progress)
    except (MemoryError, OSError) as error:
        code = getattr(error, "errno", errno.ENOMEM)
        if code == errno.EFBIG:
            limit = "a file would be larger than this process may write (ulimit -f)"
            raise DatasetError(f"{folder}: {limit}") from error
        if code != errno.ENOMEM:
            raise
        raise DatasetError(
            f"{asked.path}: there is too little memory for it, or for this process (ulimit -v): "
            f"{EDGE_BYTES} bytes an edge are needed, half as much more if undirected, and 40 a node"
        ) from error
    return folder


def _import(asked: Import, folder: Path, progress: Progress) -> None:
    path, dim, dtype = asked.path, asked.dim, asked.dtype
    own = own_files(asked)
    if "x" in own:
        table = own["x"].array
        rows, width = table.shape
        check_free_space(folder.parent, rows * width * table.dtype.itemsize, asked.name)
    _agreed(_claims(own))
    graph = read_edges(asked, progress)
    splits_given = any(mask in own for mask in MASKS)
    for field, extra in graph.extras.items():  # what the graph's file has beside the edges
        if not (splits_given and field in MASKS):
            own.setdefault(field, extra)
    found = own["y"].ids if "y" in own else None
    ids = np.empty(0, np.int64) if found is None else found
    claims = {str(path): graph.nodes or None, **_claims(own)}
    if asked.relabel:
        relabel_nodes(graph, ids)
        claims[f"{path} (ids that occur)"] = len(graph.ids)
    graph.nodes = _agreed(claims) or 0
    if not asked.relabel:
        number_nodes(path, graph, ids)
    if "x" in own:
        check_features(own["x"])
        dtype, width = own["x"].array.dtype.name, own["x"].array.shape[1]
        if dim not in (None, width):
            raise DatasetError(f"{own['x'].where}: rows of width {width}, but dim says {dim}")
        dim = width
    spec = DatasetSpec(
        name=asked.name,
        scale=1.0,
        num_nodes=graph.nodes,
        num_edges=len(graph) * (2 if graph.both_ways else 1),
        feature_dim=dim or DIM,
        feature_dtype=dtype,
        num_classes=CLASSES,
        source=f"imported from {path.name}",
        licence="that of the imported file",
    )
    if "x" not in own and ("y" not in own or own["y"].rows is None):
        refuse_gaps(path, graph, spec.feature_dim * np.dtype(dtype).itemsize)
    check_free_space(folder.parent, folder_bytes(spec), asked.name)  # before labels take memory
    try:
        _write(folder, spec, graph, own, asked.classes, progress)
    except BadArrayError as error:  # names the folder, which is not kept: name the user's file
        users = error.array == "features" and "x" in own
        where = own["x"].where if users else array_path(folder, error.array)
        raise DatasetError(f"{where}: {error.what}") from error


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
    try:
        return same_nodes(claims)
    except ValueError as error:
        raise DatasetError(str(error)) from error


def _write(
    folder: Path,
    spec: DatasetSpec,
    graph: Graph,
    own: Mapping[str, Own],
    told: int | None,
    progress: Progress,
) -> None:
    """Write what there is, invent the rest, and note which is which."""
    if "y" in own:
        classes = classes_of(graph, own["y"], told)
        num_classes = told or int(classes.max()) + 1
    else:
        num_classes = told or spec.num_classes
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
        graph.took,
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
