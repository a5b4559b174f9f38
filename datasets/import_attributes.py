"""Features, labels and splits that come with an imported graph, in files or beside its edges."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets import generated
from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.import_arrays import ARRAY_FILES, MASKS, Own, array_of
from gatherbench.datasets.import_edges import LARGEST_ID, Graph
from gatherbench.datasets.import_text import Column, first_record, numbers, opened

#: A model's last layer is as wide as there are classes. This many are never too many; nor are ten
#: times as many as occur, or a tenth of the labelled nodes.
_CLASSES = 1000
#: Shares of the labelled nodes with in-neighbours in training, validation and test.
SPLIT_SHARES = (0.6, 0.2, 0.2)

_ID = Column("node id", 0, LARGEST_ID, ("node", "node_id", "nodeid", "id", "nodes"))
_CLASS = Column("class", -1, 2**62, ("label", "class", "y", "target", "labels"))


def own_files(
    features: Path | None, labels: Path | None, splits: Mapping[str, Path | None]
) -> dict[str, Own]:
    """What the user's files hold, by the names of PyG's ``Data``: ``x``, ``y``, ``train_mask``, …

    Raises:
        DatasetError: a file that cannot be read.
    """
    own = {}
    if features is not None:
        own["x"] = Own(features, "", array_of(features))
        check_features(own["x"])
    if labels is not None:
        arrays = labels.suffix in ARRAY_FILES
        ids, classes = (None, array_of(labels)) if arrays else read_labels(labels)
        own["y"] = Own(labels, "", classes, ids)
    for split, file in splits.items():
        if file is not None:
            arrays = file.suffix in ARRAY_FILES
            ids = array_of(file) if arrays else _joined(numbers(file, [_ID]), 1)[:, 0]
            own[f"{split}_mask"] = Own(file, "", ids)
    return own


def check_features(own: Own) -> None:
    """Refuse what is no table ``[N, D]`` of floats or whole numbers.

    Its values are checked when the dataset is opened, as those of every dataset.

    Raises:
        DatasetError: naming the file.
    """
    table = own.array
    if table.dtype.kind == "V":  # what ml_dtypes' bfloat16 is read back as
        raise DatasetError(
            f"{own.where}: holds {table.dtype}, which may be bfloat16: NumPy has none. Features as "
            "float16 move the same bytes"
        )
    if len(table.shape) != 2 or 0 in table.shape or table.dtype.kind not in "fiu":
        raise own.refuse("numbers of shape [N, D]")


def read_labels(path: Path) -> tuple[NDArray[np.int64] | None, NDArray[np.int64]]:
    """Read labels from text: node ids, or ``None`` where there is one class a line; and classes.

    Lines are ``class`` or ``node,class``, with ``#`` comments. A ``.csv`` or ``.tsv`` may begin
    with a line that names its columns.

    Raises:
        DatasetError: naming the first line that holds no class.
    """
    with opened(path) as (stream, _):
        begin, first = first_record(stream)
        pairs = len(re.findall(rb"[^\s,;]+", first)) > 1
        if not pairs and path.suffix in (".csv", ".tsv"):  # pandas writes a gap as an empty line
            text = first + stream.read()
            if gap := re.search(rb"\n([ \t\r]*\n)\s*\S", text):
                line = begin + text.count(b"\n", 0, gap.start(1)) + 1
                raise DatasetError(
                    f"{path}: line {line}: is empty: write -1 for a node without a class"
                )
    columns = [_ID, _CLASS] if pairs else [_CLASS]
    table = _joined(numbers(path, columns), len(columns))
    return (table[:, 0] if pairs else None), table[:, -1]


def _joined(runs: Iterable[NDArray[np.int64]], width: int) -> NDArray[np.int64]:
    return np.concatenate([np.empty((0, width), np.int64), *runs])


def classes_of(graph: Graph, own: Own) -> NDArray[np.int64]:
    """Classes ``[N]``, -1 for none, from labels ``[N]`` or ``[N, 1]`` or those of some ids.

    Raises:
        DatasetError: another shape, a negative class, two labels of a node, or numbers that are no
            classes.
    """
    labels, nodes = own.array, graph.nodes
    shapes = ((len(own.ids),),) if own.ids is not None else ((nodes,), (nodes, 1))
    if labels.shape not in shapes or labels.dtype.kind not in "iu":
        raise own.refuse(f"whole numbers of shape [{nodes}], -1 for a node without a class")
    classes = own.read().reshape(-1).astype(np.int64)
    if own.ids is not None:
        given, at = classes, graph.number(own.ids, own.where)
        classes = np.full(nodes, -1, np.int64)
        classes[at] = given
        if (differ := classes[at] != given).any():
            raise DatasetError(f"{own.where}: gives node {own.ids[differ][0]} two labels")
    if (bad := classes < -1).any():
        raise DatasetError(
            f"{own.where}: label {bad.argmax()} (from 0) is {classes[bad][0]}, expected a class "
            "from 0 up, or -1 for none"
        )
    largest = int(classes.max(initial=0))
    if largest >= _CLASSES:
        given = classes[classes >= 0]
        occur = len(np.unique(given))
        if largest >= _CLASSES + min(10 * occur, len(given) // 10):
            raise DatasetError(
                f"{own.where}: the largest label is {largest}, and {occur} different ones occur: a "
                "model would be made for as many classes as the largest says; number those that "
                "occur from 0 (numpy.unique(labels, return_inverse=True) does)"
            )
    return classes


def splits_of(
    graph: Graph, classes: NDArray[np.int64], own: Mapping[str, Own]
) -> list[NDArray[np.int64]] | None:
    """The user's splits as nodes; ``None`` if there are none, empty for one that is not given.

    Raises:
        DatasetError: a node that is none, has no label, or is named twice; nothing to train on.
    """
    if not any(mask in own for mask in MASKS):
        return None
    taken = np.zeros(len(classes), bool)
    found = []
    for mask in MASKS:
        where = own[mask].where if mask in own else "the splits"
        ids = _split(graph, own[mask]) if mask in own else np.empty(0, np.int64)
        if mask == MASKS[0] and not len(ids):
            raise DatasetError(f"{where}: no node to train on; say which with --train")
        if (bare := ids[classes[ids] < 0]).size:
            raise DatasetError(f"{where}: node {bare[0]} (from 0) has no label")
        if taken[ids].any() or len(np.unique(ids)) < len(ids):
            raise DatasetError(f"{where}: names a node twice, or one of another split")
        taken[ids] = True
        found.append(ids)
    return found


def _split(graph: Graph, own: Own) -> NDArray[np.int64]:
    shape, dtype, nodes = own.array.shape, own.array.dtype, graph.nodes
    if len(shape) != 1 or dtype.kind not in "biu" or (dtype.kind == "b" and shape != (nodes,)):
        raise own.refuse(f"node ids, or a mask of shape [{nodes}]")
    values = own.read()
    # Ids are different: this many zeros and ones are a mask too.
    if values.dtype.kind == "b" or (len(values) == nodes > 2 and not (values >> 1).any()):
        return np.flatnonzero(values)
    return graph.number(values, own.where)


def random_splits(
    eligible: NDArray[np.int64], seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Splits by :data:`SPLIT_SHARES` among the nodes whose ``eligible`` ``[N]`` is not 0."""
    count = int(np.count_nonzero(eligible))
    train, val = (max(1, int(share * count)) for share in SPLIT_SHARES[:2])
    return generated.random_splits(eligible, (train, val, count), seed)
