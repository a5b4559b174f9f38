"""Activations that leave the device's memory: the same gradients, what moves, and what fails."""

import errno
import os
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gatherbench.bench.neighbours import ssdtrain as module
from gatherbench.bench.neighbours.ssdtrain import LostActivationsError, Offload, Pool, Recompute
from gatherbench.bench.plan.doors import AroundStep, opened
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.models import NOTHING_AROUND, StepContext, Trainer, build_model
from gatherbench.bench.run.rows import RowMaker
from gatherbench.bench.run.untimed import peak_of
from gatherbench.bench.sampling.minibatch import MiniBatch

from ..run.fakes import measured, skipped

CPU = torch.device("cpu")
SSDTRAIN = "gatherbench.bench.neighbours.ssdtrain"


def small_batch(seeds: int = 40, more: int = 200) -> tuple[Tensor, MiniBatch]:
    """Rows of 12 and a minibatch of two layers."""
    draw = torch.Generator().manual_seed(1)
    counts = seeds, seeds + more, seeds + 2 * more

    def layer(k: int) -> Tensor:
        def ends(below: int) -> Tensor:
            return torch.randint(0, below, (5 * counts[k],), generator=draw)

        return torch.stack([ends(counts[k + 1]), ends(counts[k])])

    batch = MiniBatch(torch.arange(counts[-1]), (layer(0), layer(1)), counts)
    return torch.randn(counts[-1], 12, generator=draw), batch


def gradients(
    around: StepContext | str, model: str = "sage", steps: int = 3, folder: Path = Path()
) -> list[Tensor]:
    """Weights after some steps, and the last gradients."""
    x, batch = small_batch()
    net = build_model(Workload("tiny", model=model, fanouts=(5, 5)), 12, 4)
    if isinstance(around, str):
        around = opened(around, AroundStep).open(net, CPU, folder)
    trainer = Trainer(net, torch.arange(500) % 4, CPU, around=around)
    for _ in range(steps):
        trainer.step(x, batch)
    found = [one.detach().clone() for one in trainer.model.parameters()]
    return found + [one.grad.clone() for one in trainer.model.parameters() if one.grad is not None]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("model", ["sage", "gat", "mlp"])
@pytest.mark.parametrize(
    "words", ["Recompute", "ToHost smallest=0", "ToHost smallest=2000", "ToDisk smallest=0"]
)
def test_gradients_are_those_of_keep_bit_for_bit(tmp_path, words, model):
    wanted = gradients(NOTHING_AROUND, model)
    assert same(gradients(f"{SSDTRAIN}:{words}", model, folder=tmp_path), wanted)
    assert not list(tmp_path.iterdir())  # the file has no name from the start


def test_what_moves_is_counted_and_what_is_small_or_an_input_stays():
    """x and w, which x·w saves, stay; the result of relu moves: 400 × 8 × 4 B."""
    x, w = torch.randn(400, 12), nn.Parameter(torch.randn(12, 8))
    for smallest, out in ((0, 12800), (12800, 12800), (12801, 0)):
        with closing(Offload(CPU, smallest)) as kept:
            with kept.step(x, w):
                y = (x @ w).relu()
            y.sum().backward()
            told = kept.counts()
            assert told["out"] == out == told["in"] + told["forwarded"]
            assert kept.counts()["out"] == 0
            assert told["buffers"] in (0, 16384)  # none if it was wanted before a thread had it


def test_views_of_one_storage_are_moved_once():
    with closing(Offload(CPU, 0)) as kept:
        leaf = torch.ones(1000, requires_grad=True)
        with kept.step(leaf):
            y = leaf * 2
            loss = (y[:500] * y[500:]).sum() + (y * y).sum()
        kept._out.shutdown(wait=True)  # all is stored
        loss.backward()
        told = kept.counts()
    assert (told["out"], told["in"], told["forwarded"]) == (4000, 4000, 0)
    assert torch.equal(leaf.grad, torch.full((1000,), 4.0 + 8.0))


def test_what_is_stored_has_left_memory_and_comes_back_as_it_lay(tmp_path):
    """Three layers of 1 MB each: kept they are there together, on disk one after the other."""

    def work(kept: StepContext) -> None:
        x = torch.ones(1 << 18, requires_grad=True)
        with kept.step(x):
            y = x
            for _ in range(8):
                y = y.exp().clamp(max=1.0)  # saves the exponential, and what is clamped: the same
                if isinstance(kept, Offload):
                    kept._order[-1]().stored.result()
        y.sum().backward()

    work(NOTHING_AROUND)
    keep, source = peak_of(lambda: work(NOTHING_AROUND), CPU)
    assert "profile_memory" in source
    with closing(Offload(CPU, 0, tmp_path)) as kept:
        disk, _ = peak_of(lambda: work(kept), CPU)
        assert kept.counts()["in"] == 8 << 20
    mib = 1 << 20
    assert keep >= 9 * mib
    assert disk <= keep - 3 * mib


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 1 << 40))
def test_a_piece_holds_what_it_is_for_in_whole_blocks(nbytes):
    size = module.piece_bytes(nbytes)
    assert size >= nbytes
    assert size % 4096 == 0
    assert size == 4096 or size < 2 * nbytes


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 30000), min_size=1, max_size=12), st.booleans(), st.randoms())
def test_any_tensors_come_back(tmp_path_factory, sizes, on_disk, order):
    """Pack and unpack in any order, views and strides and all."""
    folder = tmp_path_factory.mktemp("any") if on_disk else None
    with closing(Offload(CPU, 0, folder)) as kept, kept.step():
        given_ = [torch.randn(2 * size)[:: 1 + size % 2] for size in sizes]
        packed = [kept._pack(one) for one in given_]
        for number in order.sample(range(len(sizes)), len(sizes)):
            back = kept._unpack(packed[number])
            assert torch.equal(back, given_[number])
            assert back.stride() == given_[number].stride()


def all_stored_first(kind: type[Offload]) -> type[Offload]:
    """Everything is stored before the backward pass asks for it, whenever threads have a turn."""

    class Stored(kind):
        def _begin_backward(self) -> None:
            super()._begin_backward()
            for one in list(self._order):
                if (saved := one()) is not None:
                    saved.stored.result()

    return Stored


def test_buffers_are_used_again_and_the_file_does_not_grow(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "THREADS", 1)
    with closing(all_stored_first(Offload)(CPU, 0, tmp_path)) as kept:
        gradients(kept, steps=2)
        taken, end = kept._buffers.made_bytes, kept._places.made_bytes
        assert min(taken, end) > 0
        gradients(kept, steps=20)
        assert (kept._buffers.made_bytes, kept._places.made_bytes) == (taken, end)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, 0])
def test_a_full_disk_and_a_failed_write_end_the_case_and_say_why(make_job, monkeypatch, number):
    """An errno, or a write that moves nothing; the run goes on, as its own files may have room."""

    def fails(*_: object) -> int:
        if number:
            raise OSError(number, os.strerror(number))
        return 0

    monkeypatch.setattr(os, "pwritev", fails)
    from gatherbench.bench.run.job import outcome

    status, reason = outcome(lambda: skipped(on(make_job, "ToDisk")))
    assert status == "failed"
    said = os.strerror(number) if number else "0 of"
    assert reason.startswith("LostActivationsError: storing ")
    assert said in reason


def test_a_failed_read_ends_the_case(monkeypatch, tmp_path):
    def fails(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", fails)
    with closing(Offload(CPU, 0, tmp_path)) as kept:
        x = torch.ones(5000, requires_grad=True)
        with kept.step(x):
            y = x.exp().exp()
        kept._out.shutdown(wait=True)
        with pytest.raises(LostActivationsError, match="bringing back 20,000 B"):
            y.sum().backward()


def test_what_is_wanted_on_its_way_is_handed_back(tmp_path, monkeypatch):
    go, write = threading.Event(), os.pwritev

    def held(*what: object) -> int:
        assert go.wait(30)
        return write(*what)

    monkeypatch.setattr(os, "pwritev", held)
    with closing(Offload(CPU, 0, tmp_path)) as kept:
        x = torch.linspace(0, 1, 5000, requires_grad=True)
        with kept.step(x):
            y = x.exp()
        y.sum().backward()
        told = kept.counts()
        go.set()
    assert (told["forwarded"], told["in"]) == (20000, 0)
    assert torch.equal(x.grad, y)


def test_a_tensor_changed_in_place_before_it_was_stored_is_refused(tmp_path, monkeypatch):
    go, take = threading.Event(), Pool.take

    def held(pool: object, nbytes: int) -> object:
        assert go.wait(30)
        return take(pool, nbytes)

    monkeypatch.setattr(Pool, "take", held)
    with closing(Offload(CPU, 0, tmp_path)) as kept:
        x = torch.ones(5000, requires_grad=True)
        with kept.step(x):
            y = x.exp()
            with pytest.raises(LostActivationsError, match="changed in place"):
                stored_after(kept, y, go)
            kept._failed = ""  # or it is told once more when the forward pass ends


def stored_after(kept: Offload, y: Tensor, go: threading.Event) -> None:
    """Change what was saved before a thread has stored it; then save something else."""
    y.detach().add_(1)
    go.set()
    kept._out.shutdown(wait=True)
    y.exp()


class Halved(Offload):
    """Wrong: what comes back is not what was saved."""

    def _load(self, saved, memory) -> None:
        super()._load(saved, memory)
        saved.memory = saved.memory.flip(0)


class Reused(Offload):
    """Wrong: every buffer is one buffer."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)
        piece = module.host_piece(0, 1 << 20, pinned=False)
        self._buffers.take = lambda _nbytes: piece


@pytest.mark.parametrize("wrong", [Halved, Reused])
def test_wrong_ways_are_refused_before_timing(wrong, monkeypatch):
    monkeypatch.setattr(module, "THREADS", 1)
    workload = Workload("tiny", fanouts=(5, 5), hidden=32)
    x, batch = small_batch()
    model, plain = (build_model(workload, 12, 4) for _ in range(2))
    make = RowMaker("r", "c", "m", "host")
    with closing(all_stored_first(wrong)(CPU, 0)) as kept:
        trainer = Trainer(model, torch.arange(500) % 4, CPU, around=kept)
        with pytest.raises(RuntimeError):
            list(trainer.ready(make, lambda: (x, batch), lambda: plain, first=True))


def test_a_recomputed_layer_runs_twice_a_step():
    calls = []

    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(torch.is_grad_enabled())
            return x.exp()

    model = nn.Sequential(nn.Sequential(Layer(), Layer()), Layer())
    Recompute().open(model, CPU, Path())
    x = torch.ones(3, requires_grad=True)
    model[1].forward(model[0][1].forward(model[0][0].forward(x))).sum().backward()
    assert len(calls) == 6


def on(make_job: Any, kind: str) -> Job:
    """The job with something around its steps; ``""``: nothing."""
    job: Job = make_job(peak=bool(kind))
    around = kind and f"{SSDTRAIN}:{kind}" + " smallest=0" * (kind != "Recompute")
    workload = replace(job.case.workload, around_step=around, hidden=32)
    return replace(job, case=replace(job.case, workload=workload))


def test_a_case_has_its_rows_and_a_usual_one_none_of_them(make_job):
    found, losses = {}, set()
    for kind in ("", "Recompute", "ToHost", "ToDisk"):
        rows = measured(on(make_job, kind))
        losses.add(tuple(row.value for row in rows if row.metric == "loss"))
        checked = [row.status for row in rows if row.metric == "gradients"]
        peaks = [row.value or 0 for row in rows if row.metric == "peak"]
        assert (checked, [peak > 0 for peak in peaks]) == ((["ok"], [True]) if kind else ([], []))
        found[kind] = {row.metric: row.value for row in rows if row.stage == "around_step"}
    assert len(losses) == 1
    assert found.pop("") == found.pop("Recompute") == {}
    for own in found.values():
        assert own["out"] == own["in"] + own["forwarded"] > 0
        assert own["stall"] >= 0
