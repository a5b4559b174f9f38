"""Tensors and PyG's ``Data`` from files of ``torch.save``, without running anything in them.

Such a file is a pickle. ``torch.load`` with ``weights_only`` makes nothing but tensors and classes
that were declared safe, and PyG declares more of its own than a ``Data`` needs. So these
declarations are put aside while a file is read, and the names that a ``Data`` asks for stand for an
empty class of ours.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.dataset import DatasetError

#: Names of files that ``torch.save`` writes.
TORCH_FILES = (".pt", ".pth")

_PYG = "torch_geometric.data"
_HETERO = f"{_PYG}.hetero_data.HeteroData"
_BROKEN = (OSError, ValueError, RuntimeError, TypeError, AttributeError, KeyError, EOFError)


class _Record:
    """Stands for PyG's ``Data`` and what it is made of: takes their content and does nothing."""


def load_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a file by name, mapped; one that stands alone has an empty name.

    Raises:
        DatasetError: no such file, one that could run code, or one of several kinds of nodes.
    """
    import torch

    names = ("data.Data", "data.DataEdgeAttr", "data.DataTensorAttr", "storage.GlobalStorage")
    try:
        with _only([(_Record, f"{_PYG}.{name}") for name in names]):
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
    except DatasetError:
        raise
    except (*_BROKEN, pickle.UnpicklingError) as error:
        raise DatasetError(f"{path}: cannot be read ({error}); torch.save it again") from error
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
