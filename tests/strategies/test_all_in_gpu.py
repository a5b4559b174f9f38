"""all_in_gpu fetches from a table of its own: the upper bound must not read the host's."""

from __future__ import annotations

import torch

from gatherbench.strategies.registry import build


def test_the_fetched_rows_come_from_a_copy() -> None:
    table = torch.arange(12.0).reshape(4, 3)
    before = table.clone()
    with build("all_in_gpu").open(table, torch.device("cpu")) as fetcher:
        table.zero_()
        assert torch.equal(fetcher.submit(torch.tensor([3, 1])).result(), before[[3, 1]])
