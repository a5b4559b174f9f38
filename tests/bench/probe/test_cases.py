"""The cases: each is listed, needs what it says, and is right before it is timed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gatherbench.bench.meters.disk_counters import DiskMeter
from gatherbench.bench.probe import case, counted, gathers, gpu, host
from gatherbench.bench.probe import rig as rig_module
from gatherbench.bench.probe.case import NEEDS, Scope, every_case
from gatherbench.bench.probe.gathers import OUR_BEST, check, draw, gathering, num_ids
from gatherbench.bench.probe.gpu import Ring
from gatherbench.bench.probe.host import DEPTHS, DiskFile, file_bytes, fold_words, thread_counts
from gatherbench.bench.probe.rig import (
    CLOCK,
    EVENTS,
    GIB,
    LEFT_BYTES,
    MIB,
    Observation,
    ProbeError,
    RefusedError,
    Rig,
    WrongRowsError,
)
from gatherbench.bench.read.points import Point
from gatherbench.bench.run import models
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.kernels.cuda_calls import CudaCallError
from gatherbench.kernels.disk_read import DiskReadError, open_direct
from gatherbench.reason import unsupported

from .conftest import SPANS, Registered
from .conftest import gather as right_gather

CASES = every_case()


@pytest.fixture
def on_host(small: None) -> Iterator[Rig]:
    with Rig(say=lambda _: None) as rig:
        rig.cores = 2
        yield rig


@pytest.fixture
def rig(cuda: torch.device) -> Iterator[Rig]:
    with Rig(cuda, say=lambda _: None) as made:
        made.cores = 2
        yield made


def points(rig: Rig, name: str, scope: Scope = Scope.NAMED) -> list[Point]:
    found = [*CASES[name].points(rig, scope)]
    assert len(set(found)) == len(found)
    return found


def measure(rig: Rig, name: str, **of: Any) -> Observation:
    """The first point of a case."""
    first = next(p for p in points(rig, name) if all(getattr(p, k) == v for k, v in of.items()))
    return CASES[name].run(rig, first)


def test_a_case_is_ten_lines():
    @case.case("B", "bytes of nothing", needs=("gpu",), name="of_a_test")
    def nothing(rig: Rig, point: Point) -> Observation:
        return Observation(1, 1.0, CLOCK)

    made = every_case()["of_a_test"]
    case._CASES.pop("of_a_test")
    assert (made.unit, made.scope, made.needs) == ("B", Scope.NAMED, ("gpu",))
    with Rig() as rig:
        assert [*made.points(rig, Scope.MINUTE)] == [Point("of_a_test")]


def test_each_case_needs_what_there_is_a_check_for_and_says_what_is_measured():
    for one in CASES.values():
        assert set(one.needs) <= set(NEEDS)
        assert one.unit in ("B", "1")
        assert one.what


def test_what_is_missing_has_its_reason_and_remedy(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(case, "find_spec", lambda name: None)
    monkeypatch.setattr(case, "ncu_program", lambda: None)
    for need, kind in (
        ("gpu", "no_device"), ("compiler", "not_installed"), ("ncu", "unsupported"),
    ):  # fmt: skip
        why = NEEDS[need]()
        assert why is not None
        assert (why.kind, bool(why.remedy)) == (kind, True)
    assert set(CASES["managed_gather"].missing()) == {"gpu", "compiler"}
    assert not CASES["host_gather"].missing()


# ---- the processor and the disk ------------------------------------------------------------------


def test_threads_are_varied_up_to_the_cores():
    counts = {cores: thread_counts(cores) for cores in (1, 3, 4, 24)}
    assert counts == {1: [1], 3: [1, 2, 3], 4: [1, 2, 4], 24: [1, 2, 4, 8, 16, 24]}


@pytest.mark.parametrize("name", ["host_copy", "host_read", "host_gather", "host_sample"])
def test_every_point_of_the_host_is_measured(on_host, name):
    minute = points(on_host, name, Scope.MINUTE)
    whole = points(on_host, name, Scope.PROFILE)
    assert set(minute) <= set(whole)
    for point in whole:
        seen = CASES[name].run(on_host, point)
        assert seen.amount > 0
        assert seen.seconds > 0
        assert seen.source == CLOCK
    if name == "host_gather":
        assert {p.span_bytes for p in minute} == set(SPANS)
        assert {p.threads for p in minute} == {2}


def test_a_gather_that_delivers_wrong_rows_is_not_timed(on_host, monkeypatch):
    class Lazy:
        def __init__(self, threads: int) -> None: ...

        def gather(self, table: Tensor, ids: Tensor, out: Tensor) -> None:
            out.zero_()

    monkeypatch.setattr(host, "HostGather", Lazy)
    with pytest.raises(WrongRowsError, match="wrong rows of 64 B from the processor"):
        measure(on_host, "host_gather")


def test_reading_reads_every_word():
    words = torch.randint(-(2**62), 2**62, (10_001,)).numpy()
    folded = 0
    for word in words:
        folded ^= int(word)
    assert int(fold_words(words)) == folded


@pytest.fixture
def disk(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """With a folder of a disk, whose reads nobody counts: that is another test's."""
    probe = tmp_path / "probe"
    probe.write_bytes(bytes(4096))
    try:
        os.close(open_direct(probe))
    except DiskReadError as why:
        pytest.skip(str(why))
    probe.unlink()
    unknown = {"disk_read_process": unsupported("a test")}
    monkeypatch.setattr(DiskMeter, "end", lambda _: unknown)
    with Rig(folder=tmp_path, say=lambda _: None) as rig:
        yield rig


def test_every_point_of_a_disk_is_measured_and_the_file_leaves_nothing(disk):
    random = [CASES["disk_random"].run(disk, p) for p in points(disk, "disk_random")]
    assert [seen.amount for seen in random] == [8 * depth for depth in DEPTHS]
    long = measure(disk, "disk_sequential")
    assert long.amount == 32 * MIB  # as many rows of 1 MiB as there are
    assert long.source.startswith("time.perf_counter, ")
    assert list(disk.folder.iterdir()) == [], "it has no name"


def test_wrong_blocks_are_not_timed(disk, monkeypatch):
    file = disk.once(DiskFile, disk)
    lazy = SimpleNamespace(
        file=SimpleNamespace(num_rows=100), engine="lazy", read=lambda ids, out: out.fill(0)
    )
    monkeypatch.setattr(file, "reader", lambda row_bytes, depth: lazy)
    with pytest.raises(WrongRowsError, match="wrong blocks of 4096 B from the disk"):
        file.measure(disk, Point("disk_random", 4096, threads=32))


def test_what_is_read_from_memory_is_no_disk(disk, monkeypatch):
    monkeypatch.setattr(DiskMeter, "end", lambda _: {"disk_read_process": 0.0})
    with pytest.raises(RefusedError, match="262144 bytes were read, 0 of them from a disk"):
        measure(disk, "disk_random")


@pytest.mark.parametrize(
    ("free", "size"), [(100 * GIB, GIB), (2 * GIB, 512 * MIB), (GIB, 256 * MIB), (GIB - MIB, None)]
)
def test_the_file_leaves_room_or_there_is_too_little(free, size, tmp_path, monkeypatch):
    monkeypatch.setattr(host.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    if size is not None:
        assert file_bytes(tmp_path) == size
        return
    with pytest.raises(RefusedError, match=r"1\.00 GiB are free, and timing its disk needs 1 GiB"):
        file_bytes(tmp_path)


# ---- the GPU -------------------------------------------------------------------------------------

OF_GPU = [name for name, one in CASES.items() if "gpu" in one.needs and name != "requests"]


@pytest.mark.parametrize("name", OF_GPU)
def test_every_point_of_a_gpu_is_measured(rig, name):
    few = points(rig, name)[:: 40 if name == "gpu_policies" else 1]
    for point in few:
        seen = CASES[name].run(rig, point)
        assert seen.amount > 0
        assert seen.seconds > 0
    if name.endswith("_gather"):
        assert {(p.span_bytes, p.row_bytes) for p in few} == {
            (s, w) for s in SPANS for w in (64, 512)
        }


@pytest.mark.parametrize(
    ("name", "amount"),
    [
        ("copy_to_device", MIB),
        ("copy_pageable", 1000 * 512),
        ("sm_read", MIB),
        ("gpu_copy", 4 * MIB),  # half of the buffer, read and written
        ("gpu_matmul", 2 * 64**3),
        ("gpu_launch", 2 * 100),  # forward and backward
        ("gpu_gather", 5000 * 64),  # as many rows as MAX_IDS
    ],
)
def test_what_is_timed_is_counted_by_hand(rig, name, amount):
    """The sizes are those of ``conftest.py``."""
    assert measure(rig, name).amount == amount


def test_an_event_tells_milliseconds_and_an_observation_seconds(rig, monkeypatch):
    monkeypatch.setattr(torch.cuda.Event, "elapsed_time", lambda begin, end: 2.5)
    assert measure(rig, "gpu_copy").seconds == 0.0025


def test_policies_are_tried_in_every_order_and_grid_and_peers_in_their_own(rig):
    found = points(rig, "gpu_policies")
    ours = {(p.order, p.grid_percent) for p in found if p.policy == OUR_BEST}
    assert ours == {(o, c) for o in ("given", "sorted") for c in gathers.CAPS}
    assert {p.grid_percent for p in found if p.policy == "dgl"} == {0}
    assert {p.case for p in found} == {"gpu_gather"}, "as notebooks read them"


@pytest.mark.parametrize(("percent", "blocks"), [(10, 1), (25, 1), (50, 2), (800, 32)])
def test_the_read_roof_tries_grids_below_a_block_for_each_multiprocessor(
    rig, percent, blocks, monkeypatch
):
    seen: list[tuple[int, int, int]] = []
    monkeypatch.setattr(
        gpu,
        "launch_kernel",
        lambda kernel, grid, _, values, *more: seen.append((grid, *values[:2])),
    )
    CASES["sm_read"].run(rig, Point("sm_read", span_bytes=2 * MIB, grid_percent=percent))
    ((grid, begin, words),) = seen
    assert (grid, words) == (blocks, MIB // 16)  # of 4 multiprocessors
    assert 0 <= begin - rig.registered.address <= MIB


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (5000, 5000), (5000, 16384), (4999, 1 << 28)])
def test_no_row_is_drawn_twice_in_one_gather(count, rows):
    """A row that is still in the GPU's cache would cost the link nothing."""
    generator = torch.Generator().manual_seed(0)
    first, second = draw(count, rows, generator), draw(count, rows, generator)
    assert len(first.unique()) == count
    assert 0 <= int(first.min()) <= int(first.max()) < rows
    assert count == 1 or (
        not torch.equal(first, second) and not torch.equal(first, first.sort()[0])
    )


@pytest.mark.parametrize("order", ["given", "sorted"])
def test_rows_come_in_the_order_of_the_ids(rig, order):
    point = Point("gpu_gather", 400, MIB, policy=OUR_BEST, order=order)
    ids = torch.tensor([7, 3, 7, 7, 0])
    got = gathering(rig, rig.registered.address, point, ids)()
    assert torch.equal(got, rig.table[: 8 * 400].view(8, 400)[ids])


def test_wrong_rows_are_not_timed_and_cost_their_own_points(rig, monkeypatch):
    def wrong(out: Tensor, *more: Any) -> None:
        right_gather(out, *more)
        if out.shape[-1] == 64:
            out[3, 7] += 1

    monkeypatch.setattr(gathers, "gather_into", wrong)
    narrow, wide = points(rig, "gpu_gather")[:2]
    for _ in range(2):  # it is not compared again
        with pytest.raises(WrongRowsError, match="wrong rows of 64 B of registered memory by alig"):
            CASES["gpu_gather"].run(rig, narrow)
    assert CASES["gpu_gather"].run(rig, wide).source == EVENTS


def test_a_kernel_of_others_that_is_wrong_is_named(rig, monkeypatch):
    peer = SimpleNamespace(version="1", gather_from=lambda table, ids: table[ids - 1], close=list)
    modules = {
        "pylibwholegraph": peer,
        "gatherbench_peers": SimpleNamespace(WholeGraph=lambda: peer),
    }
    monkeypatch.setattr(gathers.importlib, "import_module", modules.__getitem__)
    with pytest.raises(WrongRowsError, match="64 B of managed memory by WholeGraph 1"):
        measure(rig, "foreign_managed", policy="WholeGraph 1")
    seen = measure(rig, "foreign_managed", policy="torch.index_select")
    assert seen.amount == num_ids(Point("", 64, 2 * MIB)) * 64


def test_no_more_managed_memory_is_asked_for_than_the_gpu_has_free(rig, free, asked, monkeypatch):
    free[0] = LEFT_BYTES + 3 * MIB
    assert rig.managed.bytes.numel() == 2 * MIB
    assert torch.equal(rig.managed.bytes, rig.table[: 2 * MIB])
    assert asked == [("managed", 2 * MIB)]
    with pytest.raises(RefusedError, match="no_memory: there are 2 MiB of managed memory"):
        measure(rig, "managed_gather", span_bytes=4 * MIB)
    with pytest.raises(
        RefusedError, match="no_memory: 2 MiB of managed memory do not fit the 1 MiB of GPU memory"
    ):
        measure(rig, "split_4k")  # all together
    free[0] *= 2

    def none(*_: object) -> Tensor:
        raise MemoryError("no_memory: nothing is left")

    monkeypatch.setattr(rig_module, "managed_table", none)
    with pytest.raises(RefusedError, match=r"^no_memory: nothing is left$"):
        measure(rig, "split_64k")


@pytest.mark.parametrize(("name", "piece"), [("split_64k", 64 << 10), ("split_4k", 4 << 10)])
def test_every_second_piece_is_advised_otherwise(rig, asked, name, piece):
    measure(rig, name)
    assert asked == [("managed", 2 * MIB), *[("left out", piece)] * (MIB // piece)]


def test_a_table_that_cannot_be_registered_is_a_smaller_one(cuda, monkeypatch):
    class Limited(Registered):
        def __init__(self, tensor: Tensor, device: int | None) -> None:
            if tensor.nbytes > limit:
                raise CudaCallError("cudaHostRegister", "cudaErrorInvalidValue", "not here")
            super().__init__(tensor, device)
            opened.append(self)

    opened: list[Registered] = []
    said: list[str] = []
    limit = 2 * MIB
    monkeypatch.setattr(rig_module, "HostRegistration", Limited)
    with Rig(cuda, say=said.append) as rig:
        assert rig.spans == [MIB, 2 * MIB]
    assert "no table of 0.00390625 GiB: cudaHostRegister failed" in said[0]
    assert opened[0].closed == 1
    limit = 0
    with Rig(cuda, say=said.append) as rig, pytest.raises(RefusedError, match="no_memory: "):
        rig.registered  # noqa: B018


def test_a_lost_context_ends_everything(rig, monkeypatch):
    def breaks(*_: object) -> None:
        raise RuntimeError("illegal memory access")

    monkeypatch.setattr(gathers, "gather_into", breaks)
    point = points(rig, "gpu_gather")[0]
    with pytest.raises(WrongRowsError, match="illegal memory access"):
        check(rig, rig.registered, point)  # it is refused, and others go on
    with monkeypatch.context() as lost:
        lost.setattr(torch.cuda, "synchronize", breaks)
        with pytest.raises(RuntimeError, match=r"^illegal memory access$"):
            check(rig, rig.registered, point)


@pytest.mark.parametrize("span", [MIB, 3 * MIB, 8 * MIB])
def test_a_ring_meets_each_of_its_places_once_all_over_the_span(span, monkeypatch):
    monkeypatch.setattr(gpu, "RING_PLACES", 10_000)
    words = torch.full((MIB,), -1)
    ring = Ring(words, span, torch.Generator().manual_seed(1))
    at, met = ring.start, []
    for _ in range(len(ring.order)):
        met.append(at)
        at = int(words[at])
    assert at == ring.start
    assert len(set(met)) == len(met) == min(10_000, span // 128)
    assert {place % 16 for place in met} == {0}
    assert 0.99 * span < max(met) * 8 < span


def test_a_chase_that_goes_astray_is_an_error(rig):
    for _ in range(3):
        assert measure(rig, "round_trip").amount == 1000
    ring = rig.once(gpu._ring, rig)
    ring.order = ring.order.flip(0)
    with pytest.raises(ProbeError, match="pointer chase ended at word"):
        measure(rig, "round_trip")


def test_issuing_is_timed_over_whole_steps_of_training(rig, monkeypatch):
    """Of three layers with 28 operations each, 8 fewer in all, Adam's 8 and 4 copies: as counted
    for an epoch."""
    seen: list[int] = []
    step = models.Trainer.step

    def noted(self: models.Trainer, x: Tensor, batch: MiniBatch) -> Tensor:
        seen.append(len(batch.edges))
        assert type(self) is models.Trainer
        return step(self, x, batch)

    monkeypatch.setattr(models.Trainer, "step", noted)
    observed = measure(rig, "gpu_issue")
    assert seen == [3] * 5
    assert observed.amount == 5 * (3 * 28 - 8 + 8 + 4)
    assert observed.source == CLOCK


def test_drawing_is_timed_by_layers_of_minibatches_that_are_waited_for(rig, monkeypatch):
    """Two begun ahead, and five more; of three layers each."""
    waited: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: waited.append(device))
    observed = measure(rig, "gpu_draw")
    sampler, _ = rig.once(gpu._sampler, rig)
    assert sampler.begun == [0, 1, 0, 1, 2, 3, 4]
    assert (observed.amount, observed.source, len(waited)) == (5 * 3, CLOCK, 2)


def test_a_submission_is_timed_with_the_copy_of_its_ids_and_not_waited_for(rig, monkeypatch):
    waited: list[object] = []
    launched: list[int] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: waited.append(device))
    monkeypatch.setattr(gathers, "gather_into", lambda out, *_: launched.append(len(out)))
    assert measure(rig, "gpu_submit").amount == 1
    assert (len(waited), launched) == (1, [gpu.SUBMITTED_ROWS])


# ---- counters ------------------------------------------------------------------------------------

NCU = """==PROF== Connected to process 7
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","7","gather_kernel","sectors.sum","sector","200,000"
"0","7","gather_kernel","other.sum","","1"
"1","7","gather_kernel","sectors.sum","sector","n/a"
"""


def test_what_ncu_prints_is_read():
    assert counted.parse(NCU, "sectors.sum") == [200_000, None]
    assert counted.parse("==ERROR== ERR_NVGPUCTRPERM", "sectors.sum") == []


def test_counters_stand_beside_what_is_expected(rig, monkeypatch, tmp_path):
    """By hand: 20,000 aligned rows of 512 B are 4 lines, 16 sectors or 8 requests of 64 B each."""
    monkeypatch.setattr(counted, "POLICY_NAMES", ("aligned",))
    monkeypatch.setattr(counted, "WIDTHS", (512,))
    ncu = tmp_path / "ncu"
    counter = counted.COUNTERS["counted_requests"]
    lines = '"ID","Metric Name","Metric Unit","Metric Value"\\n"0","%s","","79,990"\\n'
    ncu.write_text(f"#!/bin/sh\nprintf '{lines % counter}'\n")
    ncu.chmod(0o755)
    monkeypatch.setattr(counted, "ncu_program", lambda: str(ncu))
    run = CASES["requests"].run
    seen = {}
    for point in points(rig, "requests"):
        try:
            seen[point.case] = run(rig, point)
        except RefusedError as why:
            assert "ncu's last words" in str(why)  # noqa: PT017
    assert {name: (one.amount, one.seconds) for name, one in seen.items()} == {
        "expected_sectors": (20_000 * 16, None),
        "expected_requests_128": (20_000 * 4, None),
        "expected_requests_64": (20_000 * 8, None),
        "counted_requests": (79_990, None),
    }
    assert np.array_equal(
        np.sort(counted.ids_of("aligned", 512).unique()), np.arange(0, 2**21, 104)[:20_000]
    )
