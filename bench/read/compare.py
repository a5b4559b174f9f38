"""Has a build become slower? Compare two runs of one plan, case by case and metric by metric.

A is the run before (the base), B the new one; ratios are B over A. Measured values are judged by
the one rule (:mod:`gatherbench.stats.judge`). Computed values (predicted times, declared bytes and
requests) are compared exactly, but a prediction that borrows times measured in each run decides
nothing. A case of only one of the runs is listed, never dropped.

Runs with other minibatches, other settings or other machines are refused: number and bytes of an
epoch's minibatches, which depend on nothing else, show whether the draw gave the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pandas as pd

from gatherbench.bench.meters.load import Waiting
from gatherbench.bench.read.derive import (
    STAGES,
    reasons,
    reference_variant,
    repeat_logs,
    sort_by,
    sort_series,
)
from gatherbench.bench.read.noise import noisy_series, series_of
from gatherbench.bench.read.tables import CASE, Run
from gatherbench.bench.run.rows import SERIES, Key
from gatherbench.stats.interval import Factor, Interval, interval_of
from gatherbench.stats.judge import THRESHOLD, Judgement, judge, judge_exactly

#: The metrics that decide by default whether a build is slower: the stages show where the time
#: goes, and would count it twice.
DECIDING = ("epoch",)
#: Verdicts that end a comparison with exit status 1, and those that leave a case undecided.
BAD, OPEN = ("SLOW", "FAILED"), ("AMBIGUOUS", "UNLIKE", "MISSING", "NEW")
#: The columns of :func:`compare_runs`.
COLUMNS = [*SERIES, "metric", "unit", "base", "new", "ratio", "low", "high", "verdict", "reason"]

#: The key of a case: workload, strategy, variant.
_Case = tuple[str, str, str]
_Path = tuple[str, str]


class CompareError(ValueError):
    """Two runs that cannot be compared; the message says why, and the remedy."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric in which runs are compared.

    Attributes:
        name: that of ``--metric``.
        unit: of its values, of one epoch.
        column: with them, of :attr:`Run.measured` and :attr:`Run.predicted`; or of
            :attr:`Run.declared_medians`.
        more_is_better: true of rates.
    """

    name: str
    unit: str
    column: str
    more_is_better: bool = False

    @property
    def declared(self) -> bool:
        """Whether it is computed only from ids and data path: the same on every machine."""
        return self.column.startswith("declared_")

    def values(self, run: Run) -> pd.Series[float]:
        """Return a run's values, indexed by :data:`SERIES`, repeat and epoch."""
        if self.declared:
            declared = run.declared_medians[self.column].dropna()
            of = declared.rename("value").reset_index().assign(basis="declared", repeat=0, epoch=-1)
            return of.set_index([*CASE, "epoch"])["value"]
        frames = (run.measured, run.predicted)
        found = [frame[self.column] for frame in frames if self.column in frame]
        values: pd.Series[float] = pd.concat(found).dropna()
        return values


#: Every metric, in the order of display.
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        *(Metric(stage, "s", f"{stage}_s") for stage in ("epoch", *STAGES)),
        Metric("cpu", "s", "cpu_s"),
        Metric("payload_rate", "B/s", "payload_rate", more_is_better=True),
        Metric("gpu_energy", "J", "gpu_energy_j"),
        *(
            Metric(name, "B", f"declared_{name}_bytes")
            for name in ("cpu_read", "cpu_write", "copy_engine", "gpu_link_read")
        ),
        Metric("link_requests", "1", "declared_link_requests"),
    )
}


def compare_runs(
    base: Run,
    new: Run,
    *,
    across_machines: bool = False,
    metrics: Sequence[str] = (),
    threshold: float = THRESHOLD,
) -> pd.DataFrame:
    """Compare run ``new`` (B) with run ``base`` (A).

    Args:
        across_machines: the runs are from different machines: compare, instead of times, their
            ratios over each run's own reference
            (:func:`gatherbench.bench.read.derive.reference_variant`).
        metrics: names in :data:`METRICS`; all if empty.
        threshold: the smallest difference that matters, as a share.

    Returns:
        A line for each metric of a case, and for each case that only one of the runs has (with the
        metric ``epoch``); in the plan's order of workloads, the reading order of strategies and the
        order of the metrics. Columns :data:`COLUMNS`: the series; ``base`` and ``new``, geometric
        means over repeats of each repeat's median (over the run's own reference if machines
        differ, NaN without one); their ``ratio`` with ``low`` and ``high``, its 95 %
        interval; ``verdict``: SAME, FAST, SLOW or AMBIGUOUS, UNLIKE (threads wait otherwise in
        A than in B: not judged), FAILED (only in B), MISSING (from B), NEW (in B); ``reason``, in
        words.

    Raises:
        CompareError: the runs cannot be compared, have no case in common, or the metric is
            unknown.
        RunError: a run's table is damaged.
    """
    unknown = sorted(set(metrics) - METRICS.keys())
    if unknown:
        raise CompareError(f"unknown metric {unknown[0]!r}: one of {', '.join(METRICS)}")
    _check_comparable(base, new, across_machines=across_machines)
    reference = reference_variant(new) if across_machines else None
    cases = [{key[:3]: key.backend for key in series_of(run)} for run in (base, new)]
    one_sided = cases[0].keys() ^ cases[1].keys()
    found = list(_one_sided(base, new, *cases))
    for name in [name for name in METRICS if name in metrics or not metrics]:
        lines = _lines(METRICS[name], (base, new), reference, threshold)
        found += [line for key, line in lines if key[:3] not in one_sided]
    if all(math.isnan(line["ratio"]) for line in found):
        raise CompareError(
            f"{base.folder} and {new.folder}: no case was measured in both; `gatherbench show`"
            " says what became of each"
        )
    table = sort_by(pd.DataFrame(found, columns=COLUMNS), "metric", list(METRICS))
    workloads = list(dict.fromkeys([*base.workloads, *new.workloads]))
    return sort_by(sort_series(table), "workload", workloads)


def deciding(table: pd.DataFrame, metrics: Sequence[str] = ()) -> pd.DataFrame:
    """Return the lines of :func:`compare_runs` that decide: of ``metrics``, or of `DECIDING`.

    Predicted times decide like measured ones if only the code can change them.
    """
    chosen = table["metric"].isin(list(metrics or DECIDING))
    return table[chosen | (table["verdict"] == "FAILED")]


class _Value(NamedTuple):
    """A series' value of an epoch, or its ratio to the reference's.

    It is the geometric mean over the repeats, as in a ratio; the median if it is computed or has a
    0, and then there are no ``factors`` of an interval. ``cores``: of other work.
    """

    value: float
    factors: Sequence[Factor]
    cores: float

    def over(self, other: _Value) -> _Value:
        """Return the ratio of both."""
        ratio = self.value / other.value if other.value else math.nan
        both = bool(self.factors and other.factors)
        factors = [*self.factors, *((-n, logs) for n, logs in other.factors)] if both else []
        return _Value(ratio, factors, max(self.cores, other.cores))


def _by_series(metric: Metric, run: Run, reference: _Path | None) -> dict[Key, _Value | None]:
    """Return each series' value, over the reference's if given; ``None``: it has no reference."""
    values, noisy = metric.values(run), noisy_series(run)
    logs = repeat_logs(values[values > 0], run.measured["block"])
    found: dict[Key, _Value] = {}
    for names, group in values.groupby(SERIES, sort=False):
        key = Key(*map(str, names))
        factors = [(1, logs[key])] if group.min() > 0 else []
        is_typical = factors and key.basis == "measured"
        value = interval_of(*factors).value if is_typical else group.median()
        found[key] = _Value(value, factors, noisy.get(key, 0.0))
    if reference is None:
        return {**found}
    bases = {key: key._replace(strategy=reference[0], variant=reference[1]) for key in found}
    pairs = {key: (value, found.get(bases[key])) for key, value in found.items()}
    return {key: base and value.over(base) for key, (value, base) in pairs.items()}


def _lines(
    metric: Metric, runs: tuple[Run, Run], reference: _Path | None, threshold: float
) -> Iterator[tuple[Key, dict[str, Any]]]:
    """Yield each series and its line in a metric, over the reference of its own run if given."""
    reference = None if metric.declared else reference
    sides = [_by_series(metric, run, reference) for run in runs]
    waits = [Waiting.of(run.env) for run in runs]
    waits_alike = waits[0].variables == waits[1].variables
    series = dict.fromkeys([*sides[0], *sides[1]])
    for key in series:
        if key[1:3] == reference:
            continue  # over itself it is 1
        before, now = (side.get(key) for side in sides)
        if before is None or now is None:
            word, where, side = ("NEW", "A", 0) if before is None else ("MISSING", "B", 1)
            kind = "modelled " if key.basis == "predicted" else ""
            whose = " of the reference" if key in sides[side] else ""
            yield key, _line(key, metric, word, f"no {kind}{metric.name}{whose} in {where}")
            continue
        if key.basis != "measured":
            found = _computed(metric, runs, key, before.value, now.value)
        elif ratio := now.over(before).factors:
            worst = zip((before.cores, now.cores), "AB", strict=True)
            busy = [f"other work had {n:.1f} cores in {name}" for n, name in worst if n]
            found = judge(
                interval_of(*ratio),
                threshold=threshold,
                more_is_better=metric.more_is_better,
                family=len(series),
                busy=", ".join(busy),
            )
        else:
            unknown = Interval(math.nan, math.nan, math.nan, 0)
            found = Judgement(unknown, "AMBIGUOUS", "a value of 0 has no ratio")
        verdict: tuple[str, str] = (found.word, found.reason)
        if not waits_alike and key.basis == "measured":
            text = f"threads waited {waits[0]} in A and {waits[1]} in B"
            verdict = "UNLIKE", f"{text}: measure both alike"
        of = found.interval
        line = _line(key, metric, *verdict, before.value, now.value, of.value, of.low, of.high)
        yield key, line if reference is None else line | {"unit": "1"}


def _computed(metric: Metric, runs: Sequence[Run], key: Key, base: float, new: float) -> Judgement:
    found = judge_exactly(base, new, more_is_better=metric.more_is_better)
    if key.basis == "declared":
        return found
    predicted = [run.predicted.xs(tuple(key), level=SERIES) for run in runs]
    profiles = [", ".join(sorted(set(frame["machine"]))) for frame in predicted]
    if profiles[0] != profiles[1]:
        reason = f"modelled for {profiles[0]} in A and for {profiles[1]} in B"
        return replace(found, word="AMBIGUOUS", reason=reason)
    if found.word != "SAME" and predicted[1]["borrowed"].notna().any():
        reason = "computed from times that each run measured (sampling): varies with them"
        return replace(found, word="AMBIGUOUS", reason=reason)
    return found


def _one_sided(
    base: Run, new: Run, before: Mapping[_Case, str], now: Mapping[_Case, str]
) -> Iterator[dict[str, Any]]:
    """Yield the cases that one run lacks, and those that failed only in B."""
    bad_before, bad_now = reasons(base), reasons(new)
    epoch = METRICS["epoch"]
    for has, lacks, bad, word, name in (
        (before, now, bad_now, "MISSING", "B"),
        (now, before, bad_before, "NEW", "A"),
    ):
        for case in [case for case in has if case not in lacks]:
            status, reason = bad.get(case, ("", ""))
            why = f"{status} in {name}: {reason}" if status else f"not in {name}'s plan"
            if (status, word) != ("failed", "MISSING"):  # those follow below
                yield _line(Key(*case, has[case], "measured"), epoch, word, why)
    for case, (status, reason) in bad_now.items():
        if status == "failed" and bad_before.get(case, ("", ""))[0] != "failed":
            key = Key(*case, now.get(case) or before.get(case) or "", "measured")
            yield _line(key, epoch, "FAILED", f"failed in B: {reason}")


def _line(key: Key, metric: Metric, word: str, why: str, *numbers: float) -> dict[str, Any]:
    fields = (*key, metric.name, metric.unit, *(numbers or (math.nan,) * 5), word, why)
    return dict(zip(COLUMNS, fields, strict=True))


def _check_comparable(base: Run, new: Run, *, across_machines: bool) -> None:
    """Refuse a pair of runs whose numbers mean different things.

    Raises:
        CompareError: no workload in common, other minibatches, other settings, other machines
            without ``across_machines``, or with it no common reference.
    """
    pair, runs = f"{base.folder} and {new.folder}", (base, new)
    if not set(base.workloads) & set(new.workloads):
        raise CompareError(
            f"{pair} have no workload in common"
            f" ({', '.join(base.workloads)} and {', '.join(new.workloads)}): run the same plan"
        )
    _same_minibatches(base, new)
    if not across_machines:
        remedy = "--across-machines compares ratios"
        _refuse(pair, "machines or environments", remedy, *map(_facts, runs))
    names = {
        "sampling": None,
        "sampler_workers": 0,
        **({} if across_machines else {"threads": None}),
    }
    settings = [
        {name: run.plan["measure"].get(name, older) for name, older in names.items()}
        | {"minibatches of epochs": run.minibatches}
        for run in runs
    ]
    _refuse(pair, "settings", "run the same plan", *settings)
    references = [reference_variant(run) for run in runs]
    if across_machines and (references[0] is None or references[0] != references[1]):
        both = [" ".join(reference) if reference else "none" for reference in references]
        raise CompareError(
            f"machines are compared by ratios over a reference, and the runs have different"
            f" ones ({both[0]} and {both[1]}): measure the same cpu_gather variant on both"
        )


def _refuse(
    pair: str, what: str, remedy: str, base: Mapping[str, Any], new: Mapping[str, Any]
) -> None:
    """Raise :class:`CompareError` if two descriptions differ."""
    names = [name for name in {**base, **new} if base.get(name) != new.get(name)]
    if names:
        differs = "; ".join(f"{name}: {base.get(name)} and {new.get(name)}" for name in names)
        raise CompareError(f"{pair} have different {what} ({differs}): {remedy}")


def _same_minibatches(base: Run, new: Run) -> None:
    """Compare number and bytes of an epoch's minibatches, by the set of them that it had."""
    both = pd.concat([_minibatches(base), _minibatches(new)], axis=1, join="inner")
    for (workload, metric, _), one, other in both.itertuples(name=None):
        if one != other:
            a, b = (" and ".join(f"{value:.15g}" for value in values) for values in (one, other))
            raise CompareError(
                f"{workload}: {metric} of an epoch were {a} in {base.folder} and {b} in"
                f" {new.folder}: these are different minibatches (another version of the dataset or"
                " of the sampler?), and their times cannot be compared"
            )


def _minibatches(run: Run) -> pd.Series[Any]:
    """Return the different values of each of the two, by workload, its name and the set."""
    names = {"minibatches": "minibatches", "fetch_payload_bytes": "payload"}
    seen = run.measured.reset_index()
    sets = seen["minibatch_set"].fillna(seen["epoch"] if run.minibatches == "fresh" else 0)
    long = seen[["workload", *names]].rename(columns=names).assign(set=sets.astype(float))
    long = long.melt(["workload", "set"], var_name="metric").dropna(subset="value")
    values = long.groupby(["workload", "metric", "set"])["value"]
    return values.agg(lambda of: tuple(sorted(set(of))))


def _facts(run: Run) -> dict[str, Any]:
    """Return the properties that identify a machine, in words; unknown ones are ``None``."""
    env, cpu = run.env, run.env.get("cpu", {})
    return {
        "name": run.machine or None,
        "processor": cpu.get("model"),
        "cores": cpu.get("usable_cores"),
        "GPUs": ", ".join(map(_gpu, env.get("gpus") or ())) or None,
        "architecture": env.get("architecture"),
        **dict(sorted((env.get("thread_limits") or {}).items())),
    }


def _gpu(gpu: dict[str, Any]) -> str:
    """Return kind, power limit and link, which determine the speed of a GPU."""
    power, link = gpu.get("power_limit_w"), (gpu.get("link_gen_max"), gpu.get("link_width_max"))
    more = [f"{power:g} W"] if power else []
    more += [f"PCIe {link[0]} x{link[1]}"] if all(link) else []
    return f"{gpu['name']} ({', '.join(more)})" if more else str(gpu["name"])


def changes(base: Run, new: Run) -> list[str]:
    """Return other changes that may explain a difference: code, kernel, driver, libraries."""
    before, now = _software(base), _software(new)
    return [
        f"{name}: {before.get(name) or 'none'} in A, {now.get(name) or 'none'} in B"
        for name in sorted({**before, **now})
        if before.get(name) != now.get(name)
    ]


def _software(run: Run) -> dict[str, Any]:
    env = run.env
    drivers = {str(gpu.get("driver")) for gpu in env.get("gpus") or () if gpu.get("driver")}
    return {
        "commit": run.commit or env.get("commit"),
        "kernel": env.get("kernel"),
        "python": env.get("python"),
        "driver": ", ".join(sorted(drivers)) or None,
        **(env.get("libraries") or {}),
    }
