"""What a graph's file, of any kind, and the files beside it hold, by the names of PyG's ``Data``.

In MatrixMarket, the exchange format of the SuiteSparse collection, the entry in row ``i`` and
column ``j`` is the edge ``i -> j``.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from numpy.typing import NDArray

from gatherbench.datasets.arrays import expect, explained, mapped, unpacked
from gatherbench.datasets.asked import Import
from gatherbench.datasets.dataset import SPLITS, DatasetError
from gatherbench.datasets.files import check_memory
from gatherbench.datasets.import_kind import Field, Graph, identify
from gatherbench.datasets.import_text import read_text
from gatherbench.datasets.import_torch import as_array, load_fields

#: Bytes of memory an edge takes while it is read and sorted; more where each is stored both ways.
EDGE_BYTES = 16
#: The splits by their names in PyG's ``Data``, and all that is taken of one beside the edges.
MASKS = tuple(f"{split}_mask" for split in SPLITS)
_NAMES = ("", "edge_index", "edge_type", "num_nodes", "x", "y", *MASKS)


def read_graph(asked: Import, room: Path) -> Graph:
    """Read a graph's file and the files beside it, which take the place of what it has itself.

    Args:
        room: a folder for what is unpacked.

    Raises:
        DatasetError: a bad file, no edges, or more than memory can hold; or what is what cannot be
            told.
    """
    beside = {"x": asked.features, "y": asked.labels}
    beside |= {mask: getattr(asked, split) for mask, split in zip(MASKS, SPLITS, strict=True)}
    given = {name: _array(path, room) for name, path in beside.items() if path}
    kind = identify(asked.path)
    if kind == "text":
        graph = read_text(asked)
    else:
        graph = _matrix(asked.path) if kind == "matrix" else _arrays(asked, room)
    if not len(graph.source):
        raise DatasetError(f"{asked.path}: holds no edges")
    if asked.relations and "edge_type" not in graph.fields:
        raise DatasetError(f"{asked.path}: no edge_type called {asked.relations!r}")
    if given.keys() & set(MASKS):
        graph.fields = {name: own for name, own in graph.fields.items() if name not in MASKS}
    graph.fields |= given
    return graph


def _array(path: Path, room: Path) -> Field:
    fields, rest = _fields_of(path, room)
    if "" not in fields:
        raise DatasetError(f"{path}: expected one array, found {_listed([*fields, *rest])}")
    return fields[""]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:9]) or "none"


def _matrix(path: Path) -> Graph:
    """A square sparse matrix; values are ignored, symmetric entries count both ways."""
    from scipy.io import mminfo, mmread

    with explained(f"{path}: cannot be read as MatrixMarket", "fetch or write it again"):
        content = path.read_bytes()
        content = b"%" * (content[:2] != b"%%") + content  # the network repository has one
        rows, columns, entries, kind, _, symmetry = mminfo(io.BytesIO(content))
        if kind != "coordinate" or rows != columns:
            raise DatasetError(
                f"{path}: a graph is a square matrix in coordinates, this is {rows} by {columns}, "
                f"{kind}"
            )
        check_memory(2 * EDGE_BYTES * entries * (1 + (symmetry != "general")), f"{path}: its edges")
        source, target = mmread(io.BytesIO(content), spmatrix=False).coords
    return Graph(source, target, {}, f"{path.name}: MatrixMarket, {symmetry}", nodes=rows)


def _arrays(asked: Import, room: Path) -> Graph:
    fields, rest = _fields_of(asked.path, room)
    ends = fields.pop("edge_index", None) or fields.pop("", None)
    if ends is None:
        raise DatasetError(
            f"{asked.path}: holds {_listed([*fields, *rest])}; expected edge_index (of a SciPy "
            "matrix, numpy.save('edges.npy', matrix.nonzero()) saves it)"
        )
    array = ends.array.T if ends.array.ndim == 2 and len(ends.array) != 2 else ends.array
    count = expect(array, ends.where, "iu", 2, None).shape[1]
    check_memory(EDGE_BYTES * count, f"{ends.where}: its edges")
    if "edge_type" in fields and asked.relations == "edge_type":
        expect(fields["edge_type"].array, fields["edge_type"].where, "iu", count)
    elif fields.pop("edge_type", None):
        rest.append("edge_type")
    nodes = fields.pop("num_nodes", None)
    took = f"{asked.path.name}: edge_index{'; not used: ' * bool(rest)}{', '.join(rest)}"
    graph = Graph(array[0], array[1], fields, took, int(bool(asked.one_based)))
    if nodes:
        graph.nodes = int(expect(nodes.array.reshape(-1), nodes.where, "iu", 1)[0])
    return graph


def _fields_of(path: Path, room: Path) -> tuple[dict[str, Field], list[str]]:
    """What a file of arrays holds of a graph, by PyG's names, and the names of the rest.

    The array of a ``.npy``, or a tensor that stands alone, has an empty name.

    Raises:
        DatasetError: it is no file of arrays, is damaged, or could run code.
    """
    held: dict[str, Callable[[], NDArray[Any]]]
    kind = identify(path)
    if kind == "npy":
        held = {"": partial(mapped, path)}
    elif kind == "folder":
        held = {file.stem: partial(mapped, file) for file in sorted(path.glob("*.npy"))}
    elif kind == "npz":
        with ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
        held = {name: partial(unpacked, path, name, room) for name in names}
    elif kind == "torch":
        fields = load_fields(path).items()
        held = {name: partial(as_array, value, f"{path}, {name}") for name, value in fields}
    else:
        raise DatasetError(
            f"{path}: is text, expected an array: numpy.save it (docs/guide.md shows how)"
        )
    taken = {
        name: Field(f"{path}, {name}" if name else str(path), make())
        for name, make in held.items()
        if name in _NAMES
    }
    return taken, [name for name in held if name not in _NAMES]
