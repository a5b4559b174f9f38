"""A fetcher a type on a GPU: rows and places lie there, whatever each fetcher does for them."""

import pytest
import torch
from gpu_variants import CUDA, VARIANTS, runnable

from gatherbench.kernels.reference import same_bytes
from gatherbench.strategies.by_type import TypedRows, TypedTable, gathered, opened, typed_refusal
from gatherbench.strategies.conformance import table_for

ROWS, WIDTHS = (3000, 500, 40), (1200, 200, 36)


@pytest.mark.parametrize(
    "strategy", [one for one in VARIANTS if typed_refusal(one.values[0], CUDA) is None]
)
def test_rows_of_each_type_are_those_of_a_plain_gather(strategy):
    shapes = zip(ROWS, WIDTHS, strict=True)
    parts = tuple(table_for(strategy, width, torch.float32, rows) for rows, width in shapes)
    table = TypedTable(parts, ("a", "b", "c"))
    with opened(runnable(strategy), table, CUDA) as fetcher:
        for count in (700, 1, 0, 900):
            ids = torch.randint(0, sum(ROWS), (count,))
            found, wanted = fetcher.submit(ids).result(), gathered(table, ids)
            assert isinstance(wanted, TypedRows)
            for mine, theirs in zip(found.rows, wanted.rows, strict=True):
                assert mine.device.type == "cuda"
                assert same_bytes(mine.cpu(), strategy.delivered(theirs)) is None
            for mine, theirs in zip(found.places, wanted.places, strict=True):
                assert mine.device.type == "cuda"
                assert torch.equal(mine.cpu(), theirs)
