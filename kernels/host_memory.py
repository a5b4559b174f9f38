"""Host memory for large tables: anonymous, backed by huge pages where the kernel grants them.

A random gather touches a new page with almost every row. With pages of 4 KiB each touch also
misses the TLB, and the page walk costs about as much as the row; with pages of 2 MiB it mostly
hits. ``torch.empty`` asks for no huge pages, so this module maps the memory itself. It touches
every page once, so that no later gather pays for the faults.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.kernels.memory_cgroup import available_in_cgroup

#: The size of a transparent huge page on x86-64 and on arm64 with 4 KiB base pages.
HUGE_PAGE = 2 << 20
#: GiB of host memory that there will be; see :func:`available_bytes`.
MEMORY_VARIABLE = "GATHERBENCH_MEMORY_GIB"
_COPY_BYTES = 64 << 20
#: How Linux calls "do not refuse this because of the memory there is now"; Python has no name for
#: it before 3.13.
_MAP_NORESERVE = 0x4000
#: Where memory comes as it is used: touched at once, and how long more of it is waited for.
_TOUCH_BYTES, _GROWTH_S, _LOOK_S = 1 << 30, 5.0, 0.02

#: Called with (bytes done, bytes in all).
Progress = Callable[[int, int], None]


def available_bytes() -> int:
    """Bytes of host memory to be had: what ``$GATHERBENCH_MEMORY_GIB`` says, or else the kernel.

    No more in either case than the process's cgroup leaves it, as in a container.

    Some virtual machines begin with little memory and are given more as they use it: there the
    kernel speaks of what there is now, and only the user knows what there will be.
    """
    said = os.environ.get(MEMORY_VARIABLE)
    left = available_in_cgroup()
    try:
        there = psutil.virtual_memory().available if said is None else int(float(said) * 2**30)
        return there if left is None else min(there, left)
    except (ValueError, OverflowError):  # the latter for "inf"
        raise ValueError(f"{MEMORY_VARIABLE}={said!r}: expected a number of GiB") from None


@dataclass(frozen=True, slots=True)
class HugePages:
    """How many bytes of a tensor lie in huge pages, or the reason why that is not known."""

    bytes: int | None
    reason: str | None = None


def empty_table(shape: tuple[int, int], dtype: torch.dtype, *, shared: bool = False) -> Tensor:
    """A zeroed table ``[N, D]`` in anonymous memory, every page present.

    Tables of at least one huge page start at a huge-page boundary and ask for transparent huge
    pages; where those are switched off (``never`` in
    ``/sys/kernel/mm/transparent_hugepage/enabled``) they get ordinary pages. :func:`huge_pages`
    tells what came of it. The memory is returned when the last tensor that uses it dies.

    Args:
        shared: processes that are forked later share it, and none of them gets a copy when it
            page-locks it. Most systems have no huge pages for such memory.

    Raises:
        ValueError: a negative extent.
        MemoryError: the machine will not map that much.
    """
    rows, width = shape
    if rows < 0 or width < 0:
        raise ValueError(f"shape {shape}: expected two extents of 0 or more")
    size = rows * width * dtype.itemsize
    if size < HUGE_PAGE and not (shared and size):
        return torch.zeros(shape, dtype=dtype)
    flat = _map(size, shared=shared)
    _touch(flat)
    return flat.view(dtype).view(rows, width)


def resident_copy(
    table: Tensor | NDArray[np.generic],
    progress: Progress | None = None,
    *,
    shared: bool = False,
) -> Tensor:
    """A copy of ``table`` ``[N, D]`` made by :func:`empty_table`, which says what ``shared`` means.

    Meant for memory-mapped feature files: they are read once, in order and in pieces, and later
    gathers find every row in memory. Takes NumPy arrays (read-only maps too) and host tensors.
    """
    source = _as_bytes(table)
    dtype = table.dtype if isinstance(table, Tensor) else _torch_dtype(table.dtype)
    copy = empty_table((int(table.shape[0]), int(table.shape[1])), dtype, shared=shared)
    target = copy.view(torch.uint8).numpy().reshape(-1)
    for start in range(0, target.size, _COPY_BYTES):
        stop = min(start + _COPY_BYTES, target.size)
        target[start:stop] = source[start:stop]
        if progress is not None:
            progress(stop, target.size)
    return copy


def huge_pages(tensor: Tensor, smaps: Path = Path("/proc/self/smaps")) -> HugePages:
    """How much of a host ``tensor`` lies in huge pages, from ``AnonHugePages`` in ``smaps``.

    The kernel counts by mapping, and merges neighbouring mappings, so the answer is exact for
    tensors of :func:`empty_table` and an upper bound (cut at the tensor's size) for others.
    """
    start = tensor.data_ptr()
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return HugePages(0)
    try:
        text = smaps.read_text()
    except OSError as error:
        return HugePages(None, f"{smaps} cannot be read: {error.strerror}")
    found, inside, total = False, False, 0
    for line in text.splitlines():
        if head := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            low, high = (int(x, 16) for x in head.groups())
            inside = low < start + size and start < high
            found = found or inside
        elif inside and (amount := re.match(r"AnonHugePages:\s+(\d+) kB", line)):
            total += int(amount[1]) * 1024
    if not found:
        return HugePages(None, f"{smaps} lists no mapping that holds the tensor")
    return HugePages(min(total, size))


def _map(size: int, *, shared: bool) -> Tensor:
    """``size`` anonymous bytes at a huge-page boundary; the tensor keeps the mapping alive."""
    try:
        # Not Python's default, MAP_SHARED: shared memory gets no transparent huge pages on most
        # systems.
        flags = (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE) | mmap.MAP_ANONYMOUS
        if MEMORY_VARIABLE in os.environ:  # the kernel would refuse more than it has today
            flags |= _MAP_NORESERVE
        mapping = mmap.mmap(-1, size + HUGE_PAGE, flags=flags)
    except OSError as error:
        raise MemoryError(f"cannot map {size / 2**30:.1f} GiB: {error.strerror}") from error
    with contextlib.suppress(OSError):  # a kernel built without them: ordinary pages
        mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(mapping, dtype=torch.uint8)
    skip = -whole.data_ptr() % HUGE_PAGE
    return whole[skip : skip + size]


def _touch(flat: Tensor) -> None:
    """Write once to every page, so that all faults happen here.

    Where memory comes as it is used, this goes no faster than it comes: a kernel that runs out of
    memory meanwhile ends the process.
    """
    wait = MEMORY_VARIABLE in os.environ
    step = _TOUCH_BYTES if wait else flat.numel()
    for start in range(0, flat.numel(), step):
        piece = flat[start : start + step]
        wait = wait and _has_come(2 * piece.numel())
        piece[:: mmap.PAGESIZE] = 0


def _has_come(size: int) -> bool:
    """Whether so many bytes are free now, or within some seconds."""
    deadline = time.monotonic() + _GROWTH_S
    while psutil.virtual_memory().available < size:
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def _as_bytes(table: Tensor | NDArray[np.generic]) -> NDArray[np.uint8]:
    if isinstance(table, Tensor):
        return table.contiguous().view(-1).view(torch.uint8).numpy()
    return np.ascontiguousarray(table).reshape(-1).view(np.uint8)


def _torch_dtype(dtype: np.dtype[np.generic]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
