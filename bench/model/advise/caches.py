"""A cache in host memory before the disk: by which policy and how large, as options of advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gatherbench.bench.model.advise.rank import (
    LEVEL,
    Advice,
    Option,
    average_load,
    gib,
    off_disk,
    option_of,
    predict,
    ranked,
)
from gatherbench.bench.model.disk_cache import (
    POLICIES,
    ROWS,
    SUPERBATCH,
    Cache,
    hit_rate,
    keeping,
    requests_of,
)
from gatherbench.strategies.disk_direct import DiskDirect

#: Of the host's memory: the rest is the system's, the graph's and the training's.
MEMORY_SHARES = (0.1, 0.2, 0.4, 0.8)
#: As plans name the path.
NAME = "disk_cached"
SUMMARY = "rows kept in host memory, the rest read off the disk past the page cache"
_LEFT_OUT = (
    f"belady knows the next {SUPERBATCH:,} minibatches, which are drawn that much ahead; what a"
    " policy costs the processor is left out"
)


def with_caches(advice: Advice) -> Advice:
    """The advice with caches in host memory, where the table stays on a disk.

    One for each policy: the smallest that is level with its largest, in every case.
    """
    question, profile = advice.question, advice.profile
    memory = profile.host.memory.value
    if not off_disk(question, profile):
        return advice
    if memory is None:
        said = "a cache in host memory before the disk: say --host-memory"
        return replace(advice, remarks=(*advice.remarks, said))
    path, table = DiskDirect(), question.graph.table_bytes
    loads = [average_load(path, question, one) for one in advice.sizes]
    requests = [requests_of(one, question.graph.nodes) for one in advice.sizes]
    largest = max(range(len(loads)), key=lambda i: advice.sizes[i].rows)
    caches, options = [], []
    for policy in POLICIES:
        mine: list[tuple[Cache, Option]] = []
        for part in MEMORY_SHARES:
            held = min(1.0, part * memory / question.gpus / table)
            rates = tuple(hit_rate(one, policy, held) for one in requests)
            kept = [keeping(load, rate) for load, rate in zip(loads, rates, strict=True)]
            epochs = [predict(question, load, profile) for load in kept]
            times = [epoch.epoch_s.value for corners in epochs for epoch in corners]
            known = tuple(seconds for seconds in times if seconds is not None)
            known = known if len(known) == len(times) else ()
            cache = Cache(policy, part, held * question.gpus * table, held, rates, known)
            slowest = max(epochs[largest], key=lambda one: one.epoch_s.value or 0.0)
            sizes = advice.sizes[largest]
            option = option_of(path, kept[largest], slowest, question, sizes, profile)
            mine.append((cache, _named(option, cache)))
            if held == 1.0:
                break
        caches += [cache for cache, _ in mine]
        options.append(_enough(mine))
    able = [option for option in options if option.epochs_s and option.fits is not False]
    said = f"hit rates of a cache in host memory are simulated on {ROWS:,} rows; {_LEFT_OUT}"
    return replace(
        advice,
        ranked=ranked([*advice.ranked, *able]),
        unranked=(*advice.unranked, *(one for one in options if one not in able)),
        remarks=(*advice.remarks, said),
        caches=tuple(caches),
    )


def _named(option: Option, cache: Cache) -> Option:
    ends = dict.fromkeys(f"{rate:.0%}" for rate in (min(cache.hit_rates), max(cache.hit_rates)))
    where = (
        f"on the disk, {gib(cache.cache_bytes)} of it ({cache.table_share:.0%}) in"
        f" {cache.memory_share:.0%} of host memory, which holds {' to '.join(ends)} of the rows"
    )
    return replace(
        option,
        strategy=NAME,
        variant=cache.policy,
        summary=SUMMARY,
        epochs_s=cache.epochs_s,
        host_bytes=cache.cache_bytes,
        cache_bytes=cache.cache_bytes,
        placement=where,
    )


def _enough(of_policy: Sequence[tuple[Cache, Option]]) -> Option:
    """The smallest that the largest gains nothing over."""
    most = of_policy[-1][1]
    return next(
        option
        for _, option in of_policy
        if all(a <= LEVEL * b for a, b in zip(option.epochs_s, most.epochs_s, strict=True))
    )
