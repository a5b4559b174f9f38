"""What each strategy declares of its bytes, against the counts of DESIGN.md done by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatherbench.strategies.base import DataPath
from gatherbench.strategies.registry import STRATEGIES, build, variants

IDS = torch.tensor([4, 4, 1, 9], dtype=torch.int32)  # 4 rows, 3 of them distinct
ROW = 400


@pytest.mark.parametrize("mode", ["naive", "pinned", "prefetch"])
def test_cpu_gather_touches_host_memory_three_times(mode: str) -> None:
    assert build("cpu_gather", {"mode": mode}).data_path(IDS, ROW) == DataPath(
        payload_bytes=1600,
        cpu_read_bytes=1600,
        cpu_write_bytes=1600,
        copy_engine_bytes=1600,
        gpu_requests={},
    )


@pytest.mark.parametrize(
    ("name", "params", "read"),
    [
        ("unified_zero_copy", {}, 1600),
        ("unified_zero_copy", {"memory": "managed"}, 1600),
        ("aligned_zero_copy", {}, 1600),
        ("aligned_zero_copy", {"order": "sorted"}, 1600),
        ("aligned_zero_copy", {"order": "unique"}, 1200),
        ("async_zero_copy", {}, 1600),
    ],
)
def test_zero_copy_sends_ids_and_reads_rows(
    name: str, params: dict[str, object], read: int
) -> None:
    assert build(name, params).data_path(IDS, ROW) == DataPath(
        payload_bytes=1600, copy_engine_bytes=4 * 4, gpu_link_read_bytes=read, gpu_requests=None
    )


def test_all_in_gpu_sends_only_ids() -> None:
    assert build("all_in_gpu").data_path(IDS, ROW) == DataPath(
        payload_bytes=1600, copy_engine_bytes=4 * 8, gpu_requests={}
    )


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 9000))
def test_no_path_moves_less_than_the_distinct_rows(ids: list[int], row_bytes: int) -> None:
    batch = torch.tensor(ids, dtype=torch.int64)
    for cls in STRATEGIES:
        for strategy in variants(cls):
            path = strategy.data_path(batch, row_bytes)
            assert path.payload_bytes == len(ids) * row_bytes
            if cls.name != "all_in_gpu":
                moved = path.copy_engine_bytes + path.gpu_link_read_bytes
                assert moved >= len(set(ids)) * row_bytes
