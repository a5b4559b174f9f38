"""The physics of each part against closed forms, and model variants that must not pass them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatherbench.bench.model import roofline as roofline_module
from gatherbench.bench.model.epoch import minibatch_parts, predict_batches
from gatherbench.bench.model.physics import (
    MinibatchLoad,
    Part,
    beyond,
    cpu_gather,
    disk_read,
    engine_copy,
    gpu_reads,
    in_turn,
    issuing,
    link_time,
    local_gather,
    sampling,
    slowest,
    split_requests,
    staged_copy,
    training,
)
from gatherbench.bench.model.predict import Series
from gatherbench.bench.model.profile import LinkProfile, Points, load_profile
from gatherbench.bench.run.training_cost import TrainingCost

PROFILE = load_profile("rtx3090-pcie4")


def machine(**constants: float | None) -> LinkProfile:
    """The default machine with constants replaced: ``link_raw_rate=…`` for ``link.raw_rate``."""
    profile = PROFILE
    for name, value in constants.items():
        profile = profile.with_constant(name.replace("_", ".", 1), value, "a test of the model")
    return profile


def known(part: Part) -> float:
    assert part.known, part.unknown
    return part.seconds


def reads(requests: Mapping[int, float], **other: float) -> MinibatchLoad:
    total = sum(size * n for size, n in requests.items())
    return MinibatchLoad(
        payload_bytes=total, gpu_link_read_bytes=total, gpu_requests=requests, **other
    )


LinkTime = Callable[[Mapping[float, float], LinkProfile], Part]


def check_link_efficiency(model: LinkTime) -> None:
    """Efficiency P / (P + 20) for payloads of 32 to 256 B (EVIDENCE §3), less the DLLP share."""
    for payload, efficiency in ((32, 0.615), (64, 0.762), (128, 0.865), (256, 0.928)):
        profile = machine(link_raw_rate=1e10, link_dllp_share=0.0, link_max_payload=256)
        seconds = known(model({payload: 1e6}, profile))
        assert payload * 1e6 / seconds / 1e10 == pytest.approx(efficiency, abs=5e-4)
    with_dllp = machine(link_raw_rate=1e10, link_dllp_share=0.2)
    without = machine(link_raw_rate=1e10, link_dllp_share=0.0)
    assert known(model({128: 1e6}, with_dllp)) == pytest.approx(
        known(model({128: 1e6}, without)) / 0.8
    )
    # A read of 256 B that is answered by completions of 64 B pays for four headers.
    small = machine(link_raw_rate=1e10, link_dllp_share=0.0, link_max_payload=64)
    assert known(model({256: 1.0}, small)) == pytest.approx((256 + 4 * 20) / 1e10)


def with_constant(
    model: Callable[[Any, LinkProfile], Any], key: str, value: float | None
) -> Callable[[Any, LinkProfile], Any]:
    return lambda asked, profile: model(asked, profile.with_constant(key, value, "wrong"))


def bytes_only(requests: Mapping[float, float], profile: LinkProfile) -> Part:
    raw = profile["link.raw_rate"].value or 1.0
    return Part(sum(size * n for size, n in requests.items()) / raw)


WRONG_LINKS = {
    "no headers": with_constant(link_time, "link.header", 0.0),
    "one completion": with_constant(link_time, "link.max_payload", 4096.0),
    "no flow control": with_constant(link_time, "link.dllp_share", 0.0),
    "bytes alone": bytes_only,
}


def test_time_on_the_link():
    check_link_efficiency(link_time)


@pytest.mark.parametrize("wrong", WRONG_LINKS.values(), ids=WRONG_LINKS)
def test_a_wrong_link_is_rejected(wrong):
    with pytest.raises(AssertionError):
        check_link_efficiency(wrong)


@given(
    st.dictionaries(st.sampled_from([32, 64, 96, 128]), st.floats(0, 1e6)),
    st.sampled_from([32.0, 64.0, 96.0, 128.0]),
)
def test_splitting_keeps_every_byte(requests, largest):
    pieces = split_requests(requests, largest)
    assert all(size <= largest for size in pieces)
    assert sum(size * n for size, n in pieces.items()) == pytest.approx(
        sum(size * n for size, n in requests.items())
    )
    assert split_requests({128: 10, 96: 1}, 64) == {64.0: 21.0, 32.0: 1.0}


Reads = Callable[[MinibatchLoad, LinkProfile], Part]


def check_littles_law(model: Reads) -> None:
    """Bandwidth ≤ outstanding × request size / round trip, and never above the link's."""
    few = machine(link_round_trip=1e-6, link_outstanding_reads=16)
    seconds = known(model(reads({128: 1e6}), few))
    assert 128e6 / seconds == pytest.approx(16 * 128 / 1e-6)
    many = machine(link_round_trip=1e-6, link_outstanding_reads=1e6)
    assert known(model(reads({128: 1e6}), many)) == pytest.approx(
        known(link_time({128: 1e6}, many))
    )
    roof = many.with_constant("read.roof", 1e9, "a test of the model")
    assert 128e6 / known(model(reads({128: 1e6}), roof)) == pytest.approx(1e9)


def limits_added_up(load: MinibatchLoad, profile: LinkProfile) -> Part:
    return in_turn(gpu_reads(load, profile), link_time(load.gpu_requests or {}, profile))


WRONG_READS = {
    "no Little": with_constant(gpu_reads, "link.round_trip", None),
    "no roof": with_constant(gpu_reads, "read.roof", None),
    "limits added up": limits_added_up,
}


def test_reads_obey_little_and_the_roof():
    check_littles_law(gpu_reads)
    little = machine(link_round_trip=1e-3, link_outstanding_reads=1)
    assert gpu_reads(reads({128: 1e3}), little).bound == "requests in flight"
    assert gpu_reads(reads({128: 1e3}), PROFILE).bound == "link"
    slow = PROFILE.with_constant("read.roof", 1e8, "a test of the model")
    assert gpu_reads(reads({128: 1e3}), slow).bound == "reads by multiprocessors"


@pytest.mark.parametrize("wrong", WRONG_READS.values(), ids=WRONG_READS)
def test_wrong_reads_are_rejected(wrong):
    with pytest.raises(AssertionError):
        check_littles_law(wrong)


@pytest.mark.parametrize(
    ("requests", "known_alone"),
    [({32: 1e6}, False), ({32: 2e6, 96: 1e6}, False), ({64: 1e6}, True), ({32: 1, 96: 1}, True)],
)
def test_small_reads_are_not_predicted_from_the_link_alone(requests, known_alone):
    """On average below half a line, 53 B of 160: how many are in flight sets their time."""
    load = replace(reads(requests), gpu_page_visits=10.0)
    part = gpu_reads(load, PROFILE)
    assert part.known is known_alone
    if not known_alone:
        assert part.bound == "unknown"
        assert all("link.round_trip" in reason for reason in part.unknown)
    for more in ({"link_round_trip": 1e-6}, {"read_page_visits": 1e7}):
        assert gpu_reads(load, machine(**more)).known
    # Narrow requests of a link that takes no more are those of whole lines.
    assert gpu_reads(reads({128: 1e6}), machine(link_max_request=32)).known


@pytest.mark.parametrize("key", ["link.raw_rate", "link.header", "link.dllp_share"])
def test_without_the_link_and_any_roof_a_read_is_unknown(key):
    nothing = PROFILE.with_constant(key, None, "nobody knows")
    part = gpu_reads(reads({128: 1e3}), nothing)
    assert not part.known
    assert any(f"{key}: nobody knows" in reason for reason in part.unknown)


def test_managed_memory_has_pages_and_a_rate_of_its_own():
    """1 M visits: 0.1 s at 10 M a second; of both kinds one after the other."""
    profile = machine(read_page_visits=1e7, read_managed_page_visits=2e7)
    rows = replace(reads({128: 1e3}), gpu_page_visits=0.0, managed_page_visits=1e6)
    part = gpu_reads(rows, profile)
    assert (known(part), part.bound) == (pytest.approx(0.05), "page visits")
    both = gpu_reads(replace(rows, gpu_page_visits=1e6), profile)
    assert known(both) == pytest.approx(0.15)
    unknown = gpu_reads(rows, machine(read_page_visits=1e7))
    assert unknown.bound != "page visits"
    assert any("read.managed_page_visits" in remark for remark in unknown.remarks)
    none = gpu_reads(replace(rows, managed_page_visits=0.0), machine(read_page_visits=None))
    assert not any("page_visits" in remark for remark in none.remarks)


def test_rates_beyond_the_table_that_they_are_known_of_are_told():
    """Curves to 8 and 32 bytes; what the load does not ask for does not count, nor a number."""
    profile = machine().with_constant("read.page_visits", ((1e9, 2e7), (8e9, 1e7)), "a test")
    profile = profile.with_constant("read.managed_page_visits", ((1e9, 2e7), (32e9, 1e7)), "a test")
    profile = profile.with_constant("read.roof", 1e10, "a test")
    rows = replace(reads({128: 1e3}), gpu_page_visits=9.0, managed_page_visits=0.0)
    assert beyond(replace(rows, table_bytes=8e9), profile) == {}
    assert beyond(replace(rows, table_bytes=9e9), profile) == {"read.page_visits": 8e9}
    managed = replace(rows, gpu_page_visits=0.0, managed_page_visits=9.0)
    assert beyond(replace(managed, table_bytes=9e9), profile) == {}
    asked = replace(managed, table_bytes=33e9)
    assert beyond(asked, profile) == {"read.managed_page_visits": 32e9}
    (note,) = predict_batches(asked, profile, 1).extrapolated
    assert note == "read.managed_page_visits is known of tables up to 32.0 GB, not of this one"


def test_the_cpu_gathers_on_every_core_until_its_memory_is_full():
    load = MinibatchLoad(1e9, cpu_read_bytes=1e9, cpu_write_bytes=1e9, copy_engine_bytes=1e9)
    free = machine(host_gather_rate=1e9, host_cores=4, host_memory_rate=1e12)
    assert known(cpu_gather(load, free)) == pytest.approx(0.25)
    assert known(cpu_gather(replace(load, gpus=2), free)) == pytest.approx(0.5)  # of the same cores
    full = machine(host_gather_rate=1e9, host_cores=4, host_memory_rate=4e9)
    assert known(cpu_gather(load, full)) == pytest.approx(0.5)  # read and write
    assert cpu_gather(load, full).bound == "host memory"
    assert known(cpu_gather(replace(load, gpus=2), full)) == pytest.approx(1.0)


def test_issuing_is_a_steps_or_else_a_chains():
    """50 operations: 0.2 s of them in a chain, 0.45 in a step."""
    load = MinibatchLoad(1.0, training=TrainingCost(0, 0, 50, 0))
    chain = machine(gpu_launch=4e-3)
    step = machine(gpu_launch=4e-3, gpu_issue=9e-3)
    assert (issuing(load, chain), issuing(load, step)) == pytest.approx((0.2, 0.45))
    assert issuing(load, machine(gpu_launch=None)) == 0.0
    # The GPU's own part of the step does not know of issuing; what bounds it does.
    assert known(training(load, step)) == known(training(load, chain))
    busy = replace(load, training=TrainingCost(35.58e12, 0, 50, 0))
    assert training(busy, chain).bound == "training (GPU operations)"
    assert training(replace(busy, training=TrainingCost(1e12, 0, 50, 0)), step).bound == (
        "training (kernel launches)"
    )


def test_edges_that_were_drawn_on_the_gpu_are_not_copied():
    load = MinibatchLoad(1.0, training=TrainingCost(1e9, 0, 0, 1e9))
    copied, there = (training(replace(load, gpu_samples=g), PROFILE) for g in (False, True))
    copy = known(engine_copy(1e9, PROFILE))
    assert known(copied) - known(there) == pytest.approx(copy)


def test_fresh_pageable_memory_is_gathered_staged_and_copied_at_one_pace():
    load = MinibatchLoad(
        1e9, cpu_read_bytes=1e9, cpu_write_bytes=1e9, copy_engine_bytes=1e9, pageable_bytes=1e9
    )
    slow = machine(copy_pageable=1e9)
    part = staged_copy(load, slow)
    copy = known(engine_copy(1e9, slow))
    assert known(part) == pytest.approx(1.0)
    assert part.bound == "cpu"
    fast = staged_copy(load, machine(copy_pageable=1e12, host_memory_rate=1e13))
    assert known(fast) == pytest.approx(copy)
    assert fast.bound == "link"
    assert not staged_copy(load, machine(copy_pageable=None)).known
    assert not staged_copy(load, machine(link_raw_rate=None)).known
    assert known(staged_copy(replace(load, gpus=64), slow)) == pytest.approx(64 * 5e9 / 102.4e9)


def test_random_rows_of_a_large_table_wait_for_its_pages():
    """The rate of page visits is a roof of its own: rows near one another are not held up by it."""
    profile = machine(read_page_visits=1e7)
    rows = replace(reads({128: 1e6}), gpu_page_visits=1e6)
    scattered = gpu_reads(rows, profile)
    assert known(scattered) == pytest.approx(0.1)
    assert scattered.bound == "page visits"
    ascending = gpu_reads(replace(rows, gpu_page_visits=1e3), profile)
    assert ascending.bound == "link"
    assert known(ascending) == pytest.approx(known(link_time({128: 1e6}, profile)))
    for unknown in (
        gpu_reads(rows, machine(read_page_visits=None)),
        gpu_reads(replace(rows, gpu_page_visits=None), profile),
    ):
        assert known(unknown) == known(ascending)
        assert any("page" in remark for remark in unknown.remarks)


def test_programs_draw_no_faster_than_the_cores_that_they_share():
    """1 M edges at 10 M/s, on 6 of 24 cores: four programs side by side, a fifth waits."""
    load = MinibatchLoad(0.0, sampled_edges=1e6)
    some = machine(host_sample_rate=1e7, host_sample_cores=6, host_cores=24)
    for gpus, expected in ((1, 0.1), (4, 0.1), (8, 0.2)):
        assert known(sampling(replace(load, gpus=gpus), some)) == pytest.approx(expected)
    assert known(sampling(replace(load, gpus=2), machine(host_sample_cores=None))) > 1e6 / 58.7e6
    assert known(sampling(replace(load, sample_s=1.0, gpus=8), some)) == 1.0  # as it was measured


def test_a_gpu_draws_layer_by_layer():
    load = MinibatchLoad(0.0, sampled_edges=1e6, layers=3, gpu_samples=True)
    assert known(sampling(load, machine(gpu_draw=2e-4))) == pytest.approx(6e-4)
    assert sampling(load, PROFILE).unknown == ("gpu.draw: it was not timed there",)
    assert known(sampling(replace(load, sample_s=1.0), PROFILE)) == 1.0


def test_training_is_the_longest_of_its_limits_and_the_copy_of_its_edges():
    profile = machine(gpu_flops=1e12, gpu_memory_rate=1e11, gpu_launch=1e-5)
    base = MinibatchLoad(0.0, training=TrainingCost(1e9, 1e7, 10, 0))

    def costing(**more: float) -> MinibatchLoad:
        return replace(base, training=replace(base.training, **more))

    assert known(training(base, profile)) == pytest.approx(1e-3)
    assert training(base, profile).bound == "training (GPU operations)"
    assert training(costing(memory_bytes=1e9), profile).bound == "training (GPU memory)"
    assert training(costing(launches=1e4), profile).bound == "training (kernel launches)"
    edges = costing(structure_bytes=1e6)
    assert known(training(edges, profile)) == pytest.approx(1e-3 + known(engine_copy(1e6, profile)))


def test_a_table_that_does_not_fit_into_the_gpu_is_read_from_there_by_nobody():
    profile = machine(gpu_memory=1e10, gpu_memory_rate=1e12)
    assert known(local_gather(1e9, 1e10, profile)) == pytest.approx(2e-3)
    part = local_gather(1e9, 1.1e10, profile)
    assert not part.known
    assert part.unknown == ("11.0 GB do not fit into 10.0 GB of GPU memory",)
    resident = MinibatchLoad(1e9, table_bytes=1.1e10, gpu_table_bytes=1.1e10)
    assert predict_batches(resident, profile, 10).unknown == part.unknown
    read = replace(reads({128: 1e6}), table_bytes=1.1e10)
    assert not predict_batches(read, profile, 10).unknown


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e3)), min_size=1, max_size=6))
def test_what_is_computed_from_an_unknown_is_unknown(values):
    parts = [
        Part(v) if v is not None else Part(math.nan, unknown=(f"number {i}",))
        for i, v in enumerate(values)
    ]
    total, longest = in_turn(*parts), slowest(*parts)
    missing = tuple(f"number {i}" for i, v in enumerate(values) if v is None)
    assert (total.unknown, total.known) == (missing, not missing)
    there = [v for v in values if v is not None]
    assert longest.seconds == max(there) if there else not longest.known
    assert all(any(name in text for text in longest.remarks) for name in missing if there)


def test_a_batch_of_copies_takes_as_long_as_its_copies_or_its_bytes():
    """A million copies of 400 B: at 10 M/s 0.1 s, which the link would carry in less."""
    unknown = engine_copy(4e8, PROFILE, 1e6)
    assert not unknown.known
    assert "nobody has published a rate" in unknown.unknown[0]
    slow = engine_copy(4e8, PROFILE.with_constant("copy.batched", 1e7, "a test"), 1e6)
    assert (slow.seconds, slow.bound) == (pytest.approx(0.1), "copy engine (copies)")
    fast = engine_copy(4e8, PROFILE.with_constant("copy.batched", 1e12, "a test"), 1e6)
    assert fast == engine_copy(4e8, PROFILE)


# ---- the disk ------------------------------------------------------------------------------------
# Worked out by hand: its limits, its sharing, and what is not known. Ranks share the memory of
# their machine as they share its disk.


def with_disk(
    iops: float | Points = ((1.0, 20e3), (64.0, 80e3), (128.0, 250e3)),
    bandwidth: float | None = 3e9,
) -> LinkProfile:
    """An RTX 3090 with a disk that reads 250 k blocks of 4 KiB a second, 128 at once, and 3 GB/s.

    Its host has 1 TB/s and 1 TB/s a core, so that what the processor does takes hardly any time.
    """
    found = PROFILE.with_constant("disk.iops", iops, "made up")
    constants = {"disk.bandwidth": bandwidth, "gpu.submit": 1e-7}
    constants |= {"host.memory_rate": 1e12, "host.gather_rate": 1e12}
    for key, value in constants.items():
        found = found.with_constant(key, value, "made up")
    return found


#: 25 000 rows of 512 B, each in a block of its own: 0.1 s by reads, 34 ms by bytes.
ROWS = 25_000
READS = MinibatchLoad(
    ROWS * 512.0,
    cpu_read_bytes=ROWS * 512.0,
    cpu_write_bytes=ROWS * 512.0,
    copy_engine_bytes=ROWS * 512.0,
    disk_payload_bytes=ROWS * 512.0,
    disk_bytes=ROWS * 4096.0,
    disk_requests=float(ROWS),
    row_bytes=512,
    table_bytes=2e11,
    sample_s=0.0,
    train_s=0.05,
)
#: 12.8 MB over the link: payloads of 256 B with 20 B of header on 31.51 GB/s less 8 %.
COPY_S = 12.8e6 / 256 * 276 / (31.51e9 * 0.92)


Disk = Callable[[MinibatchLoad, LinkProfile], Part]


def check_disk(disk: Disk) -> None:
    by_reads = disk(READS, with_disk())
    assert by_reads.seconds == pytest.approx(0.1)
    assert by_reads.bound == "disk (reads a second)"
    assert disk(replace(READS, gpus=2), with_disk()).seconds == pytest.approx(0.2)
    # 1000 reads of 600 kB: 4 ms of 250 k a second, 0.2 s of 3 GB/s.
    long_reads = replace(READS, disk_requests=1000.0, disk_bytes=600e6)
    by_bytes = disk(long_reads, with_disk())
    assert (by_bytes.seconds, by_bytes.bound) == (pytest.approx(0.2), "disk (bytes)")
    # No more reads are in flight than there are: 8 are half-way from 1 to 64 as doublings go, so
    # half-way from 20 k to 80 k.
    for requests, rate in ((1.0, 20e3), (8.0, 50e3), (64.0, 80e3), (128.0, 250e3), (1e6, 250e3)):
        few = replace(READS, disk_requests=requests, disk_bytes=0.0)
        assert disk(few, with_disk()).seconds == pytest.approx(requests / rate)
    # Nor more than the path keeps: of many, 64 or 8.
    for depth, rate in ((64, 80e3), (8, 50e3)):
        shallow = replace(READS, disk_depth=depth, disk_bytes=0.0)
        assert disk(shallow, with_disk()).seconds == pytest.approx(ROWS / rate)


def test_the_slower_of_reads_and_bytes_counts():
    check_disk(disk_read)


def one_after_the_other(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """Reads, then bytes."""
    return in_turn(disk_read(load, profile), disk_read(replace(load, disk_requests=0.0), profile))


def always_deep(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """As if there were always as many reads in flight as there may be."""
    best = profile.with_constant("disk.iops", profile["disk.iops"].at(128), "made up")
    return disk_read(load, best)


def of_payload(load: MinibatchLoad, profile: LinkProfile) -> Part:
    """As if the disk read rows and not blocks."""
    return disk_read(replace(load, disk_bytes=load.disk_payload_bytes), profile)


def a_disk_for_each(load: MinibatchLoad, profile: LinkProfile) -> Part:
    return disk_read(replace(load, gpus=1), profile)


@pytest.mark.parametrize("wrong", [one_after_the_other, always_deep, of_payload, a_disk_for_each])
def test_a_wrong_disk_is_rejected(wrong):
    with pytest.raises(AssertionError):
        check_disk(wrong)


def seconds(load: MinibatchLoad, profile: LinkProfile, batches: int, gpus: int = 1) -> float:
    return predict_batches(load, profile, batches, gpus=gpus).epoch_s


def test_one_minibatch_at_a_time_reads_while_the_gpu_trains():
    """The host waits for rows and not for training; the copy waits for the one buffer there is."""
    assert seconds(READS, with_disk(), 100) == pytest.approx(100 * (0.1 + COPY_S) + 0.05, rel=1e-3)
    slow = replace(READS, train_s=0.3)
    assert seconds(slow, with_disk(), 100) == pytest.approx(100 * (0.3 + COPY_S) + 0.1, rel=1e-3)


def test_a_minibatch_ahead_hides_the_shorter_of_disk_and_training_and_the_copy():
    ahead = replace(READS, lookahead=1)
    assert seconds(ahead, with_disk(), 100) == pytest.approx(100 * 0.1 + COPY_S + 0.05, rel=1e-3)
    slow = replace(ahead, train_s=0.3)
    assert seconds(slow, with_disk(), 100) == pytest.approx(100 * 0.3 + 0.1 + COPY_S, rel=1e-3)
    epoch = predict_batches(ahead, with_disk(), 100)
    assert epoch.bound == "disk (reads a second)"
    assert predict_batches(slow, with_disk(), 100).bound == "training (measured)"


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_gpus_share_the_memory_of_their_host(gpus):
    """100 MB a minibatch at 40 GB/s, whoever it is for."""
    read = MinibatchLoad(1e8, gpu_link_read_bytes=1e8, gpu_requests={128: 1e8 / 128})
    load = replace(read, lookahead=1, gpu_share=0.1, sample_s=0.0, train_s=2e-3)
    slow = PROFILE.with_constant("host.memory_rate", 40e9, "made up")
    expected = 960 // gpus * gpus * 1e8 / 40e9 + 2e-3
    assert seconds(load, slow, 960, gpus) == pytest.approx(expected, rel=2e-3)


def test_the_disk_s_share_is_of_all_ranks():
    """Ten minibatches on two GPUs: five steps of 4 MB in 2 s, and ten reads of 0.1 s."""
    load = MinibatchLoad(4e6, gpu_link_read_bytes=4e6)
    series = Series("w", "disk", "host", load, 10, gpus=2)
    part = Part(0.2, "reads")  # of both
    epoch: Any = SimpleNamespace(parts={"transfer": part, "disk": part}, bound="reads")
    line = roofline_module._line(series, epoch, PROFILE, {"fetch": 2.0})
    assert line["rate"] == pytest.approx(1e7)
    assert line["of_disk"] == pytest.approx(0.5)


def test_an_unknown_disk_is_a_reason_with_the_remedy():
    (why,) = disk_read(READS, PROFILE).unknown
    assert why == (
        "disk.iops: the profile does not name it: measure the disk"
        " (fio) and add it to a profile of your own"
    )
    epoch = predict_batches(READS, PROFILE, 10)
    assert epoch.unknown == (why,)
    assert epoch.bound == "unknown"


@pytest.mark.parametrize("missing", ["disk_bytes", "disk_requests"])
def test_what_the_page_cache_decides_is_not_predicted(missing):
    nothing: dict[str, Any] = {missing: None}
    mapped = replace(READS, **nothing)
    epoch = predict_batches(mapped, with_disk(), 10)
    (why,) = epoch.unknown
    assert why.startswith("what is read off the disk: the page cache decides that")


def test_a_path_without_a_disk_has_no_such_part():
    warm = replace(READS, disk_payload_bytes=0.0, disk_bytes=0.0, disk_requests=0.0)
    assert "disk" not in minibatch_parts(warm, PROFILE)
    names = ["sample", "submit", "disk", "gather", "transfer", "train"]
    assert list(minibatch_parts(READS, with_disk())) == names


@settings(deadline=None, max_examples=30)
@given(
    iops=st.floats(1e3, 1e7),
    more=st.floats(1.0, 100.0),
    ahead=st.integers(0, 1),
    gpus=st.integers(1, 2),
    train_s=st.floats(1e-6, 0.5),
)
def test_more_reads_a_second_are_never_slower(iops, more, ahead, gpus, train_s):
    load = replace(READS, lookahead=ahead, train_s=train_s)
    slow, fast = (seconds(load, with_disk(rate), 8, gpus) for rate in (iops, min(1e9, more * iops)))
    assert fast <= slow * (1 + 1e-9)
