"""Rows of where activations lie: what a step takes of memory, what moved, that gradients are alike.

Only runs that compare ways of keeping them have these rows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.activations import KEPT, MOVED, Keep, LostActivationsError
from gatherbench.bench.run.models import Trainer, build_model
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.store import CHECK_STAGE
from gatherbench.bench.run.untimed import peak_of
from gatherbench.bench.sampling.minibatch import MiniBatch

STAGE = "activations"
#: A GPU adds up in any order: gradients of two equal steps differ there by themselves.
_ANY_ORDER = "not_applicable: a GPU adds up in any order, and gradients differ from step to step"
_SAME = "gradients of a step beside those of keep, bit for bit"


class WrongGradientsError(LostActivationsError):
    """Other gradients than those of ``keep``: what came back is not what was saved."""


def compared(measure: Measure) -> bool:
    """Whether a run compares ways of keeping activations."""
    return measure.activations != "keep"


def rows_of_a_step(
    make: RowMaker,
    workload: Workload,
    sizes: tuple[int, int],
    trainer: Trainer,
    x: Tensor,
    batch: MiniBatch,
) -> Iterator[Row]:
    """What a step takes of memory, and whether its gradients are those of ``keep``.

    The step is made by copies of the model that are thrown away.

    Args:
        sizes: classes, and kinds of edges.
        x: the minibatch's rows ``[B, D]``, on the trainer's device.

    Raises:
        WrongGradientsError: a gradient has another bit.
        LostActivationsError: a tensor could not be stored or brought back.
    """
    device = trainer.device

    def gradients(model: nn.Module, activations: Keep) -> list[Tensor | None]:
        spare = Trainer(model, trainer.labels, device, activations=activations)
        torch.manual_seed(workload.seed)
        spare.step(x, batch)
        return [one.grad for one in spare.model.parameters()]

    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        gradients(copy.deepcopy(trainer.model), trainer.activations)  # what a first step alone has
        found: list[Tensor | None] = []
        mine = copy.deepcopy(trainer.model)
        peak, source = peak_of(lambda: found.extend(gradients(mine, trainer.activations)), device)
        plain = build_model(replace(workload, activations="keep"), x.shape[1], *sizes)
        plain.load_state_dict(trainer.model.state_dict())
        wanted = gradients(plain, KEPT)
    trainer.activations.told()
    yield make.ok(STAGE, "step_peak", "B", peak, source)
    what = (CHECK_STAGE, "gradients", "1")
    if device.type == "cuda":
        yield make.missing(*what, _SAME, _ANY_ORDER)
        return
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if not _same_bits(one, other):
            raise WrongGradientsError(f"the gradient of parameter {number} is not that of keep")
    yield make.ok(*what, len(found), _SAME)


def moved_rows(make: RowMaker, told: dict[str, float], epoch: int) -> Iterator[Row]:
    """What an epoch moved."""
    for metric, value in told.items():
        unit, source = MOVED[metric]
        yield make.ok(STAGE, metric, unit, value, source, epoch)


def _same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
