"""A case is a named measurement: what it needs, its points, and the function that runs one of them.

    @case("B", "bytes of GPU memory, set to zero", needs=("gpu",))
    def gpu_zeros(rig: Rig, point: Point) -> Observation:
        return rig.timed(rig.out.numel(), rig.out.zero_)

is a complete case, in a module that :func:`every_case` imports: ``gatherbench probe --list`` names
it, ``--cases gpu_zeros`` measures it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from importlib.util import find_spec

import torch

from gatherbench.bench.probe.points import Point
from gatherbench.bench.probe.rig import Observation, Rig
from gatherbench.kernels.cuda_calls import HOW_TO_INSTALL
from gatherbench.kernels.managed_memory import managed_refusal
from gatherbench.reason import Reason


class Scope(IntEnum):
    """How much is measured: what fits a minute, a whole profile, or the cases that are named."""

    MINUTE, PROFILE, NAMED = range(3)


MINUTE, PROFILE, NAMED = Scope
#: What the cases of a GPU need: nothing more, kernels of ours, managed memory too.
GPU, KERNEL, MANAGED = ("gpu",), ("gpu", "compiler"), ("gpu", "compiler", "managed")
Points = Callable[[str, Rig, Scope], Sequence[Point]]
Run = Callable[[Rig, Point], Observation]


@dataclass(frozen=True, slots=True)
class Case:
    """A named measurement.

    Attributes:
        unit, what: the unit of the amount that is timed or counted, and a description of it.
        needs: the names in :data:`NEEDS` of what the case requires.
        scope: the smallest that includes the case; ``NAMED``: only when it is named.
        points: gives the points of a scope to measure, from the case's name.
        run: measures a point once; all preparation is complete before it starts timing.
    """

    name: str
    unit: str
    what: str
    needs: tuple[str, ...]
    scope: Scope
    points: Points
    run: Run

    def missing(self) -> dict[str, Reason]:
        """Return what the case needs and this machine lacks, with the reasons."""
        return {need: why for need in self.needs if (why := NEEDS[need]()) is not None}


_CASES: dict[str, Case] = {}


def case(
    unit: str,
    what: str,
    needs: tuple[str, ...] = (),
    scope: Scope = NAMED,
    points: Points = lambda name, rig, scope: [Point(name)],
    name: str = "",
) -> Callable[[Run], Run]:
    """Register a function as a case, under its name or under ``name``; see :class:`Case`."""

    def keep(run: Run) -> Run:
        made = Case(name or run.__name__, unit, what, needs, scope, points, run)
        _CASES[made.name] = made
        return run

    return keep


def every_case() -> dict[str, Case]:
    """Return all cases by name, in the order of their files."""
    for module in ("host", "gathers", "gpu"):
        importlib.import_module(f"gatherbench.bench.probe.{module}")
    return _CASES


def _gpu() -> Reason | None:
    cause = f"torch {torch.__version__} sees no CUDA GPU"
    lacking = Reason("no_device", cause, "use a GPU whose driver supports this build of torch")
    return None if torch.cuda.is_available() else lacking


def _compiler() -> Reason | None:
    cause = "no NVRTC (cuda-core): kernels cannot be compiled on this machine"
    # The package "cuda" may be missing as a whole, which find_spec of a part of it cannot tell.
    found = find_spec("cuda") is not None and find_spec("cuda.core") is not None
    return None if found else Reason("not_installed", cause, HOW_TO_INSTALL)


#: Each possible need of a case, with a function that gives the reason why this machine lacks it.
NEEDS: dict[str, Callable[[], Reason | None]] = {
    "gpu": _gpu,
    "compiler": _compiler,
    # Without a GPU the need "gpu" gives the reason.
    "managed": lambda: None if _gpu() else managed_refusal(torch.cuda.current_device()),
}
