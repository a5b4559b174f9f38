"""Ranks that share a machine, worked out by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gatherbench.bench.model import roofline as roofline_module
from gatherbench.bench.model.epoch import predict_batches
from gatherbench.bench.model.physics import MinibatchLoad, Part
from gatherbench.bench.model.predict import Series
from gatherbench.bench.model.profile import LinkProfile, load_profile

ROWS = 100e6
TRAIN_S = 2e-3
BLOCKING = MinibatchLoad(
    payload_bytes=ROWS,
    gpu_link_read_bytes=ROWS,
    gpu_requests={128: ROWS / 128},
    sample_s=0.0,
    train_s=TRAIN_S,
)
OVERLAPPED = replace(BLOCKING, lookahead=1, gpu_share=0.1)
MACHINE = load_profile("rtx3090-pcie4")


def seconds(load: MinibatchLoad, profile: LinkProfile, batches: int, gpus: int = 1) -> float:
    return predict_batches(load, profile, batches, gpus=gpus).epoch_s


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_gpus_share_the_memory_of_their_host(gpus):
    slow = MACHINE.with_constant("host.memory_rate", 40e9, "made up")
    expected = 960 // gpus * gpus * ROWS / 40e9 + TRAIN_S
    assert seconds(OVERLAPPED, slow, 960, gpus) == pytest.approx(expected, rel=2e-3)


def test_the_disk_s_share_is_of_all_ranks():
    """Ten minibatches on two GPUs: five steps of 4 MB in 2 s, and ten reads of 0.1 s."""
    load = MinibatchLoad(4e6, gpu_link_read_bytes=4e6)
    series = Series("w", "disk", "host", load, 10, gpus=2)
    part = Part(0.2, "reads")  # of both
    epoch: Any = SimpleNamespace(parts={"transfer": part, "disk": part}, bound="reads")
    line = roofline_module._line(series, epoch, MACHINE, {"fetch": 2.0})
    assert line["rate"] == pytest.approx(1e7)
    assert line["of_disk"] == pytest.approx(0.5)
