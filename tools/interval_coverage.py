"""How often intervals cover the truth and verdicts are right: counted on simulated runs.

    python -m tools.interval_coverage

writes ``src/gatherbench/stats/NOTES.md``, in some minutes. Epochs scatter about their process's own
level, and processes about the series', both lognormal; the truth is known, so each answer can be
held against it. Where paths take turns, processes and blocks have levels that all share, and each
path in each process one of its own. Every answer is that of the code that judges real runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatherbench.bench.read.stopping import widths
from gatherbench.bench.run.rows import Key
from gatherbench.stats.interval import Interval, Logs, interval_of
from gatherbench.stats.judge import judge

Array = NDArray[np.float64]

PAGE = Path(__file__).parents[1] / "src" / "gatherbench" / "stats" / "NOTES.md"
HEAD = """\
# How often intervals and verdicts are right

Counted on simulated runs whose truth is known, by the code that judges real ones;
`python -m tools.interval_coverage` writes this page. The rule is in
[METHODOLOGY](../../../METHODOLOGY.md#intervals-and-verdicts).

*Spread*: standard deviations of the logarithm, between processes and of epochs within one, three
epochs a repeat. *Until precise*: 6 to 10 repeats, ended when the epoch's interval is within 3 %.
*Together*: paths that take turns, in ten blocks a process; the three are of what all paths of a
process share, of what a path has of its own in it, and of epochs; blocks have 3 % of their own.
16 % and 8 % are what an H200 showed between processes and within one. How much of the 16 % is a
path's own is not known; 2 % are taken.
"""

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
    found = (_ratio(*paths_of(rng, side, processes)[:2]) for _ in range(draws))
    return sum(ratio.low <= 1 <= ratio.high for ratio in found) / draws


def half_width(rng: np.random.Generator, of: Spread | Side, repeats: int, draws: int) -> float:
    """Of the ratio of two paths, in the median."""
    found = []
    for _ in range(draws):
        one, other = (
            of.draw(rng, repeats, 2)
            if isinstance(of, Side)
            else (of.draw(rng, repeats), of.draw(rng, repeats))
        )
        found.append(_ratio(one, other).half_width)
    return float(np.median(found))


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
    """The page, line by line; the same in every run."""
    rng, beside = np.random.default_rng(0), np.random.default_rng(1)
    yield HEAD
    yield "Share of the 95 % intervals of a ratio that hold the truth, by repeats:"
    yield from _head()
    for spread in SPREADS:
        sizes = [of_size(spread, n) for n in (*REPEATS, 0)]
        yield _line(spread, (covered(rng, size, size, draws) for size in sizes))
    quiet, wild = Spread(0.03, 0.01), Spread(0.09, 0.01)
    pairs = [(of_size(quiet, n), of_size(wild, n)) for n in REPEATS]
    yield _line(f"{quiet} over {wild}", (covered(rng, *pair, draws) for pair in pairs)) + " |"
    for side in SIDES:
        yield _line(side, (covered_together(beside, side, n, draws // 2) for n in (*REPEATS, 0)))
    yield ""
    yield "Half-width of the interval of a ratio of two paths, in the median, from as many epochs:"
    yield from _head(precise=False)
    for same in (Spread(0.16, 0.08), Side(0.16, 0.02, 0.08, blocks=EPOCHS), SIDES[1]):
        yield _line(same, (half_width(beside, same, n, draws // 4) for n in REPEATS))
    yield ""
    yield f"How often one of {RIVALS} equally fast paths is named the fastest:"
    yield from _head()
    for spread in SPREADS:
        yield _line(spread, (sole_winners(rng, spread, n, draws // 4) for n in (*REPEATS, 0)))
    for side in SIDES[1:3]:
        yield _line(side, (sole_winners(beside, side, n, draws // 16) for n in (*REPEATS, 0)))
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


def _head(*, precise: bool = True) -> Iterator[str]:
    sizes = [*map(str, REPEATS), *["until precise"] * precise]
    yield ""
    yield f"| spread, between / within | {' | '.join(sizes)} |"
    yield "|---|" + "---|" * len(sizes)


def _line(name: object, shares: Iterable[float]) -> str:
    return f"| {name} | " + " | ".join(f"{share:.1%}" for share in shares) + " |"


def _ratio(one: ArrayLike, other: ArrayLike) -> Interval:
    return interval_of((1, one), (-1, other))


if __name__ == "__main__":
    PAGE.write_text("\n".join(tables()) + "\n", encoding="utf-8")
