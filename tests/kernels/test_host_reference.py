"""The reference gather and the byte comparison that all others are judged by."""

from __future__ import annotations

import torch

from gatherbench.kernels.reference import reference_gather, same_bytes


def test_rows_in_the_order_of_the_ids() -> None:
    table = torch.arange(12).view(4, 3).to(torch.bfloat16)
    rows = reference_gather(table, torch.tensor([3, 0, 3], dtype=torch.int32))
    assert rows.tolist() == [[9, 10, 11], [0, 1, 2], [9, 10, 11]]
    assert rows.dtype == torch.bfloat16


def test_no_ids_and_no_rows() -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert tuple(reference_gather(torch.zeros(4, 3), none).shape) == (0, 3)
    assert tuple(reference_gather(torch.zeros(0, 3), none).shape) == (0, 3)


def test_bytes_survive() -> None:
    bits = torch.tensor([[0x7FC00001, -0x80000000], [0x7F800001, 0x7FC00000]], dtype=torch.int32)
    table = bits.view(torch.float32)  # NaNs with payloads, -0.0
    assert reference_gather(table, torch.tensor([1, 0])).view(torch.int32).tolist() == (
        bits.flip(0).tolist()
    )


def test_same_bytes_tells_nan_payloads_and_zeros_apart() -> None:
    nan = torch.tensor([[0x7FC00001]], dtype=torch.int32).view(torch.float32)
    assert same_bytes(nan, nan.clone()) is None
    assert same_bytes(nan, torch.tensor([[float("nan")]])) is not None
    assert same_bytes(torch.tensor([[0.0]]), torch.tensor([[-0.0]])) is not None


def test_same_bytes_says_where() -> None:
    a = torch.zeros(5, 4)
    b = a.clone()
    b[2, 3], b[4, 0] = 1.0, 2.0
    message = same_bytes(a, b)
    assert message is not None
    assert message.startswith("row 2, column 3: 0.0 is not 1.0 (2 of 5 rows differ)")


def test_same_bytes_compares_dtype_and_shape_first() -> None:
    assert "dtype" in str(same_bytes(torch.zeros(1, 2), torch.zeros(1, 2).double()))
    assert "shape (1, 2)" in str(same_bytes(torch.zeros(1, 2), torch.zeros(2, 1)))
    assert same_bytes(torch.zeros(0, 2), torch.zeros(0, 2)) is None


def test_same_bytes_takes_views_with_gaps() -> None:
    wide = torch.arange(12.0).view(3, 4)
    assert same_bytes(wide[:, :2], wide[:, :2].clone()) is None
