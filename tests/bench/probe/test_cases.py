"""The cases: each is listed, needs what it says, and is right before it is timed."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gatherbench.bench.probe import case, gathers, gpu, host
from gatherbench.bench.probe import rig as rig_module
from gatherbench.bench.probe.case import NEEDS, Scope, every_case
from gatherbench.bench.probe.gathers import OUR_BEST, check, draw, gathering
from gatherbench.bench.probe.points import Point
from gatherbench.bench.probe.rig import (
    CLOCK,
    EVENTS,
    LEFT_BYTES,
    MIB,
    Observation,
    RefusedError,
    Rig,
    WrongRowsError,
)
from gatherbench.bench.run import models
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.kernels.cuda_calls import CudaCallError

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
    found = [*CASES[name].points(name, rig, scope)]
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
        assert [*made.points(made.name, rig, Scope.MINUTE)] == [Point("of_a_test")]


def test_what_is_missing_has_its_reason_and_remedy(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(case, "find_spec", lambda name: None)
    for need, kind in (("gpu", "no_device"), ("compiler", "not_installed")):
        why = NEEDS[need]()
        assert why is not None
        assert (why.kind, bool(why.remedy)) == (kind, True)
    assert set(CASES["managed_gather"].missing()) == {"gpu", "compiler"}
    assert not CASES["host_gather"].missing()


@pytest.mark.parametrize("name", CASES)
def test_every_point_is_measured(request, name):
    rig = request.getfixturevalue("rig" if "gpu" in CASES[name].needs else "on_host")
    minute, whole = (points(rig, name, scope) for scope in (Scope.MINUTE, Scope.NAMED))
    assert set(minute) <= set(whole)
    for point in whole[:: 40 if name == "gpu_policies" else 1]:
        seen = CASES[name].run(rig, point)
        assert seen.amount > 0
        assert seen.time_s > 0
        assert seen.source in ((CLOCK, EVENTS) if rig.device else (CLOCK,))
    if name.endswith("_gather"):
        of_all = {(p.span_bytes, p.row_bytes) for p in minute}
        assert of_all == {(s, w) for s in SPANS for w in (64, 512)}
        assert {p.threads for p in minute} == {0 if rig.device else 2}


def test_a_gather_that_delivers_wrong_rows_is_not_timed(on_host, monkeypatch):
    class Lazy:
        def __init__(self, threads: int) -> None: ...

        def gather(self, table: Tensor, ids: Tensor, out: Tensor) -> None:
            out.zero_()

    monkeypatch.setattr(host, "HostGather", Lazy)
    with pytest.raises(WrongRowsError, match="wrong rows of 64 B from the processor"):
        measure(on_host, "host_gather")


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
    assert measure(rig, "gpu_copy").time_s == 0.0025


def test_policies_of_ours_are_tried_in_two_orders_and_peers_in_their_own(rig):
    found = points(rig, "gpu_policies")
    assert {p.order for p in found if p.policy == OUR_BEST} == {"given", "sorted"}
    assert {p.order for p in found if p.policy == "torch-quiver"} == {"given"}
    assert {p.case for p in found} == {"gpu_gather"}, "as notebooks read them"


@pytest.mark.parametrize(("percent", "blocks"), [(10, 1), (25, 1), (50, 2), (800, 32)])
def test_the_read_roof_tries_grids_below_a_block_for_each_multiprocessor(
    rig, percent, blocks, monkeypatch
):
    seen: list[tuple[int, int, int]] = []

    def launch(kernel: object, grid: int, _: object, values: Any, *more: object) -> None:
        seen.append((grid, *values[:2]))

    monkeypatch.setattr(gpu, "launch_kernel", launch)
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
    maker = SimpleNamespace(WholeGraph=lambda: peer)
    modules = {"pylibwholegraph": peer, "gatherbench_peers": maker}
    monkeypatch.setattr(gathers.importlib, "import_module", modules.__getitem__)
    with pytest.raises(WrongRowsError, match="64 B of managed memory by WholeGraph 1"):
        measure(rig, "foreign_managed", policy="WholeGraph 1")
    seen = measure(rig, "foreign_managed", policy="torch.index_select")
    assert seen.amount == 5000 * 64  # as many rows as MAX_IDS


def test_no_more_managed_memory_is_asked_for_than_the_gpu_has_free(rig, free, asked, monkeypatch):
    free[0] = LEFT_BYTES + 3 * MIB
    assert rig.managed.bytes.numel() == 2 * MIB
    assert torch.equal(rig.managed.bytes, rig.table[: 2 * MIB])
    assert asked == [("managed", 2 * MIB)]
    with pytest.raises(RefusedError, match="no_memory: there are 2 MiB of managed memory"):
        measure(rig, "managed_gather", span_bytes=4 * MIB)
    with pytest.raises(RefusedError, match=r"no_memory: 2 MiB of .* do not fit the 1 MiB of GPU"):
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


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The devices that were waited for."""
    devices: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: devices.append(device))
    return devices


def test_drawing_is_timed_by_layers_of_minibatches_that_are_waited_for(rig, waited):
    """Two begun ahead, and five more; of three layers each."""
    observed = measure(rig, "gpu_draw")
    sampler, _ = rig.once(gpu._sampler, rig)
    assert sampler.begun == [0, 1, 0, 1, 2, 3, 4]
    assert (observed.amount, observed.source, len(waited)) == (5 * 3, CLOCK, 2)


def test_a_submission_is_timed_with_the_copy_of_its_ids_and_not_waited_for(
    rig, waited, monkeypatch
):
    launched: list[int] = []
    monkeypatch.setattr(gathers, "gather_into", lambda out, *_: launched.append(len(out)))
    assert measure(rig, "gpu_submit").amount == 1
    assert (len(waited), launched) == (1, [gpu.SUBMITTED_ROWS])
