"""One way to move the features as an option: how long an epoch takes with it, and what it needs.

The model is fed with what strategies declare of themselves, so a new one is known as soon as it is
registered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from gatherbench.bench.model.advise.kept import by_law, kept_load
from gatherbench.bench.model.advise.memory import (
    HostNeed,
    beside_table,
    gib,
    gpu_need,
    is_sharded,
    pinned_need,
    placement,
    table_need,
)
from gatherbench.bench.model.advise.question import Question
from gatherbench.bench.model.advise.sizes import MinibatchSizes
from gatherbench.bench.model.epoch import EpochPrediction, predict_corners
from gatherbench.bench.model.errors import error_of, modelled_beside, told_apart
from gatherbench.bench.model.estimate import Estimate
from gatherbench.bench.model.load import MinibatchLoad, load_of
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.read.units import quantity
from gatherbench.bench.run.training_cost import gradient_bytes, training_cost
from gatherbench.stats.judge import THRESHOLD
from gatherbench.strategies.aligned_zero_copy import AlignedZeroCopy
from gatherbench.strategies.base import Role, Strategy, parameters
from gatherbench.strategies.data_path import total
from gatherbench.strategies.knowledge import Ranks
from gatherbench.strategies.places import TABLE_SHARE

MODELLED, MEASURED = "modelled", "measured"
#: Epochs within this ratio count as level.
LEVEL = 1 + THRESHOLD


@dataclass(frozen=True, slots=True)
class Option:
    """One way to move the features. Its bytes are about, with the largest minibatches."""

    strategy: str
    variant: str  # with the strategy what rows are known by
    words: str  # strategy and parameters as they are read: ``disk_cached, policy lru, share 50%``
    role: Role
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
    #: 1, and how many others are ahead of it. ``None`` where it has no time.
    rank: int | None = None
    host: HostNeed = field(default_factory=HostNeed)  # of the memory of each machine
    placement: str = ""  # where the table lies, in words
    sharded: bool = False  # each rank holds a part of it, and sends others the rows that they need
    managed: bool = False  # the table lies in managed memory
    cache_bytes: float = 0.0  # of host memory, that keep rows of a table on a disk
    #: Constants that were taken beyond the largest table that they were measured at, in words.
    beyond: tuple[str, ...] = ()
    issue_known: bool = True  # its profile knows what a step takes the host to issue

    @property
    def path(self) -> tuple[str, str]:
        """What rows of it are known by."""
        return self.strategy, self.variant

    @property
    def family(self) -> tuple[str, int]:
        """Shared by variants of which only the best is ranked, see :func:`.rank.best_of_alike`."""
        return self.strategy, self.lookahead

    @property
    def error(self) -> tuple[float, float] | None:
        """The least and the most that the model was off epochs of its like, on a GPU.

        Modelled over measured, less 1; ``None``: it was measured, or its like never was.
        """
        if self.basis == MEASURED:
            return None
        return error_of(*self.family, issue_known=self.issue_known)

    @property
    def shortest_s(self) -> float:
        """Of its epochs; not a number where there is none."""
        return min(self.epochs_s, default=float("nan"))

    @property
    def longest_s(self) -> float:
        """Of its epochs; not a number where there is none."""
        return max(self.epochs_s, default=float("nan"))

    @property
    def safest_s(self) -> float:
        """Its longest epoch, if the model is as far off as it ever was for such paths.

        For paths that were never measured beside it, as far as for any.
        """
        if self.basis == MEASURED:
            return self.longest_s
        every = (one.error for one in modelled_beside(issue_known=self.issue_known))
        low = self.error[0] if self.error else min(every)
        return self.longest_s / (1 + low)

    def ahead_of(self, other: Option) -> bool:
        """Whether its epoch is shorter in every case, by more than may be the model's error."""
        apart = self._apart(other)
        return all(a * apart < b for a, b in zip(self.epochs_s, other.epochs_s, strict=True))

    def level_with(self, other: Option) -> bool:
        """Whether neither epoch is shorter than the other in any case, but for :data:`LEVEL`."""
        pairs = list(zip(self.epochs_s, other.epochs_s, strict=True))
        return all(max(pair) <= LEVEL * min(pair) for pair in pairs)

    def _apart(self, other: Option) -> float:
        """The ratio that two epochs have to differ by. Of one strategy the model errs alike."""
        alike = self.strategy == other.strategy or self.basis == other.basis == MEASURED
        known = self.issue_known and other.issue_known
        return LEVEL if alike else max(LEVEL, told_apart(issue_known=known))


def in_words(strategy: Strategy) -> str:
    """The strategy as it is read: its one parameter, else those that are not the default."""
    words = parameters(type(strategy))
    said = {name: getattr(strategy, name) for name in words}
    if len(said) == 1:
        return f"{strategy.name} {next(iter(said.values()))}"
    others = (f", {n} {value}" for n, value in said.items() if value != words[n][0])
    return strategy.name + "".join(others)


def predict(
    question: Question, load: MinibatchLoad, profile: LinkProfile
) -> tuple[EpochPrediction, ...]:
    """The question's epoch with this load, :func:`drawn`, at each corner of the profile."""
    ranks = {"gpus": question.gpus, "nodes": question.machines}
    load = drawn(load, profile, len(question.fanouts))
    return predict_corners(load, profile, question.batches, **ranks)


def drawn(load: MinibatchLoad, profile: LinkProfile, layers: int) -> MinibatchLoad:
    """The load with what drawing takes a GPU, and at no cost where the profile knows no rate.

    Drawing costs every strategy the same; a remark says how it was taken.
    """
    key = "gpu.draw" if load.gpu_samples else "host.sample_rate"
    known = profile[key]
    if known.value is None:
        said = f"without drawing minibatches, which all share ({key}: {known.source})"
        return replace(load, sample_s=Estimate(0.0).remark(said))
    if not load.gpu_samples:
        return load
    said = (
        f"minibatches drawn on the GPU, which all share ({known.source}); what many more edges take"
        " the GPU was not timed"
    )
    return replace(load, sample_s=Estimate(layers * known.value).remark(said))


def average_load(strategy: Strategy, question: Question, sizes: MinibatchSizes) -> MinibatchLoad:
    """What a strategy's average minibatch asks of a machine: its data path over the sizes' ids.

    Where each rank holds another part of the table, the average over the ranks and their parts; of
    hot rows whose graph is not at hand as its law has it.
    """
    if by_law(strategy, sizes):
        return kept_load(
            strategy,
            average_load(AlignedZeroCopy(memory=strategy.memory), question, sizes),
            question,
            sizes,
        )
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
        gpu_table_bytes=max(
            strategy.kept_bytes(graph.nodes, graph.row_bytes, one) for one in every
        ),
        row_bytes=graph.row_bytes,
        lookahead=strategy.lookahead,
        disk_depth=strategy.disk_depth,
        gpu_share=strategy.gpu_share,
        sampled_edges=sum(sizes.num_edges),
        gpu_samples=question.gpu_samples,
    )


def option_of(
    strategy: Strategy,
    loads: Sequence[MinibatchLoad],
    question: Question,
    sizes: Sequence[MinibatchSizes],
    profile: LinkProfile,
    cache_bytes: float = 0.0,
) -> tuple[Option, tuple[str, ...]]:
    """The strategy as an option, with what its slowest epoch leaves out.

    Args:
        loads: its average minibatch of each of ``sizes``.
        cache_bytes: of host memory, that keep rows of a table on a disk.
    """
    every = [predict(question, load, profile) for load in loads]
    times = [epoch.epoch_s.value for epochs in every for epoch in epochs]
    largest = max(range(len(sizes)), key=lambda i: sizes[i].rows)
    load = loads[largest]
    epoch = max(every[largest], key=lambda one: one.epoch_s.value or 0.0)
    need = gpu_need(load, question, sizes[largest])
    table = table_need(load, question, strategy) + cache_bytes
    host = replace(beside_table(load, question), table=table)
    refused = _refused(need, host, profile)
    if refused:
        reason = refused
    elif epoch.epoch_s.value is None:
        reason = f"Not known: {'; '.join(epoch.epoch_s.unknown)}."
    else:
        reason = _sentence(epoch, -(-question.batches // question.world))
    known = profile["gpu.memory"].value is not None
    option = Option(
        strategy.name,
        strategy.variant,
        in_words(strategy),
        strategy.role,
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
        fits=False if refused else (True if known else None),
        host=host,
        placement=placement(load, question, sharded=is_sharded(strategy)),
        sharded=is_sharded(strategy),
        managed=strategy.managed,
        cache_bytes=cache_bytes,
        beyond=tuple(_beyond(epoch)),
        issue_known=profile["gpu.issue"].value is not None,
    )
    return option, epoch.epoch_s.remarks


def _refused(gpu_bytes: float, host: HostNeed, profile: LinkProfile) -> str:
    """Which memory is not there; empty: nothing is known to be missing."""
    memory, there = profile["gpu.memory"].value, profile["host.memory"].value
    if memory is not None and gpu_bytes > TABLE_SHARE * memory:
        return f"It needs {gib(gpu_bytes)} of GPU memory, and {_of(memory)} may be taken."
    if there is not None and host.total > TABLE_SHARE * there:
        need = f"It needs {gib(host.total)} of host memory ({host.words})"
        return f"{need}, and {_of(there)} may be taken."
    return ""


def _of(memory: float) -> str:
    return f"{TABLE_SHARE:.0%} of {gib(memory)}"


#: What rates that depend on the size of the table are rates of.
_SPANNED = {
    "read.roof": "bytes",
    "read.page_visits": "pages",
    "read.managed_page_visits": "pages of managed memory",
}


def _beyond(epoch: EpochPrediction) -> list[str]:
    """Rates of reads in place that were not measured at a table as large as this one."""
    return [
        f"how many {_SPANNED[key]} a second a GPU reads in place is known of tables up to"
        f" {gib(reach)}: of this one it may be fewer"
        for key, reach in epoch.beyond.items()
    ]


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
