"""A training step that is captured once in a CUDA graph and replayed for each minibatch.

Issued operation by operation, a step of a small model takes the host longer than the GPU, and most
of an epoch (docs/guide.md). A replay is one launch of the same operations on the same memory, so a
minibatch is first copied into inputs of a fixed size, which are padded with edges among spare rows.
"""

from __future__ import annotations

import copy
import gc
import traceback
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gatherbench.bench.run.models import Fetched, Trainer, WrongStepError, to_device
from gatherbench.bench.run.part import CHECK_STAGE
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.sampling.minibatch import MiniBatch

#: int64 ``[minibatches, layers]``.
Counts = NDArray[np.int64]
#: The least number of spare rows after the nodes of each layer, used only by padding edges.
SPARE_ROWS = 64
#: The most padding edges that meet in a row: about as many as real ones, as the GPU adds these up
#: one after the other.
_MEETING = 8
#: The label with which ``cross_entropy`` ignores a seed.
_NO_LABEL = -100
#: Steps before the capture, in which libraries allocate what a graph cannot (as torch advises).
_WARM_UP_STEPS = 3
#: The tolerated norm of the difference of two gradients, relative to theirs: float32 sums in
#: another order differ by 1e-6, and a wrong row differs by far more than this.
MOST_DIFFERENCE = 1e-3


class StepInputs:
    """Memory that captured steps of one stream read: a minibatch of each layer's largest size.

    ``num_nodes`` and ``num_edges`` are those of all minibatches, int64 ``[batches, L + 1]`` and
    ``[batches, L]``; ``width`` counts the numbers of a row.

    Attributes:
        most, nodes: nodes of each layer; the same with the spare rows.
        x, labels: float32 ``[nodes[L], D]``; int64 ``[nodes[0]]``, -100 after the last seed.
        batch: the minibatch in the inputs, without ids; its edges are int64 ``[2, E_k]``.
        fill: the padding edges of each layer, of the same shapes.
        padding: edges beyond those of the mean minibatch, as a share of these.
    """

    def __init__(
        self, num_nodes: Counts, num_edges: Counts, width: int, device: torch.device
    ) -> None:
        largest = num_edges.max(axis=0)
        self.most = tuple(map(int, num_nodes.max(axis=0)))
        lacking = int((largest - num_edges.min(axis=0)).max())
        spare = max(SPARE_ROWS, -(-lacking // _MEETING))
        self.nodes = tuple(count + spare for count in self.most)
        self.fill = list[Tensor]()
        for layer, count in enumerate(largest.tolist()):
            rows = torch.arange(count, device=device) % spare
            ends = [rows + self.most[layer + 1], rows + self.most[layer]]
            self.fill.append(torch.stack(ends))
        #: A graph whose memory pool the steps' graphs share. It lives as long as they might: cuBLAS
        #: may hold a workspace of a pool whose graphs are all gone; torch then captures none there.
        self.anchor: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            self.anchor = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.anchor, capture_error_mode="thread_local"):
                torch.zeros(1, device=device)
        self.x = torch.zeros(self.nodes[-1], width, device=device)
        self.labels = torch.full((self.nodes[0],), _NO_LABEL, device=device)
        edges = tuple(map(torch.clone, self.fill))
        self.batch = MiniBatch(self.labels.new_empty(0), edges, self.nodes)
        self.padding = float(largest.sum() / num_edges.sum(axis=1).mean() - 1)

    def has_room(self, batch: MiniBatch) -> bool:
        """Return whether no layer of it is larger than those for which this was made."""
        room = [*self.most, *(fill.shape[1] for fill in self.fill)]
        sizes = [*batch.num_nodes, *(block.shape[1] for block in batch.edges)]
        return bool(np.less_equal(sizes, room).all())

    def take(self, x: Tensor, labels: Tensor, batch: MiniBatch) -> None:
        """Copy a minibatch that has room, with its rows and labels, all on the device."""
        self.x[: len(x)].copy_(x)
        self.labels[: len(labels)].copy_(labels)
        self.labels[len(labels) :].fill_(_NO_LABEL)
        for block, fill, there in zip(batch.edges, self.fill, self.batch.edges, strict=True):
            torch.cat((block, fill[:, block.shape[1] :]), dim=1, out=there)


class CapturedTrainer(Trainer):
    """A :class:`Trainer` whose step is captured by :meth:`capture`, or at its first use.

    It is captured with or without dropout, as the model is set then. No size in the model may
    depend on the contents of a minibatch, and rows may interact only along edges. A minibatch that
    is larger than the measured ones is issued; without a GPU, each, on inputs of the same sizes.
    """

    capturable = True

    def __init__(
        self, model: nn.Module, labels: Tensor, device: torch.device, inputs: StepInputs
    ) -> None:
        super().__init__(model, labels, device)
        self._inputs = inputs
        self._replay: Callable[[], None] | None = None if device.type == "cuda" else self._issue
        self._loss = torch.zeros((), device=device)

    def spare(self) -> CapturedTrainer:
        model = copy.deepcopy(self.model)
        return CapturedTrainer(model, self.labels, self.device, self._inputs)

    def ready(
        self, make: RowMaker, fetched: Fetched, plain: Callable[[], nn.Module], *, first: bool
    ) -> Iterator[Row]:
        """Capture the step; yield its share of padding, and its gradient's difference.

        Raises:
            WrongStepError: the gradient differs.
            SystemExit: it cannot be captured. torch may be left in the capture.
        """
        source = "largest minibatch of each layer, over the mean"
        yield make.ok("train", "padding", "1", self._inputs.padding, source)
        try:
            if first:
                source = "norm of the difference to the step issued, over its norm; no dropout"
                far = difference(self, *fetched())
                yield make.ok(CHECK_STAGE, "gradient_difference", "1", far, source)
            self.capture()
        except WrongStepError:
            raise
        except Exception as error:
            traceback.print_exc()
            raise SystemExit(1) from error

    def step(self, x: Tensor, batch: MiniBatch) -> Tensor:
        labels, batch = self._labels_of(batch), to_device(batch, self.device)
        if not self._inputs.has_room(batch):  # of an untimed epoch, which is left uncounted
            return self.optimised(x.float(), labels, batch)
        self._inputs.take(x, labels, batch)
        if self._replay is None:
            self.capture()
        assert self._replay is not None
        self._replay()
        return self._loss.clone()  # the next step writes there

    def _issue(self) -> None:
        self._loss = self.optimised(self._inputs.x, self._inputs.labels, self._inputs.batch)

    def capture(self) -> None:
        """Capture the step, on a GPU, on the current contents of its inputs; undo its training.

        Raises:
            RuntimeError: an operation cannot be captured.
        """
        if self.device.type != "cuda":
            return
        weights = [weight.detach().clone() for weight in self._weights]
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        current = torch.cuda.current_stream(self.device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP_STEPS):
                self._issue()
        current.wait_stream(side)
        with torch.no_grad():
            for weight, before in zip(self._weights, weights, strict=True):
                weight.copy_(before)
            for moments in self.optimiser.state.values():
                for moment in moments.values():
                    moment.zero_()
                    moment.record_stream(current)  # replays use memory allocated on the side stream
        self.optimiser.zero_grad(set_to_none=True)
        graph, anchor = torch.cuda.CUDAGraph(), self._inputs.anchor
        assert anchor is not None
        pool, collects = anchor.pool(), gc.isenabled()
        gc.collect()  # finalizers make calls that a capture forbids
        gc.disable()
        try:
            # Threads of the path may still make such calls. If a capture cannot begin, torch
            # leaves its stream as the current one.
            with (
                torch.cuda.stream(current),
                torch.cuda.graph(graph, pool, capture_error_mode="thread_local"),
            ):
                self._issue()
        finally:
            if collects:
                gc.enable()
        self._replay = graph.replay


def difference(trainer: CapturedTrainer, x: Tensor, batch: MiniBatch) -> float:
    """Return how much a captured step's gradient differs from the issued one's, as a share of it.

    It uses copies, without dropout, which draws by the shapes.

    Raises:
        WrongStepError: too far.
    """
    gradients = []
    issuing = Trainer(copy.deepcopy(trainer.model), trainer.labels, trainer.device)
    for spare in (issuing, trainer.spare()):
        spare.model.eval()
        spare.step(x, batch)
        found = [parameter.grad for parameter in spare.model.parameters()]
        gradients.append(torch.cat([one.flatten() for one in found if one is not None]))
    issued, captured = gradients
    far = float((captured - issued).norm() / issued.norm())
    if not far <= MOST_DIFFERENCE:
        raise WrongStepError(
            f"the gradient of a captured step differs from that of the step issued by {far:.2g} of"
            f" its norm; {MOST_DIFFERENCE:g} at most"
        )
    return far
