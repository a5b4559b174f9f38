"""What a strategy declares of a minibatch's way, in bytes and requests.

The tables of a run and the link model know a strategy by this and by little else, so that neither
has to know its name. :func:`zero_copy_path` counts the requests with the very policy that a path
launches. A strategy is a plain value and knows no table yet, so one thing is assumed: the table
begins on a page, hence on a line of 128 B. Tables that this project allocates do. One in a
memory-mapped ``.npy`` file begins behind a header whose length is a multiple of 64 B only.
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
    """How the bytes of one minibatch travel from the feature table to the model.

    Declared for a GPU behind a link, whatever backend runs the path: on the host backend the CPU
    plays the copy engine and the GPU. Feature bytes are counted wherever they pass, the ids only
    where they cross the link. A cache line that is read for part of its bytes counts those bytes
    only: what the hardware reads beside them is in ``gpu_requests``.

    Every byte of payload arrives in one way: carried by the copy engine, read by the GPU in host
    memory, read in its own (``gpu_memory_bytes``), where the path keeps the row or has it from
    this minibatch already, or sent by another rank (``peer_bytes``). How much memory the
    table takes on the GPU says ``Strategy.kept_bytes``.

    All fields are bytes except ``gpu_share``, the part of a GPU that the fetch takes from the
    training beside it (0 where nothing is), and the counts: ``gpu_requests`` maps the size of a
    read request on the link (bytes) to its count; it is ``None`` where no request accounting exists
    for the path, which is different from an empty mapping (no requests at all).
    ``gpu_page_visits`` counts how often these reads move on to another page of a table in
    registered memory (``kernels/order.py``), ``managed_page_visits`` in managed memory, whose pages
    are larger; ``None`` where nobody counts.
    ``pageable_bytes`` is the part of ``copy_engine_bytes`` that lies in freshly allocated pageable
    memory, which the driver copies once more before it travels; ``engine_row_bytes`` the part that
    are rows which the copy engine takes from the table itself, in ``engine_copies`` copies.

    Of rows that come off a disk, ``disk_bytes`` counts what is read there, whole blocks, in
    ``disk_requests`` reads, and ``disk_payload_bytes`` the rows among them, each as often as it is
    asked for; they then travel like rows of host memory. The first two are ``None`` where the page
    cache decides what is read; the third is then all that is asked for in the file.
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
        """Bytes of rows that reach the model: the payload, if the path says where each is from.

        What the CPU writes and the copy engine does not carry, the GPU reads in place.
        """
        copied = self.cpu_write_bytes if self.copy_engine_bytes >= self.cpu_write_bytes else 0
        by_gpu = self.gpu_link_read_bytes + self.gpu_memory_bytes
        return copied + self.engine_row_bytes + by_gpu + self.peer_bytes


def staged_path(ids: Tensor, row_bytes: int) -> DataPath:
    """How one minibatch (``[B]``) travels that the CPU gathers, to be copied as a whole."""
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
    """How one minibatch travels when the GPU reads the rows in place.

    Args:
        ids: ``[B]``, as the caller gives them; they are what the copy engine carries.
        row_bytes: bytes of a row.
        policy_name: the launch policy of the path, one that does not depend on the dtype.
        order: the pass over the ids before the kernel.
        memory: in which the table lies, ``registered`` or ``managed``: each has pages of its own.
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
        gpu_memory_bytes=(ids.numel() - read.numel()) * row_bytes,  # repeats of what was read
        gpu_requests={size: count for size, count in counts.requests.items() if count},
        gpu_page_visits=0 if managed else page_visits(read, row_bytes) + across,
        managed_page_visits=page_visits(read, row_bytes, MANAGED_PAGE_BYTES) if managed else 0,
    )


#: The fields of a :class:`DataPath` that are bytes of every path.
BYTES = tuple(
    f.name for f in fields(DataPath) if f.name.endswith("_bytes") and f.name != "disk_bytes"
)


def total(paths: Iterable[DataPath]) -> DataPath:
    """The paths of several minibatches added up.

    A count that one of them does not have is not there in the sum; pages count only where rows are
    read in place.
    """
    every = list(paths)
    known = [path.gpu_requests for path in every if path.gpu_requests is not None]
    return DataPath(
        **{name: sum(getattr(path, name) for path in every) for name in BYTES},
        engine_copies=sum(path.engine_copies for path in every),
        gpu_requests=sum(map(Counter, known), Counter()) if len(known) == len(every) else None,
        gpu_page_visits=_sum(path.gpu_page_visits for path in every if path.gpu_link_read_bytes),
        managed_page_visits=_sum(path.managed_page_visits for path in every),
        disk_bytes=_sum(path.disk_bytes for path in every),
        disk_requests=_sum(path.disk_requests for path in every),
        gpu_share=max((path.gpu_share for path in every), default=0.0),
    )


def scaled(path: DataPath, factor: float) -> DataPath:
    """Return so many times the path, each count rounded."""

    def times(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {size: round(count * factor) for size, count in value.items()}
        return value if value is None else round(value * factor)

    counts = {one.name: times(getattr(path, one.name)) for one in fields(path)}
    return DataPath(**{**counts, "gpu_share": path.gpu_share})


def _sum(counts: Iterable[int | None]) -> int | None:
    every = list(counts)
    known = [count for count in every if count is not None]
    return sum(known) if len(known) == len(every) else None
