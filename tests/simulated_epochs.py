"""Epochs of a known truth, on which the code that judges real runs is tried.

Epochs scatter about their process's own level, and processes about the series', both lognormal.
Where paths take turns, processes and blocks have levels that all share, and each path in each
process one of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatherbench.bench.read.stopping import widths
from gatherbench.bench.run.rows import Key
from gatherbench.stats.interval import Logs, interval_of, ratio_of
from gatherbench.stats.judge import judge

Array = NDArray[np.float64]

EPOCHS = 3
#: Paths that are compared on one workload by the plan ``quick``, the upper bound aside.
RIVALS = 5


@dataclass(frozen=True, slots=True)
class Spread:
    """Standard deviations of the logarithm: between processes, and of the epochs within one.

    ``tail``: share of the processes that are slower by a tenth, as those are that some burst met.
    """

    between: float
    within: float
    tail: float = 0.0

    def __str__(self) -> str:
        tail = f", {self.tail:.0%} of them a tenth slower" if self.tail else ""
        return f"{self.between * 100:g} % / {self.within * 100:g} %{tail}"

    def draw(self, rng: np.random.Generator, repeats: int) -> Array:
        """The logarithm of each repeat's median epoch, of a series whose true one is 0."""
        levels = rng.normal(0, self.between, (repeats, 1))
        levels += math.log(1.1) * (rng.random((repeats, 1)) < self.tail)
        epochs = levels + rng.normal(0, self.within, (repeats, EPOCHS))
        medians: Array = np.median(epochs, axis=1)
        return medians


SPREADS = (
    Spread(0.01, 0.03),
    Spread(0.03, 0.01),
    Spread(0.055, 0.041),
    Spread(0.03, 0.01, tail=0.1),
)


@dataclass(frozen=True, slots=True)
class Side:
    """Standard deviations of the logarithm where paths take turns in one process.

    Attributes:
        process, block: of what all paths share in a process, and in a block.
        path: of a path in a process: what no number of blocks tells.
        epoch: of one epoch; ``tail`` of them are slower by a tenth.
        blocks: of a process.
    """

    process: float
    path: float
    epoch: float
    block: float = 0.03
    tail: float = 0.0
    blocks: int = 10

    def __str__(self) -> str:
        tail = f", {self.tail:.0%} of epochs a tenth slower" if self.tail else ""
        shares = " / ".join(f"{100 * x:g} %" for x in (self.process, self.path, self.epoch))
        few = f", {self.blocks} blocks" if self.blocks < 10 else ""
        return f"together: {shares}{tail}{few}"

    def draw(self, rng: np.random.Generator, processes: int, paths: int) -> list[Logs]:
        """Every epoch of equally fast paths."""
        shape = (processes, self.blocks, paths)
        logs = rng.normal(0, self.process, (processes, 1, 1))
        logs = logs + rng.normal(0, self.block, (processes, self.blocks, 1))
        logs = logs + rng.normal(0, self.path, (processes, 1, paths))
        logs = logs + rng.normal(0, self.epoch, shape)
        logs += math.log(1.1) * (rng.random(shape) < self.tail)
        return [side_by_side(logs[:, :, path]) for path in range(paths)]


SIDES = (
    Side(0.16, 0.0, 0.08),
    Side(0.16, 0.02, 0.08),
    Side(0.055, 0.02, 0.041),
    Side(0.055, 0.02, 0.041, tail=0.1),
)
Draw = Callable[[np.random.Generator], Array]


def of_size(spread: Spread, repeats: int) -> Draw:
    """Series of so many repeats; with 0 they are measured until precise."""
    if not repeats:
        return lambda rng: stopped(rng, spread)
    return lambda rng: spread.draw(rng, repeats)


def covered(rng: np.random.Generator, mine: Draw, other: Draw, draws: int) -> float:
    """Share of the intervals of a ratio of two equal series that hold 1."""
    # Equal series: a tail shifts both alike.
    found = (ratio_of(mine(rng), other(rng)) for _ in range(draws))
    return sum(ratio.low <= 1 <= ratio.high for ratio in found) / draws


def stopped(
    rng: np.random.Generator,
    spread: Spread,
    precision: float = 0.03,
    least: int = 6,
    most: int = 10,
) -> Array:
    """Repeats of a series that is measured until its interval is within ``precision``."""
    logs = spread.draw(rng, most)
    for repeats in range(least, most):
        if interval_of(logs[:repeats]).half_width <= precision:
            return logs[:repeats]
    return logs


def side_by_side(logs: Array) -> Logs:
    """A path by the logarithms of its epochs ``[process, block]``."""
    blocks = {float(p): dict(enumerate(of)) for p, of in enumerate(logs)}
    return Logs(np.median(logs, axis=1), blocks)


def paths_of(
    rng: np.random.Generator, side: Side, processes: int, paths: int = RIVALS
) -> list[Logs]:
    """Paths of so many processes; with 0 they are measured until all ratios are precise."""
    if processes:
        return side.draw(rng, processes, paths)
    drawn = side.draw(rng, 10, paths)
    for count in range(6, 10):
        some = [
            Logs(logs[:count], {p: of for p, of in logs.blocks.items() if p < count})
            for logs in drawn
        ]
        names = [Key("", str(i), "", "host", "measured") for i in range(paths)]
        if max(widths(dict(zip(names, some, strict=True))).values()) <= 0.03:
            return some
    return drawn


def covered_together(rng: np.random.Generator, side: Side, processes: int, draws: int) -> float:
    """:func:`covered` of two paths that take turns."""
    found = (ratio_of(*paths_of(rng, side, processes)[:2]) for _ in range(draws))
    return sum(ratio.low <= 1 <= ratio.high for ratio in found) / draws


def sole_winners(
    rng: np.random.Generator, spread: Spread | Side, repeats: int, draws: int
) -> float:
    """How often one of equally fast paths is named the fastest; 0 repeats: until precise."""
    named = 0
    for _ in range(draws):
        if isinstance(spread, Side):
            paths: Sequence[ArrayLike] = paths_of(rng, spread, repeats)
        else:
            paths = [of_size(spread, repeats)(rng) for _ in range(RIVALS)]
        best = min(range(RIVALS), key=lambda i: float(np.asarray(paths[i]).mean()))
        words = (judge(ratio_of(paths[i], paths[best])).word for i in range(RIVALS) if i != best)
        named += all(word == "SLOW" for word in words)
    return named / draws
