"""Which of several data paths is fastest, asked of a training that goes on meanwhile.

Paths are served in *turns* of a few minibatches, and a turn has one number: what a row costs, from
one fetch to the next, training included. First each path has one turn, which gives the order.
Then the best meets the others one by one, the likeliest first, in blocks of one turn each in a
drawn order, until the rule of all verdicts (:mod:`gatherbench.stats.judge`) decides. So at most two
paths are open at a time.

Nothing here fetches or looks at a clock: tests run the same search on drawn times.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from gatherbench.stats.judge import Judgement

P = TypeVar("P")

#: Blocks of two paths that meet: before the rule is asked, and at most.
FEWEST, MOST = 4, 10
#: A path that costs so many times the best both in its first turn and in its first block has no
#: second block.
FAR = 1.5


class NoPathError(RuntimeError):
    """None of the paths can be had."""


@dataclass(frozen=True, slots=True)
class Turn(Generic[P]):
    """``path`` serves the next minibatches; ``beside`` stays open, and no other."""

    path: P
    beside: P | None


@dataclass(frozen=True, slots=True)
class Outcome(Generic[P]):
    """The path to keep, what a row costs with it (s), and whom it met: their cost over its own."""

    kept: P
    row_s: float
    met: dict[P, Judgement] = field(default_factory=dict)


#: Yields turns and is sent what a row cost in each, in seconds; ``None``: the path cannot be had.
Search = Generator[Turn[P], float | None, Outcome[P]]


def search(paths: Sequence[P], draw: random.Random, enough: Callable[[], bool]) -> Search[P]:
    """Find the fastest of ``paths``, which have their first turns in this order.

    Args:
        enough: whether there is no room for another :data:`MOST` blocks in what the search may
            take: it then ends with the best so far.

    Raises:
        NoPathError: there is none.
    """
    first: dict[P, float] = {}
    best: P | None = None
    for path in paths:
        if best is not None and enough():
            break
        if (cost := (yield Turn(path, best))) is None:
            continue
        first[path] = cost
        if best is None or cost < first[best]:
            best = path
    if best is None:
        raise NoPathError("none of the data paths can be had here")
    found = Outcome(best, first[best])
    rivals = sorted((one for one in first if one != best), key=first.__getitem__)
    for rival in rivals:
        if not enough():
            found = yield from _meet(found, rival, first, draw, len(rivals))
    return found


def _meet(
    found: Outcome[P], rival: P, first: Mapping[P, float], draw: random.Random, family: int
) -> Search[P]:
    """The best so far and a rival, in blocks; of as many comparisons as one ``family``."""
    # Here, as the registry loads this file, and machines that only probe a GPU may lack scipy.
    from gatherbench.stats.interval import interval_of
    from gatherbench.stats.judge import judge

    best, logs, spent = found.kept, list[float](), 0.0
    far = first[rival] > FAR * first[best]
    while True:
        costs: dict[P, float] = {}
        for path in draw.sample([best, rival], 2):
            if (cost := (yield Turn(path, rival if path == best else best))) is None:
                return found if path == rival else Outcome(rival, first[rival])
            costs[path] = cost
        logs.append(math.log(costs[rival] / costs[best]))
        spent += costs[best]
        told = judge(interval_of((1, logs)), family=family)
        decided = len(logs) >= FEWEST and told.word != "AMBIGUOUS"
        if decided or len(logs) == MOST or (far and logs[0] > math.log(FAR)):
            break
    row_s = spent / len(logs)
    if told.interval.value >= 1:
        return Outcome(best, row_s, {**found.met, rival: told})
    told = judge(told.interval.inverse, family=family)
    return Outcome(rival, row_s / told.interval.value, {best: told})
