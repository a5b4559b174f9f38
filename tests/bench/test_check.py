"""The table must lie where the strategy says: a copy that nobody asked for gives right values."""

from __future__ import annotations

import pytest
import torch

from gatherbench.bench.check import WrongMemoryError, residency_row
from gatherbench.bench.rows import RowMaker
from gatherbench.strategies.base import Fetcher, Residency, Ticket

MAKE = RowMaker("run", "c", "m", "cuda", "w", "d", "aligned_zero_copy", "given", 0)


class Claims(Fetcher):
    """Says of itself what the test wants."""

    def __init__(self, residency: Residency | None) -> None:
        super().__init__(torch.zeros(2, 2), torch.device("cpu"))
        self._residency = residency

    def residency(self) -> Residency | None:
        return self._residency

    def _submit(self, ids: torch.Tensor) -> Ticket:
        raise AssertionError("nothing is fetched here")


def test_a_table_in_its_place_is_a_row_that_names_the_place() -> None:
    row = residency_row(Claims(Residency("Host", "Host", "cudaPointerGetAttributes")), MAKE)
    assert (row.stage, row.metric, row.value) == ("check", "residency", 1)
    assert row.source == "cudaPointerGetAttributes: Host"


def test_a_table_that_was_copied_to_the_gpu_is_not_timed() -> None:
    moved = Claims(Residency("Host", "Device", "cudaPointerGetAttributes"))
    with pytest.raises(WrongMemoryError, match=r"lies in Device memory .* reads Host memory"):
        residency_row(moved, MAKE)


def test_where_nobody_can_be_asked_the_row_says_so() -> None:
    row = residency_row(Claims(None), MAKE)
    assert row.value is None
    assert row.reason is not None
    assert row.reason.startswith("unsupported: ")
