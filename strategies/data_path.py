"""Declare how a minibatch travels, in bytes and requests.

:func:`zero_copy_path` counts the requests with the same policy that a path launches. A strategy
knows no table yet, so it assumes that the table begins on a page, hence on a line of 128 B. Tables
that this project allocates do; one in a memory-mapped ``.npy`` file begins at a multiple of 64 B.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from gatherbench.kernels.order import MANAGED_PAGE_BYTES, page_visits, read_order, straddles
from gatherbench.kernels.policies import policy
from gatherbench.kernels.requests import KEPT_LINES, count_requests


@dataclass(frozen=True, slots=True)
class DataPath:
    """The way of one minibatch's bytes from the feature table to the model.

    The declaration is for a GPU behind a link; on the host backend the CPU plays the copy engine
    and the GPU. Feature bytes are counted wherever they pass, ids only where they cross the link.
    If only part of a cache line is wanted, only those bytes count: ``gpu_requests`` has the whole
    size of each read. Every byte of payload arrives in one of four ways: carried by the copy
    engine, read by the GPU in host memory, read in GPU memory (``gpu_memory_bytes``), where the
    path keeps the row or has it from this minibatch already, or sent by another rank
    (``peer_bytes``).

    All fields are bytes except ``gpu_share``, the part of a GPU that the fetch takes from
    concurrent training (0 if none runs), and the counts. ``gpu_requests`` maps the size of a read
    request on the link (bytes) to its count; ``None``: they cannot be counted. ``gpu_page_visits``
    counts how often these reads move to another page of a table in registered memory
    (``kernels/order.py``), ``managed_page_visits`` the same in managed memory, whose pages are
    larger; ``None`` means uncounted. ``pageable_bytes`` is the part of ``copy_engine_bytes`` in
    fresh pageable memory, which the driver copies once more; ``engine_row_bytes`` the part that the
    copy engine takes as rows from the table itself, in ``engine_copies`` copies.

    For rows on a disk, ``disk_bytes`` counts the whole blocks that are read, in ``disk_requests``
    reads (``None`` where the page cache decides), ``disk_payload_bytes`` the wanted rows, repeats
    included. The rows then travel like rows of host memory.
    """

    payload_bytes: int
    cpu_read_bytes: int = 0
    cpu_write_bytes: int = 0
    copy_engine_bytes: int = 0
    engine_row_bytes: int = 0
    engine_copies: int = 0
    gpu_link_read_bytes: int = 0
    gpu_memory_bytes: int = 0
    peer_bytes: int = 0
    gpu_requests: Mapping[int, int] | None = None
    gpu_page_visits: int | None = None
    managed_page_visits: int | None = 0
    pageable_bytes: int = 0
    disk_payload_bytes: int = 0
    disk_bytes: int | None = 0
    disk_requests: int | None = 0
    gpu_share: float = 0.0

    @property
    def arriving_bytes(self) -> int:
        """Bytes of rows that reach the model: the payload, if the path declares each row's source.

        Bytes that the CPU writes and the copy engine does not carry are read in place by the GPU.
        """
        copied = self.cpu_write_bytes if self.copy_engine_bytes >= self.cpu_write_bytes else 0
        by_gpu = self.gpu_link_read_bytes + self.gpu_memory_bytes
        return copied + self.engine_row_bytes + by_gpu + self.peer_bytes


def staged_path(ids: Tensor, row_bytes: int) -> DataPath:
    """Describe how a minibatch ``[B]`` travels that the CPU gathers and then copies as a whole."""
    size = ids.numel() * row_bytes
    return DataPath(
        payload_bytes=size,
        cpu_read_bytes=size,
        cpu_write_bytes=size,
        copy_engine_bytes=size,
        gpu_requests={},
    )


def zero_copy_path(
    ids: Tensor, row_bytes: int, policy_name: str, order: str, memory: str = "registered"
) -> DataPath:
    """Describe how one minibatch ``[B]`` travels when the GPU reads the rows in place, and the copy
    engine carries only the ids.

    Args:
        policy_name: the launch policy of the path, one that does not depend on the dtype.
        order: the pass over the ids before the kernel.
        memory: ``registered`` or ``managed``: they differ in the size of a page.
    """
    read, managed = read_order(ids.cpu(), order).ids, memory == "managed"
    # Both kernels of a policy, for 4-byte and 8-byte ids, load the same addresses.
    point = policy(policy_name).point(row_bytes, item_bytes=1)
    across = straddles(read, row_bytes) if order == "given" else 0
    counts = count_requests(point, read.numpy(), row_bytes, kept_lines=KEPT_LINES)
    return DataPath(
        payload_bytes=ids.numel() * row_bytes,
        copy_engine_bytes=ids.numel() * ids.element_size(),
        gpu_link_read_bytes=read.numel() * row_bytes,
        gpu_memory_bytes=(ids.numel() - read.numel()) * row_bytes,  # repeats of rows that were read
        gpu_requests={size: count for size, count in counts.requests.items() if count},
        gpu_page_visits=0 if managed else page_visits(read, row_bytes) + across,
        managed_page_visits=page_visits(read, row_bytes, MANAGED_PAGE_BYTES) if managed else 0,
    )


#: The fields of a :class:`DataPath` that are bytes and that every path has.
BYTES = tuple(
    f.name for f in fields(DataPath) if f.name.endswith("_bytes") and f.name != "disk_bytes"
)


def total(paths: Iterable[DataPath]) -> DataPath:
    """Add up the paths of several minibatches.

    A count that is ``None`` in one of them is ``None`` in the sum; page visits are summed only over
    paths that read rows in place.
    """
    every = list(paths)
    known = [path.gpu_requests for path in every if path.gpu_requests is not None]
    return DataPath(
        **{name: sum(getattr(path, name) for path in every) for name in (*BYTES, "engine_copies")},
        gpu_requests=sum(map(Counter, known), Counter()) if len(known) == len(every) else None,
        gpu_page_visits=_sum(path.gpu_page_visits for path in every if path.gpu_link_read_bytes),
        managed_page_visits=_sum(path.managed_page_visits for path in every),
        disk_bytes=_sum(path.disk_bytes for path in every),
        disk_requests=_sum(path.disk_requests for path in every),
        gpu_share=max((path.gpu_share for path in every), default=0.0),
    )


def scaled(path: DataPath, factor: float) -> DataPath:
    """Return the path multiplied by ``factor``, each count rounded."""

    def times(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {size: round(count * factor) for size, count in value.items()}
        return value if value is None else round(value * factor)

    counts = {f.name: times(getattr(path, f.name)) for f in fields(path)}
    return DataPath(**{**counts, "gpu_share": path.gpu_share})


def _sum(counts: Iterable[int | None]) -> int | None:
    every: Any = list(counts)
    return None if None in every else sum(every)
