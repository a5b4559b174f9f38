"""Find the fastest of several data paths while a training goes on.

Paths serve *turns* of a few minibatches each. A turn gives one number: the cost of a row, from one
fetch to the next, training included. First each path has one turn. Then the best is compared with
the others one by one, the fastest first, in blocks of one turn each in random order, until the rule
for all verdicts (:mod:`gatherbench.stats.judge`) decides. So at most two paths are open at a time.
This module neither fetches nor reads a clock: tests run the same search on simulated times.
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

#: Blocks in which two paths are compared: before the rule is first applied, and at most.
FEWEST, MOST = 4, 10
#: A path gets no second block if it costs this many times the best path, both in its first turn
#: and in its first block.
FAR = 1.5


class NoPathError(RuntimeError):
    """None of the paths can be opened."""


@dataclass(frozen=True, slots=True)
class Turn(Generic[P]):
    """``path`` serves the next minibatches; ``beside`` is the only other path that stays open."""

    path: P
    beside: P | None


@dataclass(frozen=True, slots=True)
class Outcome(Generic[P]):
    """The path to keep, the cost of a row with it (s), and its rivals: their cost over its own."""

    kept: P
    row_s: float
    met: dict[P, Judgement] = field(default_factory=dict)


#: Yields turns and is sent the cost of a row in each, in seconds; ``None``: the path does not open.
Search = Generator[Turn[P], float | None, Outcome[P]]


def search(paths: Sequence[P], draw: random.Random, enough: Callable[[], bool]) -> Search[P]:
    """Find the fastest of ``paths``, which have their first turns in this order.

    Args:
        enough: tells whether too few minibatches are left for another :data:`MOST` blocks; the
            search then ends with the best path so far.

    Raises:
        NoPathError: no path can be opened.
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
    outcome = Outcome(best, first[best])
    rivals = sorted((path for path in first if path != best), key=first.__getitem__)
    for rival in rivals:
        if not enough():
            outcome = yield from _meet(outcome, rival, first, draw, len(rivals))
    return outcome


def _meet(
    outcome: Outcome[P], rival: P, first: Mapping[P, float], draw: random.Random, family: int
) -> Search[P]:
    """Compare the best so far with a rival in blocks; ``family``: the number of comparisons."""
    # Imported here: the registry loads this file, and machines that only probe may lack scipy.
    from gatherbench.stats.interval import interval_of
    from gatherbench.stats.judge import judge

    best, logs, spent = outcome.kept, list[float](), 0.0
    far = first[rival] > FAR * first[best]
    while True:
        costs: dict[P, float] = {}
        for path in draw.sample([best, rival], 2):
            if (cost := (yield Turn(path, rival if path == best else best))) is None:
                return outcome if path == rival else Outcome(rival, first[rival])
            costs[path] = cost
        logs.append(math.log(costs[rival] / costs[best]))
        spent += costs[best]
        verdict = judge(interval_of(logs), family=family)
        decided = len(logs) >= FEWEST and verdict.word != "AMBIGUOUS"
        if decided or len(logs) == MOST or (far and logs[0] > math.log(FAR)):
            break
    row_s = spent / len(logs)
    if verdict.interval.value >= 1:
        return Outcome(best, row_s, {**outcome.met, rival: verdict})
    verdict = judge(verdict.interval.inverse, family=family)
    return Outcome(rival, row_s / verdict.interval.value, {best: verdict})
