"""The feature table of a case, loaded straight into the memory from which its path reads it.

There is one table for each kind of memory: paths that register and those that gather on the CPU
share ``anonymous`` memory, those that read managed memory share a table there, at the same time if
the host has room for both.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gatherbench.datasets.dataset import DatasetSpec, GraphDataset
from gatherbench.kernels.host_memory import available_bytes, tensor_of
from gatherbench.kernels.managed_memory import Memory, empty
from gatherbench.kernels.table_file import TableFile, drop_pages, mapped_table, read_rows
from gatherbench.reason import Reason
from gatherbench.strategies.base import Strategy
from gatherbench.strategies.places import reads_managed

TableKind = Literal["anonymous", "managed", "shared", "file"]
#: Shares of the available memory that a table may take: one that can also be read through the
#: memory map of its file, and one that has to be in memory.
RESIDENT_SHARE, ONLY_SHARE = 0.6, 0.8


@dataclass(frozen=True, slots=True)
class Table:
    """The feature table ``[N, D]`` in host memory, its place in words, and its load time.

    ``kind`` is the requested one: a table without room stays in its file. ``truth`` is the same
    rows for comparisons, of a file by a map of its own, as the kernel reads ahead of each one.
    """

    features: Tensor
    truth: Tensor
    where: str
    load_s: float
    kind: TableKind


def table_kind(strategy: Strategy, device: torch.device, world: int) -> TableKind:
    """Return where the path's table is loaded: where the path reads it.

    Args:
        world: ranks that train together. Theirs is shared, as page-locking memory that a fork
            shares only for reading would copy it for each of them; managed memory is each rank's
            own. A path that makes itself a table of a rank's rows has that in managed memory.
    """
    if "file" in strategy.needs:
        return "file"
    if reads_managed(strategy) and not (world > 1 and "ranks" in strategy.needs):
        return "managed"
    return "shared" if world > 1 and device.type == "cuda" else "anonymous"


def has_room(spec: DatasetSpec, kind: TableKind) -> bool:
    """Return whether a table of that kind fits into the memory that is available now."""
    share = ONLY_SHARE if kind == "managed" or spec.hashed else RESIDENT_SHARE
    return spec.table_bytes < share * available_bytes()


def load_table(
    dataset: GraphDataset, kind: TableKind = "anonymous", device: torch.device | None = None
) -> Table:
    """Load the feature table ``[N, D]`` into host memory, once; if it has no room, map its file.

    Args:
        device: the GPU that reads managed memory; by default the current one.

    Raises:
        MemoryError: managed memory is unavailable.
    """
    begin, spec = time.perf_counter(), dataset.spec
    if kind == "managed" or (kind != "file" and has_room(spec, kind)):
        features = truth = _filled(dataset, kind, None if device is None else device.index)
        memory = f"{'anonymous shared' if kind == 'shared' else kind} memory"
        where = f"{'made by hash' if spec.hashed else 'copied'} into {memory}"
    elif spec.hashed:
        raise MemoryError(
            f"the table of {dataset.name} is made in memory: {spec.table_bytes:,} B are"
            f" more than {ONLY_SHARE:.0%} of what is free; take a smaller scale"
        )
    else:
        features = truth = tensor_of(dataset.features)
        where = "memory-mapped file, paged in on demand"
        if (file := file_of(dataset)) is not None:
            truth = mapped_table(file, tensor_of(dataset.features).dtype, "random")
    return Table(features, truth, where, time.perf_counter() - begin, kind)


def _filled(dataset: GraphDataset, memory: Memory, device: int | None) -> Tensor:
    """Return the table in memory of its own: read from its file, or generated there."""
    spec = dataset.spec
    if spec.hashed:
        from gatherbench.datasets.draw import fill  # numba, which is slow to load

        table = empty((spec.num_nodes, spec.feature_dim), memory=memory, device=device)
        fill(table.numpy())
        return table
    mapped, file = tensor_of(dataset.features), file_of(dataset)
    table = empty((len(mapped), mapped.shape[1]), mapped.dtype, memory=memory, device=device)
    if file is None:
        table.copy_(mapped)
    else:
        read_rows(file, table.view(torch.uint8).numpy().reshape(-1))
    return table


def file_of(dataset: GraphDataset) -> TableFile | None:
    """Return where the rows of the table are on disk."""
    mapped = None if dataset.spec.hashed else dataset.features
    return TableFile.of(mapped) if isinstance(mapped, np.memmap) else None


def dropped(file: TableFile | None) -> Reason | None:
    """Drop the file's pages from memory; return why some remain, or which are there is unknown."""
    if file is None:
        return None
    try:
        left = drop_pages(file.path)
    except OSError as error:
        return Reason("no_permission", str(error))
    cause = f"{left} pages of {file.path} stay in memory: another process maps or locks them"
    return Reason("busy", cause, "end it, or keep the file on a disk") if left else None
