"""What each strategy declares of its bytes, against counts done by hand."""

import dataclasses

import numpy as np
import pytest
import torch
from host_paths import through_the_host

from gatherbench.kernels.policies import POLICIES
from gatherbench.kernels.requests import KEPT_LINES, count_requests
from gatherbench.strategies.data_path import DataPath, total
from gatherbench.strategies.registry import build

IDS = torch.tensor([4, 4, 1, 9], dtype=torch.int32)  # 4 rows, 3 of them distinct
ROW = 400


@pytest.mark.parametrize("mode", ["naive", "pinned", "prefetch"])
def test_cpu_gather_touches_host_memory_three_times(mode):
    pageable = 1600 if mode == "naive" else 0
    wanted = through_the_host(1600, gpu_requests={}, pageable_bytes=pageable)
    assert build("cpu_gather", {"mode": mode}).data_path(IDS, ROW) == wanted


@pytest.mark.parametrize(
    ("name", "params", "read"),
    [
        ("unified_zero_copy", {}, 1600),
        ("aligned_zero_copy", {}, 1600),
        ("aligned_zero_copy", {"order": "sorted"}, 1600),
        ("aligned_zero_copy", {"order": "unique"}, 1200),
        ("async_zero_copy", {}, 1600),
        ("async_zero_copy", {"budget": "10"}, 1600),
    ],
)
def test_zero_copy_sends_ids_and_reads_rows(name, params, read):
    path = build(name, params).data_path(IDS, ROW)
    assert dataclasses.replace(path, gpu_requests=None) == DataPath(
        payload_bytes=1600,
        copy_engine_bytes=4 * 4,
        gpu_link_read_bytes=read,
        gpu_memory_bytes=1600 - read,  # the repeat
        gpu_page_visits=1,
        gpu_share=0.1 if name == "async_zero_copy" else 0.0,  # the paper's 10 %
    )


@pytest.mark.parametrize(("row_bytes", "ours"), [(ROW, 0), (2408, 1)])
def test_dgls_grid_reads_each_line_of_a_row_once(row_bytes, ours):
    """By hand: rows of 400 B lie on 4 or 5 lines. Of the eight of 2408 B our shift reads one's head
    in two steps."""
    ids = torch.arange(8)
    ends = [(row_bytes * k, row_bytes * (k + 1) - 1) for k in range(8)]
    lines = sum(last // 128 - first // 128 + 1 for first, last in ends)
    for grid, more in (("dgl", 0), ("ours", ours)):
        path = build("aligned_zero_copy", {"order": "sorted", "grid": grid})
        assert sum(path.data_path(ids, row_bytes).gpu_requests.values()) == lines + more


@pytest.mark.parametrize(("order", "visits"), [("given", 4), ("sorted", 2), ("unique", 2)])
def test_a_row_across_two_pages_is_two_visits_unless_ids_are_sorted(order, visits):
    """Rows of 400 B: row 10 begins at 4000 B and ends at 4399, row 90,122 at byte 36,048,800.

    That is 96 B before page 8801 of 4 KiB; rows 11 and 90,123 lie on one page.
    """
    ids = torch.tensor([10, 90_122])
    assert ROW == 400
    path = build("aligned_zero_copy", {"order": order}).data_path
    assert path(ids, ROW).gpu_page_visits == visits
    assert path(ids + 1, ROW).gpu_page_visits == 2


@pytest.mark.parametrize("name", ["unified_zero_copy", "aligned_zero_copy", "async_zero_copy"])
def test_each_kind_of_memory_counts_pages_of_its_own_size(name):
    """Rows at 1.6 kB and 0.4 MB: two lines of 64 KiB, one page of 2 MiB; at 36 MB on others."""
    ids = torch.tensor([90_000, 4, 1000])
    registered, managed = (
        build(name, {"memory": memory}).data_path(ids, ROW) for memory in ("registered", "managed")
    )
    assert (registered.gpu_page_visits, registered.managed_page_visits) == (3, 0)
    assert managed == dataclasses.replace(registered, gpu_page_visits=0, managed_page_visits=2)


@pytest.mark.parametrize(
    ("name", "params", "rows", "policy"),
    [
        ("unified_zero_copy", {}, [4, 4, 1, 9], "unaligned"),
        ("aligned_zero_copy", {}, [4, 4, 1, 9], "aligned"),
        ("aligned_zero_copy", {"order": "sorted"}, [1, 4, 4, 9], "aligned"),
        ("aligned_zero_copy", {"order": "unique"}, [1, 4, 9], "aligned"),
        ("async_zero_copy", {}, [4, 4, 1, 9], "aligned"),
    ],
)
@pytest.mark.parametrize("row_bytes", [4, 127, 400, 1412])
def test_requests_are_those_of_the_policy_that_is_launched(name, params, rows, policy, row_bytes):
    point = POLICIES[policy].point(row_bytes, 1)
    counts = count_requests(point, np.array(rows), row_bytes, kept_lines=KEPT_LINES)
    path = build(name, params).data_path(IDS, row_bytes)
    assert path.gpu_requests == {size: n for size, n in counts.requests.items() if n}
    carried = sum(size * count for size, count in (path.gpu_requests or {}).items())
    assert carried == 32 * counts.sectors >= path.gpu_link_read_bytes


def test_page_visits_add_up_over_the_minibatches_that_are_read_in_place():
    """Rows in GPU memory visit none; where a minibatch's visits are unknown, the sum is unknown."""
    read = DataPath(8, gpu_link_read_bytes=8, gpu_page_visits=3, gpu_requests={32: 1})
    kept = DataPath(8, gpu_memory_bytes=8, gpu_requests={})
    assert total([read, kept, read]).gpu_page_visits == 6
    uncounted = dataclasses.replace(read, gpu_page_visits=None)
    assert total([read, kept, uncounted]).gpu_page_visits is None


def test_all_in_gpu_sends_only_ids():
    assert build("all_in_gpu").data_path(IDS, ROW) == DataPath(
        payload_bytes=1600, copy_engine_bytes=4 * 4, gpu_memory_bytes=1600, gpu_requests={}
    )
