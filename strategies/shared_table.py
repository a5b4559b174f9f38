"""Share one copy of a feature table among all ranks of a machine; each of them may register it.

    torch.distributed.init_process_group(...)
    x = gatherbench.shared_table(np.load("features.npy", mmap_mode="r"))
    features = gatherbench.unified(x)

The memory has no name: the machine's first rank makes it, and the others open it through
``/proc``. So no file is left behind, and the memory may exceed ``/dev/shm``, which has 64 MiB in
many containers.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.kernels.host_memory import available_bytes, tensor_of
from gatherbench.strategies.knowledge import current_ranks


def shared_table(array: Tensor | NDArray[Any]) -> Tensor:
    """Copy ``array`` (``[N, D]``, any dtype) to memory that all ranks of a machine share.

    Every rank calls it, after ``init_process_group``. The first rank of each machine reads its
    array, the others only its shape. A process without a group gets its own copy. All ranks see
    each other's writes. The memory is freed with the last tensor over it.

    Raises:
        ValueError: no table, or unknown ranks (``knowledge.current_ranks``).
        MemoryError: a machine's first rank had no room for it; all its ranks raise.
        OSError: a rank may not open the memory, which belongs to another user or container.
    """
    source = tensor_of(array) if isinstance(array, np.ndarray) else array
    if source.dim() != 2 or source.device.type != "cpu":
        raise ValueError(
            f"expected a table [N, D] in host memory, got {list(source.shape)} on {source.device}"
        )
    ranks = current_ranks()
    made, error = None, 0
    if ranks.rank == ranks.first:
        try:
            made = _filled(source)
        except OSError as failed:
            error = failed.errno or -1
    own = -1 if made is None else made.fileno()
    pid, opened, error = _of_all([os.getpid(), own, error])[ranks.first]
    table, lost = None, 0
    if not error:
        try:
            with Path(f"/proc/{pid}/fd/{opened}").open("r+b", buffering=0) as file:
                table = map_table(file.fileno(), source.shape, source.dtype)
        except OSError as failed:
            lost = failed.errno or -1
    refused = {rank: code for rank, (code,) in enumerate(_of_all([lost])) if code}
    if made is not None:
        made.close()
    if error:
        size = f"{source.nbytes / 2**30:.2f} GiB"
        raise MemoryError(
            f"rank {ranks.first} has no {size} of shared memory: {os.strerror(error)}"
        )
    if table is None or refused:
        rank, code = next(iter(refused.items()))
        raise OSError(
            code,
            f"rank {rank} may not open the memory of its machine's first rank"
            f" ({os.strerror(code)}): start both as one user, in one container",
        )
    return table


def _filled(source: Tensor) -> BinaryIO:
    """Make a file in memory with the bytes of a table; no room for it is an ``OSError``, without
    which the kernel would kill some process."""
    if source.nbytes > available_bytes():
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    made = shared_file(source.nbytes)
    try:
        os.posix_fallocate(made.fileno(), 0, max(1, source.nbytes))
        map_table(made.fileno(), source.shape, source.dtype).copy_(source)
    except BaseException:
        made.close()
        raise
    return made


def shared_file(size: int) -> BinaryIO:
    """Make an anonymous file of ``size`` zero bytes (at least 1), for several processes to map."""
    file = os.fdopen(os.memfd_create("gatherbench-table", os.MFD_CLOEXEC), "w+b", buffering=0)
    file.truncate(max(1, size))
    return file


def map_table(file: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Map an open file as a table of ``shape``; the tensor keeps the map alive."""
    size = math.prod(shape) * dtype.itemsize
    flat = torch.frombuffer(mmap.mmap(file, max(1, size)), dtype=torch.uint8)[:size]
    return flat.view(dtype).view(tuple(shape))


def _of_all(numbers: list[int]) -> list[list[int]]:
    if not (dist.is_available() and dist.is_initialized()):
        return [numbers]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, numbers)
    return gathered
