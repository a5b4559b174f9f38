"""Which strategy to take: every data path predicted for one graph, one workload and one machine.

The model is fed with what the strategies declare of themselves (``DataPath``, lookahead, share of
the GPU), so a new strategy is advised on as soon as it is registered. Variants that declare the
same are one line.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gatherbench.bench.linkmodel.advise_question import Question
from gatherbench.bench.linkmodel.advise_sizes import MinibatchSizes
from gatherbench.bench.linkmodel.compute import training_cost, widths_of
from gatherbench.bench.linkmodel.epoch import EpochPrediction, predict_batches
from gatherbench.bench.linkmodel.estimate import Estimate
from gatherbench.bench.linkmodel.load import MinibatchLoad
from gatherbench.bench.linkmodel.profile import LinkProfile
from gatherbench.strategies.all_in_gpu import TABLE_SHARE
from gatherbench.strategies.base import Strategy
from gatherbench.strategies.registry import STRATEGIES, variants

#: Heads of GAT's hidden layers; ``bench/models.py`` has the same, but loads PyG.
GAT_HEADS = 4
_FLOAT, _INDEX = 4, 8
#: Buffers of a staged path: the CPU fills one while the copy engine reads the other.
_STAGING_BUFFERS = 2

MODELLED, MEASURED = "modelled", "measured"


@dataclass(frozen=True, slots=True)
class Option:
    """One way to move the features.

    Attributes:
        strategy, variant: what to name in a plan.
        summary: of the strategy, one line.
        epoch_s: wall time of an epoch; ``None`` where it cannot be had.
        basis: ``modelled`` or ``measured``.
        source: profile or run that ``epoch_s`` comes from.
        bound: the limit that the epoch would gain most from.
        reason: one sentence: where the time goes, or why there is none.
        gpu_bytes: of GPU memory that it needs, about.
        pinned_bytes: of page-locked host memory.
        fits: whether ``gpu_bytes`` are there; ``None`` where the GPU's memory is not known.
    """

    strategy: str
    variant: str
    summary: str
    epoch_s: float | None
    basis: str
    source: str
    bound: str
    reason: str
    gpu_bytes: float
    pinned_bytes: float
    fits: bool | None


@dataclass(frozen=True, slots=True)
class Advice:
    """The answer.

    Attributes:
        question, sizes: what was asked, and its average minibatch.
        profile: the machine that the model stands on.
        headline: what to do, in a sentence or two.
        ranked: options with a time, the fastest first.
        unranked: options without one, each with its reason.
        table_fits: whether the feature table fits in the GPU's memory; ``None``: not known.
        remarks: what is assumed or left out.
    """

    question: Question
    sizes: MinibatchSizes
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
    sizes: MinibatchSizes,
    profile: LinkProfile,
    measured: Measurements | None = None,
) -> Advice:
    """Rank every strategy; ``measured`` epochs of this very question take the model's place."""
    if question.gpu_memory_bytes:
        asked = float(question.gpu_memory_bytes)
        profile = profile.with_constant("gpu.memory", asked, "given with the question")
    memory = profile.gpu.memory.value
    options: list[Option] = []
    resident: Option | None = None
    remarks = dict.fromkeys(question.graph.assumed)
    known = measured or {}
    for strategy, load in distinct_paths(question, sizes, known):
        epoch = predict(question, load, profile)
        option = _option(strategy, load, epoch, question, sizes, profile, memory)
        seen = known.get((strategy.name, strategy.variant))
        if seen is not None:
            option = replace(option, epoch_s=seen[0], basis=MEASURED, source=seen[1], fits=True)
        if option.fits is not False:
            remarks.update(dict.fromkeys(epoch.epoch_s.remarks))
        options.append(option)
        if table_on_gpu(load) and resident is None:
            resident = option
    able = [o for o in options if o.epoch_s is not None and o.fits is not False]
    ranked = tuple(sorted(able, key=lambda o: o.epoch_s or 0.0))
    unranked = tuple(o for o in options if o not in able)
    headline = _headline(question, ranked, resident, memory)
    fits = resident.fits if resident is not None else None
    return Advice(question, sizes, profile, headline, ranked, unranked, fits, tuple(remarks))


def predict(question: Question, load: MinibatchLoad, profile: LinkProfile) -> EpochPrediction:
    """The question's epoch with this load.

    Where the profile does not know how fast minibatches are drawn they cost nothing, with a remark:
    they cost every strategy the same.
    """
    rate = profile.host.sample_rate
    if rate.value is None:
        free = Estimate(0.0).remark(
            f"without drawing minibatches, which all share (host.sample_rate: {rate.source})"
        )
        load = replace(load, sample_s=free)
    return predict_batches(load, profile, question.batches, gpus=question.gpus)


def distinct_paths(
    question: Question, sizes: MinibatchSizes, wanted: Container[tuple[str, str]] = ()
) -> Iterator[tuple[Strategy, MinibatchLoad]]:
    """Every registered variant that declares something of its own, with what it asks of a machine.

    Shares of the GPU do not count: they are found when the path is opened. Variants that are
    ``wanted`` (strategy, variant) are there in any case.
    """
    for kind in STRATEGIES:
        seen: list[MinibatchLoad] = []
        for strategy in variants(kind):
            load = load_of(strategy, question, sizes)
            alike = replace(load, gpu_share=0.0)
            if alike not in seen or (strategy.name, strategy.variant) in wanted:
                seen.append(alike)
                yield strategy, load


def load_of(strategy: Strategy, question: Question, sizes: MinibatchSizes) -> MinibatchLoad:
    """The average minibatch of a strategy, from its data path over the sizes' ids."""
    graph = question.graph
    paths = [strategy.data_path(ids, graph.row_bytes) for ids in sizes.ids]
    each = sizes.rows / sum(ids.numel() for ids in sizes.ids)

    def mean(name: str) -> float:
        return each * float(sum(getattr(path, name) for path in paths))

    requests: dict[int, float] | None = {}
    for path in paths:
        if path.gpu_requests is None or requests is None:
            requests = None
            continue
        for size, count in path.gpu_requests.items():
            requests[size] = requests.get(size, 0.0) + each * count
    layers = len(question.fanouts)
    widths = widths_of(question.model, graph.dim, question.hidden, layers, graph.classes, GAT_HEADS)
    cost = training_cost(question.model, widths, sizes.num_nodes, sizes.num_edges, GAT_HEADS)
    return MinibatchLoad(
        payload_bytes=mean("payload_bytes"),
        cpu_read_bytes=mean("cpu_read_bytes"),
        cpu_write_bytes=mean("cpu_write_bytes"),
        copy_engine_bytes=mean("copy_engine_bytes"),
        pageable_bytes=mean("pageable_bytes"),
        gpu_link_read_bytes=mean("gpu_link_read_bytes"),
        gpu_requests=requests,
        table_bytes=graph.table_bytes,
        row_bytes=graph.row_bytes,
        lookahead=strategy.lookahead,
        gpu_share=strategy.gpu_share,
        sampled_edges=sum(sizes.num_edges),
        train_operations=cost.operations,
        train_bytes=cost.memory_bytes,
        train_launches=cost.launches,
        structure_bytes=cost.structure_bytes,
    )


def gpu_need(load: MinibatchLoad, question: Question, sizes: MinibatchSizes) -> float:
    """Bytes of GPU memory, about: the table where it lies there, rows in flight, and training.

    Training holds the rows as float32 and, as PyG computes it, a message for each edge of the
    widest layer, forward and backward.
    """
    wide = question.graph.dim * _FLOAT
    training = sizes.rows * wide + 2 * sizes.num_edges[-1] * wide
    edges = sum(sizes.num_edges) * 2 * _INDEX
    rows = (load.lookahead + 1) * load.payload_bytes
    return training + edges + rows + (load.table_bytes if table_on_gpu(load) else 0.0)


def table_on_gpu(load: MinibatchLoad) -> bool:
    """Whether nobody brings the rows: they must lie in GPU memory."""
    return load.payload_bytes > 0 and not (load.gpu_link_read_bytes or load.cpu_write_bytes)


def pinned_need(load: MinibatchLoad) -> float:
    """Bytes of page-locked host memory: the table that is read in place, or staging buffers.

    torch rounds page-locked allocations up to a power of two.
    """
    if load.gpu_link_read_bytes:
        return load.table_bytes
    if not load.cpu_write_bytes or load.pageable_bytes:
        return 0.0
    return float(_STAGING_BUFFERS * (1 << (int(load.payload_bytes) - 1).bit_length()))


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
        reason = _sentence(epoch, -(-question.batches // question.gpus))
    return Option(
        strategy.name,
        strategy.variant,
        strategy.summary,
        epoch.epoch_s.value,
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
    """Where the time of an epoch goes: its two longest parts, and whether they overlap."""
    alone = {n: batches * (p.seconds.value or 0.0) for n, p in epoch.parts.items()}
    longest, *others = sorted(alone, key=lambda n: -alone[n])
    total = epoch.epoch_s.value or 0.0
    words, bound = _WORDS[longest], epoch.parts[longest].bound
    said = f"{words[0].upper()}{words[1:]} takes {seconds(alone[longest])} of {seconds(total)}"
    said += f", bound by {bound}"
    if not others or not alone[others[0]]:
        return f"{said}."
    beside = total < 0.98 * (alone[longest] + alone[others[0]])
    how = "beside it" if beside else "at another time"
    return f"{said}; {_WORDS[others[0]]} takes {seconds(alone[others[0]])}, {how}."


def _headline(
    question: Question, ranked: Sequence[Option], resident: Option | None, memory: float | None
) -> str:
    """What to do. ``resident`` is the option that keeps the table in GPU memory."""
    table = f"The feature table takes {gib(question.graph.table_bytes)}"
    if resident is not None and resident.fits:
        return (
            f"{table} and fits in the GPU's {gib(memory or 0)}: keep it there ({resident.strategy})"
            " and none of the other paths matters."
        )
    if resident is not None and resident.fits is None:
        table += ", and how much memory the GPU has is not known (say --gpu-memory)"
    else:
        table += f" and does not fit in the GPU's {gib(memory or 0)}"
    if not ranked:
        return f"{table}. Nothing can be ranked: the profile lacks what every path needs."
    best = ranked[0]
    said = f"{table}. Take {best.strategy} ({best.variant}): {seconds(best.epoch_s or 0)} an epoch"
    slowest = ranked[-1]
    if slowest is best:
        return f"{said}."
    times = (slowest.epoch_s or 0.0) / (best.epoch_s or 1.0)
    return f"{said}, {times:.1f} times as fast as {slowest.strategy} ({slowest.variant})."


def gib(num_bytes: float) -> str:
    """Bytes as GiB or MiB."""
    if num_bytes < 1 << 30:
        return f"{num_bytes / (1 << 20):.3g} MiB"
    return f"{num_bytes / (1 << 30):.3g} GiB"


def seconds(value: float) -> str:
    """Seconds with three digits and a unit that suits."""
    if value >= 1 or value == 0:
        return f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"
