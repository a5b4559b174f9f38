"""How often intervals cover the truth and verdicts are right: counted on simulated runs.

    python -m gatherbench.bench.read.stats.coverage

prints the tables that METHODOLOGY.md shows. Epochs scatter about their process's own level, and
processes about the series', both lognormal; the truth is known, so each answer can be held against
it. Every answer is that of the code that judges real runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gatherbench.bench.read.stats.interval import Interval, interval_of
from gatherbench.bench.read.stats.judge import judge

Array = NDArray[np.float64]

EPOCHS = 3
#: Paths that are compared on one workload by the plan ``quick``, the upper bound aside.
RIVALS = 5
#: Series that ``compare`` judges at once, as of the plan ``quick``.
FAMILY = 12


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
REPEATS = (2, 3, 4, 5, 6, 8, 10)


def covered(
    rng: np.random.Generator, mine: Spread, other: Spread, repeats: tuple[int, int], draws: int
) -> float:
    """Share of the intervals of a ratio of two equal series that hold 1."""
    hits = 0
    for _ in range(draws):
        found = interval_of((1, mine.draw(rng, repeats[0])), (-1, other.draw(rng, repeats[1])))
        # Equal series: a tail shifts both alike.
        hits += found.low <= 1 <= found.high
    return hits / draws


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
        if interval_of((1, logs[:repeats])).half_width <= precision:
            return logs[:repeats]
    return logs


def coverage_when_stopped(rng: np.random.Generator, spread: Spread, draws: int) -> float:
    """Share of the intervals of a ratio of two equal series that were measured until precise."""
    hits = 0
    for _ in range(draws):
        found = _ratio(stopped(rng, spread), stopped(rng, spread))
        hits += found.low <= 1 <= found.high
    return hits / draws


def sole_winners(rng: np.random.Generator, spread: Spread, repeats: int, draws: int) -> float:
    """How often one of equally fast paths is named the fastest; 0 repeats: until precise."""
    named = 0
    for _ in range(draws):
        paths = [
            spread.draw(rng, repeats) if repeats else stopped(rng, spread) for _ in range(RIVALS)
        ]
        best = min(range(RIVALS), key=lambda i: float(paths[i].mean()))
        words = (judge(_ratio(paths[i], paths[best])).word for i in range(RIVALS) if i != best)
        named += all(word == "SLOW" for word in words)
    return named / draws


def verdicts(
    rng: np.random.Generator, spread: Spread, repeats: int, slower: float, draws: int
) -> Counter[str]:
    """What ``compare`` says of two builds, the new one slower by that share."""
    shift = math.log1p(slower)
    return Counter(
        judge(
            _ratio(spread.draw(rng, repeats) + shift, spread.draw(rng, repeats)), family=FAMILY
        ).word
        for _ in range(draws)
    )


def tables(draws: int = 4000) -> Iterator[str]:
    """The tables of METHODOLOGY.md, line by line; the same in every run."""
    rng = np.random.default_rng(0)
    yield "Share of the 95 % intervals of a ratio that hold the truth:"
    yield ""
    yield "| spread, between / within | " + " | ".join(map(str, REPEATS)) + " | until precise |"
    yield "|---|" + "---|" * (len(REPEATS) + 1)
    for spread in SPREADS:
        found = [covered(rng, spread, spread, (n, n), draws) for n in REPEATS]
        found.append(coverage_when_stopped(rng, spread, draws))
        yield f"| {spread} | " + " | ".join(f"{share:.1%}" for share in found) + " |"
    quiet, wild = Spread(0.03, 0.01), Spread(0.09, 0.01)
    found = [covered(rng, quiet, wild, (n, n), draws) for n in REPEATS]
    yield f"| {quiet} over {wild} | " + " | ".join(f"{x:.1%}" for x in found) + " | |"
    yield ""
    yield f"How often one of {RIVALS} equally fast paths is named the fastest:"
    yield ""
    yield "| spread, between / within | " + " | ".join(map(str, REPEATS)) + " | until precise |"
    yield "|---|" + "---|" * (len(REPEATS) + 1)
    for spread in SPREADS:
        named = [sole_winners(rng, spread, n, draws // 4) for n in (*REPEATS, 0)]
        yield f"| {spread} | " + " | ".join(f"{share:.1%}" for share in named) + " |"
    yield ""
    yield f"What `compare` says of one of {FAMILY} series, of equal builds and of a slower one:"
    yield ""
    yield "| spread, between / within | repeats | equal: SAME | equal: SLOW | 10 %: SLOW |" + (
        " 20 %: SLOW |"
    )
    yield "|---|---|---|---|---|---|"
    for spread in SPREADS:
        for repeats in (3, 5, 8, 10):
            same = verdicts(rng, spread, repeats, 0.0, draws // 2)
            found = [
                verdicts(rng, spread, repeats, slower, draws // 2)["SLOW"] / (draws // 2)
                for slower in (0.1, 0.2)
            ]
            shares = [same["SAME"] / (draws // 2), same["SLOW"] / (draws // 2), *found]
            yield f"| {spread} | {repeats} | " + " | ".join(f"{x:.1%}" for x in shares) + " |"


def _ratio(one: Array, other: Array) -> Interval:
    return interval_of((1, one), (-1, other))


if __name__ == "__main__":
    for line in tables():
        print(line)
