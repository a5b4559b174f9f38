"""An epoch on several GPUs and what of it is felt, against figures that are worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gatherbench.bench.model.epoch import predict_batches
from gatherbench.bench.model.estimate import Estimate
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.bench.model.profile import LinkProfile, load_profile

ROWS = 100e6
#: 128 B with 20 B of header and framing, on 31.51 GB/s less 8 %.
TRANSFER_S = ROWS / 128 * 148 / (31.51e9 * 0.92)
TRAIN_S = 2e-3
BLOCKING = MinibatchLoad(
    payload_bytes=ROWS,
    gpu_link_read_bytes=ROWS,
    gpu_requests={128: ROWS / 128},
    sample_s=Estimate(0.0),
    train_s=Estimate(TRAIN_S),
)
OVERLAPPED = replace(BLOCKING, lookahead=1, gpu_share=0.1)
MACHINE = load_profile("rtx3090-pcie4")


def seconds(
    load: MinibatchLoad, profile: LinkProfile, batches: int, gpus: int = 1, nodes: int = 1
) -> float:
    value = predict_batches(load, profile, batches, gpus=gpus, nodes=nodes).epoch_s.value
    assert value is not None
    return value


def test_one_gpu_adds_up_or_takes_the_longer() -> None:
    assert seconds(BLOCKING, MACHINE, 960) == pytest.approx(960 * (TRANSFER_S + TRAIN_S), rel=1e-3)
    assert seconds(OVERLAPPED, MACHINE, 960) == pytest.approx(960 * TRANSFER_S + TRAIN_S, rel=1e-3)


@pytest.mark.parametrize(("gpus", "to_a_port"), [(1, 1), (2, 1), (4, 1), (8, 2)])
@pytest.mark.parametrize("nodes", [1, 4])
def test_gpus_of_a_node_share_its_four_ports(gpus: int, to_a_port: int, nodes: int) -> None:
    batches = 960 // gpus // nodes
    expected = batches * to_a_port * TRANSFER_S + TRAIN_S
    assert seconds(OVERLAPPED, MACHINE, 960, gpus, nodes) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_gpus_share_the_memory_of_their_host(gpus: int) -> None:
    slow = MACHINE.with_constant("host.memory_rate", 40e9, "made up")
    slow = slow.with_constant("node.root_ports", 8.0, "made up")
    expected = 960 // gpus * gpus * ROWS / 40e9 + TRAIN_S
    assert seconds(OVERLAPPED, slow, 960, gpus) == pytest.approx(expected, rel=2e-3)


def test_what_is_hidden_is_not_felt() -> None:
    alone = predict_batches(BLOCKING, MACHINE, 100).exposed
    assert alone == pytest.approx({"transfer": 1.0, "train": 1.0}, rel=0.02)
    beside = predict_batches(OVERLAPPED, MACHINE, 100).exposed
    assert beside["transfer"] == pytest.approx(1.0, rel=0.02)
    assert beside["train"] < 0.05
