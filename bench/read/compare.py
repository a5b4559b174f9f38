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
from gatherbench.stats.interval import Interval, Logs, interval_of
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
    before, now = ({key[:3]: key.backend for key in series_of(run)} for run in (base, new))
    found = list(_one_sided(base, new, before, now))
    for name in [name for name in METRICS if name in metrics or not metrics]:
        lines = _lines(METRICS[name], (base, new), reference, threshold)
        found += [line for key, line in lines if key[:3] not in before.keys() ^ now.keys()]
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


class _Values(NamedTuple):
    """A series' value, and the logarithms of its repeats' medians, which are empty with a 0.

    It is the geometric mean of the repeats, as in a ratio; the median if it is computed or has a 0.
    """

    value: float
    logs: Sequence[float]


def _by_series(metric: Metric, run: Run) -> dict[Key, _Values]:
    values, found = metric.values(run), dict[Key, _Values]()
    logs = repeat_logs(values[values > 0], run.measured["block"])
    for names, median, least in (
        values.groupby(SERIES, sort=False).agg(["median", "min"]).itertuples(name=None)
    ):
        key = Key(*names)
        mine = logs[key] if least > 0 else Logs([])
        typical = interval_of((1, mine)).value if mine and key.basis == "measured" else median
        found[key] = _Values(typical, mine)
    return found


def _lines(
    metric: Metric, runs: tuple[Run, Run], reference: _Path | None, threshold: float
) -> Iterator[tuple[Key, dict[str, Any]]]:
    """Yield each series and its line in a metric, over the reference of its own run if given."""
    reference = None if metric.declared else reference
    sides = [_by_series(metric, run) for run in runs]
    loads = [noisy_series(run) for run in runs]
    waits = [Waiting.of(run.env) for run in runs]
    family = dict.fromkeys([*sides[0], *sides[1]])
    for key in family:
        wanted = [key]
        if reference is not None:
            wanted.append(key._replace(strategy=reference[0], variant=reference[1]))
        if wanted[1:] == [key]:
            continue  # over itself it is 1
        if lacking := _lacking(metric, wanted, sides):
            yield key, _line(key, metric, *lacking)
            continue
        before, now = ([values[series] for series in wanted] for values in sides)
        base, new = (_quotient(*(one.value for one in side)) for side in (before, now))
        if key.basis != "measured":
            found = _computed(metric, runs, key, base, new)
        elif all(one.logs for one in (*now, *before)):
            worst = [max(load.get(series, 0.0) for series in wanted) for load in loads]
            found = judge(
                interval_of(
                    *((1 - 2 * n, one.logs) for n, one in enumerate(now)),
                    *((2 * n - 1, one.logs) for n, one in enumerate(before)),
                ),
                threshold=threshold,
                more_is_better=metric.more_is_better,
                family=len(family),
                busy=", ".join(
                    f"other work had {cores:.1f} cores in {name}"
                    for cores, name in zip(worst, "AB", strict=True)
                    if cores
                ),
            )
        else:
            found = Judgement(
                Interval(*(math.nan,) * 3, 0), "AMBIGUOUS", "a value of 0 has no ratio"
            )
        verdict: tuple[str, str] = (found.word, found.reason)
        if waits[0].variables != waits[1].variables and key.basis == "measured":
            text = f"threads waited {waits[0]} in A and {waits[1]} in B"
            verdict = "UNLIKE", f"{text}: measure both alike"
        ratio = found.interval
        line = _line(key, metric, *verdict, (base, new, ratio.value, ratio.low, ratio.high))
        yield key, line if reference is None else line | {"unit": "1"}


def _lacking(
    metric: Metric, wanted: Sequence[Key], sides: Sequence[Mapping[Key, _Values]]
) -> tuple[str, str] | None:
    """Return verdict and reason of a series that one run lacks, or whose reference it lacks."""
    for values, word, where in zip(sides, ("NEW", "MISSING"), "AB", strict=True):
        for series in wanted:
            if series not in values:
                kind = "modelled " if series.basis == "predicted" else ""
                whose = "" if series == wanted[0] else " of the reference"
                return word, f"no {kind}{metric.name}{whose} in {where}"
    return None


def _computed(metric: Metric, runs: Sequence[Run], key: Key, base: float, new: float) -> Judgement:
    found = judge_exactly(base, new, more_is_better=metric.more_is_better)
    if key.basis == "declared":
        return found
    mine = [run.predicted.xs(tuple(key), level=SERIES) for run in runs]
    profiles = [", ".join(sorted(set(one["machine"]))) for one in mine]
    if profiles[0] != profiles[1]:
        reason = f"modelled for {profiles[0]} in A and for {profiles[1]} in B"
        return replace(found, word="AMBIGUOUS", reason=reason)
    if found.word != "SAME" and mine[1]["borrowed"].notna().any():
        reason = "computed from times that each run measured (sampling): varies with them"
        return replace(found, word="AMBIGUOUS", reason=reason)
    return found


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
                reason_text = f"{status} in {name}: {reason}" if status else reason
                yield _line(Key(*case, has[case], "measured"), epoch, word, reason_text)
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
    keys = [{name: (earlier | measure).get(name) for name in names} for measure in settings]
    for of, run in zip(keys, (base, new), strict=True):
        of["minibatches of epochs"] = run.minibatches
    if not across_machines:
        refuse(
            "machines or environments",
            "--across-machines compares ratios",
            _facts(base),
            _facts(new),
        )
    refuse("settings", "run the same plan", *keys)
    if across_machines:
        one, other = reference_variant(base), reference_variant(new)
        if one is None or one != other:
            both = [" ".join(found) if found else "none" for found in (one, other)]
            raise CompareError(
                f"machines are compared by ratios over a reference, and the runs have different"
                f" ones ({both[0]} and {both[1]}): measure the same cpu_gather variant on both"
            )


def _same_minibatches(base: Run, new: Run, workload: str) -> None:
    for metric, column in (("minibatches",) * 2, ("payload", "fetch_payload_bytes")):
        found = [_by_set(run, workload, column) for run in (base, new)]
        for chosen in sorted(found[0].keys() & found[1].keys()):
            one, other = (of[chosen] for of in found)
            if one == other:
                continue
            a, b = (" and ".join(f"{value:.15g}" for value in values) for values in (one, other))
            raise CompareError(
                f"{workload}: {metric} of an epoch were {a} in {base.folder} and {b} in"
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
