"""Identify a graph's file, and further files, by their content; read arrays and matrices.

No file can run code. A damaged or ambiguous file raises a ``DatasetError`` with cause and remedy.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.arrays import expect, explained, mapped, unpacked
from gatherbench.datasets.dataset import SPLITS, DatasetError
from gatherbench.datasets.files import check_memory
from gatherbench.datasets.import_options import Import

#: Bytes of memory an edge takes while it is read and sorted; more if each is stored both ways.
EDGE_BYTES = 16
#: PyG's names of the splits in a ``Data``, and of all of its fields that are imported.
MASKS = tuple(f"{split}_mask" for split in SPLITS)
_NAMES = ("", "edge_index", "edge_type", "num_nodes", "x", "y", *MASKS)
#: PyG's classes that a saved ``Data`` is made of.
_PARTS = ("data.Data", "data.DataEdgeAttr", "data.DataTensorAttr", "storage.GlobalStorage")


@dataclass(slots=True)
class Field:
    """An array of the user's, and its place in a file."""

    where: str
    array: NDArray[Any]


@dataclass(slots=True)
class Graph:
    """The content of a graph's file, as the file numbers nodes; ``took`` tells how it was read."""

    source: NDArray[Any]  #: ``[E]``, edges ``source -> target``
    target: NDArray[Any]
    fields: dict[str, Field]  #: the other arrays, by the names of PyG's ``Data``
    took: str
    first: int | None = 0  #: the first id; ``None`` until it is found
    nodes: int = 0  #: the number of nodes; 0 until it is known


class _Record:
    """A stand-in for PyG's ``Data`` and its parts: it receives their content and runs nothing."""


def identify(path: Path) -> str:
    """Return a file's kind: ``npy``, ``npz``, ``torch``, ``matrix``, ``text`` or ``folder``."""
    if os.path.isdir(path):  # noqa: PTH112  # pathlib raises for long names
        return "folder"
    if not os.path.isfile(path):  # noqa: PTH113
        pipe = "not a regular file; write a pipe's data to a file first"
        raise DatasetError(f"{path}: {pipe if os.path.lexists(path) else 'no such file'}")
    with path.open("rb") as file:
        head = file.read(4096).removeprefix(b"\xef\xbb\xbf")
    if head.startswith(b"\x93NUMPY"):
        return "npy"
    if head.startswith(b"PK\3\4"):
        if suffix := re.search(r"/data\.pkl\b|\.npy\b", " ".join(_archived(path))):
            return "npz" if suffix[0] == ".npy" else "torch"
        raise DatasetError(f"{path}: it is a zip archive (or Excel's), which is not read; unzip it")
    for kind in tomllib.loads(Path(__file__).with_name("unread_files.toml").read_text())["kind"]:
        if re.match(kind["begin"].encode(), head, re.DOTALL):
            refusal = f"{path}: it is {kind['name']}, which is not read; {kind['remedy']}"
            raise DatasetError(refusal)
    return "matrix" if re.match(rb"(?i)%%?MatrixMarket\b", head) else "text"


def _archived(path: Path) -> list[str]:
    with explained(f"{path}: cannot be read", "fetch or save it again"):
        return ZipFile(path).namelist()


def read_matrix(options: Import, _room: Path) -> Graph:
    """Read a square sparse matrix: an entry (i, j) is an edge i -> j, a symmetric one two edges."""
    from scipy.io import mminfo, mmread

    path = options.path
    with explained(f"{path}: cannot be read as MatrixMarket", "fetch or write it again"):
        content = path.read_bytes()
        content = b"%" * (content[:2] != b"%%") + content  # the network repository has one
        rows, columns, entries, kind, _, symmetry = mminfo(io.BytesIO(content))
        both_ways = symmetry != "general"
        if kind != "coordinate" or rows != columns:
            square = "a graph is a square matrix in coordinates"
            raise DatasetError(f"{path}: {square}, this is {rows} by {columns}, {kind}")
        if options.one_based is False or (options.undirected is False and both_ways):
            flags = "leave --zero-based and --directed out"
            raise DatasetError(f"{path}: is MatrixMarket, {symmetry}, and counts from 1: {flags}")
        check_memory(2 * EDGE_BYTES * entries * (1 + both_ways), f"{path}: its edges")
        source, target = mmread(io.BytesIO(content), spmatrix=False).coords
    return Graph(source, target, {}, f"{path.name}: MatrixMarket, {symmetry}", nodes=rows)


def read_arrays(options: Import, room: Path) -> Graph:
    """Read the graph in a file of arrays, or a folder of them; ``room`` is for unpacked arrays."""
    fields, unused = fields_of(options.path, room)
    ends = fields.pop("edge_index", None) or fields.pop("", None)
    if ends is None:
        found = ", ".join([*fields, *unused][:9]) or "nothing"
        remedy = "of a SciPy matrix, numpy.save('edges.npy', matrix.nonzero()) saves it"
        raise DatasetError(f"{options.path}: holds {found}; expected edge_index ({remedy})")
    array = ends.array.T if ends.array.ndim == 2 and len(ends.array) != 2 else ends.array
    count = expect(array, ends.where, "iu", 2, None).shape[1]
    check_memory(EDGE_BYTES * count, f"{ends.where}: its edges")
    if "edge_type" in fields and options.relations == "edge_type":
        expect(fields["edge_type"].array, fields["edge_type"].where, "iu", count)
    elif fields.pop("edge_type", None):
        unused.append("edge_type")
    note = f"{options.path.name}: edge_index{'; not used: ' * bool(unused)}{', '.join(unused)}"
    graph = Graph(array[0], array[1], fields, note, int(bool(options.one_based)))
    if number := fields.pop("num_nodes", None):
        graph.nodes = int(expect(number.array.reshape(-1), number.where, "iu", 1)[0])
    return graph


def fields_of(path: Path, room: Path) -> tuple[dict[str, Field], list[str]]:
    """Return a file's arrays that belong to a graph, by PyG's names, and the names of the others.

    The array of a ``.npy``, or a single tensor, has an empty name; ``room`` is for unpacked arrays.
    """
    readers: dict[str, Callable[[], NDArray[Any]]]
    if (kind := identify(path)) == "torch":
        saved = load_fields(path).items()
        readers = {name: partial(_as_array, value, f"{path}, {name}") for name, value in saved}
    elif kind == "npz":
        names = [name.removesuffix(".npy") for name in _archived(path)]
        readers = {name: partial(unpacked, path, room, name) for name in names}
    elif kind == "folder":
        readers = {file.stem: partial(mapped, file) for file in sorted(path.glob("*.npy"))}
    elif kind == "npy":
        readers = {"": partial(mapped, path)}
    else:
        raise DatasetError(f"{path}: is text, expected an array: numpy.save it (as the guide does)")
    wanted = [name for name in _NAMES if name in readers]
    fields = {name: Field(f"{path}, {name}".removesuffix(", "), readers[name]()) for name in wanted}
    return fields, [name for name in readers if name not in fields]


def load_fields(path: Path) -> dict[str, Any]:
    """Return the fields of a ``Data``, dict or tensor (without a name) by ``torch.save``.

    ``torch.load`` with ``weights_only`` makes only tensors and classes that were declared safe, and
    PyG declares more than a ``Data`` needs: so all declarations are suspended meanwhile. A file
    that could run code, or holds several graphs or types of nodes, is a ``DatasetError``.
    """
    import torch
    from torch import serialization as safe

    remedy = "torch.save one Data, dict or tensor of it again, without pickle_protocol"
    with explained(f"{path}: cannot be read", remedy), contextlib.ExitStack() as restoring:
        restoring.callback(safe.add_safe_globals, safe.get_safe_globals())
        restoring.callback(safe.clear_safe_globals)
        safe.clear_safe_globals()
        safe.add_safe_globals([(_Record, f"torch_geometric.data.{part}") for part in _PARTS])
        if names := safe.get_unsafe_globals_in_checkpoint(path):
            asks = f"asks for {', '.join(names)}, and is not loaded, as that could run code"
            tensors = "save a Data that holds tensors only (of a HeteroData, data.to_homogeneous())"
            raise DatasetError(f"{path}: {asks}; {tensors}")
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    count = len(content) if isinstance(content, list | tuple) else 1
    if isinstance(content, tuple) and content and isinstance((*content, None)[1], dict | None):
        content, slices, *_ = (*content, None)  # PyG's data sets save data, slices, class
        count = max((len(ends) - 1 for ends in (slices or {}).values()), default=1)
    if count != 1:
        many = f"holds {count} graphs or tensors, each of which may count its nodes from 0"
        remedy = "save one, or Batch.from_data_list(graphs) as Data(**batch.to_dict())"
        raise DatasetError(f"{path}: {many}; {remedy}")
    content = content[0] if isinstance(content, list | tuple) else content
    if isinstance(content, _Record):  # PyG 1 kept the fields in the Data itself
        content = vars(vars(content).get("_store", content))
        content = content.get("_mapping", content)
    content = {"": content} if isinstance(content, torch.Tensor) else content
    if not isinstance(content, dict):
        raise DatasetError(f"{path}: holds no Data, dict or tensor, but a {type(content).__name__}")
    fields = {str(name).replace("__num_nodes__", "num_nodes"): v for name, v in content.items()}
    return {name: value for name, value in fields.items() if value is not None}


def _as_array(value: Any, where: str) -> NDArray[Any]:
    """Convert a tensor, a number, or a list of numbers or booleans."""
    import torch

    remedy = "save a dense tensor of a dtype that NumPy has; tensor.half() is as wide as bfloat16"
    with explained(f"{where}: cannot be read", remedy):
        array = value.numpy(force=True) if isinstance(value, torch.Tensor) else np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"a {type(value).__name__}")
        return array
