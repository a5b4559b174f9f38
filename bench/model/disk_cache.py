"""What a cache in host memory keeps from the disk: hit rates, simulated on a part of the rows.

A cache of the same share of the rows that sees the requests for a random part of them hits as
often as the whole one (Waldspurger et al., FAST 2015), so some ten thousand rows tell of a table of
any size. The requests are those of minibatches that were drawn, or where the graph is not at hand
of rows that are asked for independently of each other, each as often as the graph's law expects.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from gatherbench.bench.model.advise.sizes import MinibatchSizes
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.strategies.data_path import total
from gatherbench.strategies.disk_direct import DiskDirect
from gatherbench.strategies.row_caches import Belady, RowCache

#: Rows that are simulated, and requests for each: so many fill the cache, and so many are counted.
ROWS, FILLING, COUNTED = 20_000, 5, 5
#: Minibatches that Belady's cache knows beforehand: Ginex's superbatch (PVLDB 15(11), 2022).
SUPERBATCH = 1000
#: A step of the simulation has so many requests at least, where minibatches have hardly any.
_LEAST = 64
#: A node that is in nearly every minibatch: of certainty no rate can be had.
_MOST_CHANCE = 0.999

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache in the host memory of each machine, in front of its disk; modelled.

    Attributes:
        policy: which rows it keeps.
        variant: of ``disk_cached``, as plans name it.
        table_share: of the table, that it holds; ranks of a machine have a cache each.
        cache_bytes: of all ranks of a machine together, and ``memory_share``, what that is of the
            host's memory.
        hit_rates: of the rows asked for, with each of the advice's sizes.
        epochs_s: as of an option of the advice; empty where they are not known.
    """

    policy: str
    variant: str
    table_share: float
    cache_bytes: float
    memory_share: float
    hit_rates: tuple[float, ...]
    epochs_s: tuple[float, ...]


#: Policy → a cache of ``capacity`` among ``rows`` rows that knows ``ahead`` steps beforehand.
POLICIES: dict[str, Callable[[int, int, int], Belady | RowCache]] = {
    "belady": Belady,
    "sieve": lambda capacity, rows, _: RowCache("sieve", capacity, rows),
    "s3-fifo": lambda capacity, rows, _: RowCache("s3-fifo", capacity, rows),
    "clock": lambda capacity, rows, _: RowCache("clock", capacity, rows),
    "lru": lambda capacity, rows, _: RowCache("lru", capacity, rows),
}


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Requests for a part of the rows.

    Attributes:
        rows: how many rows these are.
        filling, counted: ids below ``rows``, a step each, distinct in it: before hits are counted,
            and while they are.
        epoch: how many such steps make an epoch, or as much of it as is simulated.
        minibatches: that make a step.
    """

    rows: int
    filling: tuple[Ids, ...]
    counted: tuple[Ids, ...]
    epoch: int
    minibatches: float = 1.0


def requests_of(sizes: MinibatchSizes, num_rows: int, batches: int) -> Requests:
    """What epochs of ``batches`` minibatches of these sizes ask of a table of ``num_rows`` rows."""
    draw = np.random.default_rng(0)
    if sizes.asked is None:
        return _drawn(sizes, num_rows, draw)
    nodes, chance = sizes.asked[:, np.argsort(-sizes.asked[1])]
    # Each simulated row stands for as many nodes of the table, all asked for alike.
    ends = np.append(0.0, np.cumsum(nodes))
    cuts = np.linspace(0.0, ends[-1], ROWS + 1)
    upto = np.interp(cuts, ends, np.append(0.0, np.cumsum(nodes * chance)))
    mean = np.diff(upto) / np.diff(cuts)
    rate = -np.log1p(-np.minimum(mean, _MOST_CHANCE))
    step = max(_LEAST, math.ceil(rate.sum()))
    steps = ROWS * (FILLING + COUNTED) // step + 2
    asked = draw.choice(ROWS, (steps, step), p=rate / rate.sum())
    found = tuple(draw.permutation(np.unique(one)) for one in asked)
    begin = max(1, steps * FILLING // (FILLING + COUNTED))
    minibatches = float(step / rate.sum())
    epoch = max(1, round(batches / minibatches))
    return Requests(ROWS, found[:begin], found[begin:], epoch, minibatches)


def _drawn(sizes: MinibatchSizes, num_rows: int, draw: np.random.Generator) -> Requests:
    """Of two epochs that were drawn, some rows: the second one counts."""
    kept = draw.permutation(num_rows)[:ROWS]
    place = np.full(num_rows, -1, np.int64)
    place[kept] = np.arange(len(kept))
    earlier = sizes.knowledge.earlier
    assert earlier is not None
    epochs = []
    for epoch in range(2):
        ids = (place[one.numpy()] for one in islice(earlier(epoch), SUPERBATCH))
        epochs.append(tuple(one[one >= 0] for one in ids))
    return Requests(len(kept), epochs[0], epochs[1], max(1, len(epochs[1])))


def hit_rate(requests: Requests, policy: str, share: float) -> float:
    """Of the requests the share that a cache for ``share`` of the rows holds once it is full.

    Belady's knows minibatches up to the end of the epoch.
    """
    capacity = min(requests.rows, int(share * requests.rows))
    ahead = max(1, int(SUPERBATCH / requests.minibatches))
    cache = POLICIES[policy](capacity, requests.rows, ahead)

    def hits_of(steps: tuple[Ids, ...]) -> int:
        hits = 0
        for first in range(0, len(steps), requests.epoch):
            epoch = steps[first : first + requests.epoch]
            if isinstance(cache, Belady):
                for ids in epoch:
                    cache.announce(ids)
            hits += sum(int((cache.step(ids)[0] >= 0).sum()) for ids in epoch)
        return hits

    hits_of(requests.filling)
    asked = sum(len(ids) for ids in requests.counted)
    return hits_of(requests.counted) / max(1, asked)


def keeping(
    load: MinibatchLoad, sizes: MinibatchSizes, num_rows: int, rate: float
) -> MinibatchLoad:
    """A load of ``disk_direct`` where a cache in host memory holds ``rate`` of the rows.

    Missing rows are taken to be any: of the minibatches' ids as many are drawn, and their reads
    counted, since rows that are left between others no longer share a read with them.
    """
    draw = np.random.default_rng(0)
    missing = (ids[torch.from_numpy(draw.random(len(ids)) >= rate)] for ids in sizes.ids)
    path = total(DiskDirect().data_paths(missing, int(load.row_bytes), num_rows))
    assert path.disk_bytes is not None
    assert path.disk_requests is not None
    part = sizes.rows / sum(ids.numel() for ids in sizes.ids)
    return replace(
        load,
        disk_payload_bytes=(1 - rate) * load.disk_payload_bytes,
        disk_bytes=part * path.disk_bytes,
        disk_requests=part * path.disk_requests,
    )
