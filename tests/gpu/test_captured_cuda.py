"""A step captured in a CUDA graph: what it learns, beside the step that the host issues."""

import gc
from types import SimpleNamespace

import pytest
import torch
from captured_steps import NODES, WIDTH, minibatches, rows_of, sizes
from gpu_variants import CUDA

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.captured import CapturedTrainer, StepInputs, difference
from gatherbench.bench.run.models import Trainer, build_model
from gatherbench.bench.sampling.minibatch import MiniBatch

LABELS = torch.arange(NODES) % 5


def of(kind: type[Trainer], *more: object) -> Trainer:
    """From the same weights; without dropout, which draws by the shapes."""
    model = build_model(Workload("x", fanouts=(4, 3)), WIDTH, 5)
    made = kind(model, LABELS, CUDA, *more)
    made.model.eval()
    return made


def fed(trainer: Trainer, batch: MiniBatch) -> float:
    return float(trainer.step(rows_of(batch).to(CUDA), batch))


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 1], [3, 2, 1, 0, 3]])
def test_replays_learn_what_issued_steps_learn(order):
    """From the first one on: the steps before the capture are undone, and it computes nothing."""
    batches = minibatches()
    captured = of(CapturedTrainer, StepInputs(*sizes(batches), WIDTH, CUDA))
    issued = of(Trainer)
    for number in order:
        assert fed(captured, batches[number]) == pytest.approx(
            fed(issued, batches[number]), rel=1e-4
        )
        for one, other in zip(captured.model.parameters(), issued.model.parameters(), strict=True):
            assert torch.allclose(one, other, atol=1e-4)


def test_steps_that_share_their_memory_do_not_disturb_each_other():
    """Paths that take turns in one process; an older loss is not overwritten either."""
    batches = minibatches()
    inputs = StepInputs(*sizes(batches), WIDTH, CUDA)
    both, alone = [of(CapturedTrainer, inputs) for _ in range(2)], of(Trainer)
    for batch in batches:
        x = rows_of(batch).to(CUDA)
        losses = [one.step(x, batch) for one in both]
        wanted = fed(alone, batch)
        assert [float(one) for one in losses] == pytest.approx([wanted] * 2, rel=1e-4)


class Watched(StepInputs):
    def take(self, x: torch.Tensor, labels: torch.Tensor, batch: MiniBatch) -> None:
        assert x.is_cuda
        assert labels.is_cuda
        assert all(block.is_cuda for block in batch.edges)
        super().take(x, labels, batch)


def test_edges_that_lie_on_the_host_are_brought_before_they_are_taken():
    batches = minibatches()
    assert not batches[0].edges[0].is_cuda
    fed(of(CapturedTrainer, Watched(*sizes(batches), WIDTH, CUDA)), batches[0])


def test_each_replay_draws_its_own_dropout():
    batches = minibatches()
    captured = of(CapturedTrainer, StepInputs(*sizes(batches), WIDTH, CUDA))
    captured.model.train()
    x = rows_of(batches[0]).to(CUDA)
    there = [captured.step(x, batches[0]) for _ in range(30)]
    losses = [float(one) for one in there]  # the next step has not overwritten them
    assert len(set(losses)) > 20
    assert sum(losses[-5:]) < sum(losses[:5])


def test_a_step_is_captured_where_another_one_was_thrown_away():
    """The memory of both is one; run alone this is the first capture of its process."""
    batches = minibatches()
    inputs = StepInputs(*sizes(batches), WIDTH, CUDA)
    for _ in range(3):
        assert fed(of(CapturedTrainer, inputs), batches[0]) > 0


def test_a_capture_that_cannot_begin_leaves_stream_and_collector_as_they_were():
    inputs = StepInputs(*sizes(minibatches()), WIDTH, CUDA)
    inputs.anchor = SimpleNamespace(pool=lambda: (0, 1 << 40))
    captured = of(CapturedTrainer, inputs)
    assert isinstance(captured, CapturedTrainer)
    before = torch.cuda.current_stream()
    with pytest.raises(RuntimeError):
        captured.capture()
    assert torch.cuda.current_stream() == before
    assert gc.isenabled()


def test_nothing_is_collected_within_a_capture_and_moments_are_the_replays(monkeypatch):
    """Finalizers call what a capture forbids; memory of the side stream is used on another one."""
    inputs = StepInputs(*sizes(minibatches()), WIDTH, CUDA)
    captured, marked, collected = of(CapturedTrainer, inputs), set(), []
    assert isinstance(captured, CapturedTrainer)
    issue, mark, current = captured._issue, torch.Tensor.record_stream, torch.cuda.current_stream()
    monkeypatch.setattr(gc, "collect", lambda: collected.append(gc.isenabled()))
    within = []

    def issued():
        within.append(gc.isenabled())
        issue()

    def marks(tensor, stream):
        marked.add((tensor.data_ptr(), stream))
        mark(tensor, stream)

    monkeypatch.setattr(captured, "_issue", issued)
    monkeypatch.setattr(torch.Tensor, "record_stream", marks)
    captured.capture()
    assert within == [True] * 3 + [False]
    assert collected == [True], "before it, and once"
    assert gc.isenabled()
    moments = [m for of_one in captured.optimiser.state.values() for m in of_one.values()]
    assert {(one.data_ptr(), current) for one in moments} <= marked


def test_capturing_trains_nothing_whatever_lies_in_the_inputs():
    captured = of(CapturedTrainer, StepInputs(*sizes(minibatches()), WIDTH, CUDA))
    assert isinstance(captured, CapturedTrainer)
    before = [one.detach().clone() for one in captured.model.parameters()]
    captured.capture()  # no seed has a label yet: the mean of none is no number
    assert all(torch.equal(*both) for both in zip(before, captured.model.parameters(), strict=True))
    moments = [m for of_one in captured.optimiser.state.values() for m in of_one.values()]
    assert len(moments) == 3 * len(before)
    assert not any(moment.any() for moment in moments)


def test_the_check_passes_and_leaves_nothing():
    batches = minibatches()
    captured = of(CapturedTrainer, StepInputs(*sizes(batches), WIDTH, CUDA))
    assert isinstance(captured, CapturedTrainer)
    before = [one.detach().clone() for one in captured.model.parameters()]
    for batch in batches:
        assert difference(captured, rows_of(batch).to(CUDA), batch) < 1e-4
    assert all(torch.equal(*both) for both in zip(before, captured.model.parameters(), strict=True))


def test_a_capture_takes_the_shared_pool_and_lets_other_threads_be(monkeypatch):
    """And the steps before it begin behind what was asked for before them, and end before it."""
    seen, waits = [], []
    graph, wait = torch.cuda.graph, torch.cuda.Stream.wait_stream

    def captures(made, pool=None, **more):
        seen.append((pool, more["capture_error_mode"]))
        return graph(made, pool, **more)

    def waited(stream, other):
        waits.append((stream.cuda_stream, other.cuda_stream))
        wait(stream, other)

    monkeypatch.setattr(torch.cuda, "graph", captures)
    monkeypatch.setattr(torch.cuda.Stream, "wait_stream", waited)
    batches = minibatches()
    inputs = StepInputs(*sizes(batches), WIDTH, CUDA)
    fed(of(CapturedTrainer, inputs), batches[0])
    assert inputs.anchor is not None
    assert seen == [(None, "thread_local"), (inputs.anchor.pool(), "thread_local")]
    (before, behind) = waits
    assert before == behind[::-1]
