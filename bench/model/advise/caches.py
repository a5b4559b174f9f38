"""A cache in host memory before the disk: by which policy and how large, as options of advice.

Hit rates are simulated on a part of the rows: a cache of the same share of the rows that sees the
requests for a random part of them hits as often as the whole one (Waldspurger et al., FAST 2015),
so some ten thousand rows tell of a table of any size. The requests are those of minibatches that
were drawn, or where the graph is not at hand of rows that are asked for independently of each
other, each as often as the graph's law expects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from gatherbench.bench.model.advise.memory import beside_table, gib
from gatherbench.bench.model.advise.option import LEVEL, Option, average_load, option_of
from gatherbench.bench.model.advise.question import Question
from gatherbench.bench.model.advise.rank import Advice, Cache, off_disk, ranked
from gatherbench.bench.model.advise.sizes import MinibatchSizes
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.strategies.base import parameters
from gatherbench.strategies.data_path import total
from gatherbench.strategies.disk_cached import DiskCached
from gatherbench.strategies.disk_direct import DiskDirect
from gatherbench.strategies.places import TABLE_SHARE
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
#: Policy → a cache of ``capacity`` among ``rows`` rows that knows ``ahead`` steps beforehand.
POLICIES: dict[str, Callable[[int, int, int], Belady | RowCache]] = {
    "belady": Belady,
    "sieve": lambda capacity, rows, _: RowCache("sieve", capacity, rows),
    "s3-fifo": lambda capacity, rows, _: RowCache("s3-fifo", capacity, rows),
    "clock": lambda capacity, rows, _: RowCache("clock", capacity, rows),
    "lru": lambda capacity, rows, _: RowCache("lru", capacity, rows),
}


def with_caches(advice: Advice) -> Advice:
    """The advice with caches in host memory, where the table stays on a disk.

    One for each policy: the smallest that is level with its largest, in every case.
    """
    question, memory = advice.question, advice.profile["host.memory"].value
    if not off_disk(question, advice.profile):
        return advice
    if memory is None:
        said = "a cache in host memory before the disk: say --host-memory"
        return replace(advice, remarks=(*advice.remarks, said))
    direct = [average_load(DiskDirect(), question, one) for one in advice.sizes]
    beside = max(beside_table(load, question).total for load in direct)
    batches = -(-question.batches // question.world)
    requests = [requests_of(one, question.graph.nodes, batches) for one in advice.sizes]
    room = (TABLE_SHARE * memory - beside) / question.gpus / question.graph.table_bytes
    caches: list[Cache] = []
    options: list[Option] = []
    for paths in _by_policy(advice.sizes, room):
        mine = []
        for path in paths:
            every = zip(advice.sizes, direct, requests, strict=True)
            loads = [_load(path, question, *one) for one in every]
            mine.append(_modelled(path, loads, advice, memory))
        caches += [cache for cache, _ in mine]
        options.append(_enough([option for _, option in mine]))
    able = [option for option in options if option.epochs_s and option.fits is not False]
    best = _best(able)
    return replace(
        advice,
        ranked=ranked([*advice.ranked, *best]),
        unranked=(*advice.unranked, *(one for one in options if one not in able)),
        others=(*advice.others, *(one for one in able if one not in best)),
        notes=(*advice.notes, *(f"{one.words}: {one.placement}" for one in best)),
        remarks=(*advice.remarks, *_said(advice.sizes)),
        caches=tuple(caches),
    )


def _share(path: DiskCached) -> float:
    return int(path.share.removesuffix("%")) / 100


def _by_policy(sizes: Sequence[MinibatchSizes], room: float) -> Iterator[list[DiskCached]]:
    """Of each policy that can be had the caches for at most ``room`` of the table, by size.

    Static ones go by the graph, so they can be had where it is at hand.
    """
    words = parameters(DiskCached)
    for policy in words["policy"]:
        batches = str(SUPERBATCH) if policy == "belady" else words["superbatch"][0]
        every = [
            DiskCached(policy=policy, share=share, superbatch=batches)  # type: ignore[arg-type]
            for share in words["share"]
        ]
        fitting = sorted((one for one in every if _share(one) <= room), key=_share)
        goes_by = every[0].needs - {"file"}
        able = policy in POLICIES or (goes_by and not sizes[0].knowledge.missing(goes_by))
        if fitting and able and not every[0].aside:
            yield fitting


def _load(
    path: DiskCached,
    question: Question,
    sizes: MinibatchSizes,
    direct: MinibatchLoad,
    requests: Requests,
) -> MinibatchLoad:
    """The average minibatch, with what the cache holds once it is warm."""
    if path.policy not in POLICIES:
        return average_load(path, question, sizes)
    rate = hit_rate(requests, path.policy, _share(path))
    return keeping(direct, sizes, question.graph.nodes, rate)


def _modelled(
    path: DiskCached, loads: Sequence[MinibatchLoad], advice: Advice, memory: float
) -> tuple[Cache, Option]:
    """A cache, and the option that it is."""
    held = _share(path) * advice.question.gpus * advice.question.graph.table_bytes
    option, _ = option_of(path, loads, advice.question, advice.sizes, advice.profile, held)
    cache = Cache(
        path.policy,
        path.variant,
        _share(path),
        held,
        held / memory,
        tuple(1 - load.disk_payload_bytes / load.payload_bytes for load in loads),
        option.epochs_s,
    )
    ends = dict.fromkeys(f"{rate:.0%}" for rate in (min(cache.hit_rates), max(cache.hit_rates)))
    placement = (
        f"on the disk, {gib(held)} of it ({cache.table_share:.0%}) in host memory, which holds"
        f" {' to '.join(ends)} of the rows asked for"
    )
    return cache, replace(option, placement=placement)


def _best(able: Sequence[Option]) -> list[Option]:
    """Of the policies the one that needs the least memory among those level with the shortest."""
    if not able:
        return []
    shortest = min(able, key=lambda one: one.longest_s)
    level = [one for one in able if one.level_with(shortest)]
    return [min(level, key=lambda one: one.cache_bytes)]


def _enough(by_size: Sequence[Option]) -> Option:
    """The smallest that the largest gains nothing over."""
    most = by_size[-1].epochs_s
    level = (all(a <= LEVEL * b for a, b in zip(o.epochs_s, most, strict=True)) for o in by_size)
    return next(option for option, enough in zip(by_size, level, strict=True) if enough)


def _said(sizes: Sequence[MinibatchSizes]) -> Iterator[str]:
    yield (
        f"hit rates of caches that learn, or know what comes, are simulated on {ROWS:,} rows;"
        f" belady knows the next {SUPERBATCH:,} minibatches, whose ids take memory too; what a"
        " policy costs the processor is left out"
    )
    if sizes[0].law:
        yield "policies of disk_cached that go by the graph are left out (prepare the dataset)"


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Requests for a part of the rows, in steps: ids below ``rows``, distinct in each step."""

    rows: int  # how many rows these are
    filling: tuple[Ids, ...]  # before hits are counted
    counted: tuple[Ids, ...]
    epoch: int  # steps of an epoch, or of as much of it as is simulated
    minibatches: float = 1.0  # that make a step


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
