"""The feature table of a case: in host memory, or on disk with none of it in the page cache."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gatherbench.bench.machine.reason import Reason
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.kernels.host_memory import available_bytes, empty_table, resident_copy
from gatherbench.kernels.page_cache import drop_pages, mapped_table
from gatherbench.kernels.table_file import TableFile

#: Share of the available memory up to which the table is brought into anonymous memory; a larger
#: one is read through its memory map.
RESIDENT_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class Table:
    """The feature table ``[N, D]`` in host memory, in words where it lies, and how long it took.

    ``truth`` are the same rows for whoever compares. Of a table in a file it is a map of its own,
    since the kernel would read ahead of each row that is looked at. ``writable``: it is a copy, in
    memory of this process.
    """

    features: Tensor
    truth: Tensor
    where: str
    load_s: float
    writable: bool


def load_table(dataset: GraphDataset, *, shared: bool = False, on_disk: bool = False) -> Table:
    """The feature table ``[N, D]`` in host memory.

    In anonymous memory, where huge pages serve it, as long as it fits comfortably.

    Args:
        shared: forked processes shall register it: page-locking memory that a fork only shares
            for reading would copy it for each of them.
        on_disk: it stays there: the path reads the file.
    """
    begin = time.perf_counter()
    copied = not on_disk and dataset.spec.table_bytes < RESIDENT_SHARE * available_bytes()
    if copied:
        made, kind = dataset.spec.hashed, f"anonymous {'shared ' if shared else ''}memory"
        features = truth = (
            _hashed(dataset, shared) if made else resident_copy(dataset.features, shared=shared)
        )
        where = f"{'made by hash' if made else 'copied'} into {kind}"
    elif dataset.spec.hashed:
        raise MemoryError(
            f"the table of {dataset.name} is made in memory: {dataset.spec.table_bytes:,} B are"
            f" more than {RESIDENT_SHARE:.0%} of what is free; take a smaller scale"
        )
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # read-only: torch warns, and nothing writes to it
            features = truth = torch.from_numpy(dataset.features)
        where = "memory-mapped file, paged in on demand"
        if (file := file_of(dataset)) is not None:
            truth = mapped_table(file, features.dtype, "random")
    return Table(features, truth, where, time.perf_counter() - begin, copied)


def _hashed(dataset: GraphDataset, shared: bool) -> Tensor:
    from gatherbench.datasets.hash_draw import fill  # numba, which takes its time to load

    spec = dataset.spec
    table = empty_table((spec.num_nodes, spec.feature_dim), torch.float32, shared=shared)
    fill(table.numpy())
    return table


def file_of(dataset: GraphDataset) -> TableFile | None:
    """Where the table's rows lie on disk."""
    mapped = dataset.features
    if dataset.spec.hashed:
        return None
    return TableFile.of(mapped) if isinstance(mapped, np.memmap) else None


def dropped(file: Path) -> Reason | None:
    """Have no page of the file in memory; why there are some.

    Raises:
        OSError: the kernel does not tell what is in memory.
    """
    left = drop_pages(file)
    cause = f"{left} pages of {file} stay in memory: another process maps or locks them"
    return Reason("busy", cause, "end it, or keep the file on a disk") if left else None
