"""Which strategy to take: every data path predicted for one graph, one workload and one machine.

The model is fed with what the strategies declare of themselves (``loads.py``). Variants that
declare the same are one line. A graph that is not at hand is predicted under several laws; a path
is ahead of another only where it is under each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from gatherbench.bench.model.advise.loads import (
    distinct_paths,
    gpu_need,
    keeps_some,
    load_of,
    pinned_need,
    table_on_gpu,
)
from gatherbench.bench.model.advise.question import Question
from gatherbench.bench.model.advise.sizes import MinibatchSizes
from gatherbench.bench.model.epoch import EpochPrediction, predict_corners
from gatherbench.bench.model.estimate import Estimate
from gatherbench.bench.model.minibatch_load import MinibatchLoad
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.strategies.base import Strategy
from gatherbench.strategies.places import TABLE_SHARE

MODELLED, MEASURED = "modelled", "measured"
#: Epochs within this ratio count as level: the model is off by more.
LEVEL = 1.01


@dataclass(frozen=True, slots=True)
class Option:
    """One way to move the features.

    Attributes:
        strategy, variant: what to name in a plan.
        summary: of the strategy, one line.
        epochs_s: wall time of an epoch with each of the advice's sizes, at each corner of its
            profile; empty where it cannot be had.
        basis: ``modelled`` or ``measured``.
        source: profile or run that ``epochs_s`` come from.
        bound: the limit that the epoch would gain most from.
        reason: one sentence: where the time goes, or why there is none.
        gpu_bytes: of GPU memory that it needs, about, with the largest minibatches.
        pinned_bytes: of page-locked host memory.
        fits: whether ``gpu_bytes`` are there; ``None`` where the GPU's memory is not known.
        rank: from 1; ``None`` where it has none. Each of a lower rank is ahead of each of a higher
            one; within a rank not all of that is decided.
    """

    strategy: str
    variant: str
    summary: str
    epochs_s: tuple[float, ...]
    basis: str
    source: str
    bound: str
    reason: str
    gpu_bytes: float
    pinned_bytes: float
    fits: bool | None
    rank: int | None = None

    @property
    def path(self) -> tuple[str, str]:
        """What the plan's case of it is known by."""
        return self.strategy, self.variant

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
class Advice:
    """The answer.

    Attributes:
        question: what was asked.
        sizes: its average minibatch; one for each law where the graph is not at hand.
        profile: the machine that the model stands on.
        headline: what to do, in a sentence or two.
        ranked: options with a time, the fastest first.
        unranked: options without one, each with its reason.
        table_fits: whether the feature table fits in the GPU's memory; ``None``: not known.
        remarks: what is assumed or left out.
    """

    question: Question
    sizes: tuple[MinibatchSizes, ...]
    profile: LinkProfile
    headline: str
    ranked: tuple[Option, ...]
    unranked: tuple[Option, ...]
    table_fits: bool | None
    remarks: tuple[str, ...] = field(default=())


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
    if question.gpu_memory_bytes:
        asked = float(question.gpu_memory_bytes)
        profile = profile.with_constant("gpu.memory", asked, "given with the question")
    memory = profile.gpu.memory.value
    options: list[Option] = []
    on_gpu: tuple[str, str] | None = None
    remarks = dict.fromkeys(question.graph.assumed)
    there = profile.node.gpus.value
    if there is not None and question.gpus > there:
        remarks[f"{question.gpus} GPUs in a machine that is known with {there:g}"] = None
    if ranged := profile.ranges():
        names = " and of ".join(ranged)
        remarks[f"of {names} the profile knows a range: epochs go from end to end of it"] = None
    for law in question.graph.laws:
        if law not in [one.law for one in sizes]:
            remarks[f"no graph of the law {law} has so many edges: it is left out"] = None
    known = measured or {}
    largest = max(sizes, key=lambda one: one.rows)
    for strategy, load in distinct_paths(question, largest, profile, known):
        mine = predict(question, load, profile)
        epoch = max(mine, key=lambda one: one.epoch_s.value or 0.0)
        epochs = [
            corner
            for one in sizes
            for corner in (
                mine
                if one is largest
                else predict(question, load_of(strategy, question, one), profile)
            )
        ]
        option = _option(strategy, load, epoch, question, largest, profile, memory)
        times = tuple(one.epoch_s.value for one in epochs)
        option = replace(option, epochs_s=times if _all_known(times) else ())
        seen = known.get((strategy.name, strategy.variant))
        if seen is not None:
            every = (seen[0],) * len(epochs)
            option = replace(option, epochs_s=every, basis=MEASURED, source=seen[1])
            if not question.gpu_memory_bytes:  # it ran on the very GPU that is asked about
                option = replace(option, fits=True)
        if option.fits is not False:
            remarks.update(dict.fromkeys(epoch.epoch_s.remarks))
        if largest.law and keeps_some(load):
            remarks[
                "computed minibatches ask for every row alike: those of a graph do not, and a path"
                f" that keeps some rows ({strategy.name}) may bring far fewer (prepare the dataset)"
            ] = None
        options.append(option)
        if table_on_gpu(load) and on_gpu is None:
            on_gpu = option.path
    able = [o for o in options if o.epochs_s and o.fits is not False]
    if {o.basis for o in able} == {MEASURED, MODELLED}:
        remarks["modelled epochs draw minibatches on the processor; measured ones say how"] = None
    unranked = tuple(o for o in options if o not in able)
    placed = ranked(able)
    resident = next((o for o in (*placed, *unranked) if o.path == on_gpu), None)
    headline = what_to_do(question, placed, unranked, resident, memory)
    fits = resident.fits if resident is not None else None
    every_size = tuple(sizes)
    return Advice(question, every_size, profile, headline, placed, unranked, fits, tuple(remarks))


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


def _all_known(times: tuple[float | None, ...]) -> TypeGuard[tuple[float, ...]]:
    return None not in times


def predict(
    question: Question, load: MinibatchLoad, profile: LinkProfile
) -> tuple[EpochPrediction, ...]:
    """The question's epoch with this load, at each corner of the profile.

    Where the profile does not know how fast minibatches are drawn they cost nothing, for they cost
    every strategy the same; a remark says so.
    """
    rate = profile.host.sample_rate
    if rate.value is None:
        free = Estimate(0.0).remark(
            f"without drawing minibatches, which all share (host.sample_rate: {rate.source})"
        )
        load = replace(load, sample_s=free)
    return predict_corners(
        load, profile, question.batches, gpus=question.gpus, nodes=question.machines
    )


def _option(
    strategy: Strategy,
    load: MinibatchLoad,
    epoch: EpochPrediction,
    question: Question,
    sizes: MinibatchSizes,
    profile: LinkProfile,
    memory: float | None,
) -> Option:
    need = gpu_need(load, question, sizes)
    fits = None if memory is None else need <= TABLE_SHARE * memory
    if fits is False:
        reason = f"It needs {gib(need)} of GPU memory, and {gib(memory or 0)} are there."
    elif epoch.epoch_s.value is None:
        reason = f"Not known: {'; '.join(epoch.epoch_s.unknown)}."
    else:
        reason = _sentence(epoch, -(-question.batches // (question.gpus * question.machines)))
    return Option(
        strategy.name,
        strategy.variant,
        strategy.summary,
        (),
        MODELLED,
        f"link model, profile {profile.name}",
        epoch.bound,
        reason,
        need,
        pinned_need(load),
        fits,
    )


#: What the parts of a minibatch are called in a sentence.
_WORDS = {
    "sample": "drawing minibatches",
    "gather": "the CPU's gather",
    "transfer": "the transfer over the link",
    "expand": "reading rows in GPU memory",
    "train": "training",
}


def _sentence(epoch: EpochPrediction, batches: int) -> str:
    """Where the time of an epoch goes: its two longest parts, and whether one hides the other."""
    alone = {n: batches * (p.seconds.value or 0.0) for n, p in epoch.parts.items()}
    longest, *others = sorted(alone, key=lambda n: -alone[n])
    total = epoch.epoch_s.value or 0.0
    words, bound = _WORDS[longest], epoch.parts[longest].bound
    said = f"{words[0].upper()}{words[1:]} takes {seconds(alone[longest])} of {seconds(total)}"
    said += f", bound by {bound}"
    if not others or not alone[others[0]]:
        return f"{said}."
    felt = min(epoch.exposed[longest], epoch.exposed[others[0]])
    how = "partly beside it"
    if not 0.1 < felt < 0.9:
        how = "beside it" if felt <= 0.1 else "at another time"
    return f"{said}; {_WORDS[others[0]]} takes {seconds(alone[others[0]])}, {how}."


def what_to_do(
    question: Question,
    ranked: Sequence[Option],
    unranked: Sequence[Option],
    resident: Option | None,
    memory: float | None,
) -> str:
    """What to do. ``resident`` is the option that keeps the table in GPU memory."""
    table = f"The feature table takes {gib(question.graph.table_bytes)}"
    if resident is not None and resident.fits:
        said = (
            f"{table} and fits in the GPU's {gib(memory or 0)}: keep it there ({resident.strategy})"
            " and none of the other paths matters."
        )
        first = ranked[0] if ranked else resident
        modelled = first.basis == resident.basis == MODELLED
        if modelled and resident.epochs_s and first.ahead_of(resident):
            ahead = max(a / b for a, b in zip(resident.epochs_s, first.epochs_s, strict=True)) - 1
            said += f" {first.strategy} is {ahead:.1%} shorter, as it fetches during training."
        return said
    if resident is not None and resident.fits is None:
        table += ", and how much memory the GPU has is not known (say --gpu-memory)"
    else:
        table += f" and does not fit in the GPU's {gib(memory or 0)}"
    if not ranked and all(option.fits is False for option in unranked):
        return f"{table}; nor do the minibatches of any path: make them smaller."
    if not ranked:
        return (
            f"{table}. Nothing can be ranked: the profile lacks what every path needs"
            " (gatherbench calibrate --base NAME takes it from another)."
        )
    best = ranked[0]
    lead = [option for option in ranked if not any(other.ahead_of(option) for other in ranked)]
    if not all(option.level_with(best) for option in lead):
        names = ", ".join(f"{option.strategy} ({option.variant})" for option in lead)
        return (
            f"{table}. Which path is the fastest is not decided: none is ahead in every case of"
            f" {names}."
        )
    said = f"{table}. Take {best.strategy} ({best.variant}): {span(best.epochs_s)} an epoch"
    said += f" ({best.basis})"
    hint = ""
    seen = next((o for o in ranked if o.basis == MEASURED), best)
    if seen.basis != best.basis:
        hint = (
            f" The fastest that was measured is {seen.strategy} ({seen.variant}):"
            f" {span(seen.epochs_s)}. Measure the prediction before you rely on it."
        )
    # A prediction may lack a limit that a measurement has met: they are not set against each other.
    ranked = [o for o in ranked if o.basis == best.basis]
    slowest = ranked[-1]
    if slowest is best:
        return f"{said}.{hint}"
    times = [a / b for a, b in zip(slowest.epochs_s, best.epochs_s, strict=True)]
    often = " to ".join(dict.fromkeys(f"{ratio:.1f}" for ratio in (min(times), max(times))))
    said += f", {often} times as fast as {slowest.strategy} ({slowest.variant})."
    level = [option for option in lead if option.basis == best.basis]
    lean = min(level, key=lambda option: option.pinned_bytes)
    if lean.pinned_bytes < best.pinned_bytes:
        said += (
            f" {lean.strategy} ({lean.variant}) is level with it and pins"
            f" {gib(lean.pinned_bytes)} in place of {gib(best.pinned_bytes)}."
        )
    if best.basis == MODELLED and best.bound.endswith("(sampling)"):
        said += " Drawing minibatches is then what bounds it: a faster sampler would help most."
    return said + hint


def span(times: Sequence[float]) -> str:
    """Seconds, or between which seconds."""
    low, high = seconds(min(times)), seconds(max(times))
    return low if low == high else f"between {low} and {high}"


def gib(num_bytes: float) -> str:
    """Bytes as GiB or MiB."""
    if num_bytes < 1 << 30:
        return f"{num_bytes / (1 << 20):.3g} MiB"
    return f"{num_bytes / (1 << 30):.3g} GiB"


def seconds(value: float) -> str:
    """Seconds with three digits and a unit that suits."""
    if value >= 1000:
        return f"{value:,.0f} s"
    if value >= 1 or value == 0:
        return f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"
