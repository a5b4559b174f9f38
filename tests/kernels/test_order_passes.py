"""Whatever the order of reading, the batch is the one that was asked for."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gatherbench.kernels.order import ORDERS, ReadOrder, page_visits, read_order, straddles

BATCHES = st.lists(st.integers(0, 40), max_size=80)
DTYPES = st.sampled_from([torch.int32, torch.int64])


def carried_out(table: Tensor, order: ReadOrder, batch: int) -> Tensor:
    """What a gather that obeys ``order`` delivers, written as plainly as can be."""
    read = table[order.ids.long()]
    if order.expand is not None:
        return read[order.expand]
    if order.out_rows is None:
        return read
    out = torch.full((batch,), -1)
    out[order.out_rows] = read
    return out


@given(BATCHES, DTYPES, st.sampled_from(ORDERS))
def test_every_order_delivers_the_batch(values, dtype, name):
    ids = torch.tensor(values, dtype=dtype)
    table = torch.arange(41) * 7
    order = read_order(ids, name)
    assert order.ids.dtype == dtype
    assert carried_out(table, order, len(values)).tolist() == [7 * v for v in values]
    for places in (order.out_rows, order.expand):
        assert places is None or places.dtype == torch.int64


@given(BATCHES, DTYPES)
def test_sorted_reads_upwards_and_unique_reads_once(values, dtype):
    ids = torch.tensor(values, dtype=dtype)
    assert read_order(ids, "sorted").ids.tolist() == sorted(values)
    assert read_order(ids, "unique").ids.tolist() == sorted(set(values))
    assert read_order(ids, "given").ids is ids


def test_an_unknown_order_is_refused():
    with pytest.raises(ValueError, match="'random': expected one of given, sorted, unique"):
        read_order(torch.tensor([1]), "random")


def visited_one_by_one(ids: list[int], row_bytes: int) -> int:
    """Lines of 64 KiB that a walk over the rows enters, written as plainly as can be."""
    entered, page = 0, -1
    for row in ids:
        if row * row_bytes // 2**16 != page:
            entered, page = entered + 1, row * row_bytes // 2**16
    return entered


@given(st.lists(st.integers(0, 2**31 - 1), max_size=40), st.integers(1, 4096), DTYPES)
def test_page_visits_are_counted_in_reading_order(values, row_bytes, dtype):
    ids = torch.tensor(values, dtype=dtype)
    assert page_visits(ids, row_bytes) == visited_one_by_one(values, row_bytes)
    ascending = read_order(ids, "sorted").ids
    pages = {value * row_bytes // 2**16 for value in values}
    assert page_visits(ascending, row_bytes) == len(pages) <= page_visits(ids, row_bytes)


@given(st.lists(st.integers(0, 2**31 - 1), max_size=40), st.integers(1, 9000), DTYPES)
def test_pages_beyond_a_row_s_first_are_counted_byte_by_byte(values, row_bytes, dtype):
    more = 0
    for row in values:
        begin = row * row_bytes
        more += sum(byte % 4096 == 0 for byte in range(begin + 1, begin + row_bytes))
    assert straddles(torch.tensor(values, dtype=dtype), row_bytes) == more


@pytest.mark.parametrize(
    ("row_bytes", "pages"),
    [
        # Rows begin at every multiple of 16 B in a page: at 24 of 256 (the last 384 B) they end in
        # the next.
        (400, 1 + 24 / 256),
        # At multiples of 4 B: at 352 of 1024.
        (1412, 1 + 352 / 1024),
        (512, 1.0),
        (4096, 1.0),
        # At 300 of 512 multiples of 8 B; a row of 8 KiB lies on two.
        (2408, 1 + 300 / 512),
        (8192, 2.0),
    ],
)
def test_pages_a_row_by_hand(row_bytes, pages):
    assert 1 + straddles(torch.arange(4096), row_bytes) / 4096 == pages
