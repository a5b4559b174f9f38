"""Contexts around forward and backward pass of each training step, and the check that one leaves
all gradients unchanged."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from gatherbench.bench.plan.doors import AroundStep, opened
from gatherbench.bench.run.part import CHECK_STAGE
from gatherbench.bench.run.rows import Row, RowMaker

if TYPE_CHECKING:
    from gatherbench.bench.run.models import Trainer
    from gatherbench.bench.sampling.minibatch import MiniBatch

STAGE = "around_step"
#: A GPU adds up in any order: there even the gradients of two equal steps differ.
_ANY_ORDER = "not_applicable: a GPU adds up in any order, and gradients differ from step to step"
_SAME = "gradients of a step, beside those of one with nothing around it, bit for bit"


class WrongGradientsError(RuntimeError):
    """The gradients differ from those of a step without a context."""


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


def step_context(words: str, model: nn.Module, device: torch.device, folder: Path) -> StepContext:
    """Return a workload's context for the steps of its model; see ``AroundStep.open``."""
    around: StepContext = opened(words, AroundStep).open(model, device, folder)  # type: ignore[type-abstract]
    return around


def counted_rows(make: RowMaker, around: StepContext, epoch: int) -> Iterator[Row]:
    """Yield rows with its counts in an epoch."""
    for metric, value in around.counts().items():
        unit, source = around.columns[metric]
        yield make.ok(STAGE, metric, unit, value, source, epoch)


def gradient_row(
    make: RowMaker, trainer: Trainer, plain: nn.Module, x: Tensor, batch: MiniBatch
) -> Row:
    """Check that the gradients of a step equal those of a step without a context.

    Both are made by copies of the model that are thrown away.

    Args:
        plain: a model as the trainer's was before the context was added.
        x: the minibatch's rows ``[B, D]``, on the trainer's device.

    Raises:
        WrongGradientsError: a gradient differs in a bit.
    """
    device = trainer.device

    def gradients(model: nn.Module, around: StepContext) -> list[Tensor | None]:
        spare = type(trainer)(model, trainer.labels, device, around=around)
        torch.manual_seed(0)
        spare.step(x, batch)
        return [parameter.grad for parameter in spare.model.parameters()]

    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        gradients_around = gradients(copy.deepcopy(trainer.model), trainer.around)
        plain.load_state_dict(trainer.model.state_dict())
        wanted = gradients(plain, NOTHING_AROUND)
    trainer.around.counts()  # discards those of the check
    columns = (CHECK_STAGE, "gradients", "1")
    if device.type == "cuda":
        return make.missing(*columns, _SAME, _ANY_ORDER)
    for number, (gradient, other) in enumerate(zip(gradients_around, wanted, strict=True)):
        if _bits(gradient) != _bits(other):
            raise WrongGradientsError(f"the gradient of parameter {number} is another one")
    return make.ok(*columns, len(gradients_around), _SAME)


def _bits(gradient: Tensor | None) -> bytes | None:
    return None if gradient is None else gradient.numpy().tobytes()
