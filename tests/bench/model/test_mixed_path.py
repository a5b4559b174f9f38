"""A path that keeps a part of the table in GPU memory is predicted from what it declares."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gatherbench.bench.model.epoch import EpochPrediction, predict_batches
from gatherbench.bench.model.physics import MinibatchLoad, load_of
from gatherbench.bench.model.profile import load_profile
from gatherbench.strategies.data_path import DataPath, total

PROFILE = load_profile("rtx3090-pcie4")


def predicted(load: MinibatchLoad) -> EpochPrediction:
    return predict_batches(load, PROFILE, 100)


HALF = 5e8
READ = MinibatchLoad(
    HALF, gpu_link_read_bytes=HALF, gpu_requests={128: HALF / 128}, gpu_page_visits=0.0
)
GATHERED = MinibatchLoad(
    HALF, cpu_read_bytes=HALF, cpu_write_bytes=HALF, copy_engine_bytes=HALF, gpu_requests={}
)
BOTH = replace(
    READ, payload_bytes=2 * HALF, cpu_read_bytes=HALF, cpu_write_bytes=HALF, copy_engine_bytes=HALF
)


def test_rows_that_are_gathered_and_rows_read_in_place_both_cross_the_link():
    parts = {
        name: predicted(one).parts for name, one in (("r", READ), ("g", GATHERED), ("b", BOTH))
    }
    together, alone = parts["b"]["transfer"], (parts["r"]["transfer"], parts["g"]["transfer"])
    lengths = [part.seconds for part in alone]
    assert together.seconds == pytest.approx(sum(lengths))
    assert together.bound == alone[lengths.index(max(lengths))].bound
    assert parts["b"]["gather"] == parts["g"]["gather"]
    assert "expand" not in parts["b"]
    assert BOTH.brought_bytes == 2 * HALF


def test_paths_add_up_and_a_count_that_one_lacks_is_lacking():
    reads = DataPath(10, gpu_link_read_bytes=10, gpu_requests={32: 1, 128: 2}, gpu_page_visits=3)
    copies = DataPath(5, cpu_write_bytes=5, copy_engine_bytes=6, gpu_requests={})
    both = total([reads, copies, reads])
    assert (both.payload_bytes, both.gpu_link_read_bytes, both.copy_engine_bytes) == (25, 20, 6)
    assert both.gpu_requests == {32: 2, 128: 4}
    assert both.gpu_page_visits == 6, "copies visit no page"
    uncounted = replace(reads, gpu_requests=None, gpu_page_visits=None)
    for paths in ([reads, uncounted], [uncounted, reads]):
        assert total(paths).gpu_requests is None
        assert total(paths).gpu_page_visits is None
    half = load_of(both, 0.5, row_bytes=4)
    assert (half.payload_bytes, half.gpu_page_visits, half.row_bytes) == (12.5, 3.0, 4)
    assert half.gpu_requests == {32: 1, 128: 2}
    assert load_of(total([]), 1.0).gpu_requests == {}


def test_rows_that_the_gpu_reads_where_the_cpu_wrote_them_cross_once():
    once = replace(BOTH, payload_bytes=HALF, copy_engine_bytes=HALF / 50)
    assert once.brought_bytes == HALF
    assert predicted(once).parts["transfer"] == predicted(READ).parts["transfer"]
    assert predicted(once).parts["gather"] == predicted(GATHERED).parts["gather"]
