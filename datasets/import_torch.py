"""Read a file of ``torch.save``, a tensor, a dict of them, or PyG's ``Data``, and run no code.

``torch.load`` with ``weights_only`` makes only tensors and classes that were declared safe, and PyG
declares more of its own than a ``Data`` needs. So these declarations are suspended while a file is
read, and an empty class stands for the names that a ``Data`` refers to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.arrays import explained
from gatherbench.datasets.dataset import DatasetError


class _Record:
    """A stand-in for PyG's ``Data`` and its parts: it receives their content and runs nothing."""


_KNOWN = [
    (_Record, f"torch_geometric.data.{name}")
    for name in ("data.Data", "data.DataEdgeAttr", "data.DataTensorAttr", "storage.GlobalStorage")
]


def load_fields(path: Path) -> dict[str, Any]:
    """Return the fields by name, without those that are ``None``; a single tensor's name is empty.

    Raises:
        DatasetError: the file could run code, or holds several graphs or types of nodes.
    """
    import torch

    remedy = "torch.save one Data, dict or tensor of it again, without pickle_protocol"
    with explained(f"{path}: cannot be read", remedy), _only(_KNOWN):
        if asked := torch.serialization.get_unsafe_globals_in_checkpoint(path):
            raise DatasetError(
                f"{path}: asks for {', '.join(asked)}, and is not loaded, as that could run code;"
                " save a Data that holds tensors only (of a HeteroData, data.to_homogeneous())"
            )
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    many = len(content) if isinstance(content, (list, tuple)) else 1
    if isinstance(content, tuple) and isinstance((*content, None)[1], dict | None):
        content, slices, *_ = (*content, None)  # PyG's data sets save data, slices, class
        many = max((len(ends) - 1 for ends in (slices or {}).values()), default=1)
    if many != 1:
        raise DatasetError(
            f"{path}: holds {many} graphs or tensors, each of which may count its nodes from 0; "
            "save one, or Batch.from_data_list(graphs) as Data(**batch.to_dict())"
        )
    content = content[0] if isinstance(content, (list, tuple)) else content
    if isinstance(content, _Record):  # PyG 1 kept the fields in the Data itself
        content = vars(vars(content).get("_store", content))
        content = content.get("_mapping", content)
    if isinstance(content, torch.Tensor):
        content = {"": content}
    if not isinstance(content, dict):
        raise DatasetError(f"{path}: holds no Data, dict or tensor, but a {type(content).__name__}")
    fields = {str(name).replace("__num_nodes__", "num_nodes"): v for name, v in content.items()}
    return {name: value for name, value in fields.items() if value is not None}


def as_array(value: Any, where: str) -> NDArray[Any]:
    """Convert a field to a NumPy array: a tensor, a number, or a list of numbers or booleans.

    Raises:
        DatasetError: it is none of these, or its dtype is unknown to NumPy.
    """
    import torch

    remedy = "save a dense tensor of a dtype that NumPy has; tensor.half() is as wide as bfloat16"
    with explained(f"{where}: cannot be read", remedy):
        array = value.numpy(force=True) if isinstance(value, torch.Tensor) else np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"a {type(value).__name__}")
        return array


@contextlib.contextmanager
def _only(allowed: list[Any]) -> Iterator[None]:
    """Declare these alone safe to load, and afterwards restore the earlier declarations."""
    from torch import serialization

    before = serialization.get_safe_globals()
    serialization.clear_safe_globals()
    try:
        with serialization.safe_globals(allowed):
            yield
    finally:
        serialization.clear_safe_globals()
        serialization.add_safe_globals(before)
