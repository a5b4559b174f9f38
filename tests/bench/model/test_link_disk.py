"""Rows that come off a disk, worked out by hand: its limits, its sharing, and what is not known.

Ranks share the memory of their machine as they share its disk.
"""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatherbench.bench.model import roofline as roofline_module
from gatherbench.bench.model.epoch import minibatch_parts, predict_batches
from gatherbench.bench.model.physics import MinibatchLoad, Part, disk_read, in_turn
from gatherbench.bench.model.predict import Series
from gatherbench.bench.model.profile import LinkProfile, Points, load_profile

BARE = load_profile("rtx3090-pcie4")


def machine(
    iops: float | Points = ((1.0, 20e3), (64.0, 80e3), (128.0, 250e3)),
    bandwidth: float | None = 3e9,
) -> LinkProfile:
    """An RTX 3090 with a disk that reads 250 k blocks of 4 KiB a second, 128 at once, and 3 GB/s.

    Its host has 1 TB/s and 1 TB/s a core, so that what the processor does takes hardly any time.
    """
    found = BARE.with_constant("disk.iops", iops, "made up")
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
    by_reads = disk(READS, machine())
    assert by_reads.seconds == pytest.approx(0.1)
    assert by_reads.bound == "disk (reads a second)"
    assert disk(replace(READS, gpus=2), machine()).seconds == pytest.approx(0.2)
    # 1000 reads of 600 kB: 4 ms of 250 k a second, 0.2 s of 3 GB/s.
    long_reads = replace(READS, disk_requests=1000.0, disk_bytes=600e6)
    by_bytes = disk(long_reads, machine())
    assert (by_bytes.seconds, by_bytes.bound) == (pytest.approx(0.2), "disk (bytes)")
    # No more reads are in flight than there are: 8 are half-way from 1 to 64 as doublings go, so
    # half-way from 20 k to 80 k.
    for requests, rate in ((1.0, 20e3), (8.0, 50e3), (64.0, 80e3), (128.0, 250e3), (1e6, 250e3)):
        few = replace(READS, disk_requests=requests, disk_bytes=0.0)
        assert disk(few, machine()).seconds == pytest.approx(requests / rate)
    # Nor more than the path keeps: of many, 64 or 8.
    for depth, rate in ((64, 80e3), (8, 50e3)):
        shallow = replace(READS, disk_depth=depth, disk_bytes=0.0)
        assert disk(shallow, machine()).seconds == pytest.approx(ROWS / rate)


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
    assert seconds(READS, machine(), 100) == pytest.approx(100 * (0.1 + COPY_S) + 0.05, rel=1e-3)
    slow = replace(READS, train_s=0.3)
    assert seconds(slow, machine(), 100) == pytest.approx(100 * (0.3 + COPY_S) + 0.1, rel=1e-3)


def test_a_minibatch_ahead_hides_the_shorter_of_disk_and_training_and_the_copy():
    ahead = replace(READS, lookahead=1)
    assert seconds(ahead, machine(), 100) == pytest.approx(100 * 0.1 + COPY_S + 0.05, rel=1e-3)
    slow = replace(ahead, train_s=0.3)
    assert seconds(slow, machine(), 100) == pytest.approx(100 * 0.3 + 0.1 + COPY_S, rel=1e-3)
    epoch = predict_batches(ahead, machine(), 100)
    assert epoch.bound == "disk (reads a second)"
    assert predict_batches(slow, machine(), 100).bound == "training (measured)"


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_gpus_share_the_memory_of_their_host(gpus):
    """100 MB a minibatch at 40 GB/s, whoever it is for."""
    read = MinibatchLoad(1e8, gpu_link_read_bytes=1e8, gpu_requests={128: 1e8 / 128})
    load = replace(read, lookahead=1, gpu_share=0.1, sample_s=0.0, train_s=2e-3)
    slow = BARE.with_constant("host.memory_rate", 40e9, "made up")
    expected = 960 // gpus * gpus * 1e8 / 40e9 + 2e-3
    assert seconds(load, slow, 960, gpus) == pytest.approx(expected, rel=2e-3)


def test_the_disk_s_share_is_of_all_ranks():
    """Ten minibatches on two GPUs: five steps of 4 MB in 2 s, and ten reads of 0.1 s."""
    load = MinibatchLoad(4e6, gpu_link_read_bytes=4e6)
    series = Series("w", "disk", "host", load, 10, gpus=2)
    part = Part(0.2, "reads")  # of both
    epoch: Any = SimpleNamespace(parts={"transfer": part, "disk": part}, bound="reads")
    line = roofline_module._line(series, epoch, BARE, {"fetch": 2.0})
    assert line["rate"] == pytest.approx(1e7)
    assert line["of_disk"] == pytest.approx(0.5)


def test_an_unknown_disk_is_a_reason_with_the_remedy():
    (why,) = disk_read(READS, BARE).unknown
    assert why == (
        "disk.iops: the profile does not name it: measure the disk"
        " (fio) and add it to a profile of your own"
    )
    epoch = predict_batches(READS, BARE, 10)
    assert epoch.unknown == (why,)
    assert epoch.bound == "unknown"


@pytest.mark.parametrize("missing", ["disk_bytes", "disk_requests"])
def test_what_the_page_cache_decides_is_not_predicted(missing):
    nothing: dict[str, Any] = {missing: None}
    mapped = replace(READS, **nothing)
    epoch = predict_batches(mapped, machine(), 10)
    (why,) = epoch.unknown
    assert why.startswith("what is read off the disk: the page cache decides that")


def test_a_path_without_a_disk_has_no_such_part():
    warm = replace(READS, disk_payload_bytes=0.0, disk_bytes=0.0, disk_requests=0.0)
    assert "disk" not in minibatch_parts(warm, BARE)
    names = ["sample", "submit", "disk", "gather", "transfer", "train"]
    assert list(minibatch_parts(READS, machine())) == names


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
    slow, fast = (seconds(load, machine(rate), 8, gpus) for rate in (iops, min(1e9, more * iops)))
    assert fast <= slow * (1 + 1e-9)
