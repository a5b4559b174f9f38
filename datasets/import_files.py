"""Identify a graph's file, and further files with it, by their content, and read them.

File names are ignored. In MatrixMarket, the exchange format of the SuiteSparse collection, the
entry in row ``i`` and column ``j`` is the edge ``i -> j``.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from numpy.typing import NDArray

from gatherbench.datasets.arrays import expect, explained, mapped, unpacked
from gatherbench.datasets.asked import Import
from gatherbench.datasets.dataset import SPLITS, DatasetError
from gatherbench.datasets.files import check_memory
from gatherbench.datasets.import_torch import as_array, load_fields

#: Bytes of memory an edge takes while it is read and sorted; more if each is stored both ways.
EDGE_BYTES = 16
#: PyG's names of the splits in a ``Data``, and of all of its fields that are imported.
MASKS = tuple(f"{split}_mask" for split in SPLITS)
_NAMES = ("", "edge_index", "edge_type", "num_nodes", "x", "y", *MASKS)

_CSV = "write it as text first: pandas' to_csv(index=False)"
_EDGES = "networkx reads it, and networkx.write_edgelist(graph, FILE, data=False) writes edges"
_ARRAYS = "numpy.save its arrays"
#: First bytes of unsupported files, their kinds, and the remedies.
_OTHERS = (
    (rb"\x1f\x8b", "gzip-compressed", "gunzip it first"),
    (rb"BZh\d", "bz2-compressed", "bunzip2 it first"),
    (rb"\xfd7zXZ", "xz-compressed", "unxz it first"),
    (rb"\x28\xb5\x2f\xfd|\x04\x22\x4d\x18|7z\xbc\xaf|Rar!", "compressed", "unpack it first"),
    (rb"PAR1|ORC|Obj\x01|ARROW1|FEA1|\xff{4}", "a Parquet, ORC, Avro or Arrow file", _CSV),
    (rb"\x89HDF|MATLAB [57]\.", "a MATLAB or HDF5 file", f"scipy.io.loadmat or h5py; {_ARRAYS}"),
    (rb"\xd0\xcf\x11\xe0", "an Excel workbook", "save the sheet as CSV"),
    (
        rb"\xff\xfe|\xfe\xff|[^\0]\0[^\0]\0|\0[^\0]\0[^\0]",
        "UTF-16 text",
        "iconv -f UTF-16 -t UTF-8 converts it",
    ),
    (rb"\x80[\x01-\x05].{0,9}l\xfc\x9cF", "of torch.save's old form", "torch.save it again"),
    (rb"\x80[\x01-\x05]", "a pickle, which could run code", _ARRAYS),
    (rb"\s*[<{\[]", "XML (GraphML, GEXF), RDF or JSON", _EDGES),
    (rb"(?i)\s*(\*(vertices|network)|nodedef>|dl\s)", "a Pajek, GDF or UCINET file", _EDGES),
    (rb"(?i)\s*((strict\s|di)?\s*graph\b[^\n]*[\[{\n]|creator\b)", "a GML or DOT file", _EDGES),
    (rb"(c\b[^\n]*\n)*p (edge|col|sp|max)\b", "a DIMACS file", "keep the two ids of each line"),
    (rb"(?i)\s*@(relation|prefix|base)\b", "an ARFF or Turtle file", _CSV),
    (rb".*\0", "a binary file of an unknown kind", _ARRAYS),
)


@dataclass(slots=True)
class Field:
    """An array of the user's, and its place in a file."""

    where: str
    array: NDArray[Any]


@dataclass(slots=True)
class Graph:
    """The content of a graph's file.

    Attributes:
        source, target: the edges ``source -> target`` in the ids of the file, ``[E]``.
        fields: the other arrays, by the names of PyG's ``Data``.
        took: how the file was interpreted, in one line.
        first: the first id; ``None`` until it is found.
        nodes: the number of nodes; 0 until it is known.
    """

    source: NDArray[Any]
    target: NDArray[Any]
    fields: dict[str, Field]
    took: str
    first: int | None = 0
    nodes: int = 0


def identify(path: Path) -> str:
    """Return the kind of a file: ``npy``, ``npz``, ``torch``, ``matrix``, ``text``, or ``folder``.

    Raises:
        DatasetError: the file is missing or of another kind; the message names kind and remedy.
    """
    if not os.path.isfile(path):  # noqa: PTH113  # raises for long names
        if os.path.isdir(path):  # noqa: PTH112
            return "folder"
        pipe = "not a regular file; write a pipe's data to a file first"
        raise DatasetError(f"{path}: {pipe if os.path.lexists(path) else 'no such file'}")
    with path.open("rb") as file:
        head = file.read(4096).removeprefix(b"\xef\xbb\xbf")
    if head.startswith(b"\x93NUMPY"):
        return "npy"
    if head.startswith(b"PK\3\4"):
        with explained(f"{path}: cannot be read", "fetch or save it again"):
            names = ZipFile(path).namelist()
        if any(name.endswith("/data.pkl") for name in names):
            return "torch"
        if any(name.endswith(".npy") for name in names):
            return "npz"
        raise DatasetError(f"{path}: it is a zip archive (or Excel's), which is not read; unzip it")
    for begin, what, remedy in _OTHERS:
        if re.match(begin, head, re.DOTALL):
            raise DatasetError(f"{path}: it is {what}, which is not read; {remedy}")
    return "matrix" if re.match(rb"(?i)%%?MatrixMarket\b", head) else "text"


def read_matrix(asked: Import) -> Graph:
    """Read the edges of a square sparse matrix: values are ignored, symmetric entries count twice.

    Raises:
        DatasetError: the file is damaged, is another matrix, or contradicts an option.
    """
    from scipy.io import mminfo, mmread

    path = asked.path
    with explained(f"{path}: cannot be read as MatrixMarket", "fetch or write it again"):
        content = path.read_bytes()
        content = b"%" * (content[:2] != b"%%") + content  # the network repository has one
        rows, columns, entries, kind, _, symmetry = mminfo(io.BytesIO(content))
        if kind != "coordinate" or rows != columns:
            raise DatasetError(
                f"{path}: a graph is a square matrix in coordinates, this is {rows} by {columns}, "
                f"{kind}"
            )
        if asked.one_based is False or (asked.undirected is False and symmetry != "general"):
            raise DatasetError(
                f"{path}: is MatrixMarket, {symmetry}, and counts from 1: leave --zero-based and "
                "--directed out"
            )
        check_memory(2 * EDGE_BYTES * entries * (1 + (symmetry != "general")), f"{path}: its edges")
        source, target = mmread(io.BytesIO(content), spmatrix=False).coords
    return Graph(source, target, {}, f"{path.name}: MatrixMarket, {symmetry}", nodes=rows)


def read_arrays(asked: Import, room: Path) -> Graph:
    """Read the graph in a file of arrays, or a folder of them.

    Args:
        room: a folder for unpacked arrays.

    Raises:
        DatasetError: the file holds no edges, is damaged, or could run code.
    """
    fields, rest = _fields_of(asked.path, room)
    ends = fields.pop("edge_index", None) or fields.pop("", None)
    if ends is None:
        raise DatasetError(
            f"{asked.path}: holds {', '.join([*fields, *rest][:9]) or 'nothing'}; expected "
            "edge_index (of a SciPy matrix, numpy.save('edges.npy', matrix.nonzero()) saves it)"
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


def read_alone(path: Path, room: Path) -> Field:
    """Read the only array of a file.

    Raises:
        DatasetError: as :func:`read_arrays`; or the file holds several arrays, or named ones.
    """
    fields, rest = _fields_of(path, room)
    if "" not in fields:
        found = ", ".join([*fields, *rest][:9])
        raise DatasetError(f"{path}: expected one array, found {found or 'none'}")
    return fields[""]


def _fields_of(path: Path, room: Path) -> tuple[dict[str, Field], list[str]]:
    """Return the arrays of a file that belong to a graph, by PyG's names, and the others' names.

    The array of a ``.npy``, or a single tensor, has an empty name.
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
            f"{path}: is text, expected an array: numpy.save it (the guide shows how)"
        )
    taken = {
        name: Field(f"{path}, {name}" if name else str(path), held[name]())
        for name in _NAMES
        if name in held
    }
    return taken, [name for name in held if name not in taken]
