"""Does a path fare otherwise behind one path than behind the others that it takes turns with?

What a path leaves in caches, allocator or on the GPU is met by the one that runs next. Each has
every neighbour about as often, so that this falls on all alike; a path that profits from one of
them, or suffers, is told by its places in the blocks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple

import numpy as np

from gatherbench.bench.read.tables import Run, process_at
from gatherbench.bench.run.rows import PLACE, Key
from gatherbench.stats.interval import Interval, interval_of
from gatherbench.stats.judge import judge


class Neighbour(NamedTuple):
    """How long ``path`` takes right ``behind`` another over what it takes behind the others."""

    path: Key
    behind: Key
    ratio: Interval


def neighbours(run: Run) -> list[Neighbour]:
    """Of each workload the path whose epochs depend most on who ran before, by the one rule.

    No more than one: it moves the means of its blocks, in which others then seem to stray.

    Of each epoch the logarithm, less the mean of its block and then less the path's mean in its
    process, so that neither a slow block nor a slow path is taken for an effect. The difference
    between its means behind the one and behind the others is a process's one number. What this
    cannot see is less than 5 %, or hidden in the scatter.
    """
    times = run.values("epoch", "wall_time").to_dict()
    blocks: dict[tuple[str, float, int], dict[int, tuple[Key, float]]] = defaultdict(dict)
    places = run.values(*PLACE[:2])
    for (*series, repeat, epoch), place in zip(places.index, places, strict=True):
        key = Key(*series)
        process = process_at(run.processes, (*key[:3], repeat), epoch)
        seconds = times.get((*series, repeat, epoch))
        if process is not None and seconds is not None:
            blocks[key.workload, process, epoch][int(place)] = key, math.log(seconds)
    epochs: dict[tuple[float, Key], list[tuple[Key | None, float]]] = defaultdict(list)
    for (_, process, _), block in blocks.items():
        middle = float(np.mean([log for _, log in block.values()]))
        for place, (key, log) in block.items():
            before = block.get(place - 1)
            epochs[process, key].append((before and before[0], log - middle))
    found: dict[tuple[Key, Key], list[float]] = defaultdict(list)
    for (_, key), mine in epochs.items():
        logs = np.array([log for _, log in mine])
        for behind in {one for one, _ in mine if one is not None}:
            there = np.array([one == behind for one, _ in mine])
            if not there.all():
                found[key, behind].append(float(logs[there].mean() - logs[~there].mean()))
    ratios = {pair: interval_of((1, of)) for pair, of in found.items()}
    largest: dict[str, Neighbour] = {}
    for (path, behind), ratio in ratios.items():
        worst = largest.get(path.workload)
        if judge(ratio, family=len(ratios)).word in ("SLOW", "FAST") and (
            worst is None or abs(math.log(ratio.value)) > abs(math.log(worst.ratio.value))
        ):
            largest[path.workload] = Neighbour(path, behind, ratio)
    return list(largest.values())
