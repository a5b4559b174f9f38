"""Searches of ``auto`` on drawn minibatch times, where the cost of every path is known.

The search is the one that a training runs. Minibatches scatter lognormally about their path's cost;
the machine's own pace wanders, and bursts of other work slow all paths down for a while.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gatherbench.strategies.auto import TIMED, WARM, Outcome, search, spent_by

RUNS = 20


@dataclass(frozen=True, slots=True)
class Machine:
    """Standard deviations of the logarithm: of a minibatch, and of a step of the machine's pace.

    ``burst``: how often, a minibatch, other work begins, which takes half the machine for 20.
    """

    minibatch: float
    drift: float = 0.002
    burst: float = 0.0

    def __str__(self) -> str:
        told = f"{self.minibatch:.0%}"
        return told + (f", a burst each {1 / self.burst:.0f}" if self.burst else "")


def run(costs: Sequence[float], machine: Machine, seed: int) -> tuple[float, int]:
    """A search among paths with these true costs of a minibatch: how much slower than the best what
    it kept is, as a share of an epoch, and the minibatches of the search."""
    rng, draw = np.random.default_rng(seed), random.Random(seed)
    pace, burst, seen = 0.0, 0, 0
    going = search(range(len(costs)), draw, lambda: spent_by(seen))
    turn = next(going)
    while True:
        timed = []
        for number in range(WARM + TIMED):
            pace += rng.normal(0, machine.drift)
            burst = 20 if rng.random() < machine.burst else max(0, burst - 1)
            slowed = pace + (math.log(2) if burst else 0.0)
            took = costs[turn.path] * math.exp(slowed + rng.normal(0, machine.minibatch))
            seen += 1
            timed += [took] if number >= WARM else []
        try:
            turn = going.send(sum(timed) / TIMED)
        except StopIteration as end:
            found: Outcome[int] = end.value
            return costs[found.kept] / min(costs) - 1, seen


#: Costs of a minibatch, the best is 1.
FIELDS: dict[str, tuple[float, ...]] = {
    "two, level": (1.0, 1.0),
    "two, 10 % apart": (1.1, 1.0),
    "two, 30 % apart": (1.3, 1.0),
    "host: ten within 60 %": (1.1, 1.6, 1.0, 1.0, 1.02, 1.15, 1.5, 1.3, 1.05, 1.2),
    "GPU: fourteen, 1 to 6": (
        *(3.0, 1.0, 1.9, 1.7, 1.1, 2.8, 1.3),
        *(1.25, 1.6, 1.7, 1.04, 2.5, 6.0, 1.2),
    ),
}
MACHINES = (Machine(0.03), Machine(0.1), Machine(0.1, burst=0.01))
