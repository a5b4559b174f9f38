"""What the stands time: the processor for real, and a GPU's part on a stand-in for CUDA."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from gatherbench.bench.probe import cases, gpu
from gatherbench.bench.probe import host as host_module
from gatherbench.bench.probe.cases import CASES, MIB, amount_of, num_ids, num_rows
from gatherbench.bench.probe.gpu import GpuStand, Ring
from gatherbench.bench.probe.host import HostStand, fold_words, table_bytes
from gatherbench.bench.probe.stand import CLOCK, ProbeError, filled_table
from gatherbench.bench.read.points import Point
from gatherbench.bench.run import captured, models
from gatherbench.bench.sampling.minibatch import MiniBatch
from tools.gpu.points import gather_points

HOST = torch.device("cpu")
SPANS = (MIB, 2 * MIB, 4 * MIB)


@pytest.fixture(scope="module")
def host() -> Iterator[HostStand]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_module, "NODES", 3000)
        patch.setattr(host_module, "EDGES", 40_000)
        with HostStand(filled_table(8 * MIB)) as stand:
            yield stand


@pytest.fixture
def stand(cuda: None) -> Iterator[GpuStand]:
    with GpuStand(SPANS, HOST) as made:
        yield made


def test_every_point_of_the_host_is_measured(host):
    for point in cases.host_points(2, 8 * MIB):
        seen = host.measure(point)
        assert seen.amount > 0
        assert seen.seconds > 0
        assert seen.source == CLOCK


def test_a_gather_that_delivers_wrong_rows_is_not_timed(host, monkeypatch):
    class Lazy:
        def gather(self, table: Tensor, ids: Tensor, out: Tensor) -> None:
            out.zero_()

    monkeypatch.setattr(host, "_gathers", {1: Lazy()})
    with pytest.raises(ProbeError, match="rows of 400 B delivered wrong rows"):
        host.measure(Point("host_gather", 400, threads=1))


def test_reading_reads_every_word():
    words = torch.randint(-(2**62), 2**62, (10_001,)).numpy()
    folded = 0
    for word in words:
        folded ^= int(word)
    assert int(fold_words(words)) == folded


def test_too_little_memory_is_said():
    assert table_bytes(64 << 30) == 2 << 30
    assert table_bytes(4 << 30) == 1 << 30
    with pytest.raises(ProbeError, match="close other programs"):
        table_bytes(900 * MIB)


def test_every_point_of_a_gpu_is_measured(stand, monkeypatch):
    monkeypatch.setattr(
        gpu, "managed_table", lambda shape, dtype, _: torch.empty(shape, dtype=dtype)
    )
    with pytest.raises(ProbeError, match="no managed memory"):
        stand.check("aligned", 64, managed=True)
    stand.bring_managed(2 * MIB)
    stand.check("aligned", 64, managed=True)
    for width in (32, 400):
        stand.check("aligned", width)
    plan = [*cases.gpu_points(SPANS, 2), *gather_points(SPANS, [400], ["aligned", "dgl"], [0, 10])]
    plan += [*cases.host_points(1, SPANS[-1])[:4], *cases.managed_points([MIB])]
    of_the_probe = {case.name for case in CASES.values() if case.section == "gather"}
    assert {p.case for p in plan} | {p.case for p in stand.setup} == of_the_probe
    for point in plan:
        seen = stand.measure(point)
        assert seen.amount > 0
        assert seen.seconds > 0
    check = stand.measure(Point("check_ids", 16, MIB))
    assert (check.amount, check.source) == (5000, CLOCK)
    assert {seen.amount for seen in stand.setup.values()} == {4 * MIB}


@pytest.mark.parametrize(("percent", "blocks"), [(10, 1), (25, 1), (50, 2), (800, 32)])
def test_the_read_roof_tries_grids_below_a_block_for_each_multiprocessor(
    stand, percent, blocks, monkeypatch
):
    grids: list[int] = []
    monkeypatch.setattr(gpu, "launch_kernel", lambda kernel, grid, *_: grids.append(grid))
    stand.measure(Point("sm_read", span_bytes=MIB, grid_percent=percent))
    assert grids == [blocks]  # of 4 multiprocessors


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (5000, 5000), (5000, 16384), (4999, 1 << 28)])
def test_no_row_is_drawn_twice_in_one_gather(stand, count, rows):
    """A row that is still in the GPU's cache would cost the link nothing."""
    first, second = stand._ids(count, rows), stand._ids(count, rows)
    assert len(first.unique()) == count
    assert 0 <= int(first.min()) <= int(first.max()) < rows
    assert count == 1 or (
        not torch.equal(first, second) and not torch.equal(first, first.sort()[0])
    )


def test_a_gather_of_more_rows_than_there_are_stays_inside_the_table(stand):
    assert set(stand._ids(1000, 7).tolist()) == set(range(7))


def test_the_unique_order_gathers_each_row_once_and_expands(stand):
    point = Point("gpu_gather", 400, MIB, policy="aligned", order="unique")
    ids = torch.tensor([7, 3, 7, 7, 0]).repeat(num_ids(point))[: num_ids(point)]
    stand._ids = lambda count, rows: ids  # type: ignore[method-assign]
    stand._gathering(point)()
    got = stand.out[: amount_of(point)].view(-1, 400)
    table = stand.bytes[: num_rows(point) * 400].view(-1, 400)
    assert torch.equal(got, table[ids])


@pytest.mark.parametrize("span", [MIB, 3 * MIB, 8 * MIB])
def test_a_ring_meets_each_of_its_places_once_all_over_the_span(span, monkeypatch):
    monkeypatch.setattr(gpu, "RING_PLACES", 10_000)
    words = torch.full((MIB,), -1)
    rings = [Ring(words, span, column, torch.Generator().manual_seed(1)) for column in (0, 1)]
    for column, ring in enumerate(rings):
        at, met = ring.start, []
        for _ in range(len(ring.order)):
            met.append(at)
            at = int(words[at])
        assert at == ring.start
        assert len(set(met)) == len(met) == min(10_000, span // 128)
        assert {place % 16 for place in met} == {column}
        assert 0.99 * span < max(met) * 8 < span


def test_a_chase_that_goes_astray_is_an_error(stand):
    point = Point("round_trip", span_bytes=2 * MIB)
    for _ in range(3):
        assert stand.measure(point).amount == 1000
    stand._rings[2 * MIB].order = stand._rings[2 * MIB].order.flip(0)
    with pytest.raises(ProbeError, match="pointer chase ended at word"):
        stand.measure(point)


def test_issuing_is_timed_over_whole_steps_of_training(stand, monkeypatch):
    """Of three layers with 28 operations each, 8 fewer in all, Adam's 8 and 4 copies: as counted
    for an epoch."""
    seen: list[int] = []
    step = models.Trainer.step

    def counted(self: models.Trainer, x: Tensor, batch: MiniBatch) -> Tensor:
        seen.append(len(batch.edges))
        assert type(self) is models.Trainer
        return step(self, x, batch)

    monkeypatch.setattr(models.Trainer, "step", counted)
    observed = stand.measure(Point("gpu_issue"))
    assert seen == [3] * 5
    assert observed.amount == 5 * (3 * 28 - 8 + 8 + 4)
    assert observed.source == CLOCK


def test_replays_are_timed_by_the_gpu_without_what_fills_their_inputs(stand, monkeypatch):
    """Of the operations of a step that is issued; the first step, which captures, is before."""
    seen: list[str] = []
    for name in ("take", "replay"):
        kind = captured.StepInputs if name == "take" else captured.CapturedTrainer
        does = getattr(kind, name)

        def noted(*given: Any, name: str = name, does: Any = does) -> Any:
            seen.append(name)
            return does(*given)

        monkeypatch.setattr(kind, name, noted)
    observed = stand.measure(Point("gpu_replay"))
    assert seen == ["take", *["replay"] * 6]
    assert observed.amount == 5 * (3 * 28 - 8 + 8 + 4)
    assert observed.source == gpu.EVENTS
    issued, trainer, (x, batch), _ = stand._training
    assert torch.isfinite(trainer._loss)
    assert issued.model is not trainer.model
    assert [one.shape for one in trainer._inputs.edges] == [one.shape for one in batch.edges]
    assert len(trainer._inputs.x) == len(x) + captured.SPARE_ROWS


def test_without_pyg_nothing_is_asked_of_training(monkeypatch):
    monkeypatch.setattr(cases, "find_spec", lambda _: None)
    asked = {point.case for point in cases.gpu_points(SPANS, 2)}
    assert asked.isdisjoint({"gpu_issue", "gpu_replay", "gpu_draw"})
    assert {"gpu_launch", "gpu_submit"} <= asked


def test_drawing_is_timed_by_layers_of_minibatches_that_are_waited_for(stand, monkeypatch):
    """Two begun ahead, and five more; of three layers each."""
    waited: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: waited.append(device))
    observed = stand.measure(Point("gpu_draw"))
    sampler, _ = stand._sampler
    assert sampler.begun == [0, 1, 0, 1, 2, 3, 4]
    assert (observed.amount, observed.source, len(waited)) == (5 * 3, CLOCK, 2)
