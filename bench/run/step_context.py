"""What may be put around forward and backward pass of each training step, and the proof that it
changes no gradient."""

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
#: A GPU adds up in any order: gradients of two equal steps differ there by themselves.
_ANY_ORDER = "not_applicable: a GPU adds up in any order, and gradients differ from step to step"
_SAME = "gradients of a step, beside those of one with nothing around it, bit for bit"


class WrongGradientsError(RuntimeError):
    """Other gradients than those of a step with nothing around it."""


class StepContext:
    """What is around a step: nothing."""

    #: Of what it counts: metric → unit, and where the number comes from.
    columns: ClassVar[dict[str, tuple[str, str]]] = {}

    def step(self, *inputs: Tensor) -> AbstractContextManager[object]:
        """Around forward and backward pass; ``inputs``: what the step reads, parameters too."""
        return nullcontext()

    def counts(self) -> dict[str, float]:
        """By metric of :attr:`columns`, since this was last asked."""
        return {}

    def close(self) -> None:
        """Leave nothing of it, on a disk least of all."""


NOTHING_AROUND = StepContext()


def step_context(words: str, model: nn.Module, device: torch.device, folder: Path) -> StepContext:
    """What a workload puts around the steps of its model; see ``AroundStep.open``."""
    if not words:
        return NOTHING_AROUND
    around: StepContext = opened(words, AroundStep).open(model, device, folder)  # type: ignore[type-abstract]
    return around


def counted_rows(make: RowMaker, around: StepContext, epoch: int) -> Iterator[Row]:
    """What it counted in an epoch."""
    for metric, value in around.counts().items():
        unit, source = around.columns[metric]
        yield make.ok(STAGE, metric, unit, value, source, epoch)


def gradient_row(
    make: RowMaker, trainer: Trainer, plain: nn.Module, x: Tensor, batch: MiniBatch
) -> Row:
    """Whether the gradients of a step are those of a step with nothing around it.

    Both are made by copies of the model that are thrown away.

    Args:
        plain: a model as the trainer's was before anything was put around its steps.
        x: the minibatch's rows ``[B, D]``, on the trainer's device.

    Raises:
        WrongGradientsError: a gradient has another bit.
    """
    device = trainer.device

    def gradients(model: nn.Module, around: StepContext) -> list[Tensor | None]:
        spare = type(trainer)(model, trainer.labels, device, around=around)
        torch.manual_seed(0)
        spare.step(x, batch)
        return [one.grad for one in spare.model.parameters()]

    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        found = gradients(copy.deepcopy(trainer.model), trainer.around)
        plain.load_state_dict(trainer.model.state_dict())
        wanted = gradients(plain, NOTHING_AROUND)
    trainer.around.counts()
    what = (CHECK_STAGE, "gradients", "1")
    if device.type == "cuda":
        return make.missing(*what, _SAME, _ANY_ORDER)
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if not _same_bits(one, other):
            raise WrongGradientsError(f"the gradient of parameter {number} is another one")
    return make.ok(*what, len(found), _SAME)


def _same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
