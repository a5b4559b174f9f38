"""A cache in host memory before the disk: by which policy and how large, as options of advice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gatherbench.bench.model.advise.question import Question
from gatherbench.bench.model.advise.rank import (
    LEVEL,
    Advice,
    Option,
    average_load,
    gib,
    off_disk,
    option_of,
    ranked,
)
from gatherbench.bench.model.advise.sizes import MinibatchSizes
from gatherbench.bench.model.disk_cache import (
    POLICIES,
    ROWS,
    SUPERBATCH,
    Cache,
    Requests,
    hit_rate,
    keeping,
    requests_of,
)
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.strategies.base import parameters
from gatherbench.strategies.disk_cached import DiskCached
from gatherbench.strategies.disk_direct import DiskDirect

#: Of the host's memory a cache gets no more: the rest is the system's, the graph's, the training's.
MOST_MEMORY = 0.8


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
    batches = -(-question.batches // question.world)
    requests = [requests_of(one, question.graph.nodes, batches) for one in advice.sizes]
    room = MOST_MEMORY * memory / question.gpus / question.graph.table_bytes
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
    return replace(
        advice,
        ranked=ranked([*advice.ranked, *able]),
        unranked=(*advice.unranked, *(one for one in options if one not in able)),
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
    option, _ = option_of(path, loads, advice.question, advice.sizes, advice.profile)
    held = _share(path) * advice.question.gpus * advice.question.graph.table_bytes
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
    return cache, replace(option, placement=placement, host_bytes=held, cache_bytes=held)


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
