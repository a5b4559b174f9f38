"""Ranks that train together, worked out by hand: gradients, and whole epochs."""

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gatherbench.bench.model import roofline as roofline_module
from gatherbench.bench.model.epoch import predict_batches
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.bench.model.physics import Part, all_reduce
from gatherbench.bench.model.predict import Series
from gatherbench.bench.model.profile import LinkProfile, load_profile


def machine(**constants: float | None) -> LinkProfile:
    """An RTX 3090 whose peers get 10 GB/s (1 µs a hop)."""
    profile = load_profile("rtx3090-pcie4")
    usual = {"peer__rate": 10e9, "peer__latency": 1e-6}
    for key, value in (usual | constants).items():
        profile = profile.with_constant(key.replace("__", "."), value, "made up")
    return profile


GRADIENTS = MinibatchLoad(0.0, gradient_bytes=1e6)
AllReduce = Callable[[MinibatchLoad, LinkProfile], Part]


def check_all_reduce(model: AllReduce) -> None:
    """4 ranks send 2 · 3/4 of 1 MB each: 1.5 MB, in 6 hops behind NCCL's 6.6 µs."""
    near = model(replace(GRADIENTS, gpus=4), machine())
    assert near.seconds == pytest.approx(150e-6 + 6.6e-6 + 6e-6)
    assert near.bound == "averaging gradients (peer link)"
    small = model(replace(GRADIENTS, gradient_bytes=100.0, gpus=8), machine())
    assert small.seconds == pytest.approx(175 / 10e9 + 6.6e-6 + 14e-6)
    assert small.bound == "averaging gradients (latency)"


def test_gradients_go_round_in_a_ring():
    check_all_reduce(all_reduce)


def to_all(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """Each rank sends its gradients to each other one."""
    more = load.gpus * load.gradient_bytes / 2 if load.gradient_bytes else 0.0
    return all_reduce(replace(load, gradient_bytes=more), profile)


def at_once(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """Hops cost nothing."""
    return all_reduce(load, profile.with_constant("peer.latency", 1e-8, "made up"))


@pytest.mark.parametrize("wrong", [to_all, at_once])
def test_a_wrong_average_is_rejected(wrong):
    with pytest.raises(AssertionError):
        check_all_reduce(wrong)


def test_what_is_not_known_of_the_average_is_a_reason_and_left_out_of_the_epoch():
    dark = machine(peer__rate=None)
    assert all_reduce(replace(GRADIENTS, gpus=2), dark).unknown == ("peer.rate: made up",)
    untold = replace(GRADIENTS, gradient_bytes=None)
    (why,) = all_reduce(untold, machine()).unknown
    assert why == "bytes of the gradients: not said"
    for given_load, profile in ((GRADIENTS, dark), (untold, machine())):
        load = replace(given_load, sample_s=0.0, train_s=1e-3)
        epoch = predict_batches(load, profile, 40, gpus=4)
        assert epoch.epoch_s == pytest.approx(10e-3, rel=0.02)
        assert math.isnan(epoch.all_reduce_s)
        assert epoch.parts["all_reduce"].unknown
        assert any("without averaging gradients (" in said for said in epoch.remarks)


def test_gradients_are_averaged_at_the_end_of_each_step():
    """1 ms of training, then 162.6 µs: ten steps a rank."""
    load = replace(GRADIENTS, sample_s=0.0, train_s=1e-3)
    epoch = predict_batches(load, machine(gpu__submit=1e-7), 40, gpus=4)
    assert epoch.train_s == pytest.approx(10 * 1.1626e-3)
    assert epoch.all_reduce_s == pytest.approx(10 * 162.6e-6)
    assert epoch.epoch_s == pytest.approx(10 * 1.1626e-3, rel=1e-3)
    alone = predict_batches(load, machine(), 40)
    assert (alone.all_reduce_s, "all_reduce" in alone.parts) == (0.0, False)
    # Where what was measured as training holds the average, nothing comes on top.
    held = predict_batches(replace(load, gradient_bytes=0.0), machine(), 40, gpus=4)
    assert held.train_s == pytest.approx(10e-3)


ROWS = 100e6
#: 128 B with 20 B of header and framing, on 31.51 GB/s less 8 %.
TRANSFER_S = ROWS / 128 * 148 / (31.51e9 * 0.92)
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


def test_one_gpu_adds_up_or_takes_the_longer():
    assert seconds(BLOCKING, MACHINE, 960) == pytest.approx(960 * (TRANSFER_S + TRAIN_S), rel=1e-3)
    assert seconds(OVERLAPPED, MACHINE, 960) == pytest.approx(960 * TRANSFER_S + TRAIN_S, rel=1e-3)


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
    line = roofline_module._line(series, epoch, machine(), "measured", {"fetch": 2.0})
    assert line["rate"] == pytest.approx(1e7)
    assert line["of_disk"] == pytest.approx(0.5)
