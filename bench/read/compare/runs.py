"""Has a build become slower? Two runs of one plan, case by case and metric by metric.

A is the run before (the base), B the new one. Ratios are B over A. What is measured is judged by
the one rule (:mod:`gatherbench.bench.read.stats.judge`); what is computed (modelled times, declared
bytes and requests) is compared exactly; what was computed from times that each run measured decides
nothing. What only one of the runs has is listed, never dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import pandas as pd

from gatherbench.bench.read.compare.comparable import CompareError, check_comparable
from gatherbench.bench.read.compare.metrics import METRICS, Metric
from gatherbench.bench.read.disturbance import disturbed_alone
from gatherbench.bench.read.epochs import (
    problems,
    reference_variant,
    repeat_logs,
    sort_series,
)
from gatherbench.bench.read.stats.interval import Interval, interval_of
from gatherbench.bench.read.stats.judge import THRESHOLD, Judgement, judge, judge_exactly
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES, Key

#: What decides whether a build is slower unless others are asked for: the stages say where the time
#: went, they do not count it again.
DECIDING = ("epoch",)
#: Verdicts that end a comparison with exit status 1.
BAD = ("SLOW", "FAILED")

#: Workload, strategy, variant: a series without its backend and basis.
Case = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One line: a metric of a case in both runs, or a case that only one of them has.

    Attributes:
        workload, strategy, variant, backend, basis: the series.
        metric, unit: see :data:`gatherbench.bench.read.compare.metrics.METRICS`; ``epoch`` for a
            case that one run lacks.
        base, new: geometric means over repeats of each repeat's median; over the run's own
            reference where machines differ. NaN: there is none.
        ratio, low, high: new over base with its 95 % interval; NaN likewise.
        verdict: SAME, FAST, SLOW or AMBIGUOUS; FAILED (in B alone), MISSING (from B), NEW (in B).
        reason: in words.
    """

    workload: str
    strategy: str
    variant: str
    backend: str
    basis: str
    metric: str
    unit: str
    base: float
    new: float
    ratio: float
    low: float
    high: float
    verdict: str
    reason: str


COLUMNS = list(Comparison.__dataclass_fields__)


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
        across_machines: the runs are from different machines: compare not times but their ratios
            over each run's own reference
            (:func:`gatherbench.bench.read.epochs.reference_variant`).
        metrics: names in :data:`~gatherbench.bench.read.compare.metrics.METRICS`; all if empty.
        threshold: the smallest difference that matters, as a share.

    Returns:
        Columns :data:`COLUMNS`, one row a :class:`Comparison`, in the plan's order of workloads,
        the reading order of strategies and the order of the metrics. The same runs give the same
        table.

    Raises:
        CompareError: the runs cannot be compared, have no case in common, or there is no such
            metric.
        RunError: a run's table is damaged.
    """
    unknown = sorted(set(metrics) - METRICS.keys())
    if unknown:
        raise CompareError(f"unknown metric {unknown[0]!r}: one of {', '.join(METRICS)}")
    check_comparable(base, new, across_machines=across_machines)
    reference = reference_variant(new) if across_machines else None
    loads = disturbed_alone(base), disturbed_alone(new)
    measured = _cases(base), _cases(new)
    found = list(_one_sided(base, new, *measured))
    listed = measured[0].keys() ^ measured[1].keys()
    for name in [name for name in METRICS if name in metrics or not metrics]:
        pair = _Pair(METRICS[name], base, new, reference, loads)
        found += [
            pair.compare(key, threshold)
            for key in pair.keys
            if key[:3] not in listed and (pair.reference is None or key[1:3] != pair.reference)
        ]
    if all(math.isnan(comparison.ratio) for comparison in found):
        raise CompareError(
            f"{base.folder} and {new.folder}: no case was measured in both; `gatherbench show`"
            " says what became of each"
        )
    table = pd.DataFrame([asdict(comparison) for comparison in found], columns=COLUMNS)
    workloads = list(dict.fromkeys([*base.workloads, *new.workloads]))
    order = table.assign(
        _workload=table["workload"].map(workloads.index),
        _metric=table["metric"].map(list(METRICS).index),
    )
    order = sort_series(order).sort_values("_workload", kind="stable")
    by = ["_workload", "strategy", "variant", "backend", "basis"]
    order["_series"] = order.groupby(by, sort=False).ngroup()
    ordered = order.sort_values(["_series", "_metric"], kind="stable")
    return ordered[COLUMNS].reset_index(drop=True)


def deciding(table: pd.DataFrame, metrics: Sequence[str] = ()) -> pd.DataFrame:
    """The lines of :func:`compare_runs` that decide: of ``metrics``, or of :data:`DECIDING`.

    Modelled times decide like measured ones where nothing but the code changes them.
    """
    chosen = table["metric"].isin(list(metrics or DECIDING))
    return table[chosen | (table["verdict"] == "FAILED")]


class _Pair:
    """The values of one metric in both runs, by series."""

    def __init__(
        self,
        metric: Metric,
        base: Run,
        new: Run,
        reference: tuple[str, str] | None,
        loads: tuple[dict[Key, float], dict[Key, float]],
    ) -> None:
        self.metric, self.runs, self.loads = metric, (base, new), loads
        self.reference = None if metric.declared else reference
        self.values = _by_series(metric.read(base)), _by_series(metric.read(new))
        self.keys = list(dict.fromkeys([*self.values[0], *self.values[1]]))

    def compare(self, key: Key, threshold: float) -> Comparison:
        """The line of one series, over the reference of its own run where there is one."""
        metric, wanted = self.metric, [key]
        if self.reference is not None:
            strategy, variant = self.reference
            wanted.append(key._replace(strategy=strategy, variant=variant))
        for values, word, where in zip(self.values, ("NEW", "MISSING"), "AB", strict=True):
            for series in wanted:
                if series not in values:
                    kind = "modelled " if key.basis == "predicted" else ""
                    whose = "" if series == key else " of the reference"
                    reason = f"no {kind}{metric.name}{whose} in {where}"
                    return _empty(key, metric, word, reason)
        before, now = ([values[series] for series in wanted] for values in self.values)
        exactly = key.basis != "measured"
        base, new = (_over(*(_typical(v, exactly) for v in side)) for side in (before, now))
        if exactly:
            found = judge_exactly(base, new, more_is_better=metric.more_is_better)
            profiles = [", ".join(sorted(_profiles(run, key))) for run in self.runs]
            if not metric.declared and profiles[0] != profiles[1]:
                reason = f"modelled for {profiles[0]} in A and for {profiles[1]} in B"
                found = replace(found, word="AMBIGUOUS", reason=reason)
            elif not metric.declared and found.word != "SAME" and _borrows(self.runs[1], key):
                reason = "computed from times that each run measured (sampling): varies with them"
                found = replace(found, word="AMBIGUOUS", reason=reason)
        else:
            found = self._judge(now, before, threshold, self._busy(wanted))
        unit = metric.unit if len(wanted) == 1 else "1"
        ratio = found.interval
        numbers = (base, new, ratio.value, ratio.low, ratio.high)
        return Comparison(*key, metric.name, unit, *numbers, found.word, found.reason)

    def _judge(
        self,
        now: Sequence[pd.Series[float]],
        before: Sequence[pd.Series[float]],
        threshold: float,
        busy: str,
    ) -> Judgement:
        """The verdict on new over base, each over its own reference if it has one."""
        if any((values <= 0).any() for values in (*now, *before)):
            nothing = Interval(math.nan, math.nan, math.nan, 0)
            return Judgement(nothing, "AMBIGUOUS", "a value of 0 has no ratio")
        factors = [(1, _logs(now[0])), (-1, _logs(before[0]))]
        factors += [(-1, _logs(v)) for v in now[1:]] + [(1, _logs(v)) for v in before[1:]]
        better = self.metric.more_is_better
        return judge(
            interval_of(*factors),
            threshold=threshold,
            more_is_better=better,
            family=len(self.keys),
            busy=busy,
        )

    def _busy(self, wanted: Sequence[Key]) -> str:
        """In which of the runs a series has no quiet repeat; empty if in none."""
        worst = (max(load.get(series, 0.0) for series in wanted) for load in self.loads)
        return ", ".join(
            f"other work had {cores:.1f} cores in {name}"
            for cores, name in zip(worst, "AB", strict=True)
            if cores
        )


def _typical(values: pd.Series[float], exactly: bool) -> float:
    """What is stated of a series: as in its ratio; the median of what is computed or has a 0."""
    if exactly or (values <= 0).any():
        return float(values.median())
    return interval_of((1, _logs(values))).value


def _logs(values: pd.Series[float]) -> list[float]:
    """Of one series' values: the logarithm of each repeat's median."""
    (logs,) = repeat_logs(values).values()
    return logs


def _over(value: float, reference: float = 1.0) -> float:
    return value / reference if reference else math.nan


def _profiles(run: Run, key: Key) -> set[str]:
    """Whose machine a modelled series is about."""
    return set(run.select(**key._asdict())["machine"])


def _borrows(run: Run, key: Key) -> bool:
    """Whether a modelled series rests on times that its run measured, as of sampling."""
    return bool(run.select(**key._asdict())["borrowed"].any())


def _one_sided(base: Run, new: Run, *measured: dict[Case, str]) -> Iterator[Comparison]:
    """Cases that one run lacks, and those that failed in B alone."""
    bad = [_problems(run) for run in (base, new)]
    epoch = METRICS["epoch"]
    for case in dict.fromkeys([*measured[0], *measured[1]]):
        for lacks, has, word, name in ((1, 0, "MISSING", "B"), (0, 1, "NEW", "A")):
            if case in measured[has] and case not in measured[lacks]:
                status, reason = bad[lacks].get(case, ("", f"not in {name}'s plan"))
                if status == "failed" and word == "MISSING":
                    continue  # told below
                said = f"{status} in {name}: {reason}" if status else reason
                yield _empty(Key(*case, measured[has][case], "measured"), epoch, word, said)
    for case, (status, reason) in bad[1].items():
        if status == "failed" and bad[0].get(case, ("", ""))[0] != "failed":
            backend = measured[1].get(case) or measured[0].get(case) or ""
            key = Key(*case, backend, "measured")
            yield _empty(key, epoch, "FAILED", f"failed in B: {reason}")


def _cases(run: Run) -> dict[Case, str]:
    """Cases with a measured epoch, and their backend."""
    return {key[:3]: key.backend for key in _by_series(run.values("epoch", "wall_time"))}


def _problems(run: Run) -> dict[Case, tuple[str, str]]:
    return {
        (str(p["workload"]), str(p["strategy"]), str(p["variant"])): (p["status"], p["reason"])
        for p in problems(run).to_dict("records")
    }


def _by_series(values: pd.Series[float]) -> dict[Key, pd.Series[float]]:
    groups = values.dropna().groupby(SERIES, sort=False)
    return {Key(*map(str, k)): v for k, v in groups}


def _empty(key: Key, metric: Metric, word: str, reason: str) -> Comparison:
    nan = math.nan
    return Comparison(*key, metric.name, metric.unit, nan, nan, nan, nan, nan, word, reason)
