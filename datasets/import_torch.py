"""What lies in a file of ``torch.save``: a tensor, a dict of them, or PyG's ``Data``; none is run.

``torch.load`` with ``weights_only`` makes nothing but tensors and classes that were declared safe,
and PyG declares more of its own than a ``Data`` needs. So these declarations are put aside while a
file is read, and the names that a ``Data`` asks for stand for an empty class of ours.
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
    """Stands for PyG's ``Data`` and what it is made of: takes their content and does nothing."""


_KNOWN = [
    (_Record, f"torch_geometric.data.{name}")
    for name in ("data.Data", "data.DataEdgeAttr", "data.DataTensorAttr", "storage.GlobalStorage")
]


def load_fields(path: Path) -> dict[str, Any]:
    """The fields by name, without those that are ``None``; a tensor alone has an empty name.

    Raises:
        DatasetError: a file that could run code, or holds several graphs or kinds of nodes.
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
        content, slices, *_ = (*content, None)  # what PyG's data sets save: data, slices, class
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
    """A field as NumPy takes it: a tensor, a number, or a list of numbers or truths.

    Raises:
        DatasetError: it is none, or of a dtype that NumPy has not.
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
