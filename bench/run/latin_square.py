"""Assign each path a set of minibatches in each block, and an order of the paths.

A set is the minibatches of one measured epoch, drawn for it alone. If two paths that take turns had
the same set, the second would find the first one's rows in the CPU's caches (300 MB on the host of
an H200), so neighbours have different ones. Over a repeat each path has every set once: differences
of cost between sets cancel out of a ratio as soon as all blocks are complete.

Sets come in groups of at least as many as there are paths, each a Latin square of its own. So paths
have the same sets after each group, too. If a run's time ends amid a group, no path is favoured:
the column of each path is drawn for each repeat.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def latin_square(paths: int, sets: int) -> list[list[int]]:
    """Return for each block the set of each path.

    Paths beyond the number of sets share one with others in every block.
    """
    square = []
    for group in np.array_split(np.arange(sets), max(1, sets // max(1, paths))):
        for block in range(len(group)):
            square.append([int(group[(block + p) % len(group)]) for p in range(paths)])
    return square


def apart(sets: Mapping[T, int], draw: random.Random, before: int | None = None) -> list[T]:
    """Return the paths in a random order in which no two neighbours have the same set.

    If all paths have different sets, every such order is equally likely. If more than half of the
    remaining ones share a set, some have to follow each other.

    Args:
        sets: of each path.
        before: the set of the epoch right before.
    """
    left, order = dict(sets), list[T]()
    while left:
        often = Counter(left.values())
        others = [path for path, chosen in left.items() if chosen != before]
        # A set of more than half of them has to be every other one from here on.
        urgent = [path for path in others if 2 * often[left[path]] > len(left)]
        order.append(draw.choice(urgent or others or list(left)))
        before = left.pop(order[-1])
    return order
