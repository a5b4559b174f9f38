"""Series of a run that differ in one field, compared with the first of its values.

An :class:`Axis` names the field: one of a workload (``gpus``, ``model``), a parameter of strategies
(``share``), or ``path``, any path off a disk against the table in memory. Values share a family if
all else is equal. Each has its epoch, the ratio to the first value's, and further columns of the
field. ``axes.toml`` has them all: a new axis is a table there.
"""

from __future__ import annotations

import contextlib
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from dataclasses import field as given
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gatherbench.bench.plan.doors import short_name
from gatherbench.bench.plan.workload import Workload, ranks_of
from gatherbench.bench.read.derive import (
    ends_of,
    plan_order,
    reasons,
    reference_variant,
    repeat_logs,
    with_ends_of,
)
from gatherbench.bench.read.noise import no_ratio_over, series_of
from gatherbench.bench.read.tables import CASE, Run
from gatherbench.bench.run.rows import SERIES, Key
from gatherbench.stats.interval import Logs, interval_of

#: The axis that compares all paths off a disk.
PATH = "path"
_FIELDS = {field.name for field in fields(Workload)}


@dataclass(frozen=True, slots=True)
class Extra:
    """A further column of an axis.

    Attributes:
        of: its values: a column of :attr:`Run.medians`, ``ranks.`` and a column of epochs (a mean
            over the ranks), or ``accuracy_by_then``; of several workloads of one value their mean.
        logs: instead of that, a column of epochs, or ``seeds_a_second_and_rank``: its ratio to the
            first value's is shown, with interval.
    """

    name: str
    label: str
    unit: str
    short: str = ""
    of: str = ""
    logs: str = ""


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


_TABLE = tomllib.loads(Path(__file__).with_name("axes.toml").read_text(encoding="utf-8"))["axis"]
#: In the order in which they are shown.
AXES = tuple(
    Axis(**{**of, "extra": tuple(Extra(**extra) for extra in of.get("extra", ()))}) for of in _TABLE
)

# ---- columns -------------------------------------------------------------------------------------


def _values(run: Run, metric: str) -> pd.Series[float]:
    """Return the values of a further column, by :data:`SERIES`."""
    if metric == "accuracy_by_then":
        return accuracy_by_then(run)
    kind, _, column = metric.rpartition(".")
    if not kind:
        return run.medians[column]
    ranks = run.epochs[(run.epochs["rank"] >= 0) & run.epochs["used"]]
    epochs = ranks.reindex(columns=[*CASE, "epoch", column]).groupby([*CASE, "epoch"])[column]
    return epochs.mean().groupby(SERIES).median()


def _logs(run: Run, column: str) -> dict[Key, Logs]:
    """Return logarithms for the ratios of a column, by series."""
    if column != "seeds_a_second_and_rank":
        return repeat_logs(run.measured[column], run.measured["block"])
    seeds, found = run.medians["declared_sample_seeds"], dict[Key, Logs]()  # for the efficiency
    for key, logs in repeat_logs(run.measured["epoch_s"]).items():
        ranks = ranks_of(run.plan["workloads"][key.workload])
        if seeds[tuple(key)] > 0:
            found[key] = Logs(math.log(seeds[tuple(key)]) - x - math.log(ranks) for x in logs)
    return found


def accuracy_over_time(run: Run) -> pd.DataFrame:
    """Return the accuracy of each measured series after each measured epoch.

    Columns: :data:`SERIES`, ``epoch``, ``time_s`` (of all measured epochs up to this one) and
    ``accuracy`` (0 to 1); medians over repeats. Empty without ``eval_every_epoch``.
    Workloads that differ in ``sampler`` train on other minibatches: compare their accuracy after
    equal time, as the length of their epochs measures nothing.
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
    curves = accuracy_over_time(run)
    parts = [curves[["accuracy"]].set_index(pd.MultiIndex.from_frame(curves[SERIES])).iloc[:0]]
    for _, members in run.alike(sampler="", seed=0):
        of_members = curves[curves["workload"].isin(members)]
        by = of_members.groupby(SERIES)["time_s"].max().min()
        before = of_members.assign(
            accuracy=of_members["accuracy"].where(of_members["time_s"] <= by)
        )
        parts.append(before.groupby(SERIES)[["accuracy"]].last().fillna(0.0))
    return pd.concat(parts)["accuracy"]


# ---- families ------------------------------------------------------------------------------------

_QUARTILES = np.array([0.5, 0.25, 0.75])


def axis_of(field: str) -> Axis:
    """Return the axis of a field.

    Raises:
        ValueError: the field has no axis.
    """
    found = next((axis for axis in AXES if axis.field == field), None)
    if found is None:
        raise ValueError(f"no axis {field!r}; there are {', '.join(of.field for of in AXES)}")
    return found


def axis(run: Run, field: str) -> pd.DataFrame:
    """Return a line for each value of each family with two or more values, one of them measured.

    Columns: ``family``, :data:`SERIES`, ``value`` (of the field), ``epoch`` (s, median) with its
    quartiles, ``ratio`` (to the epoch of the first value) with its 95 % interval, the extra
    columns, and ``reason``: why a value was not measured, or has no ratio. NaN: unknown.

    Raises:
        ValueError: as :func:`axis_of`.
    """
    chosen, lines = axis_of(field), list[dict[str, Any]]()
    extras = [c for e in chosen.extra for c in (ends_of(e.name) if e.logs else [e.name])]
    columns = ["family", *SERIES, "value", *ends_of("epoch"), *ends_of("ratio"), *extras, "reason"]
    families = _families(run, chosen)
    if families.empty:
        return pd.DataFrame(columns=columns)
    ratios = {"ratio": "epoch_s", **{e.name: e.logs for e in chosen.extra if e.logs}}
    why = reasons(run)
    logs = {name: _logs(run, column) for name, column in ratios.items()}
    values = {e.name: _values(run, e.of) for e in chosen.extra if not e.logs}
    quartiles = run.measured["epoch_s"].dropna().groupby(SERIES).quantile(_QUARTILES).unstack()
    for (family, _), group in families.groupby(["family", "path"], sort=False):
        measured = group[group["measured"]].groupby("value")["key"].agg(list).to_dict()
        first = group["value"].iloc[0]  # a value that was not measured cannot be the base
        for name, planned in group.groupby("value", sort=False)["key"]:
            value = str(name)
            keys = measured.get(value, [])
            line = {"family": family, **(keys or [*planned])[0]._asdict(), "value": value}
            lines.append(line)
            if not keys:
                line["reason"] = ": ".join(why.get(planned.iloc[0][:3], ("not measured",)))
                continue
            line |= with_ends_of(epoch=quartiles.loc[keys].mean().tolist())
            line |= {n: found.reindex(keys).mean(skipna=False) for n, found in values.items()}
            over = chosen.over.get(value, first)
            base = measured.get(over, [])
            line["reason"] = no_ratio_over(run, base[0]) if base else f"no {chosen.field} {over}"
            for ratio, own in logs.items() if not line["reason"] else ():
                line |= with_ends_of(**{ratio: _ratio(run, own, keys, base)})
    return pd.DataFrame(lines, columns=columns).fillna({"reason": ""})


def disk_strategies(run: Run) -> list[str]:
    """Return the plan's strategies that fetch off a disk: all with a file, if one declared rows."""
    from gatherbench.strategies.registry import build  # imports torch

    declared = run.declared_medians
    found = set(declared[declared["declared_disk_payload_bytes"] > 0].index.unique("strategy"))
    for case in run.plan["cases"] if found else ():
        with contextlib.suppress(ValueError):  # of a package that is not installed here
            if "file" in build(case["strategy"], case["params"]).needs:
                found.add(case["strategy"])
    return sorted(found)


def _families(run: Run, chosen: Axis) -> pd.DataFrame:
    """Return a line for each series of a family of several values, the first value first.

    Columns: ``family`` (workloads, in words), ``path`` (what series share else), ``value``,
    ``key`` (a :class:`Key`), ``measured``.
    """
    plain = {chosen.field: chosen.plain, **chosen.merged, **({"seed": 0} if chosen.seeds else {})}
    alike = run.alike(**(plain if chosen.field in _FIELDS else {}))
    names = {
        ident: (number, " ".join(name.split()))
        for number, (name, members) in enumerate(alike)
        for ident in members
    }
    known = {key[:3]: key for key in series_of(run)}
    backend = next((key.backend for key in known.values()), "host")
    placed, lines = _placed(run, chosen), list[tuple[Any, ...]]()
    cases = pd.DataFrame(run.plan["cases"])[SERIES[:3]].drop_duplicates()
    for case in plan_order(run, cases).itertuples(index=False, name=None):
        if place := placed(case):
            key = known.get(case) or Key._make((*case, backend, "measured"))
            lines.append((*names[key.workload], *place, key, case in known))
    columns = ["number", "family", "path", "value", "place", "key", "measured"]
    found = pd.DataFrame(lines, columns=columns)
    groups = found.groupby(["family", "path"], sort=False)
    found["group"] = groups.ngroup()
    several = groups["value"].transform("nunique").gt(1) & groups["measured"].transform("any")
    return found[several].sort_values(["number", "group", "place"], kind="stable")


def _placed(
    run: Run, chosen: Axis
) -> Callable[[tuple[str, str, str]], tuple[str, str, int] | None]:
    """Return a function of workload, strategy and variant: what a series shares with its family
    but the workload, its value, and its position; ``None``: it has no such field.
    """
    from gatherbench.strategies.base import parameters  # imports torch
    from gatherbench.strategies.registry import in_words, named

    disks, reference = disk_strategies(run), reference_variant(run)

    def of_path(workload: str, strategy: str, variant: str) -> tuple[str, str, int] | None:
        names, disk = (strategy, variant), strategy in disks
        if chosen.field == PATH:
            return ("", in_words(*names), int(disk)) if disk or names == reference else None
        if chosen.field in _FIELDS:
            fields = run.plan["workloads"][workload]
            value = fields.get(chosen.field, chosen.plain)
            value = short_name(value) if isinstance(value, str) else value
            place = value if isinstance(value, int) else int(value != chosen.plain)
            more = [fields.get(name, plain) for name, plain in chosen.merged.items()]
            words = " ".join(map(str, [value, *(more if value != chosen.plain else ())]))
            return " ".join(names), words, place
        path = named(*names)
        known = {} if path is None or disk else parameters(type(path))
        if chosen.field not in known:
            return None
        rest = [getattr(path, name) for name in known if name != chosen.field]
        value = str(getattr(path, chosen.field))
        number = value.rstrip("%")
        place = int(number) if number.isdigit() else list(known[chosen.field]).index(value)
        return f"{strategy} {rest}", value, place

    return lambda case: of_path(*case)


def _ratio(
    run: Run, logs: Mapping[Key, Logs], keys: Sequence[Key], base: Sequence[Key]
) -> tuple[float, float, float]:
    """Return the ratio over the base, with the ends of the 95 % interval."""
    if keys == base:
        return (1.0, 1.0, 1.0)
    own, theirs = (_pooled(run, logs, many) for many in (keys, base))
    return interval_of((1, own), (-1, theirs)).ends if own and theirs else (math.nan,) * 3


def _pooled(run: Run, logs: Mapping[Key, Logs], keys: Sequence[Key]) -> Logs:
    """Pool logarithms over workloads that differ in seed: one number per seed, paired by seed."""
    if any(key not in logs for key in keys):
        return Logs([])
    if len(keys) == 1:
        return logs[keys[0]]
    seeds = [float(run.plan["workloads"][key.workload]["seed"]) for key in keys]
    blocks = {n: dict(enumerate(logs[key])) for n, key in zip(seeds, keys, strict=True)}
    return Logs([float(np.mean(logs[key])) for key in keys], blocks)
