"""Rows that travel narrower: worked out by hand, and what must be rejected."""

from dataclasses import dataclass

import pytest
import torch
from host_paths import HOST
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gatherbench.strategies import conformance
from gatherbench.strategies.base import Fetcher
from gatherbench.strategies.cached_zero_copy import CachedZeroCopy
from gatherbench.strategies.conformance import NonconformingError
from gatherbench.strategies.knowledge import Knowledge
from gatherbench.strategies.narrow_rows import NarrowRows, narrow_table, narrowed, widen


def by_hand() -> Tensor:
    """Largest values 2, 0 and 254: scales 2/127, 0 and 2."""
    return torch.tensor([[1.0, -2.0, 0.01, 0.0, 1.5], [0.0] * 5, [254.0, -3.0, 1.0, 2.9, -254.0]])


def test_int8_by_hand():
    packed = narrowed(by_hand(), "int8")
    assert packed.shape == (3, 12)  # 5 values, filled up to 8, and 4 bytes of scale
    assert packed[:, :5].view(torch.int8).tolist() == [
        [64, -127, 1, 0, 95],  # 63.5 is rounded to the even 64; 0.635; 95.25
        [0, 0, 0, 0, 0],
        [127, -2, 0, 1, -127],  # -1.5 and 0.5 go to the even number; 1.45
    ]
    assert packed[:, 5:8].count_nonzero() == 0
    scale = torch.tensor([2.0]) / 127
    assert packed[:, 8:].view(torch.float32).flatten().tolist() == [float(scale), 0.0, 2.0]
    out = torch.empty(3, 5)
    widen(packed, out)
    assert out[0].tolist() == [float(q * scale) for q in (64, -127, 1, 0, 95)]
    assert out[1:].tolist() == [[0.0] * 5, [254.0, -4.0, 0.0, 2.0, -254.0]]


@pytest.mark.parametrize(("dtype", "one"), [("float16", 1 + 2**-10), ("bfloat16", 1 + 2**-7)])
def test_floats_by_hand(dtype, one):
    """The least above 1 that the type holds stays, and what lies below the half of that goes."""
    rows = torch.tensor([[one, 1 + (one - 1) / 4]])
    out = torch.empty(1, 2)
    widen(narrowed(rows, dtype), out)
    assert out.tolist() == [[one, 1.0]]


@given(
    st.lists(st.lists(st.floats(-1e4, 1e4, width=32), min_size=3, max_size=3), min_size=1),
    st.sampled_from(["float16", "bfloat16", "int8"]),
)
def test_values_are_off_by_no_more_than_the_type_says(rows, dtype):
    table = torch.tensor(rows)
    got = NarrowRows(dtype=dtype).delivered(table)  # type: ignore[arg-type]
    steps = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
    largest = table.abs().amax(1, keepdim=True)
    bound = table.abs() * steps[dtype] + 1e-7 if dtype in steps else largest * (0.5001 / 127)
    assert ((got - table).abs() <= bound + 1e-30).all()
    # Each row by itself: what a minibatch holds beside it changes nothing.
    alone = torch.cat([NarrowRows(dtype=dtype).delivered(row[None]) for row in table])  # type: ignore[arg-type]
    assert torch.equal(alone, got)


@pytest.mark.parametrize(
    ("dtype", "row_bytes", "narrow"),
    [("float16", 1200, 600), ("bfloat16", 400, 200), ("int8", 400, 104), ("int8", 20, 12)],
)
def test_declared_bytes_are_those_that_travel(dtype, row_bytes, narrow):
    strategy = NarrowRows(dtype=dtype)  # type: ignore[arg-type]
    assert strategy.travelling_bytes(row_bytes) == narrow
    path = strategy.data_path(torch.arange(10), row_bytes)
    assert (path.payload_bytes, path.gpu_link_read_bytes) == (10 * narrow, 10 * narrow)
    table = narrow_table(torch.randn(4, row_bytes // 4), dtype)
    assert table.shape[1] * table.element_size() == narrow


@pytest.mark.parametrize(
    ("value", "dtype", "said"),
    [
        (7e4, "float16", "holds 70000, and float16 holds finite values up to 65504; bfloat16"),
        (float("inf"), "bfloat16", "holds inf"),
        (float("nan"), "int8", "holds nan"),
    ],
)
def test_what_the_type_cannot_hold_is_refused(value, dtype, said):
    table = torch.ones(5, 3)
    table[3, 1] = value
    with pytest.raises(ValueError, match=said):
        NarrowRows(dtype=dtype).open(table, HOST)  # type: ignore[arg-type]


def test_a_table_that_is_no_float32_is_refused():
    with pytest.raises(ValueError, match=r"is torch\.float16, expected torch\.float32"):
        NarrowRows().open(torch.ones(2, 2, dtype=torch.float16), HOST)


def test_opening_says_what_the_second_table_takes():
    with NarrowRows(dtype="int8").open(torch.ones(6, 5), HOST) as fetcher:
        steps = {step.metric: step.value for step in fetcher.setup}
    assert steps["narrow_table"] == 6 * 12
    assert steps["narrow_time"] > 0


def test_it_is_never_ranked_and_says_why():
    assert NarrowRows(dtype="int8").aside == "lossy: rows travel as int8"
    assert NarrowRows(dtype="int8").lossy
    assert NarrowRows(path="async").lookahead == NarrowRows(path="cached-ahead").lookahead == 1
    assert NarrowRows(path="cached-ahead", memory="managed").inner == CachedZeroCopy(
        ahead="1", memory="managed"
    )
    assert {NarrowRows(path=path).role for path in ("aligned", "async", "cached")} == {"zero_copy"}
    assert NarrowRows(path="pinned").role == "conventional"


def test_what_the_gpu_keeps_is_narrow_with_its_scales():
    """A tenth of 1000 rows of 5 values: 8 B of them and 4 of scale. 12 B a row, and not 20."""
    assert NarrowRows("int8", "cached").kept_bytes(1000, 20) == 1200
    conformance.check_data_path(NarrowRows("int8", "cached"), HOST)


@dataclass(frozen=True)
class NeighboursScale(NarrowRows):
    """Wrong: a row has the scale of the row before it."""

    name = "neighbours_scale"

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        fetcher = super()._open(features, device, knowledge)
        narrow = fetcher._narrow  # type: ignore[attr-defined]
        narrow[:, -4:] = narrow[:, -4:].roll(1, 0)
        return fetcher


@dataclass(frozen=True)
class HalfThere(NarrowRows):
    """Wrong: it says that rows arrive as they are."""

    name = "half_there"

    def delivered(self, rows: Tensor) -> Tensor:
        return rows


@pytest.mark.parametrize("wrong", [NeighboursScale("int8"), HalfThere()], ids=lambda one: one.name)
def test_wrong_versions_are_rejected(wrong):
    with pytest.raises(NonconformingError, match=wrong.name):
        conformance.check_strategy(wrong, HOST)
