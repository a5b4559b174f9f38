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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.checks import same_nodes
from gatherbench.datasets import generated
from gatherbench.datasets.arrays import expect
from gatherbench.datasets.asked import Import
from gatherbench.datasets.columns import columns, edge_keys, typed_keys
from gatherbench.datasets.dataset import (
    IMPORTED,
    DatasetError,
    DatasetSpec,
    array_path,
    folder_bytes,
    not_ours,
)
from gatherbench.datasets.files import check_free_space, exclusive
from gatherbench.datasets.import_fields import (
    EDGE_BYTES,
    MASKS,
    Field,
    Graph,
    read_files,
    read_graph,
)
from gatherbench.datasets.registry import is_made
from gatherbench.datasets.relations import write_typed
from gatherbench.datasets.source import Progress, silent
from gatherbench.datasets.store import BadArrayError, dataset_folder
from gatherbench.datasets.writer import DatasetWriter

#: Largest id: nodes are numbered by int32.
LARGEST_ID = 2**31 - 2
#: Kinds of edges: a relational model has matrices for each.
MOST_KINDS = 1000
#: Width of the features that are generated, unless it is said; how many classes; and their seed.
DIM, CLASSES, SEED = 128, 16, 0
#: Shares of the labelled nodes with in-neighbours in training, validation and test.
SPLIT_SHARES = (0.6, 0.2, 0.2)
#: What torch has a dtype of, and every path moves.
_FEATURE_DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")
#: What is invented without a question, and how many nodes an id may stand for.
_INVENTED_BYTES, _GAPS = 1 << 30, 10
_LIMITS = {
    errno.EFBIG: "it makes a file larger than this process may write (ulimit -f)",
    errno.ENOMEM: "there is too little memory for it, or for this process (ulimit -v): "
    f"{EDGE_BYTES} bytes an edge are needed, half as much more if undirected, and 40 a node",
}
_NUMBER = "where they have gaps, numpy.unique(edges, return_inverse=True) numbers those that occur"


def import_graph(asked: Import, root: Path | None = None, progress: Progress = silent) -> Path:
    """Import a graph; the folder can then be used by its name like any other dataset.

    In memory are 16 bytes for each edge (24 if undirected).

    Args:
        root: instead of ``data_root()``.
        progress: called with what is being done and the fraction of it that is done.

    Raises:
        DatasetError: a bad file, naming what stands there; what cannot be told, with the option
            that says it; a name that is taken; sizes that do not fit together; too little memory
            or disk.
    """
    folder = dataset_folder(asked.name, root=root)
    if is_made(asked.name):
        raise DatasetError(f"{asked.name!r} is the name of a built-in dataset: choose another")
    generated.check_features(DIM if asked.dim is None else asked.dim, asked.dtype)
    try:
        with exclusive(folder):
            if os.path.lexists(folder) and (why := not_ours(folder)):
                raise DatasetError(f"{why}; choose another name")
            if os.path.lexists(folder) and not asked.force:
                raise DatasetError(f"{folder} is there already: choose another name, or --force")
            _import(asked, folder, progress)
    except (MemoryError, OSError) as error:
        limit = _LIMITS.get(getattr(error, "errno", errno.ENOMEM))
        if limit is None:
            raise
        raise DatasetError(f"{asked.path}: {limit}") from error
    return folder


def _import(asked: Import, folder: Path, progress: Progress) -> None:
    progress("read files", 0.0)
    path, dim, dtype = asked.path, asked.dim, asked.dtype
    given, graph = read_files(asked, folder.parent), read_graph(asked, folder.parent)
    beside = graph.fields  # what the graph's file has beside the edges
    if any(mask in given for mask in MASKS):
        beside = {name: field for name, field in beside.items() if name not in MASKS}
    fields = beside | given
    x, y = fields.get("x"), fields.get("y")
    claims: dict[str, int | None] = {str(path): graph.nodes or None}
    if x:
        _, width = expect(x.array, x.where, "biufcV", None, None).shape
        if x.array.dtype.name not in _FEATURE_DTYPES or not x.array.size:
            raise DatasetError(
                f"{x.where}: holds {x.array.dtype} {x.array.shape}, expected rows of dtype "
                f"{', '.join(_FEATURE_DTYPES)}"
            )
        if dim not in (None, width):
            raise DatasetError(f"{x.where}: rows of width {width}, but dim says {dim}")
        dim, dtype, claims[x.where] = width, x.array.dtype.name, len(x.array)
    if y and y.ids is None:
        y.array = y.array.reshape(-1) if y.array.shape[1:] == (1,) else y.array
        claims[y.where] = len(expect(y.array, y.where, "biuf", None))
    try:
        graph.nodes = same_nodes(claims) or 0
    except ValueError as error:
        raise DatasetError(str(error)) from error
    _count_nodes(graph, fields)
    kinds, relations = _kinds(fields.get("edge_type"), graph.both_ways)
    spec = DatasetSpec(
        name=asked.name,
        scale=1.0,
        num_nodes=graph.nodes,
        num_edges=len(graph.source) * (1 + graph.both_ways),
        feature_dim=dim or DIM,
        feature_dtype=dtype,
        num_classes=asked.classes or CLASSES,
        source=f"{IMPORTED}{path.name}",
        licence="that of the imported file",
        relations=relations,
    )
    named = 2 * len(graph.source)
    stated = x or (y and y.ids is None)
    if not stated and spec.table_bytes > _INVENTED_BYTES and graph.nodes > _GAPS * named:
        raise DatasetError(
            f"{path}: by its ids it has {graph.nodes:,} nodes, of which its edges name {named:,} at"
            f" most, and features would be invented for all, {spec.table_bytes:,} bytes; {_NUMBER}"
        )
    check_free_space(folder.parent, folder_bytes(spec), asked.name)  # before labels take memory
    try:
        _write(folder, spec, graph, fields, kinds, asked.classes, progress)
    except BadArrayError as error:  # names the folder, which is not kept: name the user's file
        name = {"features": "x", "labels": "y"}.get(error.array, error.array.replace("ids", "mask"))
        where = fields[name].where if name in fields else array_path(folder, error.array)
        raise DatasetError(f"{where}: {error.what}") from error


def _kinds(given: Field | None, both_ways: bool) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The kind of each edge, places among their names; reverse edges have kinds of their own."""
    if given is None:
        return np.empty(0, np.int64), ()
    import pandas as pd

    kinds, names = pd.factorize(given.array, sort=True)
    if len(names) > MOST_KINDS:
        raise DatasetError(
            f"{given.where}: {len(names):,} kinds of edges, and no more than {MOST_KINDS:,} are "
            "read: is it the column of kinds?"
        )
    relations = tuple(map(str, names))
    if both_ways:
        kinds = np.concatenate([kinds, kinds + len(names)])
        relations += tuple(f"inverse {name}" for name in relations)
    return kinds, relations


def _count_nodes(graph: Graph, fields: Mapping[str, Field]) -> None:
    """Find from which number ids count, and how many nodes there are unless that is known."""
    ends = [graph.source, graph.target]
    if "y" in fields and fields["y"].ids is not None:  # which need not be in an edge
        ends.append(fields["y"].ids)
    low = min(int(ids.min()) for ids in ends if len(ids))
    high = max(int(ids.max()) for ids in ends if len(ids))
    if graph.first is None and low > 0:
        raise DatasetError(
            f"{graph.path}: its smallest id is {low}: from which number do they count? Say "
            "--zero-based or --one-based"
        )
    graph.first = graph.first or 0
    nodes = graph.nodes or high + 1 - graph.first
    graph.nodes = min(max(1, nodes), LARGEST_ID + 1)  # others are refused by their numbers


def _number(graph: Graph, ids: NDArray[Any], where: str) -> NDArray[np.int32]:
    """The nodes, from 0, that have these ids in the graph's file.

    Raises:
        DatasetError: one is no node; names ``where``.
    """
    first = graph.first or 0
    if (bad := (ids < first) | (ids >= graph.nodes + first)).any():
        at = int(bad.argmax())
        raise DatasetError(
            f"{where}: entry {at} (from 0) is {ids[at]}, and nodes are {first} to "
            f"{graph.nodes - 1 + first}, as many as features and labels have rows; where they count"
            f" from 1, --one-based; {_NUMBER}"
        )
    return np.subtract(ids, first, dtype=np.int32, casting="unsafe")


def _write(
    folder: Path,
    spec: DatasetSpec,
    graph: Graph,
    own: Mapping[str, Field],
    kinds: NDArray[np.int64],
    told: int | None,
    progress: Progress,
) -> None:
    """Write what there is, invent the rest, and note which is which."""
    if "y" in own:
        classes = _classes(graph, own["y"], told)
        spec = replace(spec, num_classes=told or int(classes.max()) + 1)
    else:
        classes = generated.random_labels(spec.num_nodes, spec.num_classes, SEED)
    splits = _splits(graph, classes, own)
    shares = " / ".join(f"{share:.0%}" for share in SPLIT_SHARES)
    how = f"drawn at random from labelled nodes that have in-neighbours, {shares}"
    random = f"{spec.num_classes} random classes, which nothing can learn"
    notes = (
        f"ids counted from {graph.first} in the file",
        "undirected, stored both ways" if graph.both_ways else "directed",
        "repeated edges merged, self-loops kept",
        _origin("features", own, ("x",), "random, nothing can be learnt from them"),
        _origin("labels", own, ("y",), random),
        _origin("splits", own, MASKS, how),
        graph.took,
    )
    sources = _number(graph, graph.source, f"{graph.path}: sources")
    targets = _number(graph, graph.target, f"{graph.path}: targets")
    graph.source = graph.target = np.empty(0, np.int32)  # two copies of the edges are one too many
    keys = edge_keys([(sources, targets)], len(sources), graph.nodes, "edges", graph.both_ways)
    del sources, targets
    if spec.relations:
        keys = typed_keys(keys, kinds, graph.nodes, len(spec.relations), "edges")
    with DatasetWriter(folder, replace(spec, notes=notes), progress) as writer:
        progress("sort edges", 0.0)
        if spec.relations:
            degree = write_typed(writer, keys, spec.num_nodes, len(spec.relations))
        else:
            degree = writer.write_columns(columns(keys, spec.num_nodes))
        del keys
        writer.write_labels(classes)
        eligible = np.where(classes >= 0, degree, 0)
        count = int(np.count_nonzero(eligible))
        if not splits and not count:
            raise DatasetError("no labelled node has in-neighbours, so there is none to train on")
        train, val = (max(1, int(share * count)) for share in SPLIT_SHARES[:2])
        drawn = splits or generated.random_splits(eligible, (train, val, count), SEED)
        writer.write_splits(*drawn)
        sizes = spec.num_nodes, spec.feature_dim, spec.feature_dtype
        made = generated.feature_rows(*sizes, SEED, progress)
        writer.write_features(own["x"].array if "x" in own else made)
        writer.note_content()


def _origin(what: str, own: Mapping[str, Field], names: tuple[str, ...], invented: str) -> str:
    files = [Path(own[name].where).name for name in names if name in own]
    return f"{what} from {', '.join(files)}" if files else f"{what} INVENTED: {invented}"


def _classes(graph: Graph, own: Field, told: int | None) -> NDArray[np.int64]:
    """Classes ``[N]``, -1 for none, from labels ``[N]`` or those of some ids.

    Whole numbers of a float dtype are taken, NaN for none.

    Args:
        told: how many classes there are, where it was told.

    Raises:
        DatasetError: no class, two labels of a node, no label at all, or classes of which some
            never occur, unless ``told``.
    """
    values = own.array
    values = np.where(np.isnan(values), -1, values) if values.dtype.kind == "f" else values
    if (bad := (values < -1) | (values > LARGEST_ID) | (values != np.floor(values))).any():
        raise DatasetError(
            f"{own.where}: label {bad.argmax()} (from 0) is {values[bad][0]}, expected a class "
            "from 0 up, or -1 for none"
        )
    classes = values.astype(np.int64)
    if own.ids is not None:
        given, at = classes, _number(graph, own.ids, own.where)
        classes = np.full(graph.nodes, -1, np.int64)
        classes[at] = given
        if (differ := classes[at] != given).any():
            raise DatasetError(f"{own.where}: gives node {own.ids[differ][0]} two labels")
    occur = np.unique(classes[classes >= 0])
    if not len(occur):
        raise DatasetError(f"{own.where}: no node has a label: leave it out, and they are invented")
    if told is not None and told <= occur[-1]:
        raise DatasetError(f"{own.where}: has class {occur[-1]}, and --classes says {told}")
    if told is None and len(occur) <= occur[-1]:
        signs = "; -1 is no class: are these -1 and 1 two?" if occur.tolist() == [1] else ""
        raise DatasetError(
            f"{own.where}: the largest label is {occur[-1]}, and {len(occur)} different ones occur"
            f"{signs}; say --classes {occur[-1] + 1} if all are meant, or number those that occur "
            "from 0 (numpy.unique(labels, return_inverse=True) does)"
        )
    return classes


def _splits(
    graph: Graph, classes: NDArray[np.int64], own: Mapping[str, Field]
) -> list[NDArray[Any]] | None:
    """The user's splits as nodes; ``None`` if there are none, empty for one that is not given.

    Raises:
        DatasetError: a node that is none, or has no label; nothing to train on.
    """
    if not any(mask in own for mask in MASKS):
        return None
    found = []
    for mask in MASKS:
        given = own.get(mask, Field("the splits", np.empty(0, np.int32)))
        values, where = given.array, given.where
        truths = values.dtype.kind == "b"
        expect(values, where, "biu", graph.nodes if truths else None)
        # Ids are different: this many zeros and ones are a mask too.
        truths |= len(values) == graph.nodes > 2 and not (values >> 1).any()
        found.append(np.flatnonzero(values) if truths else _number(graph, values, where))
        if not len(found[0]):
            raise DatasetError(f"{where}: no node to train on; say which with --train")
        if (bare := found[-1][classes[found[-1]] < 0]).size:
            raise DatasetError(f"{where}: node {bare[0]} (from 0) has no label")
    return found
