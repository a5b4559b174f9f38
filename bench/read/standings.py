"""Rank the paths of each workload by speed: ratios over the CPU's gathers, and ranks with ties.

Two paths are separated if the one rule says so (:mod:`gatherbench.stats.judge`): the whole
interval of their ratio lies beyond the smallest difference that matters, and at most one of them is
host-bound. A path's ranks go from one more than the number of faster paths to the number of all
less that of the slower ones, so paths that are not separated share ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

import pandas as pd

from gatherbench.bench.read.derive import (
    GATHERS,
    baseline,
    ends_of,
    host_bound,
    mostly_noisy,
    noisy_series,
    over,
    repeat_logs,
    sort_by,
    spread,
)
from gatherbench.bench.read.tables import CASE, Run
from gatherbench.bench.run.rows import SERIES, Key
from gatherbench.stats.interval import Interval, Logs
from gatherbench.stats.judge import PathWord, is_open, judge

#: The gathers over which there are ratios: fields of a :class:`Standing`.
_BASES = ("best", "reference")
#: The medians of a run in the table, and their names there.
_COSTS = {
    **{"fetch_s": "waiting", "train_s": "train", "all_reduce_s": "all_reduce", "wait_s": "wait"},
    **{"cpu_s": "cpu", "cores": "cores", "link": "link", "rate": "rate", "gpu_watts": "watts"},
    "gpu_net_joules": "joules",
}
_INVERSE: Mapping[PathWord, PathWord] = {"SLOW": "FAST", "FAST": "SLOW"}


@dataclass(frozen=True, slots=True)
class Standing:
    """The measured paths of one workload.

    Attributes:
        logs: the epochs of every series, limits included, for ratios.
        ranked: those that are compared, the shortest median epoch first: the order of tables and
            sentences.
        best: of these the CPU's gather with the shortest epochs; ``None``: there is none.
        reference: ``cpu_gather naive``, or the first other of the CPU's gathers that is ranked.
        limit: the path that fetches nothing; ``None``: there is none.
        words: the comparison of one path's epochs with another's; all are undecided if the
            run is noisy.
    """

    workload: str
    logs: Mapping[Key, Logs]
    ranked: Sequence[Key]
    best: Key | None
    reference: Key | None
    limit: Key | None
    words: Mapping[tuple[Key, Key], PathWord]

    @property
    def leader(self) -> Key:
        """The first in order of the paths that no other is measurably faster than."""
        return next((key for key in self.ranked if self.rank(key)[0] == 1), self.ranked[0])

    def speedup(self, key: Key, base: Key | None = None) -> Interval:
        """Return the speed of an epoch over that of ``base``, or of the first ranked path."""
        return over(self.logs[base or self.ranked[0]], self.logs[key])

    def rank(self, key: Key) -> tuple[int, int]:
        """Return the least and the greatest rank that a ranked path may have."""
        words = [self.words[key, other] for other in self.ranked if other != key]
        return 1 + words.count("SLOW"), len(self.ranked) - words.count("FAST")


@lru_cache(maxsize=4)  # a run is read by many views
def standings(run: Run) -> list[Standing]:
    """Return the standing of each workload with measured epochs, in the plan's order.

    Unranked are roles of no use for training, and series without a quiet repeat, unless most are.
    """
    from gatherbench.strategies.base import UNRANKED  # imports torch

    logs, medians, pair = repeat_logs(run), run.medians, baseline(run)
    busy, bound = mostly_noisy(run), host_bound(run)
    noisy = () if busy else noisy_series(run)
    lines = []
    for workload in run.workloads:
        own = {key: log for key, log in logs.items() if key.workload == workload}
        if not own:
            continue
        roles = {key: medians["role"][tuple(key)] for key in own if key not in noisy}
        free = [key for key, role in roles.items() if role not in {*UNRANKED, "upper_bound"}]
        ranked = sorted(free, key=lambda key: float(medians["epoch_s"][tuple(key)]))
        words: dict[tuple[Key, Key], PathWord] = {}
        for path, other in combinations(ranked, 2):
            word = (
                "HOST-BOUND" if {path, other} <= bound else judge(over(own[path], own[other])).word
            )
            words[path, other] = word = "AMBIGUOUS" if busy else word
            words[other, path] = _INVERSE.get(word, word)
        gathers = [key for key in ranked if roles[key] in GATHERS]
        best = next(iter(gathers), None)
        base = next((key for key in gathers if key[1:3] == pair), best)
        limit = next((key for key, role in roles.items() if role == "no_fetch"), None)
        lines.append(Standing(workload, own, ranked, best, base, limit, words))
    return lines


def table(run: Run) -> pd.DataFrame:
    """Return a line per measured series, the shortest epochs first, the limit last.

    Columns: :data:`SERIES`; ``epoch`` with its quartiles, ``waiting`` (for features), ``train``,
    ``all_reduce``, ``wait`` (s; ``train`` holds these two); ``link`` and ``rate`` (B/s, see
    ``derived.toml``), ``cores`` busy, ``cpu`` (core-seconds), ``watts`` and ``joules`` of the GPU
    (of an epoch, above idle): medians over repeats and epochs; NaN: unknown. ``best`` and
    ``reference``, ratios over these two gathers with their ends; ``open_best``, ``open_reference``:
    that ratio is undecided; ``rank``, in words, or why there is none. ``repeats`` count,
    ``left_out`` of them do not, as there were quiet ones; ``other``: cores of other work during the
    worst that counts.
    """
    busy, noisy = mostly_noisy(run), noisy_series(run)
    lines = list[dict[str, Any]]()
    for standing in standings(run):
        for key in standing.logs:
            rank, shown = "noisy" if key in noisy and not busy else "–", 1
            if key in standing.ranked:
                rank, shown = "–".join(dict.fromkeys(map(str, standing.rank(key)))), 0
            elif key == standing.limit:
                rank, shown = "limit", 2
            line: dict[str, Any] = {**key._asdict(), "rank": rank, "shown": shown}
            for name in _BASES if key not in noisy or busy else ():
                if base := getattr(standing, name):
                    ratio = standing.speedup(key, base)
                    line |= zip(ends_of(name), ratio.ends, strict=True)
                    line[f"open_{name}"] = key != base and (busy or is_open(*ratio.ends[1:]))
            lines.append(line)
    open_ = [f"open_{name}" for name in _BASES]
    ratios = [end for name in _BASES for end in ends_of(name)]
    frame = pd.DataFrame(lines, columns=[*SERIES, "rank", *ratios, *open_, "shown"])
    frame[open_] = frame[open_].eq(True)
    times = spread(run.measured["epoch_s"]).set_index(SERIES)[["median", "low", "high"]]
    cases = run.epochs.reindex(columns=[*CASE, "rank", "used", "epoch_s"]).query("rank < 0")
    used = cases.dropna(subset="epoch_s").drop_duplicates(CASE).groupby(SERIES)["used"]
    repeats = {"repeats": used.sum(), "left_out": used.size() - used.sum()}
    repeats["other"] = run.ended[run.ended["used"]].groupby(SERIES)["other_cores"].max()
    costs = times.set_axis(ends_of("epoch"), axis=1).assign(**repeats)
    costs = costs.join(run.medians[[*_COSTS]].rename(columns=_COSTS))
    frame = frame.join(costs, on=SERIES).sort_values(["shown", "epoch"], kind="stable")
    return sort_by(frame, workload=run.workloads).drop(columns="shown")
