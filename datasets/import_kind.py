"""What a file is, by its content, before anything in it is believed; and what one holds."""

from __future__ import annotations

import os
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from gatherbench.datasets.arrays import explained
from gatherbench.datasets.dataset import DatasetError

Kind = Literal["npy", "npz", "folder", "torch", "matrix", "text"]

_CSV = "write it as text first: pandas' to_csv(index=False)"
_EDGES = "networkx reads it, and networkx.write_edgelist(graph, FILE, data=False) writes edges"
_ARRAYS = "numpy.save its arrays"
#: How files of other kinds begin, what they are, and what to do about it.
_OTHERS = (
    (rb"\x1f\x8b", "gzip-compressed", "gunzip it first"),
    (rb"BZh\d", "bz2-compressed", "bunzip2 it first"),
    (rb"\xfd7zXZ", "xz-compressed", "unxz it first"),
    (rb"\x28\xb5\x2f\xfd|\x04\x22\x4d\x18|7z\xbc\xaf|Rar!", "compressed", "unpack it first"),
    (rb"PAR1|ORC|Obj\x01|ARROW1|FEA1|\xff{4}", "a Parquet, ORC, Avro or Arrow file", _CSV),
    (rb"\x89HDF|MATLAB [57]\.", "a MATLAB or HDF5 file", f"scipy.io.loadmat or h5py; {_ARRAYS}"),
    (rb"\xd0\xcf\x11\xe0", "an Excel workbook", "save the sheet as CSV"),
    (rb"\xff\xfe|\xfe\xff|.\0.\0|\0.\0.", "UTF-16 text", "iconv -f UTF-16 -t UTF-8 converts it"),
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
    """An array of the user's, and where it is."""

    where: str
    array: NDArray[Any]


@dataclass(slots=True)
class Graph:
    """What a graph's file holds.

    Attributes:
        source, target: the edges ``source -> target`` in the ids of the file, ``[E]``.
        fields: the rest, by the names of PyG's ``Data``.
        took: what was taken for what, in one line.
        first: the number from which ids count; ``None`` where that has to be found.
        nodes: how many there are; 0 where that is not known.
    """

    source: NDArray[Any]
    target: NDArray[Any]
    fields: dict[str, Field]
    took: str
    first: int | None = 0
    nodes: int = 0


def identify(path: Path) -> Kind:
    """The kind of a file.

    Raises:
        DatasetError: there is no such file, or it is of another kind: names that and the remedy.
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
            names = zipfile.ZipFile(path).namelist()
        if any(name.endswith("/data.pkl") for name in names):
            return "torch"
        if any(name.endswith(".npy") for name in names):
            return "npz"
        raise DatasetError(f"{path}: it is a zip archive (or Excel's), which is not read; unzip it")
    for begin, what, remedy in _OTHERS:
        if re.match(begin, head, re.DOTALL):
            raise DatasetError(f"{path}: it is {what}, which is not read; {remedy}")
    return "matrix" if re.match(rb"(?i)%%?MatrixMarket\b", head) else "text"
