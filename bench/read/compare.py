"""Has a build become slower? Compare two runs of one plan, case by case and metric by metric.

A is the run before (the base), B the new one; ratios are B over A. Measured values are judged by
the one rule (:mod:`gatherbench.stats.judge`); declared bytes and requests are compared exactly. A
case of only one of the runs is listed, never dropped.

Runs with other minibatches, other settings or other machines are refused: number and bytes of an
epoch's minibatches, which depend on nothing else, show whether the draw gave the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Any, NamedTuple

import pandas as pd

from gatherbench.bench.meters.load import Waiting
from gatherbench.bench.read.derive import (
    STAGES,
    reasons,
    repeat_logs,
    sort_by,
    sort_series,
)
from gatherbench.bench.read.noise import noisy_series, series_of
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES, Key
from gatherbench.outside import InputError
from gatherbench.stats.interval import Logs, interval_of, ratio_of
from gatherbench.stats.judge import THRESHOLD, judge, judge_exactly

#: The metrics that decide by default whether a build is slower: the stages show where the time
#: goes, and would count it twice.
DECIDING = ("epoch",)
#: Verdicts that end a comparison with exit status 1, and those that leave a case undecided.
BAD, OPEN = ("SLOW", "FAILED"), ("AMBIGUOUS", "UNLIKE", "MISSING", "NEW")
#: The columns of :func:`compare_runs`.
COLUMNS = [*SERIES, "metric", "unit", "base", "new", "ratio", "low", "high", "verdict", "reason"]
_PATH = SERIES[:3]


class CompareError(InputError):
    """Two runs that cannot be compared; the message says why, and the remedy."""


class Metric(NamedTuple):
    """A quantity of an epoch: its column of a run's frames, and its unit. More of a rate is better.

    What is declared is computed from ids and data path alone: it is the same on every machine.
    """

    column: str
    unit: str

    @property
    def declared(self) -> bool:
        return self.column.startswith("declared_")


#: Every metric by the name that ``--metric`` takes, in the order of display.
METRICS: dict[str, Metric] = {
    **{stage: Metric(f"{stage}_s", "s") for stage in ("epoch", *STAGES, "cpu")},
    "payload_rate": Metric("payload_rate", "B/s"),
    "gpu_energy": Metric("gpu_energy_j", "J"),
    **{
        name: Metric(f"declared_{name}_bytes", "B")
        for name in ("cpu_read", "cpu_write", "copy_engine", "gpu_link_read")
    },
    "link_requests": Metric("declared_link_requests", "1"),
}


def compare_runs(
    base: Run, new: Run, *, metrics: Sequence[str] = (), threshold: float = THRESHOLD
) -> pd.DataFrame:
    """Compare run ``new`` (B) with run ``base`` (A).

    Args:
        metrics: names in :data:`METRICS`; all if empty.
        threshold: the smallest difference that matters, as a share.

    Returns:
        A line for each metric of a case, and for each case that only one of the runs has (with the
        metric ``epoch``); in the plan's order of workloads, the reading order of strategies and the
        order of the metrics. Columns :data:`COLUMNS`: the series; ``base`` and ``new``, geometric
        means over repeats of each repeat's median; their ``ratio`` with ``low`` and ``high``, its
        95 % interval; ``verdict``: SAME, FAST, SLOW or AMBIGUOUS, UNLIKE (threads wait otherwise in
        A than in B: not judged), FAILED (only in B), MISSING (from B), NEW (in B); ``reason``, in
        words. NaN: unknown.

    Raises:
        CompareError: the runs cannot be compared, have no case in common, or the metric is
            unknown.
        RunError: a run's table is damaged.
    """
    unknown = sorted(set(metrics) - METRICS.keys())
    if unknown:
        raise CompareError(f"unknown metric {unknown[0]!r}: one of {', '.join(METRICS)}")
    _check_comparable(base, new)
    lines = list[dict[str, Any]]()
    for name in [name for name in METRICS if name in metrics or not metrics]:
        is_declared = METRICS[name].declared
        lines += (
            _declared(name, base, new) if is_declared else _measured(name, base, new, threshold)
        )
    in_a, in_b = ({key[:3] for key in series_of(run)} for run in (base, new))
    one_sided = in_a ^ in_b
    lines = [line for line in lines if tuple(line[name] for name in _PATH) not in one_sided]
    table = pd.DataFrame([*_absent(base, new), *lines], columns=COLUMNS)
    if table["ratio"].isna().all():
        raise CompareError(
            f"{base.folder} and {new.folder}: no case was measured in both; `gatherbench show`"
            " says what became of each"
        )
    workloads = list(dict.fromkeys([*base.workloads, *new.workloads]))
    return sort_by(sort_series(sort_by(table, "metric", list(METRICS))), "workload", workloads)


def deciding(table: pd.DataFrame, metrics: Sequence[str] = ()) -> pd.DataFrame:
    """Return the lines of :func:`compare_runs` that decide: of ``metrics``, or of `DECIDING`."""
    chosen = table["metric"].isin(list(metrics or DECIDING))
    return table[chosen | (table["verdict"] == "FAILED")]


def _measured(name: str, base: Run, new: Run, threshold: float) -> Iterator[dict[str, Any]]:
    """Yield the line of each measured series in a metric."""
    unit, waits = METRICS[name].unit, [Waiting.of(run.env) for run in (base, new)]
    unlike = f"threads waited {waits[0]} in A and {waits[1]} in B: measure both alike"
    a, b = (_logs(run, METRICS[name].column) for run in (base, new))
    noisy = {"A": noisy_series(base), "B": noisy_series(new)}
    series = {**a, **b}
    for key in series:
        if key not in a or key not in b:
            word, where = ("NEW", "A") if key in b else ("MISSING", "B")
            yield _line(key, name, word, f"no {name} in {where}")
        elif not a[key] or not b[key]:
            yield _line(key, name, "AMBIGUOUS", "a value of 0 has no ratio")
        else:
            busy = [
                f"other work had {cores[key]:.1f} cores in {run}"
                for run, cores in noisy.items()
                if key in cores
            ]
            judged = judge(
                ratio_of(b[key], a[key]),
                threshold=threshold,
                more_is_better=unit.endswith("/s"),
                family=len(series),
                busy=", ".join(busy),
            )
            alike = waits[0].variables == waits[1].variables
            verdict = (judged.word, judged.reason) if alike else ("UNLIKE", unlike)
            values = [interval_of(logs[key]).value for logs in (a, b)]
            yield _line(key, name, *verdict, *values, *astuple(judged.interval)[:3])


def _logs(run: Run, column: str) -> dict[Key, Logs]:
    """Return the logarithms of each series' values; none if one of them is 0."""
    known = run.measured[column].dropna()
    logs = repeat_logs(known[known > 0], run.measured["block"])
    least = known.groupby(SERIES, sort=False).min()
    keys = map(Key._make, least.index)
    return {key: logs[key] if n > 0 else Logs(()) for key, n in zip(keys, least, strict=True)}


def _declared(name: str, base: Run, new: Run) -> Iterator[dict[str, Any]]:
    """Yield the line of each series in a metric that its case computed: compared exactly."""
    column = METRICS[name].column
    values = pd.concat([run.declared_medians[column].dropna() for run in (base, new)], axis=1)
    for series, (a, b) in zip(values.index, values.to_numpy(), strict=True):
        key = Key._make([*series, "declared"])
        if math.isnan(a) or math.isnan(b):
            word, where = ("NEW", "A") if math.isnan(a) else ("MISSING", "B")
            yield _line(key, name, word, f"no {name} in {where}")
        else:
            judged = judge_exactly(a, b)
            yield _line(key, name, judged.word, judged.reason, a, b, *judged.interval.ends)


def _absent(base: Run, new: Run) -> Iterator[dict[str, Any]]:
    """Yield the cases that one run lacks, and those that failed only in B."""
    (in_a, bad_a), (in_b, bad_b) = (
        ({key[:3]: key.backend for key in series_of(run)}, reasons(run)) for run in (base, new)
    )
    for case in {**in_a, **in_b, **bad_b}:
        status_a, _ = bad_a.get(case, ("", ""))
        status_b, reason = bad_b.get(case, ("", ""))
        if status_b == "failed" != status_a:
            word, why = "FAILED", f"failed in B: {reason}"
        elif (case in in_a) != (case in in_b):
            word, where, bad = ("MISSING", "B", bad_b) if case in in_a else ("NEW", "A", bad_a)
            status, reason = bad.get(case, ("", ""))
            why = f"{status} in {where}: {reason}" if status else f"not in {where}'s plan"
        else:
            continue
        backend = in_b.get(case) or in_a.get(case, "")
        yield _line(Key(*case, backend, "measured"), "epoch", word, why)


def _line(key: Key, metric: str, word: str, reason: str, *numbers: float) -> dict[str, Any]:
    unit = METRICS[metric].unit
    fields = (*key, metric, unit, *(numbers or (math.nan,) * 5), word, reason)
    return dict(zip(COLUMNS, fields, strict=True))


# ---- which runs can be compared ------------------------------------------------------------------


def _check_comparable(base: Run, new: Run) -> None:
    """Refuse a pair of runs whose numbers mean different things."""
    pair = f"{base.folder} and {new.folder}"
    if not set(base.workloads) & set(new.workloads):
        raise CompareError(
            f"{pair} have no workload in common"
            f" ({', '.join(base.workloads)} and {', '.join(new.workloads)}): run the same plan"
        )
    _check_minibatches(base, new)
    for facts, name, remedy in (
        (_machine, "machines or environments", "compare the ratios that `gatherbench show` gives"),
        (_settings, "settings", "run the same plan"),
    ):
        if differing := _differing(facts(base), facts(new)):
            raise CompareError(f"{pair} have different {name} ({'; '.join(differing)}): {remedy}")


def _settings(run: Run) -> dict[str, Any]:
    names = ("sampling", "sampler_workers", "threads")
    settings = {name: run.plan["measure"].get(name) or None for name in names}
    return settings | {"minibatches of epochs": run.minibatches}


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}: {a.get(name) or 'none'} in A, {b.get(name) or 'none'} in B"
        for name in {**a, **b}
        if a.get(name) != b.get(name)
    ]


def _check_minibatches(base: Run, new: Run) -> None:
    """Compare number and bytes of an epoch's minibatches, by the set of them that it had."""
    both = pd.concat([_minibatches(base), _minibatches(new)], axis=1, join="inner")
    for (workload, metric, _), *values in both.itertuples(name=None):
        if values[0] != values[1]:
            a, b = (" and ".join(f"{value:.15g}" for value in of_run) for of_run in values)
            raise CompareError(
                f"{workload}: {metric} of an epoch were {a} in {base.folder} and {b} in"
                f" {new.folder}: these are different minibatches (another version of the dataset or"
                " of the sampler?), and their times cannot be compared"
            )


def _minibatches(run: Run) -> pd.Series[Any]:
    """Return the different numbers and sizes, by workload, column and set."""
    epochs = run.measured.reset_index()
    sets = epochs["minibatch_set"].fillna(epochs["epoch"] if run.minibatches == "fresh" else 0)
    sizes = epochs[["workload", "minibatches", "fetch_payload_bytes"]]
    long = sizes.assign(set=sets.astype(float))
    long = long.melt(["workload", "set"], var_name="metric").dropna(subset="value")
    values = long.groupby(["workload", "metric", "set"])["value"]
    return values.agg(lambda of_set: tuple(sorted(set(of_set))))


def _machine(run: Run) -> dict[str, Any]:
    """Return the properties that decide how fast a machine is; unknown ones are ``None``."""
    env, cpu, gpus = run.env, run.env.get("cpu", {}), run.env.get("gpus") or ()
    of_gpus = {"GPUs": "name", "power limit, W": "power_limit_w"}
    of_gpus |= {"generation of the link": "link_gen_max", "lanes of the link": "link_width_max"}
    return {
        "name": run.machine,
        "processor": cpu.get("model"),
        "cores": cpu.get("usable_cores"),
        **{name: ", ".join(str(gpu.get(field)) for gpu in gpus) for name, field in of_gpus.items()},
        "architecture": env.get("architecture"),
        **(env.get("thread_limits") or {}),
    }


def changes(base: Run, new: Run) -> list[str]:
    """Return other changes that may explain a difference: code, kernel, driver, libraries."""
    return sorted(_differing(_software(base), _software(new)))


def _software(run: Run) -> dict[str, Any]:
    env = run.env
    drivers = {str(gpu.get("driver")) for gpu in env.get("gpus") or () if gpu.get("driver")}
    return {
        "commit": run.commit or env.get("commit"),
        "kernel": env.get("kernel"),
        "python": env.get("python"),
        "driver": ", ".join(sorted(drivers)),
        **(env.get("libraries") or {}),
    }
