"""What a zero-copy path asks of the link: bytes, and the requests that carry them.

Counted with the very policy that the path launches (``kernels/requests.py``), so that the paper's
argument for alignment stands in every row of a result and not only in a figure. A strategy is a
plain value and knows no table yet, so one thing is assumed: the table begins on a page, hence on a
line of 128 B. Tables that this project allocates do; one in a memory-mapped ``.npy`` file begins
behind a header whose length is a multiple of 64 B only.
"""

from __future__ import annotations

from torch import Tensor

from gatherbench.kernels.order import Order, page_visits, read_order
from gatherbench.kernels.policies import policy
from gatherbench.kernels.requests import count_requests
from gatherbench.strategies.data_path import DataPath


def zero_copy_path(ids: Tensor, row_bytes: int, policy_name: str, order: Order) -> DataPath:
    """How one minibatch travels when the GPU reads the rows in place.

    Args:
        ids: ``[B]``, as the caller gives them; they are what the copy engine carries.
        row_bytes: bytes of a row.
        policy_name: the launch policy of the path, one that does not depend on the dtype.
        order: the pass over the ids before the kernel.
    """
    read = read_order(ids.cpu(), order).ids
    # Both kernels of a policy, for 4-byte and 8-byte ids, load the same addresses.
    point = policy(policy_name).point(row_bytes, item_bytes=1)
    counts = count_requests(point, read.numpy(), row_bytes)
    return DataPath(
        payload_bytes=ids.numel() * row_bytes,
        copy_engine_bytes=ids.numel() * ids.element_size(),
        gpu_link_read_bytes=read.numel() * row_bytes,
        gpu_requests={size: count for size, count in counts.requests.items() if count},
        gpu_page_visits=page_visits(read, row_bytes),
    )
