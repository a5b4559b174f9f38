"""Which strategy to take: every data path predicted for one graph, one workload and one machine.

Variants that declare the same are one line. A graph that is not at hand is predicted under several
laws; a path is ahead of another only where it is under each of them, by more than the model was
off epochs that were measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gatherbench.bench.model.advise import kept
from gatherbench.bench.model.advise.memory import (
    drawing_need,
    gib,
    graph_bytes,
    is_sharded,
    lists_placed,
)
from gatherbench.bench.model.advise.option import (
    MEASURED,
    MODELLED,
    Option,
    average_load,
    option_of,
)
from gatherbench.bench.model.advise.question import Question
from gatherbench.bench.model.advise.sizes import MinibatchSizes
from gatherbench.bench.model.errors import modelled_beside
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.strategies.base import Strategy, parameters
from gatherbench.strategies.cached_zero_copy import CachedZeroCopy
from gatherbench.strategies.disk_cached import DiskCached
from gatherbench.strategies.knowledge import Need
from gatherbench.strategies.places import TABLE_SHARE
from gatherbench.strategies.registry import STRATEGIES, representatives, variants

#: What a path may need that is there for any graph: ranks, and the table in a file.
_GIVEN: frozenset[Need] = frozenset({"ranks", "file"})
#: What they keep depends on more minibatches than are at hand here (``caches.py``).
_SIMULATED: tuple[type[Strategy], ...] = (DiskCached,)


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache in the host memory of each machine, in front of its disk; modelled."""

    policy: str  # which rows it keeps
    variant: str  # of ``disk_cached``, as rows name it
    table_share: float  # of the table, that it holds; ranks of a machine have a cache each
    cache_bytes: float  # of all ranks of a machine together
    memory_share: float  # of the host's memory
    hit_rates: tuple[float, ...]  # of the rows asked for, with each of the advice's sizes
    epochs_s: tuple[float, ...]  # as of an option; empty where they are not known


@dataclass(frozen=True, slots=True)
class Advice:
    """The answer."""

    question: Question
    sizes: tuple[MinibatchSizes, ...]  # one for each law where the graph is not at hand
    profile: LinkProfile  # with what the question says of the machine
    ranked: tuple[Option, ...]  # with a time, the one to take first
    unranked: tuple[Option, ...] = ()  # without, each with its reason
    others: tuple[Option, ...] = ()  # in whose place a ranked variant stands: `best_of_alike`
    remarks: tuple[str, ...] = ()  # what is assumed or left out
    notes: tuple[str, ...] = ()  # of these what nobody should miss
    caches: tuple[Cache, ...] = ()  # of which some are ranked
    default: str = ""  # why the profile is a default; empty: it was asked for, or is this machine's

    @property
    def resident(self) -> Option | None:
        """The option that keeps the whole table in GPU memory, if there is one."""
        whole, every = self.question.graph.table_bytes, (*self.ranked, *self.unranked)
        return next((o for o in every if o.kept_bytes >= whole), None)

    @property
    def table_fits(self) -> bool | None:
        """Whether the feature table fits in the GPU's memory; ``None``: not known."""
        return None if self.resident is None else self.resident.fits

    @property
    def take(self) -> Option | None:
        """What to take; ``None``: nothing can be ranked.

        Of the paths that no other is ahead of the one which is the shortest if the model is as far
        off as it ever was. A table that fits in GPU memory stays there, unless something is ahead
        of that.
        """
        resident = self.resident
        lead = self.lead
        if resident is not None and resident in lead:
            return resident
        return min(lead, key=lambda option: option.safest_s, default=None)

    @property
    def lead(self) -> tuple[Option, ...]:
        """The paths that no other is ahead of."""
        return tuple(option for option in self.ranked if option.rank == 1)

    @property
    def usual(self) -> Option | None:
        """The usual way at its best, which others are set against: the CPU gathers, then copies.

        It may need memory that is not there.
        """
        every = (*self.ranked, *self.unranked, *self.others)
        return next((o for o in every if o.role == "conventional" and not o.lookahead), None)


#: Measured epochs: (strategy, variant) → seconds and where they stand.
Measurements = Mapping[tuple[str, str], tuple[float, str]]


def advise(
    question: Question,
    sizes: Sequence[MinibatchSizes],
    profile: LinkProfile,
    measured: Measurements | None = None,
) -> Advice:
    """Rank every strategy; ``measured`` epochs of this very question take the model's place.

    What is said of where the time goes, and of memory, is of the largest of several minibatches,
    and of the slowest corner.
    """
    profile = question.told(profile)
    remarks = dict.fromkeys(_assumed(question, sizes, profile))
    known = measured or {}
    largest = max(sizes, key=lambda one: one.rows)
    options: list[Option] = []
    for strategy, load in distinct_paths(question, largest, profile, known):
        loads = [load if one is largest else average_load(strategy, question, one) for one in sizes]
        option, left_out = option_of(strategy, loads, question, sizes, profile)
        seen = known.get(option.path)
        if seen is not None:
            cases = len(sizes) * len(profile.corners())
            option = replace(option, epochs_s=seen[:1] * cases, basis=MEASURED, source=seen[1])
            if not question.gpu_memory_bytes:  # it ran on the very GPU that is asked about
                option = replace(option, fits=True)
        if option.fits is not False:
            remarks.update(dict.fromkeys(left_out))
        if _alike_for_all(strategy, load, largest):
            remarks[
                "computed minibatches ask for every row alike: those of a graph do not, and a path"
                f" that keeps some rows ({strategy.name}) may bring far fewer (prepare the dataset)"
            ] = None
        options.append(option)
    able = [o for o in options if o.epochs_s and o.fits is not False]
    if {o.basis for o in able} == {MEASURED, MODELLED}:
        where = "GPU" if question.gpu_samples else "processor"
        remarks[f"modelled epochs draw minibatches on the {where}; measured ones say how"] = None
    best = best_of_alike(able)
    unranked = tuple(o for o in options if o not in able)
    others = tuple(o for o in able if o not in best)
    notes = tuple(_notes(able, question, profile))
    order = ranked(best)
    drawing = drawing_need(question, largest)
    if order and order[0].bound == "cpu (sampling)" and _gpu_draws(order[0], drawing, profile):
        notes += ("the processor's sampler bounds the shortest of these epochs: try --sampler gpu",)
    return Advice(question, tuple(sizes), profile, order, unranked, others, tuple(remarks), notes)


def best_of_alike(able: Sequence[Option]) -> list[Option]:
    """All options, but of one strategy's modelled variants only those that tell something.

    Of those that keep a part of the table in GPU memory, for each lookahead the one which keeps
    least of all that no other is ahead of: what more keeps gains less than the model can tell. Of
    the others those that are not level with one that stands already, managed memory first.
    """
    families: defaultdict[tuple[str, int], list[Option]] = defaultdict(list)
    for option in able:
        if option.basis == MODELLED:
            families[option.family].append(option)
    stand: list[Option] = []
    for group in families.values():
        part = [one for one in group if one.kept_bytes]
        if len({one.kept_bytes for one in part}) > 1:
            lead = [one for one in part if not any(other.ahead_of(one) for other in part)]
            stand.append(min(lead, key=lambda one: (one.kept_bytes, not one.managed)))
        else:
            part = []
        # Where managed memory is as fast, its pages hold nothing up.
        for one in sorted(group, key=lambda option: not option.managed):
            alike = (other for other in stand if other.strategy == one.strategy)
            if one not in part and not any(one.level_with(other) for other in alike):
                stand.append(one)
    return [option for option in able if option.basis == MEASURED or option in stand]


def ranked(able: Sequence[Option]) -> tuple[Option, ...]:
    """In order, with ranks: 1 and how many others are ahead."""
    behind = {o.path: sum(other.ahead_of(o) for other in able) for o in able}
    ordered = sorted(able, key=lambda o: (behind[o.path], o.longest_s))
    return tuple(replace(option, rank=1 + behind[option.path]) for option in ordered)


def distinct_paths(
    question: Question,
    sizes: MinibatchSizes,
    profile: LinkProfile,
    wanted: Container[tuple[str, str]] = (),
) -> Iterator[tuple[Strategy, MinibatchLoad]]:
    """The variants that declare something of their own, with their average minibatch.

    They are each strategy's default, and those that differ from it, or from one that fetches
    further ahead, in one parameter. Those that learn while they fetch are left out. Shares of the
    GPU do not count: they are found when the path is opened; nor do reads in flight at a disk, nor
    page visits on a machine of which nobody knows what they cost. Variants that are ``wanted``
    (strategy, variant) are there in any case, but for those that nobody would train with, or that
    have to know a graph which is not there. Of one GPU nothing is sharded, and what fits in memory
    is not left on a disk.
    """
    told = bool(profile["read.page_visits"].values)
    for kind in STRATEGIES:
        seen: list[MinibatchLoad] = []
        measured = (one for one in variants(kind) if (one.name, one.variant) in wanted)
        for strategy in dict.fromkeys((*_asked_about(kind, sizes), *measured)):
            known = (strategy.name, strategy.variant) in wanted
            if not _possible(strategy, question, sizes):
                continue
            in_memory = "file" in strategy.needs and not off_disk(question, profile)
            if not known and (kind in _SIMULATED or strategy.learns or in_memory):
                continue
            load = average_load(strategy, question, sizes)
            alike = replace(load, gpu_share=0.0, disk_depth=0)
            if not told:
                alike = replace(alike, gpu_page_visits=None, managed_page_visits=None)
            if alike not in seen or known:
                seen.append(alike)
                yield strategy, load


def _possible(strategy: Strategy, question: Question, sizes: MinibatchSizes) -> bool:
    """Whether somebody would train with the path, and what it has to know is there."""
    unknown = sizes.knowledge.missing(strategy.needs - _GIVEN)
    told = not unknown or kept.by_law(strategy, sizes)
    return told and not strategy.aside and (question.world > 1 or not is_sharded(strategy))


def _alike_for_all(strategy: Strategy, load: MinibatchLoad, sizes: MinibatchSizes) -> bool:
    """Whether the path keeps rows, and the ids that it was asked for know no hot ones."""
    keeps = 0 < load.gpu_table_bytes < load.table_bytes
    return keeps and bool(sizes.law) and not kept.by_law(strategy, sizes)


def _asked_about(kind: type[Strategy], sizes: MinibatchSizes) -> Iterable[Strategy]:
    """The default and what fetches further ahead, each with every word of one parameter."""
    if kind is CachedZeroCopy and sizes.asked is not None:
        return kept.from_the_law()
    default = kind()
    ahead = [one for one in representatives(kind) if one.lookahead != default.lookahead]
    return dict.fromkeys(
        replace(one, **{name: word})
        for one in (default, *ahead)
        for name, words in parameters(kind).items()
        for word in words
    ) or (default,)


def _gpu_draws(option: Option, drawing: float, profile: LinkProfile) -> bool:
    """Whether a GPU's draws are timed, and what ``drawing`` takes has room beside the path."""
    room = TABLE_SHARE * (profile["gpu.memory"].value or 0.0)
    return profile["gpu.draw"].value is not None and option.gpu_bytes + drawing <= room


def off_disk(question: Question, profile: LinkProfile) -> bool:
    """Whether paths from a disk are worth a word: a disk was named, or memory is too small."""
    there = profile["host.memory"].value
    graph = 0.0 if question.gpu_samples else graph_bytes(question.graph)
    need = question.graph.table_bytes + graph
    full = there is not None and need > TABLE_SHARE * there
    return full or question.disk_iops is not None


def _assumed(
    question: Question, sizes: Sequence[MinibatchSizes], profile: LinkProfile
) -> Iterator[str]:
    """What is assumed or left out whatever moves the features."""
    yield from question.graph.assumed
    if ranged := profile.ranges():
        names = " and of ".join(f"{key} ({one.source})" for key, one in ranged.items())
        yield f"only a range is known of {names}: epochs go from end to end of it"
    for kind in [kind for kind in STRATEGIES if kind not in _SIMULATED]:
        if missing := sizes[0].knowledge.missing(kind().needs - _GIVEN):
            if kept.by_law(kind(), sizes[0]):
                continue
            what = ", ".join(missing)
            how = "name them in a plan" if "partitions" in missing else "prepare the dataset"
            yield f"{kind.name} is left out: it has to know {what} ({how})"
    for law in question.graph.laws:
        if law not in [one.law for one in sizes]:
            yield f"no graph of the law {law} has so many edges: it is left out"


#: What is measured of managed memory, and where (``results/nvidia-h200``).
MEASURED_MANAGED = 32 << 30


def _notes(able: Sequence[Option], question: Question, profile: LinkProfile) -> Iterator[str]:
    """What nobody should miss of what the epochs rest on."""
    if any(not option.issue_known for option in able):
        least = min(one.error for one in modelled_beside(issue_known=False))
        yield (
            "the profile does not know what a training step takes to issue: without that the model"
            f" of an H200's epochs was up to {-least:.0%} too short"
        )
    beyond = dict.fromkeys(text for option in able for text in option.beyond)
    for text in beyond:
        paths = [o.words for o in able if text in o.beyond]
        yield f"{text} ({paths[0]}{' and others' if len(paths) > 1 else ''})"
    unmeasured = not profile["read.managed_page_visits"].values
    if unmeasured and any(option.managed for option in able):
        size = "; this one is larger" * (question.graph.table_bytes > MEASURED_MANAGED)
        yield (
            "managed memory is modelled as if pages never held its reads up: of rows of 512 B so"
            f" it was on an H200, of tables up to {gib(MEASURED_MANAGED)}{size}; this GPU was not"
            " measured"
        )
    room = question.gpu_memory_bytes or profile["gpu.memory"].value
    if room is not None and question.graph.table_bytes > room and any(o.managed for o in able):
        yield "managed memory that is larger than GPU memory was not measured yet, on no GPU"
    if any(o.strategy == CachedZeroCopy.name for o in able) and question.graph.laws:
        yield (
            "which rows are asked for often follows the law, as if training nodes lay anywhere; of"
            " real graphs a tenth of the rows held 20 to 98 % of the requests (docs/hot-rows.md)"
        )
    placed = lists_placed(question, room)
    if placed is not None and not question.gpu_samples:
        yield placed
    if question.graph.unlike:
        yield f"{question.graph.name}: {question.graph.unlike}"
