"""Arrays of one's own: ``.npy``, ``.npz``, and tensors or PyG's ``Data`` by ``torch.save``.

Nothing in such a file is run. A file of ``torch.save`` is a pickle. ``torch.load`` with
``weights_only`` makes nothing but tensors and classes that were declared safe, and PyG declares
more of its own than a ``Data`` needs. So these declarations are put aside while a file is read, and
the names that a ``Data`` asks for stand for an empty class of ours.
"""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.dataset import SPLITS, DatasetError
from gatherbench.datasets.import_kind import identify
from gatherbench.datasets.npz_stream import (
    CHUNK,
    StoredArray,
    explained,
    members,
    stored_array,
)

#: The splits by their names in PyG's ``Data``, and all that is taken of one beside the edges.
MASKS = tuple(f"{split}_mask" for split in SPLITS)
EXTRAS = ("x", "y", *MASKS)
NAMES = ("edge_index", "edge_type", "num_nodes", "indptr", "indices", "format", "shape", *EXTRAS)

_PYG = "torch_geometric.data"


@dataclass(frozen=True, slots=True)
class Own:
    """Something of one's own graph: an array in a file, or a field of one; not yet read.

    Attributes:
        ids: the nodes that labels belong to, if the file names them.
        doubt: why the first entry may be the header of a list; then it says no number of nodes.
    """

    path: Path
    field: str
    array: NDArray[Any] | StoredArray
    ids: NDArray[np.int64] | None = None
    doubt: str = ""

    @property
    def where(self) -> str:
        return f"{self.path}, {self.field}" if self.field else str(self.path)

    @property
    def rows(self) -> int | None:
        """How many nodes there are, if this says it."""
        if self.ids is not None or self.doubt:
            return None
        return self.array.shape[0] if self.array.shape else 0

    def refuse(self, expected: str) -> DatasetError:
        """The error of an array of another dtype or shape than ``expected``."""
        held = f"{self.array.dtype} {self.array.shape}"
        if self.array.dtype.kind == "V":
            named = self.array.dtype.names is not None
            remedy = "save its fields as arrays" if named else "NumPy has no bfloat16: save float16"
            return DatasetError(f"{self.where}: holds {held}; {remedy}")
        return DatasetError(f"{self.where}: holds {held}, expected {expected}")

    def read(self) -> NDArray[Any]:
        """The array; for those whose size was found to be right."""
        return self.array.whole() if isinstance(self.array, StoredArray) else self.array

    def runs(self) -> Iterator[NDArray[Any]]:
        """A table ``[N, D]`` by rows, in pieces."""
        array = self.array
        if isinstance(array, StoredArray):
            return array.rows()
        step = max(1, CHUNK * len(array) // max(1, array.size))
        return (array[at : at + step] for at in range(0, len(array), step))


def arrays_of(path: Path) -> tuple[dict[str, Own], list[str]]:
    """What a file holds of a graph, by the names of PyG and SciPy; and the names of the rest.

    The array of a ``.npy``, or a tensor that stands alone, has an empty name.

    Raises:
        DatasetError: it is no file of arrays, is damaged, or could run code.
    """
    kind = identify(path)
    if kind == "npz":
        held: Collection[str] = members(path)
        found: dict[str, Any] = {name: stored_array(path, name) for name in held if name in NAMES}
    elif kind == "torch":
        found, held = load_tensors(path)
    elif kind == "npy":
        found, held = {"": _mapped(path)}, [""]
    else:
        raise DatasetError(f"{path}: is text, expected an array: numpy.save it")
    own = {name: Own(path, name, array) for name, array in found.items()}
    return own, [name for name in held if name not in found]


def array_of(path: Path) -> NDArray[Any]:
    """The one array of a ``.npy`` or a ``torch.save`` file, mapped.

    Raises:
        DatasetError: not such a file.
    """
    found, rest = arrays_of(path)
    if "" not in found:
        held = ", ".join([*found, *rest][:9]) or "none"
        raise DatasetError(f"{path}: expected one array, found {held}")
    return found[""].read()


def _mapped(path: Path) -> NDArray[Any]:
    with explained(f"{path}: cannot be read", "numpy.save it again"):
        array = np.lib.format.open_memmap(path, mode="r")
        if array.offset + array.nbytes != path.stat().st_size:
            raise ValueError(f"its header says {array.dtype} {array.shape}, and there is more")
    return array


class _Record:
    """Stands for PyG's ``Data`` and what it is made of: takes their content and does nothing."""


def load_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """The tensors of a graph by name, mapped, and the names of all fields.

    Raises:
        DatasetError: a file that could run code, several graphs or kinds of nodes, or a field of a
            graph that is no tensor.
    """
    import torch

    names = ("data.Data", "data.DataEdgeAttr", "data.DataTensorAttr", "storage.GlobalStorage")
    known = [(_Record, f"{_PYG}.{name}") for name in names]
    with explained(f"{path}: cannot be read", "torch.save it again"), _only(known):
        with zipfile.ZipFile(path) as archive:
            pickled = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            version = archive.open(pickled).read(2)
        if version[:1] == b"\x80" and version != b"\x80\2":
            raise DatasetError(
                f"{path}: pickled by protocol {version[1]}, and without running code torch loads "
                "protocol 2: torch.save it without pickle_protocol"
            )
        asked = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        if f"{_PYG}.hetero_data.HeteroData" in asked:
            raise DatasetError(
                f"{path}: a HeteroData, and graphs here have one kind of nodes: save "
                "data.to_homogeneous(), or one edge type of it as a Data"
            )
        if asked:
            raise DatasetError(
                f"{path}: asks for {', '.join(asked)}, and is not loaded, as that could run "
                "code; save a Data that holds tensors only"
            )
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    slices = None
    if isinstance(content, tuple) and content:  # what PyG's data sets save: data, slices, class
        content, slices = content[0], content[1] if len(content) > 1 else None
    many = [len(ends) - 1 for ends in slices.values()] if isinstance(slices, dict) else [1]
    many = [len(content)] if isinstance(content, list) else many
    if max(many, default=1) > 1:
        raise DatasetError(
            f"{path}: holds {max(many)} graphs, whose nodes are each numbered from 0; save one, or "
            "one that Batch.from_data_list(graphs) makes of them, as Data(**batch.to_dict())"
        )
    if isinstance(content, _Record):  # PyG 1 kept the fields in the Data itself
        fields = vars(content)
        store = fields.get("_store")
        content = vars(store).get("_mapping") if isinstance(store, _Record) else fields
    if isinstance(content, torch.Tensor):
        content = {"": content}
    if not isinstance(content, dict):
        raise DatasetError(f"{path}: holds no Data, dict or tensor, but a {type(content).__name__}")
    size = path.stat().st_size
    content = {str(name).replace("__num_nodes__", "num_nodes"): v for name, v in content.items()}
    held = {name: value for name, value in content.items() if value is not None}
    return {
        name: _array(value, f"{path}, {name or 'the tensor'}", size)
        for name, value in held.items()
        if name in ("", *NAMES)
    }, [*held]


def _array(value: Any, where: str, file_bytes: int) -> NDArray[Any]:
    import torch

    try:
        if isinstance(value, torch.Tensor):
            if value.numel() * value.element_size() > file_bytes and not value.is_sparse:
                shape = tuple(value.shape)
                raise DatasetError(f"{where}: says {shape}, more than the file can hold")
            array: NDArray[Any] = value.detach().numpy()
        else:
            array = np.asarray(value)
            if array.dtype.kind not in "biuf":
                raise TypeError(f"a {type(value).__name__}")
    except (TypeError, RuntimeError, ValueError) as error:
        if isinstance(error, DatasetError):
            raise
        half = "; tensor.half() moves the same bytes" if "BFloat16" in str(error) else ""
        raise DatasetError(f"{where}: NumPy cannot take it ({error}){half}") from error
    return array


@contextlib.contextmanager
def _only(allowed: list[Any]) -> Iterator[None]:
    """Nothing but these is safe to load, whatever was declared before."""
    from torch import serialization

    before = serialization.get_safe_globals()
    serialization.clear_safe_globals()
    try:
        with serialization.safe_globals(allowed):
            yield
    finally:
        serialization.clear_safe_globals()
        serialization.add_safe_globals(before)
