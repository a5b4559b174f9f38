"""Import a user's graph: edges in a file of a supported kind become a dataset folder.

Features, labels and splits come from files or are generated, and the notes say which.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.checks import same_nodes
from gatherbench.datasets import generated, import_files
from gatherbench.datasets.arrays import LARGEST_ID, class_numbers, expect
from gatherbench.datasets.dataset import IMPORTED, DatasetError, DatasetSpec, not_ours
from gatherbench.datasets.edges import edge_keys, write_edges
from gatherbench.datasets.files import exclusive
from gatherbench.datasets.import_files import EDGE_BYTES, MASKS, Field, Graph
from gatherbench.datasets.import_options import Import
from gatherbench.datasets.import_text import read_text
from gatherbench.datasets.registry import source_names
from gatherbench.datasets.source import Progress, silent
from gatherbench.datasets.store import dataset_folder
from gatherbench.datasets.writer import BadArrayError, DatasetWriter

#: Kinds of edges (a relational model has matrices for each), generated classes, and the seed.
MOST_KINDS, CLASSES, SEED = 1000, 16, 0
#: Shares of the labelled nodes with in-neighbours in training, validation and test.
_SHARES = "60% / 20% / 20%"
_FEATURE_DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")
#: Features are invented up to so many bytes, or so many nodes for each end of an edge.
_INVENTED_BYTES, _GAPS = 1 << 30, 10
_LIMITS = {
    errno.EFBIG: "it makes a file larger than this process may write (ulimit -f)",
    errno.ENOMEM: "there is too little memory for it, or for this process (ulimit -v): "
    f"{EDGE_BYTES} bytes an edge are needed, half as much more if undirected, and 40 a node",
}
_NUMBER = "where they have gaps, numpy.unique(edges, return_inverse=True) numbers those that occur"


def import_graph(options: Import, root: Path | None = None, progress: Progress = silent) -> Path:
    """Import a graph and return its folder (in ``root``, by default ``data_root()``).

    Its name then works like any other's. It takes 16 bytes of memory an edge (24 if undirected).

    Raises:
        DatasetError: a bad file, with its content; an ambiguous file, with the option that decides;
            a name that exists; sizes that contradict each other; too little memory or disk.
    """
    folder = dataset_folder(options.name, root=root)
    if options.name in source_names():
        raise DatasetError(f"{options.name!r} is the name of a built-in dataset: choose another")
    generated.check_features(options.dim, options.dtype)
    if options.classes is not None and not 1 <= options.classes <= LARGEST_ID:
        raise DatasetError(f"--classes {options.classes}: expected 1 or more")
    try:
        with exclusive(folder):
            if os.path.lexists(folder):
                if refusal := not_ours(folder):
                    raise DatasetError(f"{refusal}; choose another name")
                if not options.force:
                    raise DatasetError(f"{folder} is there: choose another name, or --force")
            progress("read files", 0.0)
            graph = read_graph(options, folder.parent)
            _find_sizes(options, graph)
            _write(options, graph, folder, progress)
    except (MemoryError, OSError) as error:
        limit = _LIMITS.get(getattr(error, "errno", errno.ENOMEM))
        if limit is None:
            raise
        raise DatasetError(f"{options.path}: {limit}") from error
    return folder


def read_graph(options: Import, room: Path) -> Graph:
    """Read a graph's file, and further files in place of its own features, labels and splits."""
    path, kind = options.path, import_files.identify(options.path)
    if kind != "text" and (options.source or options.target or options.header is not None):
        raise DatasetError(f"{path}: is not text: leave --source, --target and --header out")
    readers = {"text": read_text, "matrix": import_files.read_matrix}
    graph = readers.get(kind, import_files.read_arrays)(options, room)
    if not len(graph.source):
        raise DatasetError(f"{path}: holds no edges")
    if options.relations and "edge_type" not in graph.fields:
        raise DatasetError(f"{path}: no edge_type called {options.relations!r}")
    splits = dict(zip(MASKS, (options.train, options.val, options.test), strict=True))
    if any(splits.values()):
        graph.fields = {name: graph.fields[name] for name in graph.fields if name not in MASKS}
    further = {"x": options.features, "y": options.labels, **splits}
    for name, file in further.items():
        if file is not None:
            arrays, others = import_files.fields_of(file, room)
            if "" not in arrays:
                names = ", ".join([*arrays, *others][:9]) or "none"
                raise DatasetError(f"{file}: expected one array, found {names}")
            graph.fields[name] = arrays[""]
    return graph


def _find_sizes(options: Import, graph: Graph) -> None:
    """Find the number of nodes and the first id, and refuse sizes that contradict each other."""
    claims: dict[str, int | None] = {str(options.path): graph.nodes or None}
    if x := graph.fields.get("x"):
        expect(x.array, x.where, "biufcV", None, None)
        if x.array.dtype.name not in _FEATURE_DTYPES or not x.array.size:
            expected = f"expected rows of dtype {', '.join(_FEATURE_DTYPES)}"
            raise DatasetError(f"{x.where}: holds {x.array.dtype} {x.array.shape}, {expected}")
        claims[x.where] = len(x.array)
    if y := graph.fields.get("y"):
        y.array = y.array.reshape(-1) if y.array.shape[1:] == (1,) else y.array
        claims[y.where] = len(expect(y.array, y.where, "biuf", None))
    try:
        nodes = same_nodes(claims)
    except ValueError as error:
        raise DatasetError(str(error)) from error
    ends = graph.source, graph.target
    low, high = min(int(ids.min()) for ids in ends), max(int(ids.max()) for ids in ends)
    if graph.first is None and low > 0:
        doubt = f"its smallest id is {low}: from which number do they count?"
        raise DatasetError(f"{options.path}: {doubt} Say --zero-based or --one-based")
    graph.first = graph.first or 0
    graph.nodes = min(max(1, nodes or high + 1 - graph.first), LARGEST_ID + 1)
    invented = graph.nodes * options.dim * np.dtype(options.dtype).itemsize
    if not (x or y) and invented > _INVENTED_BYTES and graph.nodes > _GAPS * 2 * len(graph.source):
        gaps = f"by its ids it has {graph.nodes:,} nodes, most in no edge"
        table = f"features would be invented for all, {invented:,} bytes"
        raise DatasetError(f"{options.path}: {gaps}, and {table}; {_NUMBER}")


def _write(options: Import, graph: Graph, folder: Path, progress: Progress) -> None:
    """Write the given arrays, generate the missing ones, and note which is which."""
    fields, nodes, both_ways = graph.fields, graph.nodes, bool(options.undirected)
    x, y = fields.get("x"), fields.get("y")
    kinds, relations = _kinds(fields.get("edge_type"), both_ways)
    classes = _classes(y, options.classes) if y else None
    splits = _splits(graph, classes) if fields.keys() & set(MASKS) else None
    count = options.classes or (CLASSES if classes is None else int(classes.max()) + 1)
    drawn = f"drawn at random from labelled nodes that have in-neighbours, {_SHARES}"
    notes = [
        f"ids counted from {graph.first} in the file",
        "undirected, stored both ways" if both_ways else "directed",
        "repeated edges merged, self-loops kept",
    ]
    for content, names, invented in (
        ("features", ("x",), "random, nothing can be learnt from them"),
        ("labels", ("y",), f"{count} random classes, which nothing can learn"),
        ("splits", MASKS, drawn),
    ):
        files = ", ".join(Path(fields[name].where).name for name in names if name in fields)
        notes.append(f"{content} from {files}" if files else f"{content} INVENTED: {invented}")
    spec = DatasetSpec(
        name=options.name,
        scale=1.0,
        num_nodes=nodes,
        num_edges=len(graph.source) * (1 + both_ways),
        feature_dim=x.array.shape[1] if x else options.dim,
        feature_dtype=x.array.dtype.name if x else options.dtype,
        num_classes=count,
        source=f"{IMPORTED}{options.path.name}",
        licence="that of the imported file",
        relations=relations,
        notes=(*notes, graph.took),
    )
    sources = _number(graph, graph.source, f"{options.path}: sources")
    targets = _number(graph, graph.target, f"{options.path}: targets")
    graph.source = graph.target = np.empty(0, np.int32)  # frees a second copy of the edges
    keys = edge_keys([(sources, targets)], len(sources), nodes, "edges", both_ways)
    del sources, targets
    if classes is None:
        classes = generated.random_labels(nodes, count, SEED)
    made = generated.feature_rows(nodes, spec.feature_dim, options.dtype, SEED, progress)
    try:
        with DatasetWriter(folder, spec) as writer:
            progress("sort edges", 0.0)
            degree = write_edges(writer, keys, kinds)
            del keys
            writer.write_labels(classes)
            if not splits:
                eligible = degree * (classes >= 0)
                if not (able := int(np.count_nonzero(eligible))):
                    lack = "no labelled node has in-neighbours, so there is none to train on"
                    raise DatasetError(f"{options.path}: {lack}")
                sizes = max(1, int(0.6 * able)), max(1, int(0.2 * able)), able
                splits = generated.random_splits(eligible, sizes, SEED)
            writer.write_splits(*splits)
            writer.write_features(x.array if x else made)
            writer.note_content()
    except BadArrayError as error:  # names a folder that is removed: name the user's file
        name = {"features": "x", "labels": "y"}.get(error.array, error.array.replace("ids", "mask"))
        where = fields[name].where if name in fields else options.path
        raise DatasetError(f"{where}: {error.what}") from error


def _kinds(field: Field | None, both_ways: bool) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return each edge's kind, a place in the names, and these; reverse edges get other kinds."""
    if field is None:
        return np.empty(0, np.int64), ()
    import pandas as pd

    kinds, names = pd.factorize(field.array, sort=True)
    if len(names) > MOST_KINDS:
        many = f"{len(names):,} kinds of edges, and at most {MOST_KINDS:,} are read"
        raise DatasetError(f"{field.where}: {many}: is it the column of kinds?")
    relations = tuple(map(str, names))
    if both_ways:
        kinds = np.concatenate([kinds, kinds + len(names)])
        relations += tuple(f"inverse {name}" for name in relations)
        if len(set(relations)) < len(relations):
            raise DatasetError(f"{field.where}: has a kind with its inverse: say --directed")
    return kinds, relations


def _number(graph: Graph, ids: NDArray[Any], where: str) -> NDArray[np.int32]:
    """Return the nodes, from 0, with these ids in the graph's file; ``where`` names the ids."""
    first = graph.first or 0
    if (bad := (ids < first) | (ids >= graph.nodes + first)).any():
        at, last = int(bad.argmax()), graph.nodes - 1 + first
        raise DatasetError(
            f"{where}: entry {at} (from 0) is {ids[at]}, and nodes are {first} to {last}, as many "
            f"as features and labels have rows; where they count from 1, --one-based; {_NUMBER}"
        )
    return np.subtract(ids, first, dtype=np.int32, casting="unsafe")


def _classes(field: Field, count: int | None) -> NDArray[np.int64]:
    """Return classes ``[N]``, -1 for none, after checking that they occur, and all of them."""
    where, classes = field.where, class_numbers(field.array, field.where)
    if not len(occur := np.unique(classes[classes >= 0])):
        raise DatasetError(f"{where}: no node has a label: leave it out, and they are generated")
    largest = occur[-1]
    if count is not None and count <= largest:
        raise DatasetError(f"{where}: has class {largest}, and --classes says {count}")
    if count is None and len(occur) <= largest:
        signs = "; -1 is no class: are these -1 and 1 two?" if occur.tolist() == [1] else ""
        raise DatasetError(
            f"{where}: the largest label is {largest}, and {len(occur)} different ones occur{signs}"
            f"; say --classes {largest + 1} if all are meant, or number those that occur from 0 "
            "(numpy.unique(labels, return_inverse=True) does)"
        )
    return classes


def _splits(graph: Graph, classes: NDArray[np.int64] | None) -> list[NDArray[Any]]:
    """Return the user's splits, masks or ids, as nodes; one that is not given is empty."""
    splits = []
    for mask in MASKS:
        field = graph.fields.get(mask, Field("the splits", np.empty(0, np.int32)))
        values, where = field.array, field.where
        truths = values.dtype.kind == "b"
        expect(values, where, "biu", graph.nodes if truths else None)
        splits.append(np.flatnonzero(values) if truths else _number(graph, values, where))
        if not len(splits[0]):
            raise DatasetError(f"{where}: no node to train on; say which with --train")
        if classes is not None and (bare := splits[-1][classes[splits[-1]] < 0]).size:
            raise DatasetError(f"{where}: node {bare[0]} (from 0) has no label")
    return splits
