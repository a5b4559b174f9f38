"""The calibration on a GPU: every point gives a believable time, and the chase is exact."""

from collections.abc import Iterator

import pytest
import torch

from gatherbench.bench.probe.cases import OUR_BEST, gpu_points
from gatherbench.bench.probe.gpu import GpuStand
from gatherbench.bench.probe.machine import ask_gpu
from gatherbench.bench.read.points import Point

SPANS = (256 << 20, 512 << 20, 1 << 30)


@pytest.fixture(scope="module")
def stand() -> Iterator[GpuStand]:
    with GpuStand(SPANS, torch.device("cuda", torch.cuda.current_device())) as made:
        yield made


@pytest.mark.parametrize("point", gpu_points(SPANS, 2), ids=str)
def test_every_point_is_measured(stand, point):
    """The bounds are of anything that can be a GPU, not of a good one."""
    if point.case == "gpu_gather":
        stand.check(OUR_BEST, point.row_bytes)
    stand.measure(point)  # compiles, and wakes the link
    observed = stand.measure(point)
    rate = observed.amount / observed.seconds
    if point.case == "round_trip":
        assert 1e-7 < 1 / rate < 1e-4
    elif point.case in ("gpu_launch", "gpu_issue", "gpu_replay", "gpu_draw", "gpu_submit"):
        assert 1e-8 < 1 / rate < 1e-1
    elif point.case == "gpu_matmul":
        assert 1e9 < rate < 1e16
    else:
        assert 1e7 < rate < 1e13


def test_chases_go_on_where_they_ended(stand):
    """Each observation checks its own end: a ring that was written to would be noticed."""
    for span in SPANS:
        for _ in range(3):
            assert stand.measure(Point("round_trip", span_bytes=span)).amount > 0


def test_the_machine_can_be_asked(stand):
    facts = ask_gpu(stand.device)
    assert facts.gpus
    assert facts.gpu_memory_bytes
    assert facts.link_generation is None or 1 <= facts.link_generation <= 7
    assert facts.max_payload is None or facts.max_payload in (128, 256, 512, 1024, 2048, 4096)
