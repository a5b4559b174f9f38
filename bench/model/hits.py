"""How many of the rows that training asks for a cache in memory would hold, and what for.

Which rows a cache keeps depends on the graph and on what was drawn before; whether they are asked
for, on the minibatches that come. So hit rates are counted, on an epoch that no policy but the
``oracle`` has seen. A static policy is a ranking: counts of that epoch, cumulated by rank, give its
hit rate at every size at once. A cache that learns is simulated, warmed up by an earlier epoch; one
that hears of minibatches before they are fetched is simulated on those of the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.bench.model.advise.kept import keeping
from gatherbench.bench.model.advise.memory import gpu_need
from gatherbench.bench.model.advise.option import average_load, drawn
from gatherbench.bench.model.advise.question import AdviceError, Graph, Question
from gatherbench.bench.model.advise.sizes import DRAWN, MinibatchSizes
from gatherbench.bench.model.epoch import epoch_seconds
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.sampling.knowledge import knowledge_of
from gatherbench.bench.sampling.prepare import prepare
from gatherbench.bench.sampling.trace import InputIds, Trace
from gatherbench.datasets.source import Progress, silent
from gatherbench.datasets.store import open_dataset
from gatherbench.plugins import nearest
from gatherbench.strategies.aligned_zero_copy import AlignedZeroCopy
from gatherbench.strategies.base import announcing, parameters
from gatherbench.strategies.cached_zero_copy import CachedZeroCopy
from gatherbench.strategies.disk_cached import DiskCached
from gatherbench.strategies.knowledge import Knowledge
from gatherbench.strategies.places import TABLE_SHARE
from gatherbench.strategies.row_caches import Belady, RowCache
from gatherbench.strategies.scores import SCORED, Placed, scores, times_asked
from gatherbench.strategies.set_cache import Policy, SetCache

#: Shares of the table that are kept by score, in thousandths: of each percent, and of less.
SHARES = (*range(1, 10), *range(10, 1001, 10))
#: Shares at which a cache is simulated, and that tables show.
SHOWN = (10, 50, 100, 200, 500)
#: By how much one more percent of the table has to shorten the epoch.
WORTH = 0.01
COLUMNS = ("policy", "share", "rows_kept", "per_fetched", "per_distinct")
#: Thousandths of the table, and the last three columns.
Rates = tuple[int, int, float, float]
#: A policy as a data path: in a GPU's memory, or the host's.
CachedPath = CachedZeroCopy | DiskCached


@dataclass(frozen=True, slots=True, eq=False)
class Hits:
    """What was counted."""

    workload: Workload  # whose epoch it was
    graph: Graph
    sizes: MinibatchSizes  # the average minibatch of it
    batches: int
    fetched: int  # rows that its minibatches ask for
    rates: pd.DataFrame  # of :func:`hit_rates`


def policies() -> dict[str, CachedPath]:
    """Every policy by name, as a data path: those for a GPU's memory, then the host's own."""
    device: tuple[Any, ...] = parameters(CachedZeroCopy)["policy"]
    host: tuple[Any, ...] = parameters(DiskCached)["policy"]
    found: dict[str, CachedPath] = {name: CachedZeroCopy(policy=name) for name in device}
    own = (name for name in host if name not in SCORED)
    # LRU over the whole cache, and within sets.
    return found | {f"{n}-exact" if n in found else n: DiskCached(policy=n) for n in own}


def simulated(path: CachedPath) -> bool:
    """Whether what is kept changes while rows are fetched: the rates are known at few shares."""
    return path.policy not in SCORED


def chosen_policies(text: str) -> list[str]:
    """The policies that ``a,b`` names; all for none.

    Raises:
        AdviceError: there is no such policy; the message names the nearest.
    """
    known = policies()
    chosen = list(dict.fromkeys(name.strip() for name in text.split(","))) if text else list(known)
    for name in chosen:
        if name not in known:
            raise AdviceError(
                f"--policies: {name!r} is not one of {', '.join(known)}{nearest(name, known)}"
            )
    return chosen


def count_hits(
    workload: Workload, graph: Graph, chosen: Sequence[str], progress: Progress = silent
) -> Hits:
    """Draw the workload's epoch, where it is not there yet, and count.

    Args:
        graph: the workload's.
        chosen, progress: of :func:`hit_rates`.

    Raises:
        DatasetError, TraceError: dataset or minibatches cannot be had.
    """
    folder, minibatches = prepare(workload, progress)
    dataset, trace = open_dataset(folder), Trace.open(minibatches)
    known = knowledge_of(workload, dataset, InputIds(trace))
    nodes, edges = trace.num_nodes, trace.num_edges
    ids = tuple(trace.input_ids(i) for i in range(min(DRAWN, len(trace))))
    sizes = MinibatchSizes(tuple(nodes.mean(0).tolist()), tuple(edges.mean(0).tolist()), ids)
    rates = hit_rates(chosen, graph.nodes, known, progress)
    return Hits(workload, graph, sizes, len(trace), int(nodes[:, -1].sum()), rates)


def hit_rates(
    chosen: Sequence[str], num_rows: int, known: Knowledge, progress: Progress = silent
) -> pd.DataFrame:
    """The hit rate of each policy over the share of the table that is kept: :data:`COLUMNS`.

    ``share`` is that of the rows, 0 to 1, ``rows_kept`` their number. ``per_fetched`` is the share
    of all rows that the measured minibatches ask for. In ``per_distinct`` each distinct row among
    them counts once, however often it is asked for: with the share of its fetches that hit.

    Args:
        chosen: names of :func:`policies`.
        num_rows: of the feature table.
        known: ``measured`` and what the policies need; a policy gets what it needs, no more.
        progress: called with what is being done and the fraction of it that is done.

    Raises:
        ValueError, IndexError: the graph or a minibatch does not belong to such a table.
    """
    every = policies()
    assert known.measured is not None
    asked = times_asked(known.measured, num_rows)
    static = [name for name in chosen if not simulated(every[name])]
    found: dict[str, list[Rates]] = {}
    for number, name in enumerate(static):
        progress(f"rank the rows: {name}", number / len(chosen))
        score = scores(name, num_rows, known.limited_to(every[name].needs))
        found[name] = list(_by_score(score, asked))
    moving = {name: every[name] for name in chosen if simulated(every[name])}
    if moving:
        progress(f"simulate {', '.join(moving)}", len(static) / len(chosen))
        found |= _by_use(moving, asked, known)
    records = [
        (name, thousandths / 1000, *rates) for name in chosen for thousandths, *rates in found[name]
    ]
    return pd.DataFrame(records, columns=list(COLUMNS))


def _by_score(score: NDArray[Any], asked: NDArray[np.int64]) -> Iterator[Rates]:
    """Rates at :data:`SHARES`; of equal scores the lower row is kept, as ``hottest`` does."""
    by_rank = asked[np.argsort(-score, kind="stable")]
    fetched, distinct = (np.append(0, np.cumsum(one)) for one in (by_rank, by_rank > 0))
    for share in SHARES:
        kept = len(asked) * share // 1000
        yield share, kept, fetched[kept] / fetched[-1], distinct[kept] / distinct[-1]


def _by_use(
    paths: Mapping[str, CachedPath], asked: NDArray[np.int64], known: Knowledge
) -> dict[str, list[Rates]]:
    """Rates at :data:`SHOWN`, all caches side by side, so that each epoch is drawn once."""
    assert known.measured is not None
    assert known.earlier is not None
    caches = {(n, s): _cache(path, s, len(asked)) for n, path in paths.items() for s in SHOWN}
    told = [cache for cache in caches.values() if isinstance(cache, Belady)]

    def announce(ids: Tensor) -> None:
        for cache in told:
            cache.announce(ids.numpy())

    hits = dict.fromkeys(caches, (0, 0.0))
    for epoch, counts in ((known.earlier(0), False), (known.measured, True)):
        for ids in announcing(epoch, max((one.ahead for one in told), default=0), announce):
            rows = ids.numpy()
            for key, cache in caches.items():
                hit = rows[cache.step(rows)[0] >= 0]
                if counts:
                    fetched, distinct = hits[key]
                    hits[key] = fetched + len(hit), distinct + float((1 / asked[hit]).sum())
    total, distinct_rows = int(asked.sum()), int(np.count_nonzero(asked))
    found: dict[str, list[Rates]] = {name: [] for name in paths}
    for (name, share), (fetched, distinct) in hits.items():
        kept = caches[name, share].capacity
        found[name].append((share, kept, fetched / total, distinct / distinct_rows))
    return found


def _cache(path: CachedPath, thousandths: int, num_rows: int) -> SetCache | RowCache | Belady:
    """The cache of a path that keeps such a share, before anything was fetched."""
    if isinstance(path, CachedZeroCopy):
        return SetCache(num_rows * thousandths // 1000, cast("Policy", path.policy))
    words: dict[str, Any] = {"share": f"{thousandths // 10}%"}
    kept = replace(path, **words).kept(num_rows)
    assert not isinstance(kept, Placed)
    return kept


@dataclass(frozen=True, slots=True)
class KeptShare:
    """Modelled epochs of ``cached_zero_copy``, none ahead, over the percent of the table kept."""

    policy: str  # which rows are kept
    profile: str  # of the machine
    #: At each corner of the profile, seconds at 0, 1, … % of the table, as far as the GPU's memory
    #: goes; empty where a constant is not known.
    epochs_s: tuple[tuple[float, ...], ...]
    unknown: tuple[str, ...]  # these constants
    #: The largest percent for which the GPU has memory, -1 where it has not even enough to train,
    #: ``None`` where its memory is not known.
    room: int | None
    remarks: tuple[str, ...] = ()  # what the model leaves out or takes from elsewhere

    @property
    def enough(self) -> tuple[int | None, ...]:
        """At each corner the first percent where one more gains less than :data:`WORTH`.

        ``None``: each one gains more, as far as it goes.
        """
        return tuple(
            next((p for p, (a, b) in enumerate(pairwise(line)) if a - b < WORTH * a), None)
            for line in self.epochs_s
        )


def best_policy(rates: pd.DataFrame) -> str:
    """The policy with the highest hit rate per fetched row, on average over all shares.

    Left out are those that nobody would train with, and those that are known at few shares. Empty:
    there is no other.
    """
    able = [name for name, path in policies().items() if not (path.aside or simulated(path))]
    mean = rates[rates["policy"].isin(able)].groupby("policy")["per_fetched"].mean()
    return str(mean.idxmax()) if len(mean) else ""


def kept_share(
    question: Question, sizes: MinibatchSizes, profile: LinkProfile, rates: pd.DataFrame
) -> KeptShare | None:
    """Predict an epoch at each percent, from the hit rates of the best policy.

    ``None``: the rates are of no policy that one would train with.

    Requests and page visits are taken to fall as the bytes that are read over the link do.

    Args:
        sizes: the average minibatch.
        rates: of :func:`hit_rates`.
    """
    policy = best_policy(rates)
    if not policy:
        return None
    mine = rates[rates["policy"] == policy]
    shares = [percent / 100 for percent in range(101)]
    hit = np.interp(shares, [0.0, *mine["share"]], [0.0, *mine["per_fetched"]]).tolist()
    nothing_kept = average_load(AlignedZeroCopy(), question, sizes)
    loads = [keeping(nothing_kept, share, rate) for share, rate in zip(shares, hit, strict=True)]
    profile = question.told(profile)
    memory, room = profile["gpu.memory"].value, None
    if memory is not None:
        fits = [gpu_need(load, question, sizes) <= TABLE_SHARE * memory for load in loads]
        room = sum(fits) - 1
        loads = loads[: room + 1]
    run = (question.batches, question.gpus, question.machines)
    every = [
        [epoch_seconds(drawn(load, profile, len(question.fanouts)), corner, *run) for load in loads]
        for corner in (profile.corners() if loads else ())
    ]
    unknown = dict.fromkeys(text for line in every for epoch in line for text in epoch.unknown)
    remarks = dict.fromkeys(text for line in every for epoch in line for text in epoch.remarks)
    epochs = () if unknown else tuple(tuple(e.value or 0.0 for e in line) for line in every)
    return KeptShare(policy, profile.name, epochs, tuple(unknown), room, tuple(remarks))
