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
import mmap
import os
from pathlib import Path
from typing import Any

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
    made, error = -1, 0
    if ranks.rank == ranks.first:
        try:
            made = _filled(source)
        except OSError as failed:
            error = failed.errno or -1
    pid, opened, error = _of_all([os.getpid(), made, error])[ranks.first]
    table, lost = None, 0
    if not error:
        try:
            table = _mapped(f"/proc/{pid}/fd/{opened}", source)
        except OSError as failed:
            lost = failed.errno or -1
    refused = {rank: code for rank, (code,) in enumerate(_of_all([lost])) if code}
    if made >= 0:
        os.close(made)
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


def _filled(source: Tensor) -> int:
    """Make a file in memory with the bytes of a table; return its descriptor.

    Raises:
        OSError: there is no room. Without that check the kernel would kill some process.
    """
    if source.nbytes > available_bytes():
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    made = os.memfd_create("gatherbench-table")
    try:
        os.posix_fallocate(made, 0, max(1, source.nbytes))
        _view(made, source).copy_(source)
    except BaseException:
        os.close(made)
        raise
    return made


def _mapped(path: str, like: Tensor) -> Tensor:
    with Path(path).open("r+b", buffering=0) as file:
        return _view(file.fileno(), like)


def _view(opened: int, like: Tensor) -> Tensor:
    """Map the file as a table like ``like``; the tensor keeps the map alive."""
    memory = mmap.mmap(opened, max(1, like.nbytes))
    flat = torch.frombuffer(memory, dtype=torch.uint8)[: like.nbytes]
    return flat.view(like.dtype).view(like.shape)


def _of_all(numbers: list[int]) -> list[list[int]]:
    """Gather the numbers of every rank, by rank."""
    if not (dist.is_available() and dist.is_initialized()):
        return [numbers]
    on_gpu = dist.get_backend() == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    own = torch.tensor(numbers, dtype=torch.int64, device=device)
    found = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(found, own)
    return [each.tolist() for each in found]
