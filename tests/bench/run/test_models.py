"""Models on blocks: shapes, that they learn, and that a row reaches only the seeds it should."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import pytest
import torch

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.models import (
    StepContext,
    Trainer,
    WrongStepError,
    build_model,
    to_device,
)
from gatherbench.bench.run.rows import RowMaker
from gatherbench.bench.sampling.minibatch import MiniBatch


def batch_of(layers: int) -> MiniBatch:
    """Two seeds; in each layer every target has one new source of its own and itself."""
    num_nodes = tuple(2 * 2**k for k in range(layers + 1))
    edges = []
    for targets in num_nodes[:-1]:
        source = torch.arange(targets) + targets
        edges.append(torch.stack([source, torch.arange(targets)]))
    return MiniBatch(torch.arange(num_nodes[-1]), tuple(edges), num_nodes)


@pytest.mark.parametrize("model", ["sage", "gat"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_logits_have_one_row_a_seed_and_weights_are_the_seeds(model, layers):
    workload = Workload("x", model=model, fanouts=(3,) * layers)
    batch = batch_of(layers)
    net, same, other = (build_model(replace(workload, seed=s), 7, 5) for s in (0, 0, 1))
    assert net(torch.randn(batch.num_nodes[-1], 7), batch).shape == (2, 5)
    one, two, three = (of.state_dict() for of in (net, same, other))
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert any(not torch.equal(one[k], three[k]) for k in one)


@pytest.mark.parametrize("model", ["sage", "gat"])
def test_a_row_reaches_only_the_seeds_that_it_is_connected_to(model):
    batch = batch_of(2)
    net = build_model(Workload("x", model=model), 7, 5).eval()
    x = torch.randn(8, 7)
    changed = x.clone()
    changed[2] += 1  # the first layer's source of seed 0
    before, after = net(x, batch), net(changed, batch)
    assert not torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])


@pytest.mark.parametrize("model", ["sage", "gat"])
@pytest.mark.parametrize("layers", [2, 3])
def test_the_loss_falls(model, layers):
    batch = batch_of(layers)
    x = torch.randn(batch.num_nodes[-1], 7)
    workload = Workload("x", model=model, fanouts=(3,) * layers)
    trainer = Trainer(build_model(workload, 7, 2), torch.tensor([0, 1] * 8), torch.device("cpu"))
    modes: list[bool] = []
    trainer.model.register_forward_pre_hook(lambda model, _: modes.append(model.training))
    losses = [float(trainer.step(x, batch)) for _ in range(60)]
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])
    assert trainer.correct(x, batch) == 2
    trainer.step(x, batch)
    assert modes == [*[True] * 60, False, True], "scored without dropout, trained with it"


def test_what_is_around_a_step_hears_of_its_weights():
    batch, stays = batch_of(2), list[int]()
    trainer = Trainer(build_model(Workload("x"), 7, 2), torch.arange(8) % 2, torch.device("cpu"))

    class Kept(StepContext):
        def step(self, *stay: torch.Tensor) -> AbstractContextManager[object]:
            stays.extend(one.data_ptr() for one in stay)
            return nullcontext()

    trainer.around = Kept()
    trainer.step(torch.randn(8, 7), batch)
    assert {one.data_ptr() for one in trainer.model.parameters()} <= set(stays)


def test_narrow_features_are_widened_on_the_device():
    batch = batch_of(2)
    trainer = Trainer(build_model(Workload("x"), 7, 2), torch.arange(8) % 2, torch.device("cpu"))
    for dtype in (torch.float16, torch.bfloat16, torch.int8, torch.float64):
        assert trainer.step(torch.ones(8, 7, dtype=dtype), batch).dtype == torch.float32


def test_only_edges_travel_for_a_step_and_only_where_they_are_not():
    """All ids in pageable memory would stall the host behind the training that is queued."""
    batch = batch_of(2)
    assert to_device(batch, torch.device("cpu")) is batch
    moved = to_device(batch, torch.device("meta"))
    assert moved.input_ids is batch.input_ids
    assert [block.device.type for block in moved.edges] == ["meta", "meta"]
    assert moved.num_nodes == batch.num_nodes


def test_a_spare_has_around_its_steps_what_the_trainer_has():
    around = StepContext()
    net = build_model(Workload("x"), 7, 5)
    trainer = Trainer(net, torch.arange(8), torch.device("cpu"), around=around)
    spare = trainer.spare()
    assert spare.around is around
    assert spare.model is not net


@pytest.mark.parametrize("by", [1.0, 1.0001])
def test_a_context_is_judged_by_the_hooks_that_it_leaves_on_the_model(by):
    """A copy has none of them. Of the check nothing is left."""
    net, plain = (build_model(Workload("x"), 7, 5) for _ in range(2))
    next(net.parameters()).register_hook(lambda gradient: by * gradient)
    trainer = Trainer(net, torch.arange(8) % 5, torch.device("cpu"), around=StepContext())
    before = [one.detach().clone() for one in net.parameters()]
    make, step = RowMaker("r", "c", "m", "host"), (torch.randn(8, 7), batch_of(2))
    drawn = torch.get_rng_state()
    checked = trainer.ready(make, lambda: step, lambda: plain, first=True)
    if by == 1.0:
        assert [(row.metric, row.value) for row in checked] == [("gradients", len(before))]
    else:
        with pytest.raises(WrongStepError, match="parameter 0 is another one"):
            list(checked)
    assert all(map(torch.equal, net.parameters(), before))
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not trainer.optimiser.state
    assert next(net.parameters()).grad is None
