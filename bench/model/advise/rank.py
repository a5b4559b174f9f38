"""Which strategy to take: every data path predicted for one graph, one workload and one machine.

The model is fed with what the strategies declare of themselves, so a new one is known as soon as it
is registered; variants that declare the same are one line. A graph that is not at hand is predicted
under several laws; a path is ahead of another only where it is under each of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from gatherbench.bench.model.advise.question import Question
from gatherbench.bench.model.advise.sizes import MinibatchSizes
from gatherbench.bench.model.epoch import EpochPrediction, predict_corners
from gatherbench.bench.model.errors import error_of
from gatherbench.bench.model.estimate import Estimate
from gatherbench.bench.model.load import MinibatchLoad, load_of
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.read.stats.judge import THRESHOLD
from gatherbench.bench.read.units import quantity
from gatherbench.bench.run.training_cost import gradient_bytes, training_cost
from gatherbench.strategies.base import Strategy, parameters
from gatherbench.strategies.data_path import total
from gatherbench.strategies.disk_cached import DiskCached
from gatherbench.strategies.knowledge import Need, Ranks
from gatherbench.strategies.places import TABLE_SHARE
from gatherbench.strategies.registry import STRATEGIES, representatives, variants

MODELLED, MEASURED = "modelled", "measured"
#: Epochs within this ratio count as level.
LEVEL = 1 + THRESHOLD
_FLOAT, _INDEX = 4, 8
#: What a path may need that is there for any graph: ranks, and the table in a file.
_GIVEN: frozenset[Need] = frozenset({"ranks", "file"})
#: What they keep depends on more minibatches than are at hand here (``caches.py``).
_SIMULATED: tuple[type[Strategy], ...] = (DiskCached,)
#: Buffers of a staged path: the CPU fills one while the copy engine reads the other.
_STAGING_BUFFERS = 2


@dataclass(frozen=True, slots=True)
class Option:
    """One way to move the features. Its bytes are about, with the largest minibatches."""

    strategy: str
    variant: str  # with the strategy what to name in a plan
    summary: str  # of the strategy, one line
    #: Of an epoch with each of the advice's sizes, at each corner of its profile; empty: not known.
    epochs_s: tuple[float, ...]
    basis: str  # ``modelled`` or ``measured``
    source: str  # profile or run that ``epochs_s`` come from
    bound: str  # the limit that the epoch would gain most from
    reason: str  # one sentence: where the time goes, or why there is none
    gpu_bytes: float  # of GPU memory that it needs
    pinned_bytes: float  # of page-locked host memory
    kept_bytes: float  # of the GPU memory, what is kept of the table
    lookahead: int  # minibatches that are fetched ahead of the one in training
    fits: bool | None  # whether GPU and host memory are there; ``None``: not known
    #: From 1: each of a lower rank is ahead of each of a higher one; within a rank not all of that
    #: is decided. ``None`` where it has no time.
    rank: int | None = None
    host_bytes: float = 0.0  # of the host memory of a machine: the table, or what lies there of it
    placement: str = ""  # where the table lies, in words
    sharded: bool = False  # each rank holds a part of it, and sends others the rows that they need
    cache_bytes: float = 0.0  # of host memory, that keep rows of a table on a disk

    @property
    def path(self) -> tuple[str, str]:
        """What the plan's case of it is known by."""
        return self.strategy, self.variant

    @property
    def family(self) -> tuple[str, int]:
        """Shared by variants of which only the best is ranked, see :func:`best_kept`."""
        return self.strategy, self.lookahead

    @property
    def error(self) -> tuple[float, float] | None:
        """How far off the model was epochs of its like (``bench/model/errors.py``).

        ``None``: it was measured, or its like never was beside the model.
        """
        return error_of(*self.family) if self.basis == MODELLED else None

    @property
    def shortest_s(self) -> float:
        """Of its epochs; not a number where there is none."""
        return min(self.epochs_s, default=float("nan"))

    @property
    def longest_s(self) -> float:
        """Of its epochs; not a number where there is none."""
        return max(self.epochs_s, default=float("nan"))

    def ahead_of(self, other: Option) -> bool:
        """Whether its epoch is shorter in every case, by more than :data:`LEVEL`."""
        return all(a * LEVEL < b for a, b in zip(self.epochs_s, other.epochs_s, strict=True))

    def level_with(self, other: Option) -> bool:
        """Whether neither epoch is shorter than the other in any case, but for :data:`LEVEL`."""
        pairs = list(zip(self.epochs_s, other.epochs_s, strict=True))
        return all(max(pair) <= LEVEL * min(pair) for pair in pairs)


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache in the host memory of each machine, in front of its disk; modelled."""

    policy: str  # which rows it keeps
    variant: str  # of ``disk_cached``, as plans name it
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
    ranked: tuple[Option, ...]  # with a time, the fastest first
    unranked: tuple[Option, ...] = ()  # without, each with its reason
    others: tuple[Option, ...] = ()  # in whose place a ranked variant stands, see :func:`best_kept`
    remarks: tuple[str, ...] = ()  # what is assumed or left out
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
        if largest.law and 0 < load.gpu_table_bytes < load.table_bytes:
            remarks[
                "computed minibatches ask for every row alike: those of a graph do not, and a path"
                f" that keeps some rows ({strategy.name}) may bring far fewer (prepare the dataset)"
            ] = None
        options.append(option)
    able = [o for o in options if o.epochs_s and o.fits is not False]
    if {o.basis for o in able} == {MEASURED, MODELLED}:
        remarks["modelled epochs draw minibatches on the processor; measured ones say how"] = None
    best = best_kept(able, question.graph.table_bytes)
    unranked = tuple(o for o in options if o not in able)
    others = tuple(o for o in able if o not in best)
    said = tuple(remarks)
    return Advice(question, tuple(sizes), profile, ranked(best), unranked, others, said)


def best_kept(able: Sequence[Option], table_bytes: float) -> list[Option]:
    """All options, but of the modelled variants that keep a part of the table only the best.

    For each strategy and lookahead that is the variant which keeps least, and of those the first,
    of all that no other one is ahead of: what more keeps gains less than the model can tell.
    """
    rivals: defaultdict[tuple[str, int], list[Option]] = defaultdict(list)
    for option in able:
        if option.basis == MODELLED and 0 < option.kept_bytes < table_bytes:
            rivals[option.family].append(option)
    behind = []
    for group in rivals.values():
        lead = [one for one in group if not any(other.ahead_of(one) for other in group)]
        best = min(lead, key=lambda one: one.kept_bytes)
        behind += [one for one in group if one is not best]
    return [option for option in able if option not in behind]


def ranked(able: Sequence[Option]) -> tuple[Option, ...]:
    """In order, with ranks: a new one begins where all before are ahead of all that follow."""
    behind = {o.path: sum(other.ahead_of(o) for other in able) for o in able}
    ordered = sorted(able, key=lambda o: (behind[o.path], o.longest_s))
    found: list[Option] = []
    rank = 1
    for place, option in enumerate(ordered):
        if all(before.ahead_of(after) for before in ordered[:place] for after in ordered[place:]):
            rank = place + 1
        found.append(replace(option, rank=rank))
    return tuple(found)


def predict(
    question: Question, load: MinibatchLoad, profile: LinkProfile
) -> tuple[EpochPrediction, ...]:
    """The question's epoch with this load, :func:`drawn`, at each corner of the profile."""
    ranks = {"gpus": question.gpus, "nodes": question.machines}
    return predict_corners(drawn(load, profile), profile, question.batches, **ranks)


def drawn(load: MinibatchLoad, profile: LinkProfile) -> MinibatchLoad:
    """The load whose minibatches cost nothing where the profile does not know their rate.

    They cost every strategy the same; a remark says so.
    """
    rate = profile["host.sample_rate"]
    if rate.value is not None:
        return load
    said = f"without drawing minibatches, which all share (host.sample_rate: {rate.source})"
    return replace(load, sample_s=Estimate(0.0).remark(said))


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
    page visits on a machine of which nobody knows what they cost; where only a range is known,
    managed memory, which has none on an H200, is left out. Variants that are ``wanted``
    (strategy, variant) are there in any case, but for those that nobody would train with, or that
    have to know a graph which is not there. Of one GPU nothing is sharded, and what fits in memory
    is not left on a disk.
    """
    told = len(profile["read.page_visits"].values)
    for kind in STRATEGIES:
        seen: list[MinibatchLoad] = []
        measured = (one for one in variants(kind) if (one.name, one.variant) in wanted)
        for strategy in dict.fromkeys((*_asked_about(kind), *measured)):
            known = (strategy.name, strategy.variant) in wanted
            if strategy.managed and told > 1 and not known:
                continue
            if strategy.aside or sizes.knowledge.missing(strategy.needs - _GIVEN):
                continue
            if question.world == 1 and is_sharded(strategy):
                continue
            in_memory = "file" in strategy.needs and not off_disk(question, profile)
            if not known and (kind in _SIMULATED or strategy.learns or in_memory):
                continue
            load = average_load(strategy, question, sizes)
            alike = replace(load, gpu_share=0.0, disk_depth=0)
            alike = alike if told else replace(alike, gpu_page_visits=None)
            if alike not in seen or known:
                seen.append(alike)
                yield strategy, load


def _asked_about(kind: type[Strategy]) -> Iterable[Strategy]:
    """The default and what fetches further ahead, each with every word of one parameter."""
    default = kind()
    ahead = [one for one in representatives(kind) if one.lookahead != default.lookahead]
    return dict.fromkeys(
        replace(one, **{name: word})
        for one in (default, *ahead)
        for name, words in parameters(kind).items()
        for word in words
    ) or (default,)


def is_sharded(strategy: Strategy) -> bool:
    """Whether each rank holds a part of the table of its own, by what the strategy has to know."""
    return "ranks" in strategy.needs


def off_disk(question: Question, profile: LinkProfile) -> bool:
    """Whether paths from a disk are worth a word: a disk was named, or memory is too small."""
    host = profile["host.memory"].value
    full = host is not None and question.graph.table_bytes > host
    return full or question.disk_iops is not None


def average_load(strategy: Strategy, question: Question, sizes: MinibatchSizes) -> MinibatchLoad:
    """What a strategy's average minibatch asks of a machine: its data path over the sizes' ids.

    Where each rank holds another part of the table, the average over the ranks and their parts.
    """
    graph = question.graph
    widths = (graph.dim, question.hidden, graph.classes)
    every = [sizes.knowledge]
    if is_sharded(strategy):
        ranks = (Ranks(rank, question.world, question.gpus) for rank in range(question.world))
        every = [replace(sizes.knowledge, ranks=one) for one in ranks]
    of_table = graph.row_bytes, graph.nodes
    paths = (strategy.data_paths(sizes.ids, *of_table, known, [sizes.seen]) for known in every)
    return load_of(
        total(chain.from_iterable(paths)),
        sizes.rows / sum(ids.numel() for ids in sizes.ids) / len(every),
        training=training_cost(question.model, *widths, sizes.num_nodes, sizes.num_edges),
        gradient_bytes=gradient_bytes(question.model, *widths, len(question.fanouts)),
        table_bytes=graph.table_bytes / len(every),
        gpu_table_bytes=max(strategy.gpu_table_bytes(graph.table_bytes, one) for one in every),
        row_bytes=graph.row_bytes,
        lookahead=strategy.lookahead,
        disk_depth=strategy.disk_depth,
        gpu_share=strategy.gpu_share,
        sampled_edges=sum(sizes.num_edges),
    )


def gpu_need(load: MinibatchLoad, question: Question, sizes: MinibatchSizes) -> float:
    """Bytes of GPU memory, about: what is kept there of the table, rows in flight, and training.

    Rows that other ranks send, and as many that they get, have buffers of their own.
    Training holds the rows as float32 and, as PyG computes it, a message for each edge of the
    widest layer, forward and backward.
    """
    wide = question.graph.dim * _FLOAT
    training = sizes.rows * wide + 2 * sizes.num_edges[-1] * wide
    edges = sum(sizes.num_edges) * 2 * _INDEX
    rows = (load.lookahead + 1) * load.payload_bytes + 2 * load.sent_bytes
    return training + edges + rows + load.gpu_table_bytes


def host_need(load: MinibatchLoad, question: Question, *, sharded: bool) -> float:
    """Bytes of host memory of each machine: the table, or the parts that its ranks hold there.

    What lies in GPU memory is read from the disk when the path opens and needs none, nor does what
    stays on the disk.
    """
    if load.disk_payload_bytes or not _in_host(load, sharded=sharded):
        return 0.0
    return load.table_bytes * (question.gpus if sharded else 1)


def placement(load: MinibatchLoad, question: Question, *, sharded: bool) -> str:
    """Where the table lies, in words."""
    if load.disk_payload_bytes:
        return "on the disk"
    in_host = _in_host(load, sharded=sharded)
    kept = load.gpu_table_bytes - (0.0 if in_host else load.table_bytes)
    hot = ", hot rows in GPU memory" if kept > question.graph.row_bytes else ""
    if sharded:
        where = "host" if in_host else "GPU"
        return f"sharded over {question.world} ranks in {where} memory{hot}"
    return f"replicated host table{hot}" if in_host else "replicated in GPU memory"


def _in_host(load: MinibatchLoad, *, sharded: bool) -> bool:
    """Of a table in memory: whether it, or a rank's part of it, is in that of the host."""
    return load.brought_bytes > 0 if sharded else not table_on_gpu(load)


def table_on_gpu(load: MinibatchLoad) -> bool:
    """Whether the whole table, or all of it that this rank holds, lies in GPU memory."""
    return load.gpu_table_bytes >= load.table_bytes


def pinned_need(load: MinibatchLoad) -> float:
    """Bytes of page-locked host memory: the table that is read in place, and staging buffers.

    torch rounds page-locked allocations up to a power of two.
    """
    table = load.table_bytes if load.gpu_link_read_bytes else 0.0
    if not load.cpu_write_bytes or load.pageable_bytes:
        return table
    return table + _STAGING_BUFFERS * (1 << (int(load.cpu_write_bytes) - 1).bit_length())


def gib(num_bytes: float) -> str:
    """Bytes as GiB or MiB."""
    if num_bytes < 1 << 30:
        return f"{num_bytes / (1 << 20):.3g} MiB"
    size = num_bytes / (1 << 30)
    return f"{size:,.0f} GiB" if size >= 1e3 else f"{size:.3g} GiB"


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
            what = ", ".join(missing)
            how = "name them in a plan" if "partitions" in missing else "prepare the dataset"
            yield f"{kind.name} is left out: it has to know {what} ({how})"
    for law in question.graph.laws:
        if law not in [one.law for one in sizes]:
            yield f"no graph of the law {law} has so many edges: it is left out"


def option_of(
    strategy: Strategy,
    loads: Sequence[MinibatchLoad],
    question: Question,
    sizes: Sequence[MinibatchSizes],
    profile: LinkProfile,
) -> tuple[Option, tuple[str, ...]]:
    """The strategy as an option, with what its slowest epoch leaves out.

    Args:
        loads: its average minibatch of each of ``sizes``.
    """
    every = [predict(question, load, profile) for load in loads]
    times = [epoch.epoch_s.value for epochs in every for epoch in epochs]
    largest = max(range(len(sizes)), key=lambda i: sizes[i].rows)
    load = loads[largest]
    epoch = max(every[largest], key=lambda one: one.epoch_s.value or 0.0)
    memory, host = profile["gpu.memory"].value, profile["host.memory"].value
    sharded = is_sharded(strategy)
    need = gpu_need(load, question, sizes[largest])
    host_bytes = host_need(load, question, sharded=sharded)
    if strategy.managed and not sharded:  # processes cannot share it
        host_bytes *= question.gpus
    placed = placement(load, question, sharded=sharded)
    fits = None if memory is None else need <= TABLE_SHARE * memory
    if fits is False:
        reason = f"It needs {gib(need)} of GPU memory, and {gib(memory or 0)} are there."
    elif host is not None and host_bytes > host:
        fits = False
        what = f"{placed[0].upper()}{placed[1:]}"
        reason = f"{what}: {gib(host_bytes)} of host memory a machine, and {gib(host)} are there."
    elif epoch.epoch_s.value is None:
        reason = f"Not known: {'; '.join(epoch.epoch_s.unknown)}."
    else:
        reason = _sentence(epoch, -(-question.batches // question.world))
    option = Option(
        strategy.name,
        strategy.variant,
        strategy.summary,
        epochs_s=() if None in times else tuple(seconds or 0.0 for seconds in times),
        basis=MODELLED,
        source=f"link model, profile {profile.name}",
        bound=epoch.bound,
        reason=reason,
        gpu_bytes=need,
        pinned_bytes=0.0 if strategy.managed else pinned_need(load),
        kept_bytes=load.gpu_table_bytes,
        lookahead=load.lookahead,
        fits=fits,
        host_bytes=host_bytes,
        placement=placed,
        sharded=sharded,
    )
    return option, epoch.epoch_s.remarks


#: What the parts of a minibatch are called in a sentence.
_WORDS = {
    "sample": "drawing minibatches",
    "disk": "reading the disk",
    "gather": "the CPU's gather",
    "transfer": "the transfer over the link",
    "exchange": "the exchange of rows between ranks",
    "expand": "reading rows in GPU memory",
    "train": "training",
    "all_reduce": "averaging gradients",
}


def _sentence(epoch: EpochPrediction, batches: int) -> str:
    """Where the time of an epoch goes: its two longest parts, and whether one hides the other."""
    alone = {name: batches * seconds for name, seconds in epoch.at_once_s.items()}
    longest, *others = sorted(alone, key=lambda n: -alone[n])
    words, bound = _WORDS[longest], epoch.parts[longest].bound
    said = f"{words[0].upper()}{words[1:]} takes {quantity(alone[longest], 's')}"
    said += f" of {quantity(epoch.epoch_s.value, 's')}, bound by {bound}"
    if not others or not alone[others[0]]:
        return f"{said}."
    felt = min(epoch.exposed[longest], epoch.exposed[others[0]])
    how = "partly beside it"
    if not 0.1 < felt < 0.9:
        how = "beside it" if felt <= 0.1 else "at another time"
    return f"{said}; {_WORDS[others[0]]} takes {quantity(alone[others[0]], 's')}, {how}."
