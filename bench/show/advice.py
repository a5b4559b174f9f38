"""Advice for a reader, and as JSON for a program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gatherbench.bench.model.advise.rank import LEVEL, MEASURED, MODELLED, Advice, Option, gib
from gatherbench.bench.read.units import listed, span
from gatherbench.strategies.places import TABLE_SHARE

#: Of the JSON: raised when a field changes its meaning or goes away.
SCHEMA_VERSION = 2


def headline(advice: Advice) -> str:
    """What to do, in a sentence or two."""
    ranked, resident = advice.ranked, advice.resident
    default = f" (a default: {advice.default})" if advice.default else ""
    table = f"Profile {advice.profile.name}{default}. The feature table takes"
    table += f" {gib(advice.question.graph.table_bytes)}"
    if resident is not None and resident.fits:
        return f"{table} and fits in the GPU's {_stay_there(advice, resident)}"
    table += _no_room(advice)
    if not ranked:
        return table + _nothing(advice)
    best = ranked[0]
    lead = [option for option in ranked if not any(other.ahead_of(option) for other in ranked)]
    if not all(option.level_with(best) for option in lead):
        return table + _undecided(lead) + _off(lead)
    placed = f", {best.placement}" if advice.question.world > 1 else ""
    said = f"{table}. Take {best.strategy} ({best.variant}){placed}: {_times(best)} an epoch"
    said += f" ({best.basis})"
    hint = ""
    seen = next((o for o in ranked if o.basis == MEASURED), best)
    if seen.basis != best.basis:
        hint = (
            f" The fastest that was measured is {seen.strategy} ({seen.variant}):"
            f" {_times(seen)}. Measure the prediction before you rely on it."
        )
    # A prediction may lack a limit that a measurement has met: they are not set against each other.
    slowest = [o for o in ranked if o.basis == best.basis][-1]
    if slowest is best:
        return f"{said}.{_off([best])}{hint}"
    times = [a / b for a, b in zip(slowest.epochs_s, best.epochs_s, strict=True)]
    often = " to ".join(dict.fromkeys(f"{ratio:.1f}" for ratio in (min(times), max(times))))
    said += f", {often} times as fast as {slowest.strategy} ({slowest.variant})."
    level = [option for option in lead if option.basis == best.basis]
    if names := [f"{o.strategy} ({o.variant}) with {_pinned(o)}" for o in level[1:]]:
        said += f" Level with it, which pins {_pinned(best)}: {listed(names)}."
    said += _off(level)
    if best.basis == MODELLED and best.bound.endswith("(sampling)"):
        said += " Drawing minibatches is then what bounds it: a faster sampler would help most."
    return said + hint


def _off(options: Sequence[Option]) -> str:
    """How far the model was off for these, where epochs were measured beside it."""
    modelled = {option.family: option for option in options if option.basis == MODELLED}.values()
    known = [f"{o.error[0]:+.0%} to {o.error[1]:+.0%} ({_name(o)})" for o in modelled if o.error]
    others = [_name(option) for option in modelled if not option.error]
    said = f" Beside epochs measured on one H200 the model was off by {listed(known)}."
    never = f" Of {listed(others)} no epoch was measured beside the model."
    return said * bool(known) + never * bool(others)


def _stay_there(advice: Advice, resident: Option) -> str:
    """Of a table that fits in GPU memory: keep it there."""
    room = gib(advice.profile["gpu.memory"].value or 0.0)
    said = f"{room}: keep it there ({resident.strategy})"
    if not resident.epochs_s:
        return f"{said}."
    said += f", {_times(resident)} an epoch ({resident.basis})"
    alike = [option for option in advice.ranked if option.basis == resident.basis]
    first = next((option for option in alike if option.ahead_of(resident)), None)
    if first is None:
        where = " in every case" if len(resident.epochs_s) > 1 else ""
        return f"{said}: no other path is {LEVEL - 1:.0%} ahead{where}.{_off([resident])}"
    less = 1 - max(a / b for a, b in zip(first.epochs_s, resident.epochs_s, strict=True))
    while_training = ", as it fetches during training" if first.lookahead else ""
    said += f", or take {_name(first)}, which is {less:.1%} shorter{while_training}."
    return said + _off([resident, first])


def _no_room(advice: Advice) -> str:
    """In which memory the table does not fit."""
    resident, host = advice.resident, advice.profile["host.memory"].value
    if resident is not None and resident.fits is None:
        said = ", and how much memory the GPU has is not known (say --gpu-memory)"
    else:
        said = f" and does not fit in the GPU's {gib(advice.profile['gpu.memory'].value or 0.0)}"
    return said + (f", nor in the {gib(host or 0.0)} of a host" if _too_large(advice) else "")


def _too_large(advice: Advice) -> bool:
    """Whether the table is known not to fit in a host's memory."""
    host = advice.profile["host.memory"].value
    return host is not None and advice.question.graph.table_bytes > host


def _nothing(advice: Advice) -> str:
    """Why nothing is ranked."""
    if all(option.fits is False for option in advice.unranked):
        return "; nor do the minibatches of any path: make them smaller."
    if _too_large(advice) and not advice.profile["disk.iops"].values:
        return (
            ": take more machines, or a disk, whose speed nobody knows yet: measure it (gatherbench"
            " calibrate) or say it (--disk IOPS,BANDWIDTH)."
        )
    return (
        ". Nothing can be ranked: the profile lacks what every path needs"
        " (gatherbench calibrate --base NAME takes it from another)."
    )


def _undecided(lead: Sequence[Option]) -> str:
    """Between which paths it is not decided."""
    best = lead[0]
    if len({option.strategy for option in lead}) > 1:
        names = ", ".join(f"{option.strategy} ({option.variant})" for option in lead)
        return (
            f". Which path is the fastest is not decided: none is ahead in every case of {names}."
        )
    ends = [seconds for option in lead for seconds in option.epochs_s]
    return (
        f". Take {best.strategy}: {span(min(ends), max(ends), 's')} an epoch ({best.basis})."
        " Which of its variants is the fastest is not decided:"
        f" {listed([option.variant for option in lead], len(lead))}."
    )


#: What a rank is, by whether a path has several epochs.
_RANKS = {
    False: "Paths of one rank are level: each is within {} of the next.",
    True: "Paths of one rank are level or not decided: no order of them holds by {} in every case.",
}


def render(advice: Advice) -> RenderableType:
    """The headline, the ranking, what could not be ranked, and what the answer stands on."""
    parts: list[RenderableType] = [Text(headline(advice), style="bold")]
    if len(advice.sizes) > 1:
        parts.append(Text(_to_know(advice)))
    elif len({option.rank for option in advice.ranked}) < len(advice.ranked):
        several = any(len(option.epochs_s) > 1 for option in advice.ranked)
        parts.append(Text(_RANKS[several].format(f"{LEVEL - 1:.0%}")))
    parts.append(Text())
    if advice.ranked:
        reasons = (f"{', '.join(paths)}: {why}" for why, paths in _by_reason(advice.ranked))
        parts += [_ranking(advice), Text(), *map(Text, reasons), *map(Text, _kept(advice))]
    parts += map(Text, placements(advice))
    parts += _caches(advice)
    for why, paths in _by_reason(advice.unranked):
        parts.append(Text(f"not ranked: {', '.join(paths)}. {why}", style="yellow"))
    parts += [Text(), Text(_stands_on(advice))]
    parts += [Text(f"assumed or left out: {remark}", style="dim") for remark in advice.remarks]
    return Group(*parts)


def to_json(advice: Advice) -> dict[str, Any]:
    """The same as plain values; times in seconds, sizes in bytes, ``null`` for what is not known.

    ``strategies`` stand in the order of their rank; those without one follow, also variants in
    whose place a ranked one stands. ``epochs_s`` and ``minibatches`` have an entry for each law of
    a graph that is not at hand, or one that was sampled; where the profile knows ranges,
    ``epochs_s`` has one for each combination of ends. ``model_error`` is how far the model was off
    epochs of such a path that were measured on an H200, from and to (modelled over measured, less
    1; ``null``: never measured, or no modelled path). ``sharded_above`` is of several GPUs: above
    which rate a table sharded over GPU memory is faster than a replicated host table, at each
    combination of ends (0: at any; ``null``: at none, or not known). ``disk_caches`` are those in
    host memory that were modelled, of a table that stays on a disk.
    """
    question = advice.question
    laws = [sizes.law or "sampled" for sizes in advice.sizes]
    corners = advice.profile.corner_names()
    cases = [f"{law}, {ends}" if ends else law for law in laws for ends in corners]

    def said(option: Option) -> dict[str, Any]:
        times = dict(zip(cases, option.epochs_s, strict=True)) if option.epochs_s else None
        return {**asdict(option), "epochs_s": times, "model_error": option.error}

    everything = (*advice.ranked, *advice.unranked, *advice.others)
    asked = asdict(question)
    asked["graph"].pop("assumed")
    asked["graph"] |= {"row_bytes": question.graph.row_bytes}
    asked["graph"] |= {"table_bytes": question.graph.table_bytes}
    return {
        "schema_version": SCHEMA_VERSION,
        "headline": headline(advice),
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
        "remarks": list(advice.remarks),
    }


def _ranking(advice: Advice) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("", justify="right")
    table.add_column("strategy", no_wrap=True)
    for name in ("epoch", "GPU", "pinned"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    if advice.question.world > 1:
        table.add_column("table")
    for option in advice.ranked:
        table.add_row(
            str(option.rank),
            _name(option),
            _times(option),
            gib(option.gpu_bytes),
            _pinned(option),
            Text(option.basis, style="green" if option.basis == MEASURED else "cyan"),
            *([option.placement] if advice.question.world > 1 else []),
        )
    return table


def _by_reason(options: Sequence[Option]) -> Iterable[tuple[str, list[str]]]:
    """Why each stands where it does, in a sentence, and the options of which that is said."""
    paths: defaultdict[str, list[str]] = defaultdict(list)
    for option in options:
        why = option.reason if option.basis != MEASURED else f"{option.source}."
        paths[why].append(_name(option))
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
        lines.append(Text(f"{_name(option)}: {option.placement}{why}."))
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
        if not rivals:
            continue
        share = option.kept_bytes / advice.question.graph.table_bytes
        more = any(other.kept_bytes > option.kept_bytes for other in rivals)
        why = f"more gains less than {LEVEL - 1:.0%}" if more else "no variant that fits keeps more"
        said = f"{_name(option)} keeps {share:.0%} of the table, {gib(option.kept_bytes)}, in GPU"
        said += f" memory: {why}."
        for what, level in (("In its place could stand", True), ("Not level with it", False)):
            those = [other for other in rivals if other.level_with(option) is level]
            names = ", ".join(f"{other.variant} {_times(other)}" for other in those)
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
            f"{_name(first)} ({first.placement}, {_times(first)}) {order} {_name(second)}"
            f" ({second.placement}, {_times(second)})."
        )
    gpu, host = advice.profile["gpu.memory"].value, advice.profile["host.memory"].value
    rooms = {
        "replicated in host memory": host,
        "sharded over host memory": host and question.machines * host,
        "sharded over GPU memory": gpu and question.world * TABLE_SHARE * gpu,
    }
    told = (f"{how} {'not known' if room is None else gib(room)}" for how, room in rooms.items())
    lines.append(f"The largest table, less what training needs: {', '.join(told)}.")
    return lines


def _to_know(advice: Advice) -> str:
    """What a range over laws is, and how to do better."""
    graph = advice.question.graph
    largest = max(advice.sizes, key=lambda sizes: sizes.rows)
    remedy = f"gatherbench datasets {f'prepare {graph.name}' if graph.name else 'import'}"
    return (
        "The graph is not there, so each epoch is given between the laws that it may follow"
        f" ({', '.join(sizes.law for sizes in advice.sizes)}; --law names one). Within one rank it"
        " is not decided which path is faster. Sentences and memory are those under"
        f" {largest.law}, whose minibatches are the largest. To know, bring the graph: {remedy}."
    )


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
        f"{minibatches(advice)}, {question.batches:,} an epoch{gpus}."
        f" Modelled times: profile {advice.profile.name}"
        f" ({advice.profile.description}); they are predictions, and METHODOLOGY.md says how"
        " far such predictions are off."
    )


def _name(option: Option) -> str:
    return option.strategy if option.variant == "default" else f"{option.strategy} {option.variant}"


def _times(option: Option) -> str:
    """Its epoch, or between which ends it lies."""
    return span(option.shortest_s, option.longest_s, "s")


def _pinned(option: Option) -> str:
    """The page-locked host memory that it needs."""
    return gib(option.pinned_bytes) if option.pinned_bytes else "none"
