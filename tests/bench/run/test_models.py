"""Models on blocks: shapes, that they learn, what a row reaches; and steps of a fixed size."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run import captured
from gatherbench.bench.run.captured import SPARE_ROWS, CapturedTrainer, StepInputs, difference
from gatherbench.bench.run.models import (
    StepContext,
    Trainer,
    WrongStepError,
    build_model,
    to_device,
)
from gatherbench.bench.run.rows import RowMaker
from gatherbench.bench.sampling.minibatch import MiniBatch

from .captured_steps import NODES, WIDTH, graph, minibatches, rows_of, sizes


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
    """A copy has none of them. Of the check nothing is left, nor of where the plain one began."""

    class Counting(StepContext):
        steps = 0

        def step(self, *_: torch.Tensor) -> AbstractContextManager[object]:
            self.steps += 1
            return nullcontext()

        def counts(self) -> dict[str, float]:
            seen, self.steps = self.steps, 0
            return {"steps": seen}

    net, plain = (build_model(Workload("x"), 7, 5) for _ in range(2))
    for weight in plain.parameters():
        weight.data.add_(1.0)
    next(net.parameters()).register_hook(lambda gradient: by * gradient)
    trainer = Trainer(net, torch.arange(8) % 5, torch.device("cpu"), around=Counting())
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
    assert trainer.around.counts() == {"steps": 0}


# ---- captured steps ------------------------------------------------------------------------------


CPU = torch.device("cpu")


def trainer(batches: list[MiniBatch]) -> CapturedTrainer:
    inputs = StepInputs(*sizes(batches), WIDTH, CPU)
    model = build_model(Workload("x", fanouts=(4, 3)), WIDTH, 5)
    return CapturedTrainer(model, torch.arange(NODES) % 5, CPU, inputs)


def issued(one: CapturedTrainer) -> Trainer:
    """The step of each minibatch's own size, from the same weights."""
    model = build_model(Workload("x", fanouts=(4, 3)), WIDTH, 5)
    model.load_state_dict(one.model.state_dict())
    return Trainer(model, one.labels, CPU)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0]])
def test_it_learns_what_steps_of_the_minibatches_own_sizes_learn(order):
    """Without dropout, which draws by the shapes; what a larger minibatch left is not seen."""
    batches = minibatches()
    fixed = trainer(batches)
    plain = issued(fixed)
    for one in (fixed, plain):
        one.model.eval()
    for number in order:
        x, batch = rows_of(batches[number]), batches[number]
        assert float(fixed.step(x, batch)) == pytest.approx(float(plain.step(x, batch)), rel=1e-5)
    for one, other in zip(fixed.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_a_step_trains_with_dropout_and_each_loss_is_its_own():
    batches = minibatches()
    fixed = trainer(batches)
    losses = [fixed.step(rows_of(batches[0]), batches[0]) for _ in range(40)]
    assert float(losses[0]) > float(losses[-1])
    assert len({float(one) for one in losses}) > 30


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 6), st.integers(2, 40), st.data())
def test_what_fills_up_has_rows_of_its_own(count, seeds, data):
    batches = minibatches(count, seeds)
    inputs = StepInputs(*sizes(batches), WIDTH, CPU)
    batch = data.draw(st.sampled_from(batches))
    for before in (batches[0], batch):  # what another minibatch left there is overwritten
        labels = torch.arange(before.num_nodes[0])
        inputs.take(rows_of(before), labels, before)
    most = [max(one.num_nodes[layer] for one in batches) for layer in range(3)]
    (spare,) = {one - other for one, other in zip(inputs.nodes, most, strict=True)}
    assert spare >= SPARE_ROWS
    assert torch.equal(inputs.x[: batch.num_nodes[-1]], rows_of(batch))
    assert not inputs.x[most[-1] :].any()
    assert inputs.labels.tolist() == [
        *range(len(labels)),
        *[-100] * (len(inputs.labels) - len(labels)),
    ]
    for layer, (block, there) in enumerate(zip(batch.edges, inputs.batch.edges, strict=True)):
        real = block.shape[1]
        assert torch.equal(there[:, :real], block)
        sources, targets = there[:, real:]
        assert there.shape[1] == max(one.edges[layer].shape[1] for one in batches)
        assert ((sources >= most[layer + 1]) & (sources < inputs.nodes[layer + 1])).all()
        assert ((targets >= most[layer]) & (targets < inputs.nodes[layer])).all()
        # Spread, so that no more of them meet in a row than edges of the minibatch do.
        assert all(torch.bincount(ends).max() <= 8 for ends in (sources, targets) if len(ends))


def test_the_more_edges_may_be_lacking_the_more_rows_they_are_spread_over():
    """Of 1000 and 201 edges 799 are lacking: eight in a row make 100 rows; 64 at the least."""
    nodes, few = np.array([[10, 90], [10, 30]]), np.array([[1000], [990]])
    made = [StepInputs(nodes, edges, 2, CPU) for edges in (np.array([[1000], [201]]), few)]
    assert [inputs.nodes for inputs in made] == [(110, 190), (74, 154)]
    assert made[0].x.shape == (190, 2)
    assert made[0].fill[0][:, 99:101].tolist() == [[189, 90], [109, 10]]
    assert made[0].padding == pytest.approx(1000 / 600.5 - 1), "over the mean minibatch"


def test_a_larger_minibatch_is_issued_and_learns_the_same():
    """Of an epoch that is not timed; what was captured is left as it is."""
    batches = minibatches()
    fixed, large = trainer(batches[2:]), graph().sample(torch.arange(60), 0)
    plain = issued(fixed)
    for one in (fixed, plain):
        one.model.eval()
    before = fixed._inputs.x.clone()
    for batch in (large, batches[2]):
        x = rows_of(batch)
        assert float(fixed.step(x, batch)) == pytest.approx(float(plain.step(x, batch)), rel=1e-5)
        assert torch.equal(fixed._inputs.x, before) == (batch is large)


def test_gradients_are_those_of_the_step_issued_and_nothing_is_left_of_the_check():
    batches = minibatches()
    fixed = trainer(batches)
    before = [one.clone() for one in fixed.model.parameters()]
    for batch in batches:
        assert difference(fixed, rows_of(batch), batch) < 1e-5
    assert all(torch.equal(*both) for both in zip(before, fixed.model.parameters(), strict=True))
    assert fixed.model.training
    assert not fixed.optimiser.state


class Misled(StepInputs):
    """Wrong on purpose: it fills up with edges between nodes of the minibatch."""

    def take(self, x: torch.Tensor, labels: torch.Tensor, batch: MiniBatch) -> None:
        super().take(x, labels, batch)
        for block, there in zip(batch.edges, self.batch.edges, strict=True):
            there[:, block.shape[1] :] = 0


class Labelled(StepInputs):
    """Wrong on purpose: seeds that are not there count."""

    def take(self, x: torch.Tensor, labels: torch.Tensor, batch: MiniBatch) -> None:
        super().take(x, labels, batch)
        self.labels[len(labels) :] = 0


@pytest.mark.parametrize("wrong", [Misled, Labelled])
def test_a_step_of_other_gradients_is_rejected(wrong):
    batches = minibatches()
    fixed = trainer(batches)
    fixed._inputs = wrong(*sizes(batches), WIDTH, CPU)
    with pytest.raises(WrongStepError, match="differs from that of the step issued by"):
        difference(fixed, rows_of(batches[-1]), batches[-1])


def test_a_model_with_a_gradient_that_is_no_number_is_rejected():
    batches = minibatches()
    x = rows_of(batches[0])
    x[0] = torch.nan
    with pytest.raises(WrongStepError):
        difference(trainer(batches), x, batches[0])
    assert captured.MOST_DIFFERENCE < 0.01


@pytest.mark.parametrize("layer", range(5))
def test_one_node_or_edge_more_in_one_layer_has_no_room(layer):
    """Of three layers of nodes and two of edges; the spare rows are no room for nodes."""
    batch = minibatches()[0]
    less = np.eye(5, dtype=np.int64)[layer]
    counts = [known - few for known, few in zip(sizes([batch]), (less[:3], less[3:]), strict=True)]
    assert StepInputs(*sizes([batch]), WIDTH, CPU).has_room(batch)
    assert not StepInputs(*counts, WIDTH, CPU).has_room(batch)


class Scaled(CapturedTrainer):
    """Wrong on purpose, by as much as it is told."""

    by, which = 1.0, slice(None)

    def spare(self) -> CapturedTrainer:
        spare = super().spare()
        for one in list(spare.model.parameters())[self.which]:
            one.register_hook(lambda gradient: self.by * gradient)
        return spare


def test_a_difference_is_a_share_of_the_gradient_wherever_it_points():
    batches = minibatches()
    plain = trainer(batches)
    fixed = Scaled(plain.model, plain.labels, CPU, plain._inputs)
    fixed.by = 1.0005
    assert difference(fixed, rows_of(batches[0]), batches[0]) == pytest.approx(5e-4, rel=0.05)
    fixed.by = -1.0
    for first in (None, -1):  # of all parameters, and of the last one alone
        fixed.which = slice(first, None)
        with pytest.raises(WrongStepError):
            difference(fixed, rows_of(batches[0]), batches[0])
