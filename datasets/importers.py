"""Import a user's graph: edges in a file of a supported kind become a dataset folder.

The result has the format and the guarantees of every other dataset: sorted columns, each edge once.
Features, labels and splits come from files or are generated, and the notes say which.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.checks import same_nodes
from gatherbench.datasets import generated
from gatherbench.datasets.arrays import expect
from gatherbench.datasets.asked import Import
from gatherbench.datasets.columns import edge_keys
from gatherbench.datasets.dataset import (
    IMPORTED,
    DatasetError,
    DatasetSpec,
    array_path,
    folder_bytes,
    not_ours,
)
from gatherbench.datasets.files import check_free_space, exclusive
from gatherbench.datasets.import_files import (
    EDGE_BYTES,
    MASKS,
    Field,
    Graph,
    identify,
    read_alone,
    read_arrays,
    read_matrix,
)
from gatherbench.datasets.import_text import read_text
from gatherbench.datasets.registry import is_made
from gatherbench.datasets.relations import write_edges
from gatherbench.datasets.source import Progress, silent
from gatherbench.datasets.store import BadArrayError, dataset_folder
from gatherbench.datasets.writer import DatasetWriter

#: Largest id: nodes are numbered by int32.
LARGEST_ID = 2**31 - 2
#: Largest number of kinds of edges: a relational model has matrices for each.
MOST_KINDS = 1000
#: Default width of generated features, number of classes, and seed.
DIM, CLASSES, SEED = 128, 16, 0
#: Shares of the labelled nodes with in-neighbours in training, validation and test.
SPLIT_SHARES = (0.6, 0.2, 0.2)
#: Dtypes that torch has and every data path moves.
_FEATURE_DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")
#: Bytes that are generated without a question, and how many nodes an id may stand for.
_INVENTED_BYTES, _GAPS = 1 << 30, 10
_LIMITS = {
    errno.EFBIG: "it makes a file larger than this process may write (ulimit -f)",
    errno.ENOMEM: "there is too little memory for it, or for this process (ulimit -v): "
    f"{EDGE_BYTES} bytes an edge are needed, half as much more if undirected, and 40 a node",
}
_NUMBER = "where they have gaps, numpy.unique(edges, return_inverse=True) numbers those that occur"


def import_graph(asked: Import, root: Path | None = None, progress: Progress = silent) -> Path:
    """Import a graph and return its folder; its name then works like any other dataset's.

    This takes 16 bytes of memory for each edge (24 if undirected).

    Args:
        root: instead of ``data_root()``.
        progress: called with the current task and its finished fraction.

    Raises:
        DatasetError: a bad file, with its content; an ambiguous file, with the option that decides;
            a name that exists; sizes that contradict each other; too little memory or disk.
    """
    folder = dataset_folder(asked.name, root=root)
    if is_made(asked.name):
        raise DatasetError(f"{asked.name!r} is the name of a built-in dataset: choose another")
    generated.check_features(DIM if asked.dim is None else asked.dim, asked.dtype)
    if asked.classes is not None and not 1 <= asked.classes <= LARGEST_ID:
        raise DatasetError(f"--classes {asked.classes}: expected 1 or more")
    try:
        with exclusive(folder):
            if os.path.lexists(folder) and (why := not_ours(folder)):
                raise DatasetError(f"{why}; choose another name")
            if os.path.lexists(folder) and not asked.force:
                raise DatasetError(f"{folder} is there already: choose another name, or --force")
            progress("read files", 0.0)
            graph = read_graph(asked, folder.parent)
            _size(asked, graph)
            _write(asked, graph, folder, progress)
    except (MemoryError, OSError) as error:
        limit = _LIMITS.get(getattr(error, "errno", errno.ENOMEM))
        if limit is None:
            raise
        raise DatasetError(f"{asked.path}: {limit}") from error
    return folder


def read_graph(asked: Import, room: Path) -> Graph:
    """Read a graph's file and the further files, which replace its own features, labels and splits.

    Args:
        room: a folder for unpacked arrays.

    Raises:
        DatasetError: a bad file, no edges, or more than memory can hold; an ambiguous file; or an
            option that belongs to other kinds of files.
    """
    path, kind = asked.path, identify(asked.path)
    if kind != "text" and (asked.source or asked.target or asked.header is not None):
        raise DatasetError(f"{path}: is no text: leave --source, --target and --header out")
    if kind == "text":
        graph = read_text(asked)
    else:
        graph = read_matrix(asked) if kind == "matrix" else read_arrays(asked, room)
    if not len(graph.source):
        raise DatasetError(f"{path}: holds no edges")
    if asked.relations and "edge_type" not in graph.fields:
        raise DatasetError(f"{path}: no edge_type called {asked.relations!r}")
    splits = {mask: getattr(asked, mask.removesuffix("_mask")) for mask in MASKS}
    if any(splits.values()):
        graph.fields = {name: own for name, own in graph.fields.items() if name not in MASKS}
    beside = {"x": asked.features, "y": asked.labels, **splits}
    graph.fields |= {name: read_alone(file, room) for name, file in beside.items() if file}
    return graph


def _size(asked: Import, graph: Graph) -> None:
    """Find the number of nodes and the first id.

    Raises:
        DatasetError: sizes contradict each other or cannot be found.
    """
    claims: dict[str, int | None] = {str(asked.path): graph.nodes or None}
    if x := graph.fields.get("x"):
        _, width = expect(x.array, x.where, "biufcV", None, None).shape
        if x.array.dtype.name not in _FEATURE_DTYPES or not x.array.size:
            raise DatasetError(
                f"{x.where}: holds {x.array.dtype} {x.array.shape}, expected rows of dtype "
                f"{', '.join(_FEATURE_DTYPES)}"
            )
        if asked.dim not in (None, width):
            raise DatasetError(f"{x.where}: rows of width {width}, but dim says {asked.dim}")
        claims[x.where] = len(x.array)
    if y := graph.fields.get("y"):
        y.array = y.array.reshape(-1) if y.array.shape[1:] == (1,) else y.array
        claims[y.where] = len(expect(y.array, y.where, "biuf", None))
    try:
        graph.nodes = same_nodes(claims) or 0
    except ValueError as error:
        raise DatasetError(str(error)) from error
    ends = graph.source, graph.target
    low, high = min(int(ids.min()) for ids in ends), max(int(ids.max()) for ids in ends)
    if graph.first is None and low > 0:
        raise DatasetError(
            f"{asked.path}: its smallest id is {low}: from which number do they count? Say "
            "--zero-based or --one-based"
        )
    graph.first = graph.first or 0
    nodes = graph.nodes or high + 1 - graph.first
    graph.nodes = min(max(1, nodes), LARGEST_ID + 1)  # larger ids are refused later
    width = (asked.dim or DIM) * np.dtype(asked.dtype).itemsize
    named, invented = 2 * len(graph.source), graph.nodes * width
    if not (x or y) and invented > _INVENTED_BYTES and graph.nodes > _GAPS * named:
        raise DatasetError(
            f"{asked.path}: by its ids it has {graph.nodes:,} nodes, of which its edges name "
            f"{named:,} at most, and features would be invented for all, {invented:,} bytes; "
            f"{_NUMBER}"
        )


def _write(asked: Import, graph: Graph, folder: Path, progress: Progress) -> None:
    """Write the given arrays, generate the missing ones, and note which is which."""
    own, nodes, both_ways = graph.fields, graph.nodes, bool(asked.undirected)
    x, y = own.get("x"), own.get("y")
    dim, dtype = (x.array.shape[1], x.array.dtype.name) if x else (asked.dim or DIM, asked.dtype)
    kinds, relations = _kinds(own.get("edge_type"), both_ways)
    classes = _classes(y, asked.classes) if y else None
    splits = _splits(graph, classes) if own.keys() & set(MASKS) else None
    count = asked.classes or (CLASSES if classes is None else int(classes.max()) + 1)
    shares = " / ".join(f"{share:.0%}" for share in SPLIT_SHARES)
    drawn = f"drawn at random from labelled nodes that have in-neighbours, {shares}"
    spec = DatasetSpec(
        name=asked.name,
        scale=1.0,
        num_nodes=nodes,
        num_edges=len(graph.source) * (1 + both_ways),
        feature_dim=dim,
        feature_dtype=dtype,
        num_classes=count,
        source=f"{IMPORTED}{asked.path.name}",
        licence="that of the imported file",
        relations=relations,
        notes=(
            f"ids counted from {graph.first} in the file",
            "undirected, stored both ways" if both_ways else "directed",
            "repeated edges merged, self-loops kept",
            _origin("features", own, ("x",), "random, nothing can be learnt from them"),
            _origin("labels", own, ("y",), f"{count} random classes, which nothing can learn"),
            _origin("splits", own, MASKS, drawn),
            graph.took,
        ),
    )
    check_free_space(folder.parent, folder_bytes(spec), asked.name)  # before arrays take memory
    sources = _number(graph, graph.source, f"{asked.path}: sources")
    targets = _number(graph, graph.target, f"{asked.path}: targets")
    graph.source = graph.target = np.empty(0, np.int32)  # frees a second copy of the edges
    keys = edge_keys([(sources, targets)], len(sources), nodes, "edges", both_ways)
    del sources, targets
    if classes is None:
        classes = generated.random_labels(nodes, count, SEED)
    try:
        with DatasetWriter(folder, spec, progress) as writer:
            progress("sort edges", 0.0)
            degree = write_edges(writer, keys, kinds)
            del keys
            writer.write_labels(classes)
            writer.write_splits(*(splits or _drawn(np.where(classes >= 0, degree, 0))))
            made = generated.feature_rows(nodes, dim, dtype, SEED, progress)
            writer.write_features(x.array if x else made)
            writer.note_content()
    except BadArrayError as error:  # names a folder that is removed: name the user's file
        name = {"features": "x", "labels": "y"}.get(error.array, error.array.replace("ids", "mask"))
        where = own[name].where if name in own else array_path(folder, error.array)
        raise DatasetError(f"{where}: {error.what}") from error


def _origin(what: str, own: Mapping[str, Field], names: tuple[str, ...], invented: str) -> str:
    files = [Path(own[name].where).name for name in names if name in own]
    return f"{what} from {', '.join(files)}" if files else f"{what} INVENTED: {invented}"


def _kinds(given: Field | None, both_ways: bool) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return each edge's kind, a place in the names, and these; reverse edges get other kinds."""
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
        if len(set(relations)) < len(relations):
            raise DatasetError(f"{given.where}: has a kind with its inverse: say --directed")
    return kinds, relations


def _number(graph: Graph, ids: NDArray[Any], where: str) -> NDArray[np.int32]:
    """Return the nodes, from 0, that have these ids in the graph's file.

    Raises:
        DatasetError: an id is no node's; the message begins with ``where``.
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


def _classes(own: Field, told: int | None) -> NDArray[np.int64]:
    """Return classes ``[N]``, -1 for none, also from whole numbers as floats with NaN for none.

    Args:
        told: the number of classes, if the user gives it.

    Raises:
        DatasetError: a value is no class, every label is missing, or, without ``told``, a class
            below the largest never occurs.
    """
    values = own.array
    values = np.where(np.isnan(values), -1, values) if values.dtype.kind == "f" else values
    if (bad := (values < -1) | (values > LARGEST_ID) | (values != np.floor(values))).any():
        raise DatasetError(
            f"{own.where}: label {bad.argmax()} (from 0) is {values[bad][0]}, expected a class "
            "from 0 up, or -1 for none"
        )
    classes = values.astype(np.int64)
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


def _splits(graph: Graph, classes: NDArray[np.int64] | None) -> list[NDArray[Any]]:
    """Return the user's splits as nodes; a split that is not given is empty.

    Raises:
        DatasetError: an id is no node's, a node has no label, or the training split is empty.
    """
    found = []
    for mask in MASKS:
        given = graph.fields.get(mask, Field("the splits", np.empty(0, np.int32)))
        values, where = given.array, given.where
        truths = values.dtype.kind == "b"
        expect(values, where, "biu", graph.nodes if truths else None)
        # Ids differ from each other: as many zeros and ones as nodes are a mask too.
        truths |= len(values) == graph.nodes > 2 and not (values >> 1).any()
        found.append(np.flatnonzero(values) if truths else _number(graph, values, where))
        if not len(found[0]):
            raise DatasetError(f"{where}: no node to train on; say which with --train")
        if classes is not None and (bare := found[-1][classes[found[-1]] < 0]).size:
            raise DatasetError(f"{where}: node {bare[0]} (from 0) has no label")
    return found


def _drawn(eligible: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """Draw splits from the nodes whose value is above 0: labelled, and with in-neighbours."""
    if not (count := int(np.count_nonzero(eligible))):
        raise DatasetError("no labelled node has in-neighbours, so there is none to train on")
    train, val = (max(1, int(share * count)) for share in SPLIT_SHARES[:2])
    return generated.random_splits(eligible, (train, val, count), SEED)
