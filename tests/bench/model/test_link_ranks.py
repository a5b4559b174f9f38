"""Ranks that train together, worked out by hand: gradients, rows of others, and whole epochs."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gatherbench.bench.model import roofline as roofline_module
from gatherbench.bench.model.epoch import epoch_seconds, minibatch_parts, predict_batches
from gatherbench.bench.model.estimate import Estimate
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.bench.model.physics import Part, all_reduce, exchange
from gatherbench.bench.model.predict import Series
from gatherbench.bench.model.profile import LinkProfile, load_profile
from gatherbench.bench.model.schedule import Parts, run_epoch


def machine(**constants: float | None) -> LinkProfile:
    """An RTX 3090 whose peers get 10 GB/s (1 µs a hop) and whose network has 5 GB/s (3 µs)."""
    profile = load_profile("rtx3090-pcie4")
    usual = {
        "peer__rate": 10e9, "peer__latency": 1e-6, "network__rate": 5e9, "network__latency": 3e-6,
    }  # fmt: skip
    for key, value in (usual | constants).items():
        profile = profile.with_constant(key.replace("__", "."), value, "made up")
    return profile


GRADIENTS = MinibatchLoad(0.0, gradient_bytes=1e6)
AllReduce = Callable[[MinibatchLoad, LinkProfile, int, int], Part]


def check_all_reduce(model: AllReduce) -> None:
    """4 ranks send 2 · 3/4 of 1 MB each: 1.5 MB, in 6 hops behind NCCL's 6.6 µs."""
    near = model(GRADIENTS, machine(), 4, 1)
    assert near.seconds.value == pytest.approx(150e-6 + 6.6e-6 + 6e-6)
    assert near.bound == "averaging gradients (peer link)"
    assert near.demands == {"peer link": pytest.approx(150 / 162.6)}
    # Two of the six hops cross the network, which sets the rate; each of two GPUs has half of it.
    both = model(GRADIENTS, machine(), 2, 2)
    assert both.seconds.value == pytest.approx(300e-6 + 6.6e-6 + 4e-6 + 6e-6)
    assert both.demands == {
        "peer link": pytest.approx(150 / 316.6),
        "network": pytest.approx(300 / 316.6 / 2),
    }
    # One GPU a machine has no peers: 2 ranks send 1 MB each, in two hops.
    far = model(GRADIENTS, machine(peer__rate=None, peer__latency=None), 1, 2)
    assert far.seconds.value == pytest.approx(200e-6 + 6.6e-6 + 6e-6)
    assert far.bound == "averaging gradients (network)"
    small = model(replace(GRADIENTS, gradient_bytes=100.0), machine(), 8, 1)
    assert small.seconds.value == pytest.approx(175 / 10e9 + 6.6e-6 + 14e-6)
    assert small.bound == "averaging gradients (latency)"


def test_gradients_go_round_in_a_ring():
    check_all_reduce(all_reduce)


def to_all(load: MinibatchLoad, profile: LinkProfile, gpus: int, nodes: int) -> Part:
    """Each rank sends its gradients to each other one."""
    world = gpus * nodes
    more = world * load.gradient_bytes / 2 if load.gradient_bytes else 0.0
    return all_reduce(replace(load, gradient_bytes=more), profile, gpus, nodes)


def at_once(load: MinibatchLoad, profile: LinkProfile, gpus: int, nodes: int) -> Part:
    """Hops cost nothing."""
    for key in ("peer.latency", "network.latency"):
        profile = profile.with_constant(key, 1e-8, "made up")
    return all_reduce(load, profile, gpus, nodes)


def one_machine(load: MinibatchLoad, profile: LinkProfile, gpus: int, nodes: int) -> Part:
    return all_reduce(load, profile, gpus * nodes, 1)


def a_network_each(load: MinibatchLoad, profile: LinkProfile, gpus: int, nodes: int) -> Part:
    part = all_reduce(load, profile, gpus, nodes)
    return replace(part, demands=dict.fromkeys(part.demands, 1.0))


@pytest.mark.parametrize("wrong", [to_all, at_once, one_machine, a_network_each])
def test_a_wrong_average_is_rejected(wrong):
    with pytest.raises(AssertionError):
        check_all_reduce(wrong)


def test_what_is_not_known_of_the_average_is_a_reason_and_left_out_of_the_epoch():
    dark = machine(network__rate=None)
    assert all_reduce(GRADIENTS, dark, 2, 2).seconds.unknown == ("network.rate: made up",)
    untold = replace(GRADIENTS, gradient_bytes=None)
    (why,) = all_reduce(untold, machine(), 2, 1).seconds.unknown
    assert why == "bytes of the gradients: not said"
    for given_load, profile in ((GRADIENTS, dark), (untold, machine())):
        load = replace(given_load, sample_s=Estimate(0.0), train_s=Estimate(1e-3))
        epoch = predict_batches(load, profile, 40, gpus=2, nodes=2)
        assert epoch.epoch_s.value == pytest.approx(10e-3, rel=0.02)
        assert epoch.all_reduce_s.value is None
        assert epoch.all_reduce_s.unknown
        assert any("without averaging gradients (" in said for said in epoch.epoch_s.remarks)
        assert epoch.epoch_s.value == epoch_seconds(load, profile, 40, 2, 2).value


def test_gradients_are_averaged_at_the_end_of_each_step():
    """1 ms of training, then 162.6 µs: ten steps a rank."""
    load = replace(GRADIENTS, sample_s=Estimate(0.0), train_s=Estimate(1e-3))
    epoch = predict_batches(load, machine(gpu__submit=1e-7), 40, gpus=4)
    assert epoch.train_s.value == pytest.approx(10 * 1.1626e-3)
    assert epoch.all_reduce_s.value == pytest.approx(10 * 162.6e-6)
    assert epoch.epoch_s.value == pytest.approx(10 * 1.1626e-3, rel=1e-3)
    assert epoch.exposed["all_reduce"] == pytest.approx(1.0)
    alone = predict_batches(load, machine(), 40)
    assert (alone.all_reduce_s.value, "all_reduce" in alone.parts) == (0.0, False)
    # Where what was measured as training holds the average, nothing comes on top.
    held = predict_batches(replace(load, gradient_bytes=0.0), machine(), 40, gpus=4)
    assert held.train_s.value == pytest.approx(10e-3)


#: 16 MB of rows of 64 B: 5 of them here, 3 from the same machine, 8 from another; the rank's own
#: part lies in GPU memory.
SPREAD = MinibatchLoad(
    16e6,
    row_bytes=64,
    peer_bytes=3e6,
    network_bytes=8e6,
    gpu_table_bytes=1e9,
    sample_s=Estimate(0.0),
    train_s=Estimate(2e-3),
    gradient_bytes=0.0,
)


def test_rows_of_other_ranks_cross_with_their_ids():
    """8 B of id for each row of 64 B; both links at once; counts, ids and rows are exchanged."""
    part = exchange(SPREAD, machine())
    assert part.seconds.value == pytest.approx(9e6 / 5e9 + 3 * (6.6e-6 + 3e-6))
    assert part.bound == "network"
    assert part.demands == {
        "peer link": pytest.approx(337.5 / 1828.8),
        "network": pytest.approx(1800 / 1828.8),
    }
    near = exchange(replace(SPREAD, network_bytes=0.0), machine(network__rate=None))
    assert near.seconds.value == pytest.approx(337.5e-6 + 3 * 7.6e-6)
    assert near.bound == "peer link"
    assert exchange(SPREAD, machine(network__rate=None)).seconds.unknown == (
        "network.rate: made up",
    )


def test_a_rank_serves_others_from_where_its_own_rows_lie():
    """In GPU memory: 5 MB of its own, 11 for others, and 11 put in place, read and written."""
    parts = minibatch_parts(SPREAD, machine(), 2, 2)
    assert parts.transfer is None
    assert parts.expand is not None
    assert parts.expand.seconds.value == pytest.approx(2 * 27e6 / 936e9)
    # In host memory: 5 MB of its own and 11 for others over the link, then 11 put in place.
    host = replace(
        SPREAD, gpu_link_read_bytes=5e6, gpu_requests={128: 5e6 / 128}, gpu_table_bytes=0.0
    )
    parts = minibatch_parts(host, machine(), 2, 2)
    assert parts.transfer is not None
    assert parts.expand is not None
    assert parts.transfer.seconds.value == pytest.approx(16e6 / 128 * 148 / (31.51e9 * 0.92))
    assert parts.expand.seconds.value == pytest.approx(2 * 11e6 / 936e9)
    # The CPU gathers 5 MB for itself in 1 ms, and for others as fast.
    gathers = dict.fromkeys(("cpu_read_bytes", "cpu_write_bytes", "copy_engine_bytes"), 5e6)
    by_cpu = replace(SPREAD, **gathers, gather_s=Estimate(1e-3), gpu_table_bytes=0.0)
    gather = minibatch_parts(by_cpu, machine(), 2, 2).gather
    assert gather is not None
    assert gather.seconds.value == pytest.approx(16 / 5 * 1e-3)
    nowhere = replace(SPREAD, peer_bytes=8e6, gpu_table_bytes=0.0)
    lost = predict_batches(nowhere, machine(), 8, gpus=2, nodes=2)
    assert lost.epoch_s.unknown == ("where a rank's own rows lie: none of them was asked for",)


def test_gpus_of_a_machine_share_its_network_and_have_a_link_to_peers_each():
    """Beside training the slower of the two sets the pace: twice 1.8 ms where two GPUs share."""
    ahead = replace(SPREAD, lookahead=1, train_s=Estimate(1e-3))
    tiny = machine(gpu__submit=1e-7)
    alone = epoch_seconds(ahead, tiny, 2 * 30, 1, 2).value
    shared = epoch_seconds(ahead, tiny, 4 * 30, 2, 2).value
    assert alone is not None
    assert shared is not None
    assert alone == pytest.approx(30 * (1828.8e-6 + 57.7e-6) + 1e-3, rel=0.01)
    # By hand 30 · 2 · 1.8 ms, what does not use the network beside it.
    assert shared == pytest.approx(30 * 3600e-6, rel=0.04)
    # What one part takes of it is told as all of them see it: 1.8 ms of the network, twice.
    told = predict_batches(ahead, tiny, 120, gpus=2, nodes=2).at_once_s
    assert told["exchange"] == pytest.approx(2 * 1800e-6)
    assert told["train"] == pytest.approx(1e-3)
    near = replace(ahead, network_bytes=0.0, peer_bytes=11e6)
    one, two = (epoch_seconds(near, tiny, 30 * gpus, gpus, 1).value for gpus in (1, 2))
    assert two == pytest.approx(one)


def part(seconds: float, **demands: float) -> Part:
    return Part(Estimate(seconds), "a test", {k.replace("_", " "): v for k, v in demands.items()})


def test_an_exchange_is_part_of_the_fetch_and_an_average_of_the_step():
    """Each closed form by hand: 3 s over the link, 2 s between ranks, 1 s of a step, 0.5 s more."""
    n = 20
    made = Parts(
        sample=part(0.0),
        submit_s=Estimate(0.0),
        gather=None,
        transfer=part(3.0, link=1.0),
        by_kernel=True,
        expand=None,
        train=part(1.0, multiprocessors=1.0),
        lookahead=0,
        gpu_share=0.0,
        exchange=part(2.0, network=1.0),
        all_reduce=part(0.5),
    )
    blocking = run_epoch(made, n)
    assert blocking.epoch_s == pytest.approx(n * 6.5)
    assert blocking.fetch_s == pytest.approx(n * 5.0)
    assert blocking.train_s == pytest.approx(n * 1.5)
    assert blocking.all_reduce_s == pytest.approx(n * 0.5)
    ahead = run_epoch(replace(made, lookahead=1), n)
    assert ahead.epoch_s == pytest.approx(n * 5.0 + 1.5)
    assert run_epoch(replace(made, lookahead=1), 1000).all_reduce_s == pytest.approx(500.0)
    # Two GPUs have a link each, and one network between them: 3 s, and twice 2 s.
    both = run_epoch(replace(made, lookahead=1), n, gpus=2)
    assert both.epoch_s == pytest.approx(n * 7.0 + 1.5)
    networked = replace(made, lookahead=1, transfer=None)
    assert run_epoch(networked, n, gpus=2).epoch_s == pytest.approx(n * 4.0 + 1.5, rel=0.01)
    peers = replace(networked, exchange=part(2.0, peer_link=1.0))
    assert run_epoch(peers, n, gpus=2).epoch_s == pytest.approx(n * 2.0 + 1.5)


def test_what_several_ranks_measured_keeps_the_cores_that_each_had_busy():
    """Two ranks drew for 2 ms on half of the cores each: side by side it is 2 ms again."""
    load = MinibatchLoad(0.0, sample_s=Estimate(2e-3), train_s=Estimate(1e-6), gradient_bytes=0.0)
    halves = replace(load, cpu_share=0.5)
    whole, half = (epoch_seconds(one, machine(), 60, 2, 1).value for one in (load, halves))
    assert half == pytest.approx(30 * 2e-3, rel=0.02)
    assert whole == pytest.approx(30 * 4e-3, rel=0.02)


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


def test_one_gpu_adds_up_or_takes_the_longer():
    assert seconds(BLOCKING, MACHINE, 960) == pytest.approx(960 * (TRANSFER_S + TRAIN_S), rel=1e-3)
    assert seconds(OVERLAPPED, MACHINE, 960) == pytest.approx(960 * TRANSFER_S + TRAIN_S, rel=1e-3)


@pytest.mark.parametrize(("gpus", "to_a_port"), [(1, 1), (2, 1), (4, 1), (8, 2)])
@pytest.mark.parametrize("nodes", [1, 4])
def test_gpus_of_a_node_share_its_four_ports(gpus, to_a_port, nodes):
    batches = 960 // gpus // nodes
    expected = batches * to_a_port * TRANSFER_S + TRAIN_S
    assert seconds(OVERLAPPED, MACHINE, 960, gpus, nodes) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_gpus_share_the_memory_of_their_host(gpus):
    slow = MACHINE.with_constant("host.memory_rate", 40e9, "made up")
    slow = slow.with_constant("node.root_ports", 8.0, "made up")
    expected = 960 // gpus * gpus * ROWS / 40e9 + TRAIN_S
    assert seconds(OVERLAPPED, slow, 960, gpus) == pytest.approx(expected, rel=2e-3)


def test_what_is_hidden_is_not_felt():
    alone = predict_batches(BLOCKING, MACHINE, 100).exposed
    assert alone == pytest.approx({"transfer": 1.0, "train": 1.0}, rel=0.02)
    beside = predict_batches(OVERLAPPED, MACHINE, 100).exposed
    assert beside["transfer"] == pytest.approx(1.0, rel=0.02)
    assert beside["train"] < 0.05
    # Of a part that is next to nothing nothing is felt.
    tiny = predict_batches(replace(BLOCKING, sample_s=Estimate(5e-324)), MACHINE, 1)
    assert "sample" not in tiny.exposed


def test_rates_are_of_all_that_a_rank_serves_and_the_disk_s_share_of_all_ranks():
    """Ten minibatches on two GPUs of a machine: five steps of 4 MB, of which one is for the other.

    In 2 s they are 10 MB/s; ten reads of 0.1 s keep the disk busy for half of that time.
    """
    load = MinibatchLoad(4e6, gpu_link_read_bytes=3e6, peer_bytes=1e6)
    series = Series("w", "sharded", "host", load, 10, gpus=2)
    part: Any = SimpleNamespace(seconds=Estimate(0.1), bound="reads")
    epoch: Any = SimpleNamespace(parts={"transfer": part, "disk": part}, bound="reads")
    line = roofline_module._line(series, epoch, machine(), "measured", {"fetch": 2.0})
    assert line["rate"] == pytest.approx(1e7)
    assert line["of_disk"] == pytest.approx(0.5)
