"""Has a build become slower? Compare two runs of one plan, case by case and metric by metric.

A is the run before (the base), B the new one; ratios are B over A. Measured values are judged by
the one rule (:mod:`gatherbench.stats.judge`). Computed values (predicted times, declared bytes and
requests) are compared exactly, but a prediction that borrows times measured in each run decides
nothing. A case of only one of the runs is listed, never dropped.

Runs with other minibatches, other settings or other machines are refused. A workload's id shows
from what its minibatches were drawn. Their number and bytes, which every epoch records and which
depend on nothing else, show whether the draw gave the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pandas as pd

from gatherbench.bench.meters.load import Waiting
from gatherbench.bench.read.derive import (
    STAGES,
    modelled_too,
    reasons,
    reference_variant,
    repeat_logs,
    sort_by,
    sort_series,
)
from gatherbench.bench.read.gpu import requests_declared
from gatherbench.bench.read.noise import noisy_series, series_of
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES, Key
from gatherbench.stats.interval import Interval, interval_of
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


class _Values(NamedTuple):
    """A series' median, and the logarithms of its repeats' medians, which are empty with a 0."""

    median: float
    logs: Sequence[float]


class CompareError(ValueError):
    """Two runs that cannot be compared; the message says why, and the remedy."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric in which runs are compared.

    Attributes:
        name: that of ``--metric``.
        unit: of its values.
        read: a run's values, indexed by :data:`~gatherbench.bench.run.rows.SERIES`, repeat and
            epoch.
        more_is_better: true of rates.
        declared: computed only from ids and data path: the same on every machine.
    """

    name: str
    unit: str
    read: Callable[[Run], pd.Series[float]]
    more_is_better: bool = False
    declared: bool = False


def _too(column: str) -> Callable[[Run], pd.Series[float]]:
    return lambda run: modelled_too(run, column)


def _declared(column: str) -> Callable[[Run], pd.Series[float]]:
    return lambda run: _of_epochs(run.declared[column])


def _requests(run: Run) -> pd.Series[float]:
    counted = run.declared[[*requests_declared(run.declared).values()]]
    return _of_epochs(counted.sum(axis=1, min_count=1))


def _of_epochs(said: pd.Series[float]) -> pd.Series[float]:
    """Return cases' declared values of an epoch, indexed as measured ones are, with epoch -1."""
    of = said.rename("value").dropna().reset_index().assign(basis="declared", epoch=-1)
    return of.set_index([*SERIES, "repeat", "epoch"])["value"]


#: Every metric, in the order of display. Units are of one epoch.
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        *(Metric(stage, "s", _too(f"{stage}_s")) for stage in ("epoch", *STAGES)),
        Metric("cpu", "s", lambda run: run.measured["cpu_s"]),
        Metric("payload_rate", "B/s", lambda run: run.measured["payload_rate"], True),
        Metric("gpu_energy", "J", _too("gpu_energy_j")),
        *(
            Metric(name, "B", _declared(f"declared_{name}_bytes"), declared=True)
            for name in ("cpu_read", "cpu_write", "copy_engine", "gpu_link_read")
        ),
        Metric("link_requests", "1", _requests, declared=True),
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
    measured = [{key[:3]: key.backend for key in series_of(run)} for run in (base, new)]
    loads = noisy_series(base), noisy_series(new)
    found = list(_one_sided(base, new, measured[0], measured[1]))
    listed = measured[0].keys() ^ measured[1].keys()
    for name in [name for name in METRICS if name in metrics or not metrics]:
        pair = _Pair(METRICS[name], (base, new), reference, loads, threshold)
        found += [pair.line(key) for key in pair.keys if key[:3] not in listed]
    if all(math.isnan(line["ratio"]) for line in found):
        raise CompareError(
            f"{base.folder} and {new.folder}: no case was measured in both; `gatherbench show`"
            " says what became of each"
        )
    workloads = list(dict.fromkeys([*base.workloads, *new.workloads]))
    table = sort_by(pd.DataFrame(found, columns=COLUMNS), "metric", list(METRICS))
    return sort_by(sort_series(table), "workload", workloads)


def deciding(table: pd.DataFrame, metrics: Sequence[str] = ()) -> pd.DataFrame:
    """Return the lines of :func:`compare_runs` that decide: of ``metrics``, or of `DECIDING`.

    Predicted times decide like measured ones if only the code can change them.
    """
    chosen = table["metric"].isin(list(metrics or DECIDING))
    return table[chosen | (table["verdict"] == "FAILED")]


class _Pair:
    """The values of one metric in both runs, by series."""

    def __init__(
        self,
        metric: Metric,
        runs: tuple[Run, Run],
        reference: tuple[str, str] | None,
        loads: tuple[dict[Key, float], dict[Key, float]],
        threshold: float,
    ) -> None:
        self._metric, self._runs, self._loads, self._threshold = metric, runs, loads, threshold
        self._reference = None if metric.declared else reference
        self._values = tuple(_by_series(metric.read(run), run.measured["block"]) for run in runs)
        self._family = dict.fromkeys([*self._values[0], *self._values[1]])
        #: A reference over itself is 1.
        self.keys = [key for key in self._family if key[1:3] != self._reference]

    def line(self, key: Key) -> dict[str, Any]:
        """Return the line of one series, over the reference of its own run if there is one."""
        metric, wanted = self._metric, [key]
        if self._reference is not None:
            strategy, variant = self._reference
            wanted.append(key._replace(strategy=strategy, variant=variant))
        for values, word, where in zip(self._values, ("NEW", "MISSING"), "AB", strict=True):
            for series in wanted:
                if series not in values:
                    kind = "modelled " if key.basis == "predicted" else ""
                    whose = "" if series == key else " of the reference"
                    return _line(key, metric, word, f"no {kind}{metric.name}{whose} in {where}")
        sides = [[values[series] for series in wanted] for values in self._values]
        exactly = key.basis != "measured"
        base, new = (_quotient(*(_typical(values, exactly) for values in side)) for side in sides)
        found = self._computed(key, base, new) if exactly else self._judged(wanted, *sides)
        ratio = found.interval
        numbers = (base, new, ratio.value, ratio.low, ratio.high)
        unit = metric.unit if self._reference is None else "1"
        verdict: tuple[str, str] = (found.word, found.reason)
        one, other = (Waiting.of(run.env) for run in self._runs)
        if one.variables != other.variables and not exactly:
            said = f"threads waited {one} in A and {other} in B"
            verdict = "UNLIKE", f"{said}: measure both alike"
        return _line(key, metric, *verdict, numbers) | {"unit": unit}

    def _computed(self, key: Key, base: float, new: float) -> Judgement:
        found = judge_exactly(base, new, more_is_better=self._metric.more_is_better)
        if key.basis == "declared":
            return found
        mine = [run.predicted.xs(tuple(key), level=SERIES) for run in self._runs]
        profiles = [", ".join(sorted(set(one["machine"]))) for one in mine]
        if profiles[0] != profiles[1]:
            reason = f"modelled for {profiles[0]} in A and for {profiles[1]} in B"
            return replace(found, word="AMBIGUOUS", reason=reason)
        if found.word != "SAME" and mine[1]["borrowed"].notna().any():
            reason = "computed from times that each run measured (sampling): varies with them"
            return replace(found, word="AMBIGUOUS", reason=reason)
        return found

    def _judged(
        self, wanted: Sequence[Key], before: Sequence[_Values], now: Sequence[_Values]
    ) -> Judgement:
        """Return the verdict on new over base, each over its own reference if it has one."""
        if not all(values.logs for values in (*now, *before)):
            nothing = Interval(math.nan, math.nan, math.nan, 0)
            return Judgement(nothing, "AMBIGUOUS", "a value of 0 has no ratio")
        factors = [(1, now[0].logs), (-1, before[0].logs)]
        factors += [(-1, v.logs) for v in now[1:]] + [(1, v.logs) for v in before[1:]]
        worst = (max(load.get(series, 0.0) for series in wanted) for load in self._loads)
        busy = [
            f"other work had {cores:.1f} cores in {name}"
            for cores, name in zip(worst, "AB", strict=True)
            if cores
        ]
        return judge(
            interval_of(*factors),
            threshold=self._threshold,
            more_is_better=self._metric.more_is_better,
            family=len(self._family),
            busy=", ".join(busy),
        )


def _one_sided(
    base: Run, new: Run, before: Mapping[_Case, str], now: Mapping[_Case, str]
) -> Iterator[dict[str, Any]]:
    """Return the cases that one run lacks, and those that failed only in B."""
    bad_before, bad_now = reasons(base), reasons(new)
    epoch = METRICS["epoch"]
    for has, lacks, bad, word, name in (
        (before, now, bad_now, "MISSING", "B"),
        (now, before, bad_before, "NEW", "A"),
    ):
        for case in [case for case in has if case not in lacks]:
            status, reason = bad.get(case, ("", f"not in {name}'s plan"))
            if (status, word) != ("failed", "MISSING"):  # those follow below
                said = f"{status} in {name}: {reason}" if status else reason
                yield _line(Key(*case, has[case], "measured"), epoch, word, said)
    for case, (status, reason) in bad_now.items():
        if status == "failed" and bad_before.get(case, ("", ""))[0] != "failed":
            key = Key(*case, now.get(case) or before.get(case) or "", "measured")
            yield _line(key, epoch, "FAILED", f"failed in B: {reason}")


def _line(
    key: Key,
    metric: Metric,
    verdict: str,
    reason: str,
    numbers: Sequence[float] = (math.nan,) * 5,
) -> dict[str, Any]:
    fields = (*key, metric.name, metric.unit, *numbers, verdict, reason)
    return dict(zip(COLUMNS, fields, strict=True))


def _by_series(values: pd.Series[float], blocks: pd.Series[int]) -> dict[Key, _Values]:
    values = values.dropna()
    if values.empty:
        return {}
    logs = repeat_logs(values[values > 0], blocks)
    ends = values.groupby(SERIES, sort=False).agg(["median", "min"])
    return {
        (key := Key(*names)): _Values(median, logs[key] if least > 0 else [])
        for names, median, least in ends.itertuples(name=None)
    }


def _typical(values: _Values, exactly: bool) -> float:
    """Return a series' value: as in its ratio; the median if it is computed or has a 0."""
    if exactly or not values.logs:
        return values.median
    return interval_of((1, values.logs)).value


def _quotient(value: float, reference: float = 1.0) -> float:
    return value / reference if reference else math.nan


def _check_comparable(base: Run, new: Run, *, across_machines: bool) -> None:
    """Refuse a pair of runs whose numbers mean different things.

    Raises:
        CompareError: no workload in common, other minibatches, other settings, other machines
            without ``across_machines``, or with it no common reference.
    """
    pair = f"{base.folder} and {new.folder}"
    common = [name for name in base.workloads if name in new.workloads]
    if not common:
        raise CompareError(
            f"{pair} have no workload in common"
            f" ({', '.join(base.workloads)} and {', '.join(new.workloads)}): run the same plan"
        )
    for workload in common:
        _same_minibatches(base, new, workload)

    def refuse(what: str, remedy: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
        differs = [
            f"{name}: {one.get(name)} and {other.get(name)}"
            for name in {**one, **other}
            if one.get(name) != other.get(name)
        ]
        if differs:
            raise CompareError(f"{pair} have different {what} ({'; '.join(differs)}): {remedy}")

    settings = [run.plan["measure"] for run in (base, new)]
    names = ["sampling", "sampler_workers"] + ["threads"] * (not across_machines)
    earlier = {"sampler_workers": 0}  # runs older than the setting
    asked = [{name: (earlier | measure).get(name) for name in names} for measure in settings]
    for of, run in zip(asked, (base, new), strict=True):
        of["minibatches of epochs"] = run.minibatches
    if not across_machines:
        refuse(
            "machines or environments",
            "--across-machines compares ratios",
            _facts(base),
            _facts(new),
        )
    refuse("settings", "run the same plan", *asked)
    if across_machines:
        one, other = reference_variant(base), reference_variant(new)
        if one is None or one != other:
            said = [" ".join(found) if found else "none" for found in (one, other)]
            raise CompareError(
                f"machines are compared by ratios over a reference, and the runs have different"
                f" ones ({said[0]} and {said[1]}): measure the same cpu_gather variant on both"
            )


def _same_minibatches(base: Run, new: Run, workload: str) -> None:
    for metric, column in (("minibatches",) * 2, ("payload", "fetch_payload_bytes")):
        found = [_by_set(run, workload, column) for run in (base, new)]
        for chosen in sorted(found[0].keys() & found[1].keys()):
            one, other = (of[chosen] for of in found)
            if one == other:
                continue
            said = [" and ".join(f"{value:.15g}" for value in values) for values in (one, other)]
            raise CompareError(
                f"{workload}: {metric} of an epoch were {said[0]} in {base.folder} and {said[1]} in"
                f" {new.folder}: these are different minibatches (another version of the dataset or"
                " of the sampler?), and their times cannot be compared"
            )


def _by_set(run: Run, workload: str, column: str) -> dict[float, set[float]]:
    """Return an epoch's values of a column, by the set of minibatches that it had."""
    here = run.measured.reset_index().query("workload == @workload").dropna(subset=column)
    sets = here["minibatch_set"].fillna(here["epoch"] if run.minibatches == "fresh" else 0)
    return {float(chosen): set(of) for chosen, of in here[column].groupby(sets)}


def _facts(run: Run) -> dict[str, Any]:
    """Return the properties that identify a machine, in words; unknown ones are ``None``."""
    env, cpu = run.env, run.env.get("cpu", {})
    limits = env.get("thread_limits") or {}
    return {
        "name": run.machine or None,
        "processor": cpu.get("model"),
        "cores": cpu.get("usable_cores"),
        "GPUs": ", ".join(map(_gpu, env.get("gpus") or ())) or None,
        "architecture": env.get("architecture"),
        **{name: limits.get(name) for name in sorted(limits)},
    }


def _gpu(gpu: dict[str, Any]) -> str:
    """Return kind, power limit and link, which determine the speed of a GPU."""
    power, link = gpu.get("power_limit_w"), (gpu.get("link_gen_max"), gpu.get("link_width_max"))
    more = [f"{power:g} W"] if power else []
    more += [f"PCIe {link[0]} x{link[1]}"] if all(link) else []
    return f"{gpu['name']} ({', '.join(more)})" if more else str(gpu["name"])


def changes(base: Run, new: Run) -> list[str]:
    """Return other changes that may explain a difference: code, kernel, driver, libraries."""
    one, other = _software(base), _software(new)
    return [
        f"{name}: {one.get(name) or 'none'} in A, {other.get(name) or 'none'} in B"
        for name in sorted({**one, **other})
        if one.get(name) != other.get(name)
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
