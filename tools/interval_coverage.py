"""How often intervals cover the truth and verdicts are right: counted on simulated runs.

    python -m tools.interval_coverage

prints the tables that METHODOLOGY.md shows. Epochs scatter about their process's own level, and
processes about the series', both lognormal; the truth is known, so each answer can be held against
it. Every answer is that of the code that judges real runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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


Draw = Callable[[np.random.Generator], Array]


def of_size(spread: Spread, repeats: int) -> Draw:
    """Series of so many repeats; with 0 they are measured until precise."""
    if not repeats:
        return lambda rng: stopped(rng, spread)
    return lambda rng: spread.draw(rng, repeats)


def covered(rng: np.random.Generator, mine: Draw, other: Draw, draws: int) -> float:
    """Share of the intervals of a ratio of two equal series that hold 1."""
    # Equal series: a tail shifts both alike.
    found = (_ratio(mine(rng), other(rng)) for _ in range(draws))
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
        if interval_of((1, logs[:repeats])).half_width <= precision:
            return logs[:repeats]
    return logs


def sole_winners(rng: np.random.Generator, spread: Spread, repeats: int, draws: int) -> float:
    """How often one of equally fast paths is named the fastest; 0 repeats: until precise."""
    named = 0
    for _ in range(draws):
        paths = [of_size(spread, repeats)(rng) for _ in range(RIVALS)]
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
    yield from _head()
    for spread in SPREADS:
        sizes = [of_size(spread, n) for n in (*REPEATS, 0)]
        yield _line(spread, (covered(rng, size, size, draws) for size in sizes))
    quiet, wild = Spread(0.03, 0.01), Spread(0.09, 0.01)
    pairs = [(of_size(quiet, n), of_size(wild, n)) for n in REPEATS]
    yield _line(f"{quiet} over {wild}", (covered(rng, *pair, draws) for pair in pairs)) + " |"
    yield ""
    yield f"How often one of {RIVALS} equally fast paths is named the fastest:"
    yield from _head()
    for spread in SPREADS:
        yield _line(spread, (sole_winners(rng, spread, n, draws // 4) for n in (*REPEATS, 0)))
    yield ""
    yield f"What `compare` says of one of {FAMILY} series, of equal builds and of a slower one:"
    yield ""
    yield "| spread, between / within | repeats | equal: SAME | equal: SLOW | 10 %: SLOW |" + (
        " 20 %: SLOW |"
    )
    yield "|---|---|---|---|---|---|"
    for spread in SPREADS:
        for repeats in (3, 5, 8, 10):
            equal, tenth, fifth = (
                verdicts(rng, spread, repeats, slower, draws // 2) for slower in (0.0, 0.1, 0.2)
            )
            counts = (equal["SAME"], equal["SLOW"], tenth["SLOW"], fifth["SLOW"])
            shares = (count / (draws // 2) for count in counts)
            yield _line(f"{spread} | {repeats}", shares)


def _head() -> Iterator[str]:
    yield ""
    yield "| spread, between / within | " + " | ".join(map(str, REPEATS)) + " | until precise |"
    yield "|---|" + "---|" * (len(REPEATS) + 1)


def _line(name: object, shares: Iterable[float]) -> str:
    return f"| {name} | " + " | ".join(f"{share:.1%}" for share in shares) + " |"


def _ratio(one: Array, other: Array) -> Interval:
    return interval_of((1, one), (-1, other))


if __name__ == "__main__":
    for line in tables():
        print(line)
