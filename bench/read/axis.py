"""Series of a run that differ in one field, compared with the first of its values.

An :class:`Axis` names the field: one of a workload (``gpus``, ``model``), a parameter of strategies
(``share``), or ``path``, any path off a disk against the table in memory. Values share a family if
all else is equal. Each has its epoch, the ratio to the first value's, and further columns of the
field. A new axis is a line of :data:`AXES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from dataclasses import field as given
from typing import Any

import numpy as np
import pandas as pd

from gatherbench.bench.plan.doors import short_name
from gatherbench.bench.plan.workload import Workload, ranks_of
from gatherbench.bench.read.derive import (
    ends_of,
    epoch_logs,
    found_on_device,
    link_bytes_declared,
    median,
    plan_order,
    reasons,
    reference_variant,
    repeat_logs,
    with_ends_of,
)
from gatherbench.bench.read.disk import disk_reads, disk_strategies
from gatherbench.bench.read.noise import no_ratio_over, series_of
from gatherbench.bench.read.tables import CASE, Run
from gatherbench.bench.run.rows import SERIES, Key
from gatherbench.stats.interval import Logs, interval_of

#: The axis that compares all paths off a disk.
PATH = "path"
#: Values by series, by the first of its fields, or by its workload.
Values = Callable[[Run], "pd.Series[float]"]
LogsOf = Callable[[Run], Mapping[Key, Logs]]
_FIELDS = {one.name for one in fields(Workload)}


@dataclass(frozen=True, slots=True)
class Extra:
    """A further column of an axis.

    Attributes:
        of: its values; for several workloads of one value their mean is shown.
        logs: instead of those, logarithms: the ratio to the first value's is shown, with interval.
    """

    name: str
    label: str
    unit: str | None
    short: str = ""
    of: Values | None = None
    logs: LogsOf | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """A field in which series differ, and the columns to show.

    Attributes:
        field: see above.
        title: above its table.
        extra: its columns; one without a value is left out.
        plain: the value that comes first if it exists, and that of plans older than the field.
        merged: other fields of workloads that are a part of the value, and their default values.
        seeds: whether workloads of several seeds serve as repeats.
        over: by value, the one that it is compared with instead of the first.
        published: the table and metric of ``results/reference/`` that belong to it.
        note: a remark below the table.
    """

    field: str
    title: str
    extra: tuple[Extra, ...] = ()
    plain: object = None
    merged: Mapping[str, object] = given(default_factory=dict)
    seeds: bool = False
    over: Mapping[str, str] = given(default_factory=dict)
    published: tuple[str, str] = ("", "")
    note: str = ""


# ---- columns -------------------------------------------------------------------------------------


def observed(run: Run, column: str) -> pd.Series[float]:
    """Return a column of measured epochs and of whole cases, of those that count, by `CASE`."""
    cases = run.ended[run.ended["used"]]
    epochs = run.measured.reset_index("epoch")
    found: pd.Series[float] = pd.concat([of[column] for of in (epochs, cases) if column in of])
    return found.dropna()


def _median(column: str) -> Values:
    return lambda run: observed(run, column).groupby(SERIES).median()


def _most(column: str) -> Values:
    return lambda run: observed(run, column).groupby(SERIES).max()


def _of_a_step(column: str) -> Values:
    return lambda run: median(run.measured[column] / run.measured["minibatches"])


def _of_workload(column: str) -> Values:
    """Return a function to the cases' declared values of the minibatches of their workload."""
    return lambda run: run.declared[column].groupby("workload").median()


def _of_ranks(column: str) -> Values:
    """Return a function to seconds of an epoch, as a mean over its ranks."""

    def values(run: Run) -> pd.Series[float]:
        ranks = run.epochs[run.epochs["rank"] >= 0].set_index([*CASE, "epoch"])
        if column not in ranks:
            return pd.Series(dtype=float)
        counts = ranks.reset_index("epoch").index.isin(run.ended.index[run.ended["used"]])
        mean = ranks.loc[counts, column].dropna().groupby([*CASE, "epoch"]).mean()
        return mean.groupby(SERIES).median()

    return values


def _off_disk(column: str) -> Values:
    return lambda run: disk_reads(run).set_index(SERIES)[column]


def _logs(column: str) -> LogsOf:
    return lambda run: repeat_logs(run.measured[column], run.measured["block"])


def _seeds_a_second_and_rank(run: Run) -> Mapping[Key, Logs]:
    """Return seeds per second and rank: its ratio to one rank is the efficiency."""
    seeds, found = _of_workload("declared_sample_seeds")(run), dict[Key, Logs]()
    for key, logs in repeat_logs(run.measured["epoch_s"]).items():
        ranks = ranks_of(run.plan["workloads"][key.workload])
        if seeds.get(key.workload, 0) > 0:
            found[key] = Logs(math.log(seeds[key.workload]) - one - math.log(ranks) for one in logs)
    return found


def accuracy_over_time(run: Run) -> pd.DataFrame:
    """Return the accuracy of each measured series after each measured epoch.

    Columns: :data:`SERIES`, ``epoch``, ``time_s`` (of all measured epochs up to this one) and
    ``accuracy`` (0 to 1); medians over repeats. Empty without ``eval_every_epoch``.
    Workloads that differ in ``partitions`` or ``structure`` train on other minibatches: to compare
    them takes the accuracy after the same time, as the length of their epochs is no measure.
    """
    seen = run.measured.sort_index(level="epoch")
    both = pd.DataFrame(
        {"time_s": seen["epoch_s"].groupby(CASE).cumsum(), "accuracy": seen["eval_test_accuracy"]}
    ).dropna()
    return both.groupby([*SERIES, "epoch"]).median().reset_index()


def accuracy_by_then(run: Run) -> pd.Series[float]:
    """Return each series' accuracy by the time that all comparable ones reach: those that
    differ at most in ``sampler`` and seed. By :data:`SERIES`; 0 before the first score.
    """
    curves, found = accuracy_over_time(run), {}
    for _, members in run.alike(sampler="", seed=0):
        mine = curves[curves["workload"].isin(members)].groupby(SERIES)
        by = mine["time_s"].max().min()
        for key, curve in mine:
            before = curve.loc[curve["time_s"] <= by, "accuracy"]
            found[key] = float(before.iloc[-1]) if len(before) else 0.0
    index = pd.MultiIndex.from_tuples(list(found), names=SERIES) if found else None
    return pd.Series(found.values(), index, dtype=float)


def _right(run: Run) -> Mapping[Key, Logs]:
    """Return the logarithm of the accuracy after equal time."""
    then = accuracy_by_then(run)
    return {Key(*key): Logs([math.log(one)]) for key, one in then.items() if one > 0}  # type: ignore[misc]


_ACCURACY = Extra("accuracy", "test accuracy", "share", "accuracy", _median("eval_test_accuracy"))
#: Memory of the device, beyond its use before the step.
_PEAK = Extra("peak", "a step’s memory at its most", "B", "peak", _median("train_peak_bytes"))
_KEPT = (
    Extra("counted", "rows found on the device, counted", "share", "found",
          lambda run: found_on_device(run)["counted"]),
    Extra("declared", "the same, declared", "share", "declared",
          lambda run: found_on_device(run)["declared"]),
    Extra("link", "over the link in an epoch, declared", "B", "link", link_bytes_declared),
)  # fmt: skip
_AMPLIFICATION = Extra("amplification", "read for a byte of rows", "×", "B/B",
                       _off_disk("amplification"))  # fmt: skip

#: Relational models, and PyG's of the same values.
_SAME_VALUES = {
    **dict.fromkeys(("RGCN", "FastRGCN", "CompactRGCN"), "RGCN"),
    **dict.fromkeys(("RGAT", "CompactRGAT", "ReorderedRGAT", "CompactReorderedRGAT"), "RGAT"),
}

#: In the order in which they are shown.
AXES = (
    Axis(
        "gpus", "Over the number of ranks",
        (
            Extra("efficiency", "efficiency", "share", "efficiency", logs=_seeds_a_second_and_rank),
            Extra("seeds", "seeds an epoch", "1", of=_of_workload("declared_sample_seeds")),
            Extra("wait", "wait for the slowest rank", "s", "wait", _of_ranks("wait_s")),
            Extra("all_reduce", "all-reduce", "s", "all-reduce", _of_ranks("all_reduce_s")),
        ),
        plain=1, merged={"scaling": "strong"}, published=("headlines", "faster_by"),
        note="Efficiency: time for a seed node with one rank over that with W ranks, and over W."
        " Wait and all-reduce: means over the ranks. Without a GPU ranks are processes.",
    ),
    Axis(
        PATH, "Table on disk",
        (
            Extra("in_memory", "rows found in the path’s own memory", "share", "kept",
                  _off_disk("in_memory")),
            _AMPLIFICATION,
            Extra("declared", "declared", "×", "declared", _off_disk("declared")),
            Extra("process", "by the process’s counter", "×", "process", _off_disk("process")),
            Extra("device", "by the disk’s counter", "×", of=_off_disk("device")),
            Extra("iops", "reads", "1/s", "reads", _off_disk("iops")),
            Extra("roof", "random reads of 4 KiB that the disk gave", "1/s", of=_off_disk("roof")),
            Extra("in_flight", "reads in flight, mean", "1", of=_off_disk("in_flight")),
            Extra("latency_median", "a read’s latency, median", "s", "median",
                  _off_disk("latency_median")),
            Extra("latency_99th", "99th percentile", "s", "99th", _off_disk("latency_99th")),
        ),
        published=("disk_epochs", "wall_time"),
        note="Read for a byte of rows: over the rows that the path had not kept in memory of its"
        " own. Below 1 the page cache had some. Reads a second: of the time that the loop waited,"
        " or of the epoch where fetches run ahead.",
    ),
    Axis(
        "around_step", "What is around a step",
        (
            _PEAK,
            Extra("out", "moved out a step", "B", "out", _of_a_step("around_step_out_bytes")),
            Extra("in", "brought back a step", "B", "in", _of_a_step("around_step_in_bytes")),
            Extra("stall", "waited for a step", "s", "stall", _of_a_step("around_step_stall_s")),
            Extra("buffers", "buffers in host memory", "B", of=_most("around_step_buffers_bytes")),
            Extra("fetch", "wait for rows over the first", "×", "fetch", logs=_logs("fetch_s")),
        ),
        plain="",
        note="Wait for rows above 1: what moves shares link, disk or cores with the rows.",
    ),
    Axis("step", "How a GPU is given a step", plain="issued"),
    Axis(
        "sampler", "Samplers",
        (
            _ACCURACY,
            _AMPLIFICATION,
            Extra("distinct", "distinct neighbours an epoch", "1", "distinct",
                  _of_workload("declared_sample_distinct_neighbours")),
            Extra("cache", "memory of the caches", "B", "cache",
                  _of_workload("declared_sample_structure_cache_bytes")),
            Extra("sample", "sampling an epoch", "s", "sample", _median("sample_s")),
            Extra("then", "test accuracy after as much time", "share", "accuracy",
                  accuracy_by_then),
            Extra("right", "that over the first", "×", "right", logs=_right),
        ),
        plain="", seeds=True, published=("sampling_that_remembers", "wall_time_change"),
        note="Other minibatches learn another model: how long an epoch is says nothing of which"
        " is better, how right it is after as much time does. Means over the seeds.",
    ),
    Axis(
        "model", "Models",
        (
            Extra("train", "training an epoch", "s", "train", _median("train_s")),
            Extra("longer", "that over the first", "×", "train", logs=_logs("train_s")),
            _PEAK,
            Extra("distinct", "distinct source and kind an edge", "share", "U/E",
                  lambda run: _of_workload("declared_sample_pairs")(run)
                  / _of_workload("declared_sample_edges")(run)),
            _ACCURACY,
        ),
        plain="", over=_SAME_VALUES,
        note="Models that know kinds of edges are compared with PyG’s layer of the same values.",
    ),
    Axis("share", "Rows kept on the device", _KEPT),
    Axis("policy", "Which rows are kept", _KEPT, published=("cache_hit_rates", "hit_rate")),
)  # fmt: skip

# ---- families ------------------------------------------------------------------------------------

#: Values of one family, in order, and the series of each: several where fields are pooled.
Members = dict[str, list[Key]]


def axis_of(field: str) -> Axis:
    """Return the axis of a field.

    Raises:
        ValueError: the field has no axis.
    """
    found = next((one for one in AXES if one.field == field), None)
    if found is None:
        raise ValueError(f"no axis {field!r}; there are {', '.join(one.field for one in AXES)}")
    return found


def axis(run: Run, field: str) -> pd.DataFrame:
    """Return a line for each value of each family with two or more values, one of them measured.

    Columns: ``family``, :data:`SERIES`, ``value`` (of the field), ``epoch`` (s, median) with its
    quartiles, ``ratio`` (to the epoch of the first value) with its 95 % interval, the extra
    columns, and ``reason``: why a value was not measured, or has no ratio. NaN: unknown.

    Raises:
        ValueError: as :func:`axis_of`.
    """
    of, seconds, why = axis_of(field), run.measured["epoch_s"].dropna(), reasons(run)
    families = _families(run, of)
    if not families:
        of = replace(of, extra=())
    logs = {"ratio": epoch_logs(run), **{e.name: e.logs(run) for e in of.extra if e.logs}}
    values = {extra.name: extra.of(run) for extra in of.extra if extra.of}
    quartiles = seconds.groupby(SERIES).quantile(np.array([0.5, 0.25, 0.75])).unstack()
    lines: list[dict[str, Any]] = []
    for family, members in families:
        first = next(iter(members))  # a value that was not measured cannot be the base
        for value, planned in members.items():
            keys = [key for key in planned if key in logs["ratio"]]
            line = {"family": family, **(keys or planned)[0]._asdict(), "value": value}
            lines.append(line)
            if not keys:
                line["reason"] = ": ".join(why.get(planned[0][:3], ("not measured",)))
                continue
            line |= with_ends_of(epoch=quartiles.loc[[*keys]].mean().tolist())
            line |= {n: np.mean([_at(found, key) for key in keys]) for n, found in values.items()}
            over = of.over.get(value, first)
            base = [key for key in members.get(over, ()) if key in logs["ratio"]]
            line["reason"] = no_ratio_over(run, base[0]) if base else f"no {of.field} {over}"
            for name, mine in logs.items() if not line["reason"] else ():
                line |= with_ends_of(**{name: _ratio(run, mine, keys, base)})
    extras = [c for e in axis_of(field).extra for c in (ends_of(e.name) if e.logs else [e.name])]
    columns = ["family", *SERIES, "value", *ends_of("epoch"), *ends_of("ratio"), *extras, "reason"]
    return pd.DataFrame(lines, columns=columns).fillna({"reason": ""})


def _families(run: Run, of: Axis) -> list[tuple[str, Members]]:
    """Return the name in words of each family, and its members, the first value first."""
    plain = {of.field: of.plain, **of.merged, **({"seed": 0} if of.seeds else {})}
    names = {
        workload: " ".join(name.split())
        for name, alike in run.alike(**(plain if of.field in _FIELDS else {}))
        for workload in alike
    }
    measured = {key[:3]: key for key in series_of(run)}
    backend = next((key.backend for key in measured.values()), "host")
    cases = pd.DataFrame(run.plan["cases"])[SERIES[:3]].drop_duplicates()
    found: dict[tuple[str, str], dict[str, tuple[int, list[Key]]]] = {}
    for case in plan_order(run, cases).itertuples(index=False, name=None):
        key = measured.get(case, Key._make((*case, backend, "measured")))
        if placed := _placed(run, of, key):
            path, value, place = placed
            members = found.setdefault((names[key.workload], path), {})
            members.setdefault(value, (place, []))[1].append(key)
    several = [
        (name, {value: keys for value, (_, keys) in sorted(by.items(), key=lambda v: v[1][0])})
        for (name, _), by in found.items()
        if len(by) > 1 and any(key[:3] in measured for _, keys in by.values() for key in keys)
    ]
    return sorted(several, key=lambda one: list(names.values()).index(one[0]))


def _placed(run: Run, of: Axis, key: Key) -> tuple[str, str, int] | None:
    """Return what a series shares with its family but the workload, its value, and its position."""
    from gatherbench.strategies.base import parameters  # imports torch
    from gatherbench.strategies.registry import in_words, named

    disk, reference = key.strategy in disk_strategies(run), key[1:3] == reference_variant(run)
    if of.field == PATH:
        return ("", in_words(*key[1:3]), int(disk)) if disk or reference else None
    if of.field in _FIELDS:
        fields = run.plan["workloads"][key.workload]
        value = fields.get(of.field, of.plain)
        value = short_name(value) if isinstance(value, str) else value
        words = [value, *(fields.get(n, usual) for n, usual in of.merged.items())]
        place = value if isinstance(value, int) else int(value != of.plain)
        return (
            " ".join(key[1:3]),
            " ".join(map(str, words if value != of.plain else [value])),
            place,
        )
    path = named(*key[1:3])
    known = {} if path is None or disk else parameters(type(path))
    if of.field not in known:
        return None
    rest = [getattr(path, name) for name in known if name != of.field]
    value = str(getattr(path, of.field))
    number = value.rstrip("%")
    place = int(number) if number.isdigit() else list(known[of.field]).index(value)
    return f"{key.strategy} {rest}", value, place


def _ratio(
    run: Run, logs: Mapping[Key, Logs], keys: Sequence[Key], base: Sequence[Key]
) -> tuple[float, float, float]:
    """Return the ratio over the base, with the ends of the 95 % interval."""
    if keys == base:
        return (1.0, 1.0, 1.0)
    mine, theirs = (_pooled(run, logs, many) for many in (keys, base))
    return interval_of((1, mine), (-1, theirs)).ends if mine and theirs else (math.nan,) * 3


def _pooled(run: Run, logs: Mapping[Key, Logs], keys: Sequence[Key]) -> Logs:
    """Pool logarithms over workloads that differ in seed: one number per seed, paired by seed."""
    if any(key not in logs for key in keys):
        return Logs([])
    if len(keys) == 1:
        return logs[keys[0]]
    seeds = [float(run.plan["workloads"][key.workload]["seed"]) for key in keys]
    blocks = {n: dict(enumerate(logs[key])) for n, key in zip(seeds, keys, strict=True)}
    return Logs([float(np.mean(logs[key])) for key in keys], blocks)


def _at(values: pd.Series[float], key: Key) -> float:
    """Return the value of a series in an index of its first fields, or of its workload."""
    of = tuple(key[: values.index.nlevels])
    return float(values.get(of if len(of) > 1 else of[0], math.nan))
