"""Models (GraphSAGE and GAT of PyG's own layers, an MLP), and what trains them on fetched rows.

A plan may name a class of your own instead (:func:`gatherbench.bench.plan.doors.own_model`). Layer
``k`` turns rows of its source nodes into rows of its target nodes: the outermost reads every
fetched row, the last one yields the seeds.
"""

from __future__ import annotations

import copy
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import ClassVar, TypeAlias
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, relu
from torch_geometric.nn import GATConv, SAGEConv

from gatherbench.bench.plan.doors import MODELS, RELATIONS, is_relational, own_model
from gatherbench.bench.plan.workload import GRAPHLESS, Workload
from gatherbench.bench.run.group import ALONE, Alone
from gatherbench.bench.run.part import CHECK_STAGE
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.training_cost import GAT_HEADS
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.sampler import Tally

#: As in the paper's training script (Min et al., PVLDB 14(11), 2021:
#: ``train_sampling_pytorch_direct.py`` of its authors' fork of DGL).
DROPOUT = 0.5
LEARNING_RATE = 0.003

#: A GPU adds up in any order: there even the gradients of two equal steps differ.
_ANY_ORDER = "not_applicable: a GPU adds up in any order, and gradients differ from step to step"
_SAME = "gradients of a step, beside those of one with nothing around it, bit for bit"
#: Returns rows and minibatch of a step, on the device.
Fetched: TypeAlias = Callable[[], tuple[Tensor, MiniBatch]]


class BlockGNN(nn.Module):
    """A stack of bipartite PyG convolutions, input first: ``conv((x_source, x_target), edges)``,
    with the kinds of the edges behind them if the minibatch has any."""

    def __init__(self, convs: list[nn.Module]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)

    def forward(self, x: Tensor, batch: MiniBatch) -> Tensor:
        """Logits ``[S, classes]`` of the seeds from the fetched rows ``x`` ``[B, D]``."""
        for conv, block in zip(self.convs, reversed(range(len(batch.edges))), strict=True):
            kinds = batch.kinds[block : block + 1]
            x = conv((x, x[: batch.num_nodes[block]]), batch.edges[block], *kinds)
            if block > 0:
                x = dropout(relu(x), DROPOUT, self.training)
        return x


class TalliedModel(nn.Module, ABC):
    """A model of your own that needs additional counts of the minibatches."""

    @classmethod
    @abstractmethod
    def tally(cls) -> Tally:
        """Return the counter."""


class RowMLP(nn.Module):
    """Two hidden layers over the seeds' own rows: work for the GPU without a graph."""

    def __init__(self, in_dim: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        widths = [in_dim, hidden, hidden, num_classes]
        layers = [module for a, b in pairwise(widths) for module in (nn.Linear(a, b), nn.ReLU())]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor, batch: MiniBatch) -> Tensor:
        """Logits as of :meth:`BlockGNN.forward`."""
        logits: Tensor = self.layers(x[: batch.num_nodes[0]])
        return logits


def build_model(workload: Workload, in_dim: int, num_classes: int, relations: int = 0) -> nn.Module:
    """Build the workload's model with weights drawn from the workload's seed.

    Args:
        relations: the number of kinds of edges, for a relational model.
    """
    torch.manual_seed(workload.seed)
    # PyG writes a layer's module to a temporary folder and executes it. In the shared one, the
    # bytecode that Python finds next to the module may belong to another user.
    folder = tempfile.TemporaryDirectory(prefix="gatherbench-layers-")
    hidden, layers = workload.hidden, workload.layers
    with folder as own, mock.patch.object(tempfile, "tempdir", own):
        if workload.model not in MODELS:
            more = {RELATIONS: relations} if is_relational(workload.model) else {}
            return own_model(workload.model)(in_dim, hidden, num_classes, layers, **more)
        if workload.model == GRAPHLESS:
            return RowMLP(in_dim, hidden, num_classes)
        if workload.model == "sage":
            widths = [in_dim, *[hidden] * (layers - 1), num_classes]
            return BlockGNN([SAGEConv(a, b) for a, b in pairwise(widths)])
        *inner, last = [in_dim, *[hidden * GAT_HEADS] * (layers - 1)]
        convs = [GATConv((wide, wide), hidden, heads=GAT_HEADS) for wide in inner]
        return BlockGNN([*convs, GATConv((last, last), num_classes, heads=1)])


class WrongStepError(RuntimeError):
    """The gradients differ from those of the same step, issued with nothing around it."""


class StepContext:
    """The context of a step; this one does nothing."""

    #: Its counts: metric → unit, and the source of the number.
    columns: ClassVar[dict[str, tuple[str, str]]] = {}

    def step(self, *inputs: Tensor) -> AbstractContextManager[object]:
        """Return the context of a pass; ``inputs``: what the step reads, parameters included."""
        return nullcontext()

    def counts(self) -> dict[str, float]:
        """Return the counts by metric of :attr:`columns`, since the last call."""
        return {}

    def close(self) -> None:
        """Remove all that it leaves behind, above all on a disk."""


NOTHING_AROUND = StepContext()


class Trainer:
    """A model with its optimiser and the labels, int64 ``[N]``: one step a minibatch.

    Args:
        group: the processes that train the model together.
        around: the context of each step; it may have changed the model's layers, even if it does
            nothing in a step. ``None``: the plan names none.
    """

    #: Whether a CUDA graph may capture the step.
    capturable: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        labels: Tensor,
        device: torch.device,
        group: Alone = ALONE,
        around: StepContext | None = None,
    ) -> None:
        self.model, self._surrounded = model.to(device).train(), around is not None
        self.around = NOTHING_AROUND if around is None else around
        self._in_training = group.wrap(self.model)
        self.labels, self.device = labels.to(device), device
        self._weights = list(model.parameters())  # walking the modules takes a tenth of a step
        on_gpu, floating = device.type == "cuda", all(w.is_floating_point() for w in self._weights)
        self.optimiser = torch.optim.Adam(
            self._weights,
            lr=LEARNING_RATE,
            fused=(on_gpu and floating) or None,  # one launch for all, by default a dozen
            capturable=on_gpu and self.capturable,
        )

    def spare(self) -> Trainer:
        """Return another that trains a copy of the model, for steps whose effect is discarded."""
        return Trainer(copy.deepcopy(self.model), self.labels, self.device, around=self.around)

    def ready(
        self, make: RowMaker, fetched: Fetched, plain: Callable[[], nn.Module], *, first: bool
    ) -> Iterator[Row]:
        """Prepare for the first step; yield rows that show that it trains as a plain one does.

        ``plain`` builds a model as this one's was at first. The ``first`` repeat is checked most.

        Raises:
            WrongStepError: a gradient of a step with the context differs in a bit.
        """
        if not self._surrounded:
            return
        wanted, (x, batch) = Trainer(plain(), self.labels, self.device), fetched()
        columns = (CHECK_STAGE, "gradients", "1")
        if self.device.type == "cuda":
            yield make.missing(*columns, _SAME, _ANY_ORDER)
            return
        # The model itself: a copy has no hooks on its parameters. No other rank takes part.
        own = Trainer(self.model, self.labels, self.device, around=self.around)
        wanted.model.load_state_dict(self.model.state_dict())
        undo, gradients = self.kept(), []
        for trainer in (own, wanted):
            torch.manual_seed(0)
            trainer.step(x, batch)
            found = [weight.grad for weight in trainer._weights]
            gradients.append([None if one is None else one.numpy().tobytes() for one in found])
        undo()
        self.optimiser.zero_grad(set_to_none=True)
        self.around.counts()  # discards those of the check
        for number, (one, other) in enumerate(zip(*gradients, strict=True)):
            if one != other:
                raise WrongStepError(f"the gradient of parameter {number} is another one")
        yield make.ok(*columns, len(gradients[1]), _SAME)

    def step(self, x: Tensor, batch: MiniBatch) -> Tensor:
        """Train on the fetched rows ``x`` ``[B, D]``; return the loss, a scalar on the device.

        Half-precision and integer features are widened to float32 here, on the device, so that
        they travel as they are.
        """
        labels, batch = self._labels_of(batch), to_device(batch, self.device)
        return self.optimised(x.float(), labels, batch)

    def optimised(self, x: Tensor, labels: Tensor, batch: MiniBatch) -> Tensor:
        """Run forward pass, backward pass and the optimiser, on the device; return the loss."""
        with self.around.step(x, labels, *batch.edges, *self._weights):
            loss = cross_entropy(self._in_training(x, batch), labels)
            self.optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        return loss.detach()

    @torch.no_grad()
    def kept(self) -> Callable[[], None]:
        """Save weights, optimiser's moments and torch's random state; return what restores them.

        They are restored to their present memory, which a captured step reads.
        """
        state, on_gpu = self.optimiser.state, self.device.type == "cuda"
        moments = [moment for moments in state.values() for moment in moments.values()]
        weights = [*self.model.parameters(), *self.model.buffers()]
        held = [(tensor, tensor.detach().clone()) for tensor in (*weights, *moments)]
        known, on_host = set(state), torch.get_rng_state()
        on_device = torch.cuda.get_rng_state(self.device) if on_gpu else None

        @torch.no_grad()
        def bring_back() -> None:
            for tensor, before in held:
                tensor.copy_(before)
            for parameter in set(state) - known:
                del state[parameter]
            torch.set_rng_state(on_host)
            if on_device is not None:
                torch.cuda.set_rng_state(on_device, self.device)

        return bring_back

    @torch.no_grad()
    def correct(self, x: Tensor, batch: MiniBatch) -> int:
        """Return how many of the batch's seeds the model classifies correctly, without dropout."""
        self.model.eval()
        guess = self.model(x.float(), to_device(batch, self.device)).argmax(dim=1)
        self.model.train()
        return int((guess == self._labels_of(batch)).sum())

    def _labels_of(self, batch: MiniBatch) -> Tensor:
        return self.labels[batch.seeds.to(self.device, non_blocking=True)]


def to_device(batch: MiniBatch, device: torch.device) -> MiniBatch:
    """Return the minibatch with its edges on ``device`` (itself if they are there already).

    The ids stay where they are: a step needs only those of the seeds, and a copy of all the others
    from pageable memory would make the host wait for the queue of the training stream.
    """
    if all(block.device == device for block in batch.edges):
        return batch
    edges, kinds = (
        tuple(block.to(device, non_blocking=True) for block in blocks)
        for blocks in (batch.edges, batch.kinds)
    )
    return MiniBatch(batch.input_ids, edges, batch.num_nodes, kinds)
