"""Series of a run that differ in one field, compared with the first of its values.

Values share a family if all else is equal. Each has its epoch, the ratio to the first value's, and
further columns of the field. ``axes.toml`` has all fields: a new :class:`Axis` is a table there.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as given
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import TypeAdapter

from gatherbench.bench.plan.doors import short_name
from gatherbench.bench.plan.workload import Workload, ranks_of
from gatherbench.bench.read.derive import (
    baseline,
    ends_of,
    no_ratio_over,
    reasons,
    repeat_logs,
    series_of,
    sort_by,
    sort_series,
)
from gatherbench.bench.read.tables import CASE, Run
from gatherbench.bench.run.rows import SERIES, Key
from gatherbench.stats.interval import Logs, ratio_of

#: The axis that compares all paths off a disk.
PATH = "path"


@dataclass(frozen=True, slots=True)
class Extra:
    """A further column of an axis; ``axes.toml`` explains the fields."""

    name: str
    label: str
    unit: str
    short: str = ""
    of: str = ""
    logs: str = ""


@dataclass(frozen=True, slots=True)
class Axis:
    """A field in which series differ, and the columns to show; ``axes.toml`` explains them."""

    field: str
    title: str
    extra: tuple[Extra, ...] = ()
    plain: Any = None
    merged: Mapping[str, Any] = given(default_factory=dict)
    seeds: bool = False
    over: Mapping[str, str] = given(default_factory=dict)
    published: tuple[str, str] = ("", "")
    note: str = ""


_TABLE = tomllib.loads(Path(__file__).with_name("axes.toml").read_text(encoding="utf-8"))
#: By field, in the order in which they are shown.
AXES = {axis.field: axis for axis in TypeAdapter(list[Axis]).validate_python(_TABLE["axis"])}


def axis(run: Run, field: str) -> pd.DataFrame:
    """Return a line for each value of each family with two or more values, one of them measured.

    Columns: ``family``, :data:`SERIES`, ``value`` (of the field), ``epoch`` (s, median) with its
    quartiles, ``ratio`` (to the epoch of the first value) with its 95 % interval, the extra
    columns, and ``reason``: why a value was not measured, or has no ratio. NaN: unknown.

    Raises:
        ValueError: the field has no axis.
    """
    if field not in AXES:
        raise ValueError(f"no axis {field!r}; there are {', '.join(AXES)}")
    chosen, lines = AXES[field], list[dict[str, Any]]()
    extras = [c for e in chosen.extra for c in (ends_of(e.name) if e.logs else [e.name])]
    columns = ["family", *SERIES, "value", *ends_of("epoch"), *ends_of("ratio"), *extras, "reason"]
    families = _families(run, chosen)
    if families.empty:
        return pd.DataFrame(columns=columns)
    ratios = {"ratio": "epoch_s", **{e.name: e.logs for e in chosen.extra if e.logs}}
    logs = {name: _logs(run, column) for name, column in ratios.items()}
    epochs = run.measured["epoch_s"].dropna().groupby(SERIES)
    quartiles = zip(ends_of("epoch"), (0.5, 0.25, 0.75), strict=True)
    values = {name: epochs.quantile(share) for name, share in quartiles}
    values |= {e.name: _values(run, e.of) for e in chosen.extra if not e.logs}
    why = reasons(run)
    for (family, _), group in families.groupby(["family", "path"], sort=False):
        measured = group[group["measured"]].groupby("value")["key"].agg(list).to_dict()
        first = group["value"].iloc[0]  # a value that was not measured cannot be the base
        for value, planned in group.groupby("value", sort=False)["key"].agg(list).items():
            keys = measured.get(value, [])
            line = {"family": family, **(keys or planned)[0]._asdict(), "value": value}
            lines.append(line)
            if not keys:
                line["reason"] = ": ".join(why.get(planned[0][:3], ["not measured"]))
                continue
            line |= {n: column.reindex(keys).mean(skipna=False) for n, column in values.items()}
            over = chosen.over.get(str(value), first)
            base = measured.get(over, [])
            line["reason"] = no_ratio_over(run, base[0]) if base else f"no {chosen.field} {over}"
            for name, of_series in logs.items() if not line["reason"] else ():
                own, theirs = (_pooled(run, of_series, many) for many in (keys, base))
                ends = (1.0 if keys == base else math.nan,) * 3
                if keys != base and own and theirs:
                    ends = ratio_of(own, theirs).ends
                line |= zip(ends_of(name), ends, strict=True)
    return pd.DataFrame(lines, columns=columns).fillna({"reason": ""})


def _values(run: Run, metric: str) -> pd.Series[float]:
    """Return the values of a further column, by :data:`SERIES`."""
    if metric == "accuracy_by_then":
        return accuracy_by_then(run)
    if not metric.startswith("ranks."):
        return run.medians[metric]
    column = metric.removeprefix("ranks.")
    ranks = run.epochs[(run.epochs["rank"] >= 0) & run.epochs["used"]]
    epochs = ranks.reindex(columns=[*CASE, "epoch", column]).groupby([*CASE, "epoch"])[column]
    return epochs.mean().groupby(SERIES).median()


def _logs(run: Run, column: str) -> dict[Key, Logs]:
    """Return logarithms for the ratios of a column, by series."""
    if column != "seeds_a_second_and_rank":
        return repeat_logs(run, run.measured[column])
    logs, seeds = repeat_logs(run), run.medians["declared_sample_seeds"]
    shares = {k: seeds[tuple(k)] / ranks_of(run.plan["workloads"][k.workload]) for k in logs}
    return {k: Logs(math.log(shares[k]) - x for x in logs[k]) for k in logs if shares[k] > 0}


def accuracy_by_then(run: Run) -> pd.Series[float]:
    """Return each series' test accuracy by the time of measured epochs that all comparable series
    reach: those that differ at most in ``sampler`` and seed. By :data:`SERIES`; medians over
    repeats; 0 before the first score, empty without ``eval_every_epoch``.
    """
    epochs = run.measured.sort_index(level="epoch")
    times = epochs.groupby(CASE)["epoch_s"].cumsum()
    curves = pd.DataFrame({"time_s": times, "accuracy": epochs["eval_test_accuracy"]}).dropna()
    curves = curves.groupby([*SERIES, "epoch"]).median()
    families = curves.index.get_level_values("workload").map(run.families(sampler="", seed=0))
    by = curves["time_s"].groupby(SERIES).transform("max").groupby(families).transform("min")
    reached = curves["accuracy"].where(curves["time_s"] <= by)
    return reached.groupby(SERIES).last().fillna(0.0)


def _pooled(run: Run, logs: Mapping[Key, Logs], keys: Sequence[Key]) -> Logs:
    """Pool logarithms over workloads that differ in seed: one number per seed, paired by seed."""
    if any(key not in logs for key in keys):
        return Logs([])
    if len(keys) == 1:
        return logs[keys[0]]
    seeds = [float(run.plan["workloads"][key.workload]["seed"]) for key in keys]
    blocks = {n: dict(enumerate(logs[key])) for n, key in zip(seeds, keys, strict=True)}
    return Logs([float(np.mean(logs[key])) for key in keys], blocks)


def disk_strategies(run: Run) -> list[str]:
    """Return the run's strategies that fetch off a disk, by what they declare."""
    declared = run.declared_medians["declared_disk_payload_bytes"]
    return sorted(set(declared[declared > 0].index.get_level_values("strategy")))


def _families(run: Run, chosen: Axis) -> pd.DataFrame:
    """Return a line for each series of a family of several values, the first value first.

    Columns: ``family`` (workloads, in words), ``path`` (what series share else), ``value``, its
    ``place``, ``key`` (a :class:`Key`), ``measured``.
    """
    from gatherbench.strategies.registry import in_words  # imports torch

    of_workloads = chosen.field in Workload.__dataclass_fields__
    plain = {chosen.field: chosen.plain, **chosen.merged, **({"seed": 0} if chosen.seeds else {})}
    families = run.families(**(plain if of_workloads else {}))
    families = {ident: " ".join(name.split()) for ident, name in families.items()}
    known = {key[:3]: key for key in series_of(run)}
    backend = next((key.backend for key in known.values()), "host")
    disks, reference, lines = disk_strategies(run), baseline(run), []
    gathers = [reference] if any(key[1:3] == reference for key in known.values()) else []
    cases = pd.DataFrame(run.plan["cases"])[SERIES[:3]].drop_duplicates()
    for case in sort_series(cases, run.workloads).itertuples(index=False, name=None):
        workload, strategy, variant = case
        off_disk, place = strategy in disks, None
        if of_workloads:
            place = _by_field(run.plan["workloads"][workload], f"{strategy} {variant}", chosen)
        elif chosen.field != PATH:
            place = None if off_disk else _by_parameter(strategy, variant, chosen.field)
        elif off_disk or (strategy, variant) in gathers:
            place = "", in_words(strategy, variant), int(off_disk)
        if place:
            key = known.get(case) or Key._make((*case, backend, "measured"))
            lines.append((families[workload], *place, key, case in known))
    columns = ["family", "path", "value", "place", "key", "measured"]
    frame = pd.DataFrame(lines, columns=columns)
    groups = frame.groupby(["family", "path"], sort=False)
    frame["group"] = groups.ngroup()
    several = groups["value"].transform("nunique").gt(1) & groups["measured"].transform("any")
    frame = frame[several].sort_values(["group", "place"], kind="stable")
    return sort_by(frame, family=[*families.values()])


def _by_field(workload: Mapping[str, Any], path: str, chosen: Axis) -> tuple[str, str, int]:
    value = workload.get(chosen.field, chosen.plain)
    value = short_name(value) if isinstance(value, str) else value
    merged = [workload.get(name, plain) for name, plain in chosen.merged.items()]
    words = [value] if value == chosen.plain else [value, *merged]
    place = value if isinstance(value, int) else int(value != chosen.plain)
    return path, " ".join(map(str, words)), place


def _by_parameter(strategy: str, variant: str, parameter: str) -> tuple[str, str, int] | None:
    from gatherbench.strategies.base import parameters  # imports torch
    from gatherbench.strategies.registry import named

    path = named(strategy, variant)
    known = parameters(type(path)) if path else {}
    if parameter not in known:
        return None
    rest = [getattr(path, name) for name in known if name != parameter]
    value = str(getattr(path, parameter))
    number = value.rstrip("%")
    place = int(number) if number.isdigit() else list(known[parameter]).index(value)
    return f"{strategy} {rest}", value, place
