"""A graph ready for minibatch training, and the files in which it is kept.

A dataset folder holds seven ``.npy`` files and ``spec.json``, which is written last and read first.
Where each type of nodes has rows of a width of its own, there is a feature file a type.
The spec repeats the dtype, shape and length of every file, so that a file which was cut short or
belongs to another dataset is noticed before anything is mapped. It also holds a SHA-256 of its own
content, so that a damaged spec is never believed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

FORMAT_VERSION = 1
SPEC_FILE = "spec.json"
SPLITS = ("train", "val", "test")
#: The arrays of every graph, beside its features.
ARRAYS = ("indptr", "indices", "labels", *(f"{s}_ids" for s in SPLITS))
#: Remembers a full check that was passed.
MARKER = "checked.json"
#: The kind of each edge of a relational graph (datasets/relations.py).
RELATIONS_FILE = "relations.npy"
#: All that may lie in a dataset folder, beside its features.
_FILES = {
    SPEC_FILE,
    MARKER,
    RELATIONS_FILE,
    *(f"{a}.npy" for a in ARRAYS),
    "LICENSE.WordNet",
}
#: Length of the ``.npy`` headers that the writer makes: NumPy's own, and that of the feature table,
#: which is padded to a block of a disk, so that direct reads of its rows begin where blocks do. A
#: header that is rewritten for a longer array keeps its length. In folders of earlier versions
#: the table's is as short as the others'.
HEADER_BYTES, TABLE_HEADER_BYTES = 128, 4096
#: Of a feature file.
_FEATURES = re.compile(r"features(-\d+)?")


class DatasetError(ValueError):
    """A dataset that cannot be had, written or trusted; the message names the file and a remedy."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """A feature table, ``[rows, width]``, and the array that holds it; ``of``: the type of its
    nodes, empty where all nodes share the table."""

    array: str
    of: str
    rows: int
    width: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """What ``spec.json`` says of a dataset folder.

    ``source`` names where graph, features and labels come from. ``notes`` say in words what was
    done to them (undirected? self-loops? generated features?). Of a relational graph ``relations``
    names the kinds of edges, and ``node_types`` those of nodes, with how many there are of each, in
    the order of their numbers. With ``widths``, one for each of these types, every type has a table
    of its own, and ``feature_dim`` is the widest. With ``hashed`` the feature file is
    one hole of the right length: each row follows from its number, and whoever wants the table has
    it made in memory (:func:`gatherbench.datasets.hash_draw.fill`).

    Raises:
        ValueError: there are not as many widths as types, one is below 1, or the types do not have
            all nodes.
    """

    name: str
    scale: float
    num_nodes: int
    num_edges: int
    feature_dim: int
    feature_dtype: str
    num_classes: int
    source: str
    licence: str
    notes: tuple[str, ...] = ()
    format_version: int = FORMAT_VERSION
    hashed: bool = False
    relations: tuple[str, ...] = ()
    node_types: tuple[tuple[str, int], ...] = ()
    widths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        counts = [count for _, count in self.node_types]
        alike = len(self.widths) == len(counts) and sum(counts) == self.num_nodes
        if self.widths and not (alike and min(self.widths) > 0):
            raise ValueError(f"widths {self.widths} are not those of {self.node_types}")

    @property
    def row_bytes(self) -> int:
        """Bytes of one feature row; see :attr:`table`."""
        return self.table.row_bytes

    @property
    def table(self) -> TableShape:
        """The feature table that all nodes share.

        Raises:
            DatasetError: they share none.
        """
        if self.widths:
            raise DatasetError(
                f"{self.name}: each type of nodes has its own table, and this needs one for all"
            )
        return self.tables[0]

    @property
    def tables(self) -> tuple[TableShape, ...]:
        """The feature tables in the order of their nodes: one, or one a type."""
        size = np.dtype(self.feature_dtype).itemsize
        if not self.widths:
            shape = self.num_nodes, self.feature_dim, self.feature_dim * size
            return (TableShape("features", "", *shape),)
        each = enumerate(zip(self.node_types, self.widths, strict=True))
        return tuple(
            TableShape(f"features-{number}", *of, width, width * size)
            for number, (of, width) in each
        )

    @property
    def arrays(self) -> tuple[str, ...]:
        """The arrays of such a graph."""
        return (*ARRAYS[:2], *(table.array for table in self.tables), *ARRAYS[2:])

    @property
    def table_bytes(self) -> int:
        """Bytes of all feature tables."""
        return sum(table.rows * table.row_bytes for table in self.tables)


@dataclass(frozen=True, slots=True, eq=False)
class GraphDataset:
    """A graph in compressed sparse column form: column ``v`` lists the in-neighbours of ``v``.

    The arrays are read-only memory maps of the folder's ``.npy`` files.

    Attributes:
        spec: sizes, names, provenance.
        folder: where the files lie.
        indptr: int64 ``[N + 1]``; the in-neighbours of ``v`` are
            ``indices[indptr[v]:indptr[v + 1]]``.
        indices: int32 or int64 ``[E]``.
        tables: the features, ``[N, D]``; or one table a type, ``[N_t, D_t]``, of nodes that follow
            one another.
        labels: int64 ``[N]``; -1 where a node has no label.
        train_ids, val_ids, test_ids: int64, disjoint.
    """

    spec: DatasetSpec
    folder: Path
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32] | NDArray[np.int64]
    labels: NDArray[np.int64]
    train_ids: NDArray[np.int64]
    val_ids: NDArray[np.int64]
    test_ids: NDArray[np.int64]
    tables: tuple[NDArray[np.generic], ...]

    @classmethod
    def of(cls, spec: DatasetSpec, folder: Path, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Of the arrays that ``spec.arrays`` names."""
        graph = {array: arrays[array] for array in ARRAYS}
        tables = tuple(arrays[table.array] for table in spec.tables)
        return cls(spec=spec, folder=folder, tables=tables, **graph)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def features(self) -> NDArray[np.generic]:
        """The table ``[N, D]`` that all nodes share; see :attr:`DatasetSpec.table`."""
        return self.tables[self.spec.tables.index(self.spec.table)]


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """What the spec says of one ``.npy`` file."""

    dtype: str
    shape: tuple[int, ...]
    bytes: int

    @classmethod
    def of(cls, array: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> ArrayFile:
        """The file of such an array; ``bytes`` counts the header too."""
        return cls(dtype.str, shape, header_bytes(array) + math.prod(shape) * dtype.itemsize)


def header_bytes(array: str) -> int:
    """Length of the header that the writer gives an array."""
    return TABLE_HEADER_BYTES if _FEATURES.fullmatch(array) else HEADER_BYTES


def array_path(folder: Path, array: str) -> Path:
    """Where an array of ``DatasetSpec.arrays`` lies."""
    return folder / f"{array}.npy"


def index_dtype(num_nodes: int) -> np.dtype[Any]:
    """The narrowest dtype of ``indices``: int32 while every node id fits."""
    return np.dtype(np.int32 if num_nodes <= np.iinfo(np.int32).max else np.int64)


def folder_bytes(spec: DatasetSpec) -> int:
    """Bytes that a folder of these sizes takes on disk if every node is in a split."""
    graph = 8 * (spec.num_nodes + 1) + index_dtype(spec.num_nodes).itemsize * spec.num_edges
    per_node = 8 + 8  # a label, and an id in one of the splits
    headers = sum(map(header_bytes, spec.arrays)) + 4096  # and a few KB for the spec
    table = 0 if spec.hashed else spec.table_bytes
    return graph + table + per_node * spec.num_nodes + headers


def not_ours(folder: Path) -> str:
    """Why a folder may be neither replaced nor removed; empty if it may.

    A damaged dataset may: a folder of our files with a spec of ours in it.
    """
    try:
        spec = folder / SPEC_FILE
        content = json.loads(spec.read_bytes()) if spec.is_file() else {}
        foreign = sorted(path.name for path in folder.iterdir() if not _is_ours(path))
    except (OSError, ValueError):
        content, foreign = {}, []
    if not isinstance(content, dict) or content.keys() != {"spec", "files", "sha256"}:
        return f"{folder}: holds no {SPEC_FILE} of gatherbench, so nothing there is touched"
    if foreign:
        return f"{folder}: {foreign[0]} in it is no part of a dataset: move it away first"
    return ""


def _is_ours(path: Path) -> bool:
    features = path.suffix == ".npy" and _FEATURES.fullmatch(path.stem)
    return path.name in _FILES or bool(features)


def remedy(folder: Path) -> str:
    """What to do about a broken folder, as the end of a sentence."""
    from gatherbench.datasets.registry import is_made  # which builds on this module

    if folder.exists() and not_ours(folder):
        return "move the folder away, or choose another name"
    name = folder.name.partition("@")[0]
    if not is_made(name):
        return f"import it again: `gatherbench datasets import FILE --name {name} --force`"
    return f"make it anew with `{_prepare(folder)} --force`"


def _prepare(folder: Path) -> str:
    name, _, scale = folder.name.partition("@")
    option = f" --scale {scale}" if scale else ""
    return f"gatherbench datasets prepare {name}{option}"


def write_spec(folder: Path, spec: DatasetSpec, files: dict[str, ArrayFile]) -> None:
    """Write ``spec.json``, sealed with its checksum."""
    content: dict[str, Any] = {
        "spec": dataclasses.asdict(spec),
        "files": {array: dataclasses.asdict(file) for array, file in files.items()},
    }
    content["sha256"] = _digest(content)
    (folder / SPEC_FILE).write_text(json.dumps(content, indent=2) + "\n")


def read_spec(folder: Path) -> tuple[DatasetSpec, dict[str, ArrayFile]]:
    """Read ``spec.json`` and believe it only if it is whole.

    Raises:
        DatasetError: no dataset folder, another format version, or a damaged spec.
    """
    path = folder / SPEC_FILE
    if not folder.is_dir():
        raise DatasetError(f"{folder}: no such dataset folder; make it with `{_prepare(folder)}`")
    if not path.is_file():
        raise DatasetError(
            f"{path}: missing, so the folder was never finished or is no dataset; {remedy(folder)}"
        )
    try:
        content = json.loads(path.read_bytes())
        seal, fields = content.pop("sha256"), content["spec"]
        if (version := fields["format_version"]) != FORMAT_VERSION:
            raise ValueError(f"format version {version!r}; this program reads {FORMAT_VERSION}")
        if seal != _digest(content):
            raise ValueError("its checksum does not match: the file was damaged or edited")
        types = tuple((name, count) for name, count in fields.pop("node_types", ()))
        lists: dict[str, Any] = {
            key: tuple(fields.pop(key, ())) for key in ("notes", "relations", "widths")
        }
        spec = DatasetSpec(**{**fields, **lists, "node_types": types})
        files = {
            array: ArrayFile(entry["dtype"], tuple(entry["shape"]), entry["bytes"])
            for array, entry in content["files"].items()
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{path}: unreadable ({error}); {remedy(folder)}") from error
    return spec, files


def _digest(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
