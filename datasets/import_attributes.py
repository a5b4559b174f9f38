"""Features, labels and splits that come with an imported graph, in files or beside its edges."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets import generated
from gatherbench.datasets.asked import Import
from gatherbench.datasets.dataset import SPLITS, DatasetError
from gatherbench.datasets.import_arrays import MASKS, Own, array_of
from gatherbench.datasets.import_edges import LARGEST_ID, Graph
from gatherbench.datasets.import_kind import identify
from gatherbench.datasets.import_text import Role, look

#: Shares of the labelled nodes with in-neighbours in training, validation and test.
SPLIT_SHARES = (0.6, 0.2, 0.2)
#: What torch has a dtype of, and every path moves.
_FEATURE_DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")

_IDS = {"node", "nodeid", "nodeidx", "id", "nodes", "newid"}
_NODE = Role("node id", "--node", _IDS, 0, LARGEST_ID)
_CLASS = Role("class", "--label", {"label", "labels", "class", "classid", "y", "target"}, -1)


def own_files(asked: Import) -> dict[str, Own]:
    """What the user's files hold, by the names of PyG's ``Data``: ``x``, ``y``, ``train_mask``, …

    Raises:
        DatasetError: a file that cannot be read.
    """
    own = {}
    if asked.features is not None:
        own["x"] = Own(asked.features, "", array_of(asked.features))
        check_features(own["x"])
    if asked.labels is not None:
        own["y"] = _listed(asked.labels, [_NODE, _CLASS], [asked.node, asked.label], asked)
    for split, mask in zip(SPLITS, MASKS, strict=True):
        if (file := getattr(asked, split)) is not None:
            own[mask] = _listed(file, [_NODE], [asked.node.lstrip("0")], asked)
    return own


def _listed(path: Path, roles: list[Role], told: list[str], asked: Import) -> Own:
    """Classes, of nodes or of one after the other; or ids; from an array or columns of text."""
    if identify(path) != "text":
        return Own(path, "", array_of(path))
    table = look(path, asked.header)
    if table.doubt and table.width > 1:
        raise DatasetError(f"{path}: {table.doubt}")
    if len(roles) > 1 and (table.width == 1 or told[0] == "0"):  # line k is node k
        roles, told = roles[1:], told[1:]
    runs = table.read(roles, table.choose(roles, told if table.width > 1 else [""]))
    cut = [np.concatenate([np.empty(0, np.int64), *run]) for run in zip(*runs, strict=True)]
    cut = cut or [np.empty(0, np.int64)] * len(roles)
    return Own(path, "", cut[-1], cut[0] if len(roles) > 1 else None, table.doubt)


def check_features(own: Own) -> None:
    """Refuse what is no table ``[N, D]`` of a dtype that torch has.

    Its values are checked when the dataset is opened, as those of every dataset.

    Raises:
        DatasetError: naming the file.
    """
    table = own.array
    if len(table.shape) != 2 or 0 in table.shape or table.dtype.name not in _FEATURE_DTYPES:
        raise own.refuse(f"numbers of shape [N, D], of dtype {', '.join(_FEATURE_DTYPES)}")


def classes_of(graph: Graph, own: Own, told: int | None) -> NDArray[np.int64]:
    """Classes ``[N]``, -1 for none, from labels ``[N]`` or ``[N, 1]`` or those of some ids.

    Whole numbers of a float dtype are taken, NaN for none.

    Args:
        told: how many classes there are, where it was told.

    Raises:
        DatasetError: another shape, a negative class, two labels of a node, no label at all, or
            classes of which some never occur, unless ``told``.
    """
    labels, nodes = own.array, graph.nodes
    shapes = ((len(own.ids),),) if own.ids is not None else ((nodes,), (nodes, 1))
    if own.doubt and labels.shape not in shapes:
        raise DatasetError(f"{own.where}: {own.doubt}")
    if labels.shape not in shapes or labels.dtype.kind not in "biuf":
        raise own.refuse(f"whole numbers of shape [{nodes}], -1 for a node without a class")
    values = own.read().reshape(-1)
    values = np.where(np.isnan(values), -1, values) if values.dtype.kind == "f" else values
    if (bad := (values < -1) | (values > LARGEST_ID) | (values != np.floor(values))).any():
        raise DatasetError(
            f"{own.where}: label {bad.argmax()} (from 0) is {values[bad][0]}, expected a class "
            "from 0 up, or -1 for none"
        )
    classes = values.astype(np.int64)
    if own.ids is not None:
        given, at = classes, graph.number(own.ids, own.where)
        classes = np.full(nodes, -1, np.int64)
        classes[at] = given
        if (differ := classes[at] != given).any():
            raise DatasetError(f"{own.where}: gives node {own.ids[differ][0]} two labels")
    occur = np.unique(classes[classes >= 0])
    if not len(occur):
        raise DatasetError(f"{own.where}: no node has a label: leave it out, and they are invented")
    if told is not None and told <= occur[-1]:
        raise DatasetError(f"{own.where}: has class {occur[-1]}, and --classes says {told}")
    if told is None and len(occur) <= occur[-1]:
        never = np.setdiff1d(np.arange(min(int(occur[-1]), len(occur) + 1)), occur)
        signs = "; -1 is no class: are these -1 and 1 two?" if occur.tolist() == [1] else ""
        raise DatasetError(
            f"{own.where}: the largest label is {occur[-1]}, and {len(occur)} different ones occur"
            f", class {never[0]} never{signs}; say --classes {occur[-1] + 1} if all are meant, or "
            "number those that occur from 0 (numpy.unique(labels, return_inverse=True) does)"
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
    if own.doubt:
        raise DatasetError(f"{own.where}: {own.doubt}")
    return graph.number(values, own.where)


def random_splits(
    eligible: NDArray[np.int64], seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Splits by :data:`SPLIT_SHARES` among the nodes whose ``eligible`` ``[N]`` is not 0.

    Raises:
        DatasetError: there is none.
    """
    count = int(np.count_nonzero(eligible))
    if not count:
        raise DatasetError("no labelled node has in-neighbours, so there is none to train on")
    train, val = (max(1, int(share * count)) for share in SPLIT_SHARES[:2])
    return generated.random_splits(eligible, (train, val, count), seed)
