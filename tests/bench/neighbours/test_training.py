"""Activations that leave the device's memory: the same gradients, what moves, and what fails."""

import errno
import os
import threading
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gatherbench.bench.neighbours import pigeon
from gatherbench.bench.neighbours import ssdtrain as module
from gatherbench.bench.neighbours.pigeon import PairTally, PigeonRGATConv, compact_rows
from gatherbench.bench.neighbours.ssdtrain import LostActivationsError, Offload, Pool, Recompute
from gatherbench.bench.plan.doors import AroundStep, is_relational, opened
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.read.axis import AXES
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


# ---- relational layers ---------------------------------------------------------------------------


KINDS, WIDTH, CLASSES = 4, 6, 3
#: Models, and PyG's of the same values.
RELATIONAL = AXES["model"].over
OWN = [model for model, base in RELATIONAL.items() if model != base]


def drawn(seed: int, nodes: tuple[int, int, int] = (3, 8, 20), edges: int = 30) -> MiniBatch:
    torch.manual_seed(seed)
    ends = [
        torch.stack([torch.randint(wide, (edges,)), torch.randint(narrow, (edges,))])
        for narrow, wide in pairwise(nodes)
    ]
    kinds = tuple(torch.randint(KINDS, (edges,)) for _ in ends)
    return MiniBatch(torch.arange(nodes[-1]), tuple(ends), nodes, kinds)


def model_of(name: str) -> nn.Module:
    return build_model(
        Workload("x", model=f"{pigeon.__name__}:{name}", hidden=5), WIDTH, CLASSES, KINDS
    ).eval()


def test_every_relational_model_is_told_the_kinds_of_edges():
    assert all(is_relational(f"{pigeon.__name__}:{name}") for name in RELATIONAL)
    assert not is_relational("sage")


def check_layer(name: str, seed: int, edges: int) -> None:
    """Raises where a layer of ours has other values or gradients than PyG's."""
    batch, rows = drawn(seed, edges=edges), torch.randn(20, WIDTH)
    theirs, ours = model_of(RELATIONAL[name]), model_of(name)
    ours.load_state_dict(theirs.state_dict())
    wanted, found = theirs(rows, batch), ours(rows, batch)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    weights = torch.randn_like(wanted)
    for out in (wanted, found):
        (out * weights).sum().backward()
    for one, other in zip(theirs.parameters(), ours.parameters(), strict=True):
        if one.grad is not None and edges:
            torch.testing.assert_close(other.grad, one.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", OWN)
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 1000), edges=st.integers(0, 40))
def test_a_layer_of_ours_has_the_values_and_gradients_of_pygs(name, seed, edges):
    check_layer(name, seed, edges)


def kinds_lost(x: Tensor, nodes: Tensor, kinds: Tensor, weight: Tensor) -> Tensor:
    """Wrong: what a source has of one kind stands for all of its kinds."""
    return compact_rows(x, nodes, torch.zeros_like(kinds), weight)


def next_row(x: Tensor, nodes: Tensor, kinds: Tensor, weight: Tensor) -> Tensor:
    """Wrong: an edge has the row of the edge beside it."""
    return compact_rows(x, nodes, kinds, weight).roll(1, 0)


def swapped(self: PigeonRGATConv, *given: Any, size: tuple[int, int]) -> Tensor:
    """Wrong: what scores a target scores a source."""
    self.q, self.k = self.k, self.q
    try:
        return RIGHT(self, *given, size)
    finally:
        self.q, self.k = self.k, self.q


RIGHT = PigeonRGATConv.forward
WRONG = [
    *(
        (name, "compact_rows", wrong)
        for name in OWN
        if "Compact" in name
        for wrong in (kinds_lost, next_row)
    ),
    *((name, "PigeonRGATConv.forward", swapped) for name in OWN if "RGAT" in name),
]


@pytest.mark.parametrize(("name", "part", "wrong"), WRONG)
def test_wrong_layers_have_other_values(name, part, wrong, monkeypatch):
    monkeypatch.setattr(f"{pigeon.__name__}.{part}", wrong)
    with pytest.raises(AssertionError):
        check_layer(name, seed=1, edges=30)


def test_each_edge_has_its_row_times_the_matrix_of_its_kind():
    nodes, kinds = torch.tensor([5, 2, 5, 2, 0]), torch.tensor([1, 0, 1, 3, 0])
    weight = torch.arange(4.0).view(4, 1, 1).expand(4, 1, 2)
    rows = compact_rows(torch.arange(6.0).view(6, 1), nodes, kinds, weight)
    assert rows.tolist() == [[5, 5], [0, 0], [5, 5], [6, 6], [0, 0]]


def test_pairs_of_a_minibatch_are_counted_a_block():
    ends = torch.tensor([[0, 0, 1, 0], [0, 1, 0, 0]])
    batch = MiniBatch(
        torch.arange(2),
        (ends, ends),
        (2, 2, 2),
        (torch.zeros(4).long(), torch.tensor([0, 1, 0, 0])),
    )
    tally = PairTally()
    tally.add(batch)
    assert [(one.metric, one.value) for one in tally.counted(2.0)] == [("pairs", 2 * (2 + 3))]


@pytest.mark.parametrize("name", ["FastRGCN", "RGAT"])
def test_compact_layers_take_less_at_a_time(name):
    """400 edges of 20 sources: PyG holds a matrix for each edge, we a row for each pair."""
    batch, rows = drawn(0, (10, 20, 20), 400), torch.randn(20, WIDTH)
    labels, cpu, peaks = torch.zeros(20).long(), torch.device("cpu"), []
    for model in (name, f"Compact{RELATIONAL[name]}"):
        trainer = Trainer(model_of(model), labels, cpu)
        peaks.append(peak_of(partial(trainer.step, rows, batch), cpu)[0])
    assert peaks[1] < peaks[0] / 1.5
