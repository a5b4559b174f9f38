"""Arrays of one's own: ``.npy``, ``.npz``, and tensors or PyG's ``Data`` by ``torch.save``.

Nothing in such a file is run. A file of ``torch.save`` is a pickle. ``torch.load`` with
``weights_only`` makes nothing but tensors and classes that were declared safe, and PyG declares
more of its own than a ``Data`` needs. So these declarations are put aside while a file is read, and
the names that a ``Data`` asks for stand for an empty class of ours.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.dataset import SPLITS, DatasetError
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
_NAMES = ("edge_index", "edge_type", "num_nodes", "indptr", "indices", "format", "shape", *EXTRAS)

_TORCH_FILES = (".pt", ".pth")
#: Names of files that hold arrays.
ARRAY_FILES = (".npy", ".npz", *_TORCH_FILES)

_PYG = "torch_geometric.data"
_HETERO = f"{_PYG}.hetero_data.HeteroData"


@dataclass(frozen=True, slots=True)
class Own:
    """Something of one's own graph: an array in a file, or a field of one; not yet read.

    ``ids`` are the nodes that labels belong to, if the file names them.
    """

    path: Path
    field: str
    array: NDArray[Any] | StoredArray
    ids: NDArray[np.int64] | None = None

    @property
    def where(self) -> str:
        return f"{self.path}, {self.field}" if self.field else str(self.path)

    @property
    def rows(self) -> int | None:
        """How many nodes there are, if this says it."""
        return None if self.ids is not None else self.array.shape[0] if self.array.shape else 0

    def refuse(self, expected: str) -> DatasetError:
        """The error of an array of another dtype or shape than ``expected``."""
        return DatasetError(
            f"{self.where}: holds {self.array.dtype} {self.array.shape}, expected {expected}"
        )

    def read(self) -> NDArray[Any]:
        """The array; for those whose size was found to be right."""
        return self.array.whole() if isinstance(self.array, StoredArray) else self.array

    def runs(self) -> Iterator[NDArray[Any]]:
        """A list ``[E]``, or a table ``[N, D]`` by rows, in pieces."""
        array = self.array
        if isinstance(array, StoredArray):
            return array.flat() if len(array.shape) == 1 else array.rows()
        step = max(1, CHUNK * len(array) // max(1, array.size))
        return (array[at : at + step] for at in range(0, len(array), step))

    def pairs(self) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """An ``edge_index`` ``[2, E]`` (or ``[E, 2]``) as runs of sources and targets."""
        if isinstance(self.array, StoredArray):
            return self.array.pairs()
        ends = self.array if len(self.array) == 2 else self.array.T
        starts = range(0, ends.shape[1], CHUNK)
        return ((ends[0, at : at + CHUNK], ends[1, at : at + CHUNK]) for at in starts)


def arrays_of(path: Path) -> dict[str, Own]:
    """What a file holds of a graph, by the names of PyG and SciPy.

    The array of a ``.npy``, or a tensor that stands alone, has an empty name.

    Raises:
        DatasetError: no such file, or one that could run code.
    """
    found: dict[str, Any]
    if path.suffix == ".npz":
        found = {name: stored_array(path, name) for name in members(path) if name in _NAMES}
    elif path.suffix in _TORCH_FILES:
        found = load_tensors(path)
    else:
        found = {"": _mapped(path)}
    return {name: Own(path, name, array) for name, array in found.items()}


def array_of(path: Path) -> NDArray[Any]:
    """The one array of a ``.npy`` or a ``torch.save`` file, mapped.

    Raises:
        DatasetError: not such a file.
    """
    found = arrays_of(path)
    if "" not in found:
        raise DatasetError(f"{path}: expected one array, found {', '.join(found) or 'none'}")
    return found[""].read()


def _mapped(path: Path) -> NDArray[Any]:
    try:
        array = np.lib.format.open_memmap(path, mode="r")
        if array.offset + array.nbytes != path.stat().st_size:
            raise ValueError(f"its header says {array.dtype} {array.shape}, and there is more")
    except (OSError, ValueError, EOFError) as error:
        raise DatasetError(f"{path}: cannot be read ({error})") from error
    return array


class _Record:
    """Stands for PyG's ``Data`` and what it is made of: takes their content and does nothing."""


def load_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a file by name, mapped; one that stands alone has an empty name.

    Raises:
        DatasetError: no such file, one that could run code, or one of several kinds of nodes.
    """
    import torch

    names = ("data.Data", "data.DataEdgeAttr", "data.DataTensorAttr", "storage.GlobalStorage")
    known = [(_Record, f"{_PYG}.{name}") for name in names]
    with explained(f"{path}: cannot be read", "torch.save it again"), _only(known):
        asked = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        if _HETERO in asked:
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
    if isinstance(content, tuple) and content:  # what PyG's data sets save: data, slices, class
        content = content[0]
    if isinstance(content, _Record):
        store = vars(content).get("_store")
        content = vars(store).get("_mapping") if isinstance(store, _Record) else None
    if isinstance(content, torch.Tensor):
        content = {"": content}
    if not isinstance(content, dict):
        raise DatasetError(f"{path}: holds no Data, dict or tensor")
    size = path.stat().st_size
    return {
        str(name): _array(value, f"{path}, {name or 'the tensor'}", size)
        for name, value in content.items()
        if isinstance(value, torch.Tensor | int)
    }


def _array(tensor: Any, where: str, file_bytes: int) -> NDArray[Any]:
    if isinstance(tensor, int):
        return np.array(tensor)
    if tensor.numel() * tensor.element_size() > file_bytes and not tensor.is_sparse:
        raise DatasetError(f"{where}: says {tuple(tensor.shape)}, more than the file can hold")
    try:
        array: NDArray[Any] = tensor.detach().numpy()
    except (TypeError, RuntimeError) as error:
        half = "; tensor.half() moves the same bytes" if tensor.element_size() == 2 else ""
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
