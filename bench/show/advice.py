"""Advice for a reader, and as JSON for a program.

A reader is told three things first: what to take, how much faster than the usual way that is, and
how sure. Then comes the table. Where the time goes and what was assumed is told to who asks why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gatherbench.bench.model.advise.memory import gib
from gatherbench.bench.model.advise.option import LEVEL, MEASURED, MODELLED, Option
from gatherbench.bench.model.advise.rank import Advice
from gatherbench.bench.model.errors import SHARE, told_apart
from gatherbench.bench.read.units import listed, span
from gatherbench.strategies.places import TABLE_SHARE

#: Of the JSON: raised when a field changes its meaning or goes away.
SCHEMA_VERSION = 3


def recommendation(advice: Advice) -> tuple[str, ...]:
    """What to take, how much faster than the usual way that is, and how sure; or why nothing."""
    take = advice.take
    if take is None:
        return (_nothing(advice),)
    where = f" ({take.placement})" if advice.question.world > 1 else ""
    if take.path == getattr(advice.resident, "path", None):
        where = f" (the table takes {gib(advice.question.graph.table_bytes)} and fits there)"
    lines = (
        f"Take {take.words}{where}: {_times(take)} an epoch, {take.basis}.",
        _against_usual(advice, take),
        f"How sure: {_sure(advice, take)}.",
    )
    return lines


def _against_usual(advice: Advice, take: Option) -> str:
    """How much faster than the CPU's gather into pinned memory."""
    usual = advice.usual
    if usual is None or not usual.epochs_s:
        return "How much faster than the usual way, cpu_gather pinned, is not known."
    if usual.path == take.path:
        return "That is the usual way itself: nothing is known to be faster here."
    if usual.fits is False:
        return f"The usual way, {usual.words}, does not fit into memory: see below."
    if usual.basis != take.basis:
        return (
            f"The usual way, {usual.words}, takes {_times(usual)} ({usual.basis}): a modelled epoch"
            " and a measured one give no ratio."
        )
    ratios = [a / b for a, b in zip(usual.epochs_s, take.epochs_s, strict=True)]
    often = " to ".join(dict.fromkeys(f"{ratio:.1f}" for ratio in (min(ratios), max(ratios))))
    return f"That is {often} times as fast as the usual way, {usual.words} ({_times(usual)})."


def _sure(advice: Advice, take: Option) -> str:
    """What the answer rests on, how far such answers were off, and what it is not told from."""
    if take.basis == MEASURED:
        said = [f"measured here, {take.source}"]
    else:
        default = " (default)" * bool(advice.default)
        said = [_off(take), f"profile {advice.profile.name}{default}"]
    if tied := [o for o in advice.lead if o.path != take.path]:
        said.append(f"{len(tied)} as good")
    return "; ".join(said)


def _off(option: Option) -> str:
    """How far the model was off for such paths, where epochs were measured beside it."""
    if option.error is None:
        return "no epoch of such a path was ever measured beside the model"
    low, high = option.error
    return f"modelled epochs of such paths were {low:+.0%} to {high:+.0%} off on an H200"


def _nothing(advice: Advice) -> str:
    """Why nothing is ranked, and what to do."""
    if all(option.fits is False for option in advice.unranked):
        if advice.question.graph.table_bytes > (advice.profile["host.memory"].value or 0.0) > 0:
            return _larger(advice)
        if advice.question.gpu_samples:
            return "Nothing fits beside the graph, from which the GPU draws: leave --sampler out."
        return "Nothing fits, not even the minibatches of any path: make them smaller."
    if _too_large(advice):
        return _larger(advice)
    return (
        "Nothing can be ranked: the profile lacks what every path needs"
        " (gatherbench calibrate --base NAME takes it from another)."
    )


def _larger(advice: Advice) -> str:
    host = gib(advice.profile["host.memory"].value or 0.0)
    return (
        f"The table does not fit into the {host} of a host: take more machines, or a disk, whose"
        " speed nobody knows yet: measure it (gatherbench calibrate) or say it (--disk"
        " IOPS,BANDWIDTH)."
    )


def _too_large(advice: Advice) -> bool:
    """Whether no path that has the table in memory fits, and no disk is known."""
    host = advice.profile["host.memory"].value
    usual = advice.usual
    full = usual is not None and usual.fits is False
    return host is not None and full and not advice.profile["disk.iops"].values


def render(advice: Advice, why: bool = False) -> RenderableType:
    """The recommendation, the ranking, and notes; with ``why`` reasons and assumptions, too."""
    parts: list[RenderableType] = [Text(line, style="bold") for line in recommendation(advice)]
    parts.append(Text())
    if advice.ranked:
        parts += [*map(Text, _reading(advice)), _ranking(advice), Text()]
    known = {option.strategy for option in advice.ranked}
    absent = [o for o in advice.unranked if why or o.strategy not in known]
    for reason, paths in _by_reason(absent):
        parts.append(Text(f"not ranked: {listed(paths)}. {reason}", style="yellow"))
    parts += [Text(f"note: {note}", style="yellow") for note in advice.notes]
    parts.append(Text(_stands_on(advice)))
    if not why:
        parts.append(Text("--why: where the time goes, and what was assumed; --json: all of it."))
        return Group(*parts)
    reasons = (f"{listed(paths)}: {reason}" for reason, paths in _by_reason(advice.ranked))
    parts += [Text(), *map(Text, reasons), *map(Text, _kept(advice))]
    parts += map(Text, placements(advice))
    parts += _caches(advice)
    parts += [Text(f"assumed or left out: {remark}", style="dim") for remark in advice.remarks]
    return Group(*parts)


def _reading(advice: Advice) -> Iterator[str]:
    """What the table's ranks and ranges are, once above it."""
    if len({option.rank for option in advice.ranked}) < len(advice.ranked):
        modelled = [option.issue_known for option in advice.ranked if option.basis == MODELLED]
        said = f"Rank 1: no path is ahead of it by more than {LEVEL - 1:.0%}."
        if modelled:
            apart = told_apart(issue_known=all(modelled)) - 1
            said = (
                f"Rank 1: no path is ahead by more than {apart:.0%}, as far as the model was off"
                f" {SHARE:.0%} of ratios on an H200, calibrated on the spot."
            )
        yield said
    if len(advice.sizes) > 1:
        graph = advice.question.graph
        remedy = f"gatherbench datasets {f'prepare {graph.name}' if graph.name else 'import'}"
        laws = ", ".join(sizes.law for sizes in advice.sizes)
        yield (
            f"The graph is not there: epochs go from law to law ({laws}; --law names one). To know,"
            f" bring it: {remedy}."
        )


def to_json(advice: Advice) -> dict[str, Any]:
    """The same as plain values; times in seconds, sizes in bytes, ``null`` for what is not known.

    ``strategies`` stand in the order of their rank; those without one follow, also variants in
    whose place a ranked one stands. ``epochs_s`` and ``minibatches`` have an entry for each law of
    a graph that is not at hand, or one that was sampled; where the profile knows ranges,
    ``epochs_s`` has one for each combination of ends. ``model_error`` is how far the model was off
    epochs of such a path that were measured on an H200, from and to (modelled over measured, less
    1; ``null``: never measured, or no modelled path). ``take`` is the path that is recommended.
    ``disk_caches`` are those in host memory that were modelled, of a table that stays on a disk.
    """
    question = advice.question
    laws = [sizes.law or "sampled" for sizes in advice.sizes]
    corners = advice.profile.corner_names()
    cases = [f"{law}, {ends}" if ends else law for law in laws for ends in corners]

    def said(option: Option) -> dict[str, Any]:
        times = dict(zip(cases, option.epochs_s, strict=True)) if option.epochs_s else None
        more = {"host_bytes": option.host.total, "model_error": option.error}
        return {**asdict(option), "epochs_s": times, **more}

    everything = (*advice.ranked, *advice.unranked, *advice.others)
    asked = asdict(question)
    asked["graph"].pop("assumed")
    asked["graph"] |= {"row_bytes": question.graph.row_bytes}
    asked["graph"] |= {"table_bytes": question.graph.table_bytes}
    return {
        "schema_version": SCHEMA_VERSION,
        "recommendation": list(recommendation(advice)),
        "take": None if advice.take is None else list(advice.take.path),
        "table_fits_in_gpu": advice.table_fits,
        "question": asked,
        "minibatches_per_epoch": question.batches,
        "minibatches": {
            law: {
                "num_nodes": [round(n, 1) for n in sizes.num_nodes],
                "num_edges": [round(n, 1) for n in sizes.num_edges],
            }
            for law, sizes in zip(laws, advice.sizes, strict=True)
        },
        "profile": {
            "name": advice.profile.name,
            "default": advice.default,
            "unknown": advice.profile.unknown(),
        },
        "strategies": [said(option) for option in everything],
        "disk_caches": [
            {
                **asdict(cache),
                "basis": MODELLED,
                "hit_rates": dict(zip(laws, cache.hit_rates, strict=True)),
                "epochs_s": dict(zip(cases, cache.epochs_s, strict=False)) or None,
            }
            for cache in advice.caches
        ],
        "notes": list(advice.notes),
        "remarks": list(advice.remarks),
    }


def _ranking(advice: Advice) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("", justify="right")
    table.add_column("strategy", overflow="fold")
    for name in ("epoch", "GPU", "host", "pinned"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    if advice.question.world > 1:
        table.add_column("table")
    for option in advice.ranked:
        table.add_row(
            str(option.rank),
            option.words,
            _times(option),
            gib(option.gpu_bytes),
            gib(option.host.total),
            gib(option.pinned_bytes) if option.pinned_bytes else "none",
            Text(option.basis, style="green" if option.basis == MEASURED else "cyan"),
            *([option.placement] if advice.question.world > 1 else []),
        )
    return table


def _by_reason(options: Sequence[Option]) -> Iterable[tuple[str, list[str]]]:
    """Why each stands where it does, in a sentence, and the options of which that is said."""
    paths: defaultdict[str, list[str]] = defaultdict(list)
    for option in options:
        why = option.reason if option.basis != MEASURED else f"Measured: {option.source}."
        paths[why].append(option.words)
    return paths.items()


def _caches(advice: Advice) -> list[RenderableType]:
    """What caches in host memory would hold of a table on a disk, by policy and size."""
    if not advice.caches:
        return []
    sizes = dict.fromkeys((one.table_share, one.cache_bytes) for one in advice.caches)
    largest = max(size for _, size in sizes)
    lines: list[RenderableType] = []
    for option in [option for option in advice.ranked if option.cache_bytes][:1]:
        why = "" if option.cache_bytes == largest else f"; more gains less than {LEVEL - 1:.0%}"
        lines.append(Text(f"{option.words}: {option.placement}{why}."))
    table = Table(
        title="Modelled: requests that a cache in host memory holds, and the epoch, by policy and"
        " share of the table",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    table.add_column("", no_wrap=True)
    for part, held in sizes:
        table.add_column(f"{part:.0%}, {gib(held)}", justify="right")
    for policy in dict.fromkeys(one.policy for one in advice.caches):
        cells = []
        for one in advice.caches:
            if one.policy == policy:
                rates = span(min(one.hit_rates), max(one.hit_rates), "share")
                times = [span(min(one.epochs_s), max(one.epochs_s), "s")] if one.epochs_s else []
                # Two ranges do not stand beside each other.
                cells.append((", " if len(one.hit_rates) == 1 else "\n").join([rates, *times]))
        table.add_row(policy, *cells)
    return [*lines, Text(), table, Text()]


def _kept(advice: Advice) -> Iterator[str]:
    """Of paths that keep a part of the table: how much of it, why no more, and the variants."""
    for option in advice.ranked:
        rivals = [other for other in advice.others if other.family == option.family]
        if not rivals or not option.kept_bytes:
            continue
        share = option.kept_bytes / advice.question.graph.table_bytes
        more = any(other.kept_bytes > option.kept_bytes for other in rivals)
        why = f"more gains less than {LEVEL - 1:.0%}" if more else "no variant that fits keeps more"
        said = f"{option.words} keeps {share:.0%} of the table, {gib(option.kept_bytes)}, in GPU"
        said += f" memory: {why}."
        for what, level in (("In its place could stand", True), ("Not level with it", False)):
            those = [other for other in rivals if other.level_with(option) is level]
            names = "; ".join(f"{other.words}: {_times(other)}" for other in those)
            said += f" {what}: {names}." if those else ""
        yield said


def placements(advice: Advice) -> list[str]:
    """Of several GPUs: is the table better replicated or sharded, how large may it be? Sentences.

    All of it is modelled, whatever was measured.
    """
    question = advice.question
    if question.world == 1:
        return []
    lines = []
    ranked = advice.ranked
    parts = next((one for one in ranked if one.sharded), None)
    whole = next((one for one in ranked if not one.sharded), None)
    if parts is not None and whole is not None:
        first, second = sorted((parts, whole), key=ranked.index)
        order = "is ahead of" if first.ahead_of(second) else "is not decided against"
        lines.append(
            f"{first.words} ({first.placement}, {_times(first)}) {order} {second.words}"
            f" ({second.placement}, {_times(second)})."
        )
    gpu, host = advice.profile["gpu.memory"].value, advice.profile["host.memory"].value
    rooms = {
        "replicated in host memory": host and TABLE_SHARE * host,
        "sharded over host memory": host and question.machines * TABLE_SHARE * host,
        "sharded over GPU memory": gpu and question.world * TABLE_SHARE * gpu,
    }
    told = (f"{how} {'not known' if room is None else gib(room)}" for how, room in rooms.items())
    lines.append(f"The largest table, less graph and training: {', '.join(told)}.")
    return lines


def minibatches(advice: Advice) -> str:
    """The graph, and how large its minibatches are, by which law or sampled."""
    graph = advice.question.graph
    what = f"{graph.name}: " if graph.name else ""
    what += f"{graph.nodes:,} nodes, {graph.edges:,} edges, rows of {graph.row_bytes:,} B"
    rows = ", ".join(
        f"{one.rows:,.0f}{f' ({one.law})' if len(advice.sizes) > 1 else ''}" for one in advice.sizes
    )
    how = "sampled from it"
    if advice.sizes[0].law:
        law = f" {advice.sizes[0].law}" if len(advice.sizes) == 1 else ""
        how = f"computed, not sampled: expected counts if the graph follows the law{law}"
    return f"{what}; minibatches of {rows} rows ({how})"


def _stands_on(advice: Advice) -> str:
    question = advice.question
    gpus = f" on {question.gpus} GPUs" if question.gpus > 1 else ""
    if question.machines > 1:
        gpus += f"{' in each of' if gpus else ' on'} {question.machines} machines"
    return (
        f"{minibatches(advice)}, {question.batches:,} an epoch{gpus}. Profile"
        f" {advice.profile.name}: {advice.profile.description}."
        + f" It is a default: {advice.default}."
        * bool(advice.default)
    )


def _times(option: Option) -> str:
    """Its epoch, or between which ends it lies."""
    return span(option.shortest_s, option.longest_s, "s")
