"""Allocate host memory for large tables: anonymous, in huge pages where the kernel grants them.

A random gather touches a new page with almost every row. With pages of 4 KiB each touch also
misses the TLB, and the page walk costs about as much as the row; with pages of 2 MiB it mostly
hits. ``torch.empty`` asks for no huge pages, so this module maps the memory itself, and touches
every page, so that no later gather pays for the faults.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.kernels.modes import plain_torch

#: The size of a transparent huge page on x86-64 and on arm64 with 4 KiB base pages.
HUGE_PAGE = 2 << 20
#: GiB of host memory that will be available; see :func:`available_bytes`.
MEMORY_VARIABLE = "GATHERBENCH_MEMORY_GIB"
#: Do not refuse this because of the current memory; Python has no name for it before 3.13.
_MAP_NORESERVE = 0x4000
#: Where memory grows with use: bytes to touch at once, seconds to wait for more and between looks.
_TOUCH_BYTES, _GROWTH_S, _LOOK_S = 1 << 30, 5.0, 0.02
#: Bytes that a core touches at a time: many chunks of UVM, which has a lock for each.
_WRITTEN_BYTES = 32 << 20


def available_bytes() -> int:
    """Return the available bytes of host memory: ``$GATHERBENCH_MEMORY_GIB``, or the kernel's,
    limited by the process's cgroup (version 2), as in a container.

    Some virtual machines get more memory as they use it: only the user knows how much it will be.
    """
    gib, left = os.environ.get(MEMORY_VARIABLE), available_in_cgroup()
    try:
        there = psutil.virtual_memory().available if gib is None else int(float(gib) * 2**30)
        return there if left is None else min(there, left)
    except (ValueError, OverflowError):  # the latter for "inf"
        raise ValueError(f"{MEMORY_VARIABLE}={gib!r}: expected a number of GiB") from None


def available_in_cgroup(
    process: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Return the bytes that this process's cgroup and its parents leave it; ``None``: no limit.

    Pages of files count as free: the kernel gives them up before it kills a process.
    """
    with contextlib.suppress(OSError):
        path = re.search(r"^0::/(.*)$", process.read_text(), re.MULTILINE)
        folder, left = mount / (path[1] if path else ""), []
        # In a container the path may be the host's, while the mount begins at this cgroup.
        folder = folder if folder.is_dir() else mount
        for group in (folder, *folder.parents):
            limit = group / "memory.max"
            if limit.exists() and (most := limit.read_text()) != "max\n":
                stat = (group / "memory.stat").read_text()
                files = re.findall(r"^(?:in)?active_file (\d+)$", stat, re.MULTILINE)
                used = int((group / "memory.current").read_text()) - sum(map(int, files))
                left.append(max(0, int(most) - max(0, used)))
        return min(left, default=None)
    return None


def empty_table(shape: tuple[int, int], dtype: torch.dtype, *, shared: bool = False) -> Tensor:
    """Allocate a zeroed table ``[N, D]`` in anonymous memory, with every page present.

    Tables of at least one huge page start at a huge-page boundary and ask for transparent huge
    pages. The memory is returned when the last tensor that uses it dies.

    Args:
        shared: processes that are forked later share it, and none of them gets a copy when it
            page-locks it. Most systems have no huge pages for such memory.

    Raises:
        ValueError: a negative extent.
        MemoryError: the machine will not map that much.
    """
    size = size_of(shape, dtype)
    with plain_torch():
        if size < HUGE_PAGE and not (shared and size):
            return torch.zeros(shape, dtype=dtype, device="cpu")
        # Not Python's default, MAP_SHARED, which gets no huge pages on most systems.
        flags = (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE) | mmap.MAP_ANONYMOUS
        if MEMORY_VARIABLE in os.environ:  # the kernel would refuse more than it has now
            flags |= _MAP_NORESERVE
        try:
            mapping = mmap.mmap(-1, size + HUGE_PAGE, flags=flags)
        except OSError as error:
            raise MemoryError(f"cannot map {size / 2**30:.1f} GiB: {error.strerror}") from error
        with contextlib.suppress(OSError):  # a kernel built without them: ordinary pages
            mapping.madvise(mmap.MADV_HUGEPAGE)
        whole = torch.frombuffer(mapping, dtype=torch.uint8)  # keeps the map alive
        skip = -whole.data_ptr() % HUGE_PAGE
        flat = whole[skip : skip + size]
        touch(flat)
        return flat.view(dtype).view(shape)


def size_of(shape: tuple[int, int], dtype: torch.dtype) -> int:
    """Return the bytes of a table ``[N, D]``; ``ValueError`` for a negative extent."""
    if min(shape) < 0:
        raise ValueError(f"shape {shape}: expected two extents of 0 or more")
    return shape[0] * shape[1] * dtype.itemsize


def tensor_of(array: NDArray[Any]) -> Tensor:
    """Return ``array`` as a tensor over the same memory; never write to that of a read-only one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of a read-only one
        return torch.from_numpy(array)


def touch(flat: Tensor) -> None:
    """Write once to every page of ``flat`` (uint8), on each core, so that all faults happen here.

    On machines whose memory grows with use, this waits for the memory to grow: a kernel that runs
    out of memory meanwhile kills the process. 48 GiB of managed memory on an H200's host take 3.0 s
    on 16 cores and 6.0 s on 4 (``cudaMemPrefetchAsync``: 11.9 s); the GPU reads both equally fast.
    """
    size, grows = flat.numel(), MEMORY_VARIABLE in os.environ
    step = _TOUCH_BYTES if grows else max(1, size)

    def write(begin: int) -> None:
        piece[begin : begin + _WRITTEN_BYTES][:: mmap.PAGESIZE] = 0

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as writers:
        for start in range(0, size, step):
            piece = flat[start : start + step]
            grows = grows and _has_come(2 * piece.numel())
            list(writers.map(write, range(0, piece.numel(), _WRITTEN_BYTES)))


def _has_come(size: int) -> bool:
    """Tell whether ``size`` bytes are free now, or become free within some seconds."""
    deadline = time.monotonic() + _GROWTH_S
    while psutil.virtual_memory().available < size:
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True
