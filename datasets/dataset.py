"""Define a graph ready for minibatch training, and the files that keep it.

A dataset folder holds seven ``.npy`` files and ``spec.json``, which is written last and read first.
The spec repeats the dtype, shape and length of every file, so that a truncated or foreign file is
found before anything is mapped. It also holds a SHA-256 of its own content, which exposes a
damaged spec.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.outside import InputError, cleaned, parsed

FORMAT_VERSION = 1
SPEC_FILE = "spec.json"
SPLITS = ("train", "val", "test")
#: The arrays of every graph.
ARRAYS = ("indptr", "indices", "features", "labels", *(f"{s}_ids" for s in SPLITS))
#: The first words of ``source`` for an imported graph.
IMPORTED = "imported from "
#: The kind of each edge of a relational graph (datasets/edges.py).
RELATIONS_FILE = "relations.npy"
#: Every file that a dataset folder may contain (``checked.json`` is of earlier versions).
_FILES = {SPEC_FILE, RELATIONS_FILE, "LICENSE.WordNet", "checked.json"}
_FILES |= {f"{array}.npy" for array in ARRAYS}
#: Length of the ``.npy`` headers that the writer makes: NumPy's own, and the feature table's, which
#: is padded to a disk block so that direct reads of rows are aligned. (In folders of earlier
#: versions it is as short as the others.)
HEADER_BYTES, TABLE_HEADER_BYTES = 128, 4096


class DatasetError(InputError):
    """A dataset cannot be made, written or trusted; the message names the file and a remedy."""


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """The content of a dataset folder's ``spec.json``.

    ``source`` names the origin of graph, features and labels; ``notes`` describe what was changed.
    ``relations`` names the kinds of edges, ``node_types`` the types of nodes with their numbers, in
    order. With ``hashed`` the feature file is a hole of the right length: each row follows from its
    number, and :func:`gatherbench.datasets.draw.fill` makes them in memory.
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

    @property
    def row_bytes(self) -> int:
        return self.feature_dim * np.dtype(self.feature_dtype).itemsize

    @property
    def table_bytes(self) -> int:
        return self.num_nodes * self.row_bytes


@dataclass(frozen=True, slots=True, eq=False)
class GraphDataset:
    """A graph in compressed sparse column form: column ``v`` lists the in-neighbours of ``v``.

    The arrays are read-only memory maps of the folder's ``.npy`` files.

    Attributes:
        indptr, indices: int64 ``[N + 1]``, int32 or int64 ``[E]``; the in-neighbours of ``v`` are
            ``indices[indptr[v]:indptr[v + 1]]``.
        features, labels: ``[N, D]``; int64 ``[N]``, -1 for a node without a label.
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
    features: NDArray[np.generic]

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """The spec's entry for one ``.npy`` file."""

    dtype: str
    shape: tuple[int, ...]
    bytes: int  #: with the header

    @classmethod
    def of(cls, array: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> ArrayFile:
        return cls(dtype.str, shape, header_bytes(array) + math.prod(shape) * dtype.itemsize)


def header_bytes(array: str) -> int:
    """Return the length of the header that the writer gives an array."""
    return TABLE_HEADER_BYTES if array == "features" else HEADER_BYTES


def array_path(folder: Path, array: str) -> Path:
    return folder / f"{array}.npy"


def index_dtype(num_nodes: int) -> np.dtype[Any]:
    """Return the narrowest dtype of ``indices``: int32 if every node id fits, else int64."""
    return np.dtype(np.int32 if num_nodes <= np.iinfo(np.int32).max else np.int64)


def folder_bytes(spec: DatasetSpec) -> int:
    """Return the bytes that a folder of these sizes takes on disk if every node is in a split."""
    graph = 8 * (spec.num_nodes + 1) + index_dtype(spec.num_nodes).itemsize * spec.num_edges
    per_node = 8 + 8  # a label, and an id in one of the splits
    headers = sum(map(header_bytes, ARRAYS)) + 4096  # and a few KB for the spec
    table = 0 if spec.hashed else spec.table_bytes
    return graph + table + per_node * spec.num_nodes + headers


def not_ours(folder: Path) -> str:
    """Return why a folder must not be replaced or removed; empty if it may.

    A damaged dataset may be replaced: it has only a dataset's files, and a spec among them.
    """
    try:
        spec = folder / SPEC_FILE
        content = parsed(spec.read_bytes()) if spec.is_file() else {}
        foreign = sorted(path.name for path in folder.iterdir() if path.name not in _FILES)
    except (OSError, ValueError):
        content, foreign = {}, []
    if not isinstance(content, dict) or content.keys() != {"spec", "files", "sha256"}:
        return f"{folder}: holds no {SPEC_FILE} of gatherbench, so nothing there is touched"
    if foreign:
        return f"{folder}: {foreign[0]} in it is no part of a dataset: move it away first"
    return ""


def remedy(folder: Path) -> str:
    """Return the remedy for a broken folder, as the end of a sentence."""
    if folder.exists() and not_ours(folder):
        return "move the folder away, or choose another name"
    with contextlib.suppress(OSError):
        if f'"source": "{IMPORTED}'.encode() in (folder / SPEC_FILE).read_bytes():
            return import_again(folder.name)
    return f"make it anew with `{_prepare(folder)} --force`"


def import_again(name: str) -> str:
    """Return the remedy for a broken imported graph, as the end of a sentence."""
    return f"import it again: `gatherbench datasets import FILE --name {name} --force`"


def _prepare(folder: Path) -> str:
    return f"gatherbench datasets prepare {folder.name.replace('@', ' --scale ')}"


def write_spec(folder: Path, spec: DatasetSpec, files: dict[str, ArrayFile]) -> None:
    """Write ``spec.json``, sealed with its checksum."""
    content: dict[str, Any] = {
        "spec": dataclasses.asdict(spec),
        "files": {array: dataclasses.asdict(file) for array, file in files.items()},
    }
    content["sha256"] = _digest(content)
    (folder / SPEC_FILE).write_text(json.dumps(content, indent=2) + "\n")


def read_spec(folder: Path) -> tuple[DatasetSpec, dict[str, ArrayFile]]:
    """Read ``spec.json``; a ``DatasetError`` for no dataset, another version, a damaged spec."""
    path = folder / SPEC_FILE
    if not folder.is_dir():
        raise DatasetError(f"{folder}: no such dataset folder; make it with `{_prepare(folder)}`")
    if not path.is_file():
        fault = "missing, so the folder was never finished or is no dataset"
        raise DatasetError(f"{path}: {fault}; {remedy(folder)}")
    try:
        content = parsed(path.read_bytes())
        seal, fields = content.pop("sha256"), content["spec"]
        if (version := fields["format_version"]) != FORMAT_VERSION:
            raise ValueError(f"format version {version!r}; this program reads {FORMAT_VERSION}")
        if seal != _digest(content):
            raise ValueError("its checksum does not match: the file was damaged or edited")
        fields = cleaned(fields)  # names of files are in it
        if fields.pop("widths", ()):
            raise ValueError("each type of nodes has a table of its own, which is no longer read")
        types = tuple((name, count) for name, count in fields.pop("node_types", ()))
        lists: dict[str, Any] = {key: tuple(fields.pop(key, ())) for key in ("notes", "relations")}
        spec = DatasetSpec(**fields, **lists, node_types=types)
        files = {
            array: ArrayFile(entry["dtype"], tuple(entry["shape"]), entry["bytes"])
            for array, entry in content["files"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatasetError(f"{path}: unreadable ({error}); {remedy(folder)}") from error
    return spec, files


def _digest(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
