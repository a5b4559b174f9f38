"""The one on-disk format of every dataset: where folders lie, and how they are opened.

Whatever a graph came from, it is a folder of ``.npy`` files that are memory-mapped and a
``spec.json`` that says what they are. Written by :class:`DatasetWriter`, checked when opened.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from gatherbench.datasets.checks import (
    check_shapes,
    check_values,
    is_remembered,
    map_array,
    remember,
)
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.layout import DatasetError, folder_bytes, read_spec
from gatherbench.datasets.source import Progress, silent
from gatherbench.datasets.writer import DatasetWriter

__all__ = [
    "DatasetError",
    "DatasetWriter",
    "data_root",
    "dataset_folder",
    "folder_bytes",
    "open_dataset",
]


#: What else lies in the data folder: downloads, and minibatches.
RESERVED = ("raw", "traces")


def data_root() -> Path:
    """Where dataset folders lie: ``$GATHERBENCH_DATA``, or the user's cache directory."""
    chosen = os.environ.get("GATHERBENCH_DATA")
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("gatherbench")


def dataset_folder(name: str, scale: float = 1.0, root: Path | None = None) -> Path:
    """The folder of a dataset, e.g. ``<root>/products-like@0.01``; it need not exist.

    Raises:
        DatasetError: a name that could lead out of ``root`` or is one of :data:`RESERVED`, or a
            scale that is not positive.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        shown = name if len(name) <= 100 else f"{name[:40]}…"
        raise DatasetError(
            f"dataset name {shown!r}: expected letters, digits, '.', '_' and '-', at most 100"
        )
    if name in RESERVED:
        raise DatasetError(f"{name!r} is a folder of gatherbench's own: choose another name")
    if not 0 < scale < float("inf"):
        raise DatasetError(f"scale {scale}: expected a positive number, e.g. 0.01")
    suffix = "" if scale == 1 else f"@{scale:.12g}"
    return (data_root() if root is None else root) / f"{name}{suffix}"


def open_dataset(
    folder: Path, check: Literal["quick", "full"] = "quick", progress: Progress = silent
) -> GraphDataset:
    """Map a dataset folder, read-only, after checking it.

    Both checks compare dtype, shape and length of every file with the spec. The values are looked
    at in places (``quick``) or everywhere (``full``: reads the whole table), unless a full check
    has been passed and no file has changed since.

    Raises:
        DatasetError: a folder that is unfinished, damaged, of another format version, or holds
            what no dataset may hold; the message names the file and the remedy.
    """
    spec, files = read_spec(folder)
    arrays = {array: map_array(folder, array, file) for array, file in files.items()}
    data = GraphDataset(spec=spec, folder=folder, **arrays)
    check_shapes(data)
    if not is_remembered(folder):
        check_values(data, full=check == "full", progress=progress)
        if check == "full":
            remember(folder)
    return data
