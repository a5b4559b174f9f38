"""The descriptors of a batch of copies, and what the driver is given of them."""

import ctypes
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatherbench.kernels import copy_batch as module
from gatherbench.kernels.copy_batch import (
    Copies,
    batch_refusal,
    copy_batch,
    copy_on_host,
    row_copies,
)
from gatherbench.kernels.cuda_calls import CudaCallError


def rows_of(copies: Copies, table: np.ndarray[Any, Any], batch: int) -> np.ndarray[Any, Any]:
    out = np.zeros((batch, table.shape[1]), table.dtype)
    copy_on_host(copies, table.ctypes.data, out.ctypes.data)
    return out


def test_rows_that_follow_each_other_share_a_descriptor():
    copies = row_copies(np.array([7, 8, 9, 3, 4, 4, 3, 0]), 12)
    assert copies.to.tolist() == [0, 36, 60, 72, 84]
    assert copies.source.tolist() == [84, 36, 48, 36, 0]
    assert copies.size.tolist() == [36, 24, 12, 12, 12]
    assert row_copies(np.empty(0, np.int32), 12).size.size == 0
    assert [part.tolist() for part in row_copies(np.array([0]), 5)] == [[0], [0], [5]]


@settings(deadline=None)
@given(st.lists(st.integers(0, 40), max_size=60), st.sampled_from([np.int32, np.int64]))
def test_the_copies_are_the_rows_and_the_fewest(ids, kind):
    table = np.random.default_rng(0).integers(0, 256, (41, 7), np.uint8)
    wanted = np.array(ids, kind)
    copies = row_copies(wanted, 7)
    np.testing.assert_array_equal(rows_of(copies, table, len(ids)), table[wanted])
    backwards = Copies(*(part[::-1] for part in copies))  # a batch has no order
    np.testing.assert_array_equal(rows_of(backwards, table, len(ids)), table[wanted])
    breaks = sum(after != before + 1 for before, after in itertools.pairwise(ids))
    assert copies.size.size == breaks + bool(ids)


class FakeDriver:
    """A driver that keeps what it was given; ``before`` is that of CUDA 12.8."""

    def __init__(self, before: bool, status: int = 0) -> None:
        self.given: list[tuple[Any, ...]] = []
        self.status, arguments = status, (*module._ARGUMENTS, ctypes.c_void_p)
        name = "cuMemcpyBatchAsync_v2"
        if before:
            name = "cuMemcpyBatchAsync"
            arguments = (*module._ARGUMENTS, ctypes.POINTER(ctypes.c_size_t), ctypes.c_void_p)
        function = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(self.take)
        setattr(self, name, function)

    def take(self, *given: Any) -> int:
        to, source, sizes, count, attributes, first, kinds, *fails, stream = given
        arrays = [
            np.ctypeslib.as_array(ctypes.cast(at, ctypes.POINTER(ctypes.c_uint64)), (count,))
            for at in (to, source, sizes)
        ]
        order = ctypes.cast(attributes, ctypes.POINTER(ctypes.c_int))[0]
        start = ctypes.cast(first, ctypes.POINTER(ctypes.c_uint64))[0]
        told = [array.tolist() for array in arrays]
        self.given.append((*told, order, start, kinds, len(fails), stream))
        return self.status


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    module._call.cache_clear()
    yield
    module._call.cache_clear()


@pytest.mark.parametrize("before", [False, True])
def test_the_driver_is_given_addresses_in_either_form(monkeypatch, before):
    cuda = FakeDriver(before)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: cuda)
    assert batch_refusal() is None
    copy_batch(row_copies(np.array([7, 8, 3]), 12), 1000, 50_000, 77)
    copy_batch(row_copies(np.empty(0, np.int64), 12), 1000, 50_000, 77)
    in_stream_order, kinds = 1, 1
    sent = ([50_000, 50_024], [1084, 1036], [24, 12])
    assert cuda.given == [(*sent, in_stream_order, 0, kinds, int(before), 77)]


def test_what_the_driver_refuses_is_told(monkeypatch):
    cuda = FakeDriver(False, status=1)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: cuda)
    with pytest.raises(CudaCallError, match="CUDA_ERROR_INVALID_VALUE") as told:
        copy_batch(row_copies(np.array([1]), 4), 0, 64, 77)
    assert told.value.code == "CUDA_ERROR_INVALID_VALUE"


def test_a_driver_without_the_call_is_a_reason(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert "older than CUDA 12.8" in str(batch_refusal())


def test_the_path_declares_what_the_engine_takes():
    from gatherbench.strategies.copy_engine_gather import CopyEngineGather

    ids = torch.tensor([7, 8, 3, 8, 7])
    given, unique = (CopyEngineGather(order).data_path(ids, 100) for order in ("given", "unique"))
    assert (given.engine_row_bytes, given.copy_engine_bytes, given.engine_copies) == (500, 500, 4)
    # Rows 3, 7 and 8 in two copies, and five places of 8 B by which they are expanded.
    assert (unique.engine_row_bytes, unique.engine_copies) == (300, 2)
    assert (unique.copy_engine_bytes, unique.gpu_memory_bytes) == (340, 200)
