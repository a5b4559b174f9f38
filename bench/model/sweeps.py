"""How a prediction changes with one thing: row width, batch size, number of GPUs, the link.

Every table has a row for each strategy and value, with the modelled epoch (the shortest and the
longest over the graph's laws) or the reason why there is none. Nothing here is measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from gatherbench.bench.machine.pcie import packet_link_rate
from gatherbench.bench.model.advise.question import Question, graph_sizes
from gatherbench.bench.model.advise.rank import Advice, Option, advise
from gatherbench.bench.model.profile import LinkProfile

COLUMNS = (
    "sweep", "x", "strategy", "variant", "shortest_s", "longest_s", "bound", "reason", "profile"
)  # fmt: skip

DIMS = (16, 32, 64, 100, 128, 256, 353, 602, 1024)
BATCH_SIZES = (250, 500, 1000, 2000, 4000, 8000)
GPUS = (1, 2, 4, 8)
GENERATIONS = (3, 4, 5)
#: Reads in flight by generation of the link (Min et al., PVLDB 14(11) 2021); none is published for
#: PCIe 5.0.
OUTSTANDING_READS = {3: 256.0, 4: 768.0}
#: Rates this close are one link's, rounded.
_SAME_RATE = 0.01


@dataclass(frozen=True, slots=True)
class Sweep:
    """One thing that is varied."""

    name: str  # of the column ``sweep``
    label: str  # of the axis
    table: pd.DataFrame  # columns :data:`COLUMNS`
    log_x: bool  # whether values are spaced by factors


def row_width(question: Question, profile: LinkProfile, dims: Sequence[int] = DIMS) -> Sweep:
    """Epochs against the elements of a feature row; the table grows with it."""
    sizes = graph_sizes(question)
    asked = {dim: replace(question, graph=replace(question.graph, dim=dim)) for dim in dims}
    points = {dim: advise(one, sizes, profile) for dim, one in asked.items()}
    return _sweep("row_width", f"elements of a row ({question.graph.dtype})", points)


def batch_size(
    question: Question, profile: LinkProfile, values: Sequence[int] = BATCH_SIZES
) -> Sweep:
    """Epochs against the seed nodes of a minibatch."""
    asked = {value: replace(question, batch_size=value) for value in values}
    points = {value: advise(one, graph_sizes(one), profile) for value, one in asked.items()}
    return _sweep("batch_size", "seed nodes of a minibatch", points)


def gpu_count(question: Question, profile: LinkProfile, values: Sequence[int] = GPUS) -> Sweep:
    """Epochs against the GPUs that train; they share processor, host memory and ports."""
    sizes = graph_sizes(question)
    points = {n: advise(replace(question, gpus=n), sizes, profile) for n in values}
    shared = {"host memory": profile["host.memory_rate"], "ports": profile["node.root_ports"]}
    unknown = " or ".join(what for what, constant in shared.items() if constant.value is None)
    label = f"GPUs (as if they shared no {unknown})" if unknown else "GPUs"
    return _sweep("gpu_count", label, points)


def link_generation(
    question: Question, profile: LinkProfile, values: Sequence[int] = GENERATIONS
) -> Sweep:
    """Epochs on the same machine with another generation of PCI Express, x16."""
    sizes = graph_sizes(question)
    points = {n: advise(question, sizes, on_link(profile, n)) for n in values}
    return _sweep("link_generation", "PCI Express generation (x16)", points, log_x=False)


def on_link(profile: LinkProfile, generation: int) -> LinkProfile:
    """The machine with PCI Express of ``generation``, x16: what its own link limited is dropped.

    On the link that it has it is the machine itself, with every limit that is known of it.

    Raises:
        UnknownLinkError: a generation that the link model does not know.
    """
    raw = packet_link_rate(generation)
    own = profile["link.raw_rate"].value
    if own is not None and math.isclose(own, raw, rel_tol=_SAME_RATE):
        return profile
    reads = OUTSTANDING_READS.get(generation)
    unknown = f"not known for this machine on PCIe {generation}.0"
    source = "Min et al., PVLDB 14(11) 2021" if reads else f"not published for PCIe {generation}.0"
    profile = profile.with_constant(
        "link.raw_rate", raw, f"PCIe {generation}.0 x16 after line coding"
    ).with_constant("link.outstanding_reads", reads, source)
    for key in ("copy.to_device", "copy.to_host", "read.roof"):
        profile = profile.with_constant(key, None, unknown)
    return replace(profile, name=f"{profile.name}, PCIe {generation}.0")


def all_sweeps(question: Question, profile: LinkProfile) -> list[Sweep]:
    """Every sweep around one question."""
    return [
        sweep(question, profile) for sweep in (row_width, link_generation, gpu_count, batch_size)
    ]


def _sweep(name: str, label: str, points: Mapping[int, Advice], *, log_x: bool = True) -> Sweep:
    told = {o.path for advice in points.values() for o in (*advice.ranked, *advice.unranked)}
    records = [
        (name, float(x), *_row(option), advice.profile.name)
        for x, advice in points.items()
        for option in (*advice.ranked, *advice.unranked, *advice.others)
        if option.path in told  # what is the best at one place is drawn at all of them
    ]
    return Sweep(name, label, pd.DataFrame(records, columns=list(COLUMNS)), log_x)


def _row(option: Option) -> tuple[str, str, float, float, str, str]:
    """An option that needs more memory than there is has no epoch."""
    there = bool(option.epochs_s) and option.fits is not False
    times = (option.shortest_s, option.longest_s) if there else (float("nan"), float("nan"))
    return option.strategy, option.variant, *times, option.bound, "" if there else option.reason
