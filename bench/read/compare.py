"""Has a build become slower? Compare two runs of one plan, case by case and metric by metric.

A is the run before (the base), B the new one; ratios are B over A. Measured values are judged by
the one rule (:mod:`gatherbench.stats.judge`); declared bytes and requests are compared exactly. A
case of only one of the runs is listed, never dropped.

Runs with other minibatches, other settings or other machines are refused: number and bytes of an
epoch's minibatches, which depend on nothing else, show whether the draw gave the same ones.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from gatherbench.bench.meters.load import Waiting
from gatherbench.bench.read.derive import (
    PATH,
    noisy_series,
    reasons,
    repeat_logs,
    series_of,
    sort_series,
)
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
_TABLES = tomllib.loads(Path(__file__).with_name("compare.toml").read_text(encoding="utf-8"))
#: Every metric by the name that ``--metric`` takes, in the order of display: its column, its unit.
METRICS: dict[str, list[str]] = _TABLES["metrics"]
#: Numbers of a set-up without a unit that are no choice: what `auto` measured before its own.
_SEARCHED = "search_|over_kept "


class CompareError(InputError):
    """Two runs that cannot be compared; the message says why, and the remedy."""


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
    if unknown := sorted(set(metrics) - METRICS.keys()):
        raise CompareError(f"unknown metric {unknown[0]!r}: one of {', '.join(METRICS)}")
    _check_comparable(base, new)
    in_a, in_b = ({key[:3] for key in series_of(run)} for run in (base, new))
    lines = [
        line
        for name in [name for name in METRICS if name in (metrics or METRICS)]
        for line in _judged(name, base, new, threshold)
        if line[:3] not in in_a ^ in_b
    ]
    table = pd.DataFrame([*_absent(base, new), *lines], columns=COLUMNS)
    if table["ratio"].isna().all():
        raise CompareError(
            f"{base.folder} and {new.folder}: no case was measured in both; `gatherbench show`"
            " says what became of each"
        )
    return sort_series(table, [*base.workloads, *new.workloads], metric=list(METRICS))


def deciding(table: pd.DataFrame, metrics: Sequence[str] = ()) -> pd.DataFrame:
    """Return the lines of :func:`compare_runs` that decide: of ``metrics``, or of `DECIDING`."""
    chosen = table["metric"].isin(list(metrics or DECIDING))
    return table[chosen | (table["verdict"] == "FAILED")]


def _judged(name: str, base: Run, new: Run, threshold: float) -> Iterator[tuple[Any, ...]]:
    """Yield the line of each series in a metric."""
    (column, unit), waits = METRICS[name], [Waiting.of(run.env) for run in (base, new)]
    a, b = (_values(run, column) for run in (base, new))
    noisy = {"A": noisy_series(base), "B": noisy_series(new)}
    series = {**a, **b}
    for key in series:
        numbers: Sequence[float] = [math.nan] * 5
        if key not in a or key not in b:
            verdict = ("NEW", f"no {name} in A") if key in b else ("MISSING", f"no {name} in B")
        elif not a[key] or not b[key]:
            verdict = "AMBIGUOUS", "a value of 0 has no ratio"
        elif key.basis == "declared":
            judged = judge_exactly(a[key][0], b[key][0])
            verdict = judged.word, judged.reason
            numbers = [a[key][0], b[key][0], *judged.interval.ends]
        else:
            busy = {run: cores[key] for run, cores in noisy.items() if key in cores}
            judged = judge(
                ratio_of(b[key], a[key]),
                threshold=threshold,
                more_is_better=unit.endswith("/s"),
                family=len(series),
                busy=", ".join(f"other work had {busy[run]:.1f} cores in {run}" for run in busy),
            )
            verdict, ratio = (judged.word, judged.reason), judged.interval
            if waits[0].variables != waits[1].variables:
                how = f"threads waited {waits[0]} in A and {waits[1]} in B"
                verdict = "UNLIKE", f"{how}: measure both alike"
            means = [interval_of(logs[key]).value for logs in (a, b)]
            numbers = [*means, ratio.value, ratio.low, ratio.high]
        yield (*key, name, unit, *numbers, *verdict)


def _values(run: Run, column: str) -> dict[Key, Logs]:
    """Return each series' declared value, or logarithms; none of these if a value is 0."""
    if column.startswith("declared_"):
        declared = run.declared_medians[column].dropna()
        keys = [Key._make((*of, "declared")) for of in declared.index]
        return {key: Logs([n]) for key, n in zip(keys, declared, strict=True)}
    known = run.measured[column].dropna()
    logs = repeat_logs(run, known[known > 0])
    least = known.groupby(SERIES, sort=False).min()
    keys = list(map(Key._make, least.index))
    return {key: logs[key] if n > 0 else Logs(()) for key, n in zip(keys, least, strict=True)}


def _absent(base: Run, new: Run) -> Iterator[tuple[Any, ...]]:
    """Yield the cases that one run lacks, and those that failed only in B."""
    (in_a, bad_a), (in_b, bad_b) = (
        ({key[:3]: key.backend for key in series_of(run)}, reasons(run)) for run in (base, new)
    )
    for case in {**in_a, **in_b, **bad_b}:
        status, reason = bad_b.get(case, ["", ""])
        if status == "failed" != bad_a.get(case, [""])[0]:
            verdict = "FAILED", f"failed in B: {reason}"
        elif (case in in_a) != (case in in_b):
            word, where, bad = ("MISSING", "B", bad_b) if case in in_a else ("NEW", "A", bad_a)
            status, reason = bad.get(case, ["", ""])
            verdict = word, f"{status} in {where}: {reason}" if status else f"not in {where}'s plan"
        else:
            continue
        key = Key._make((*case, in_b.get(case) or in_a.get(case, ""), "measured"))
        yield (*key, "epoch", METRICS["epoch"][1], *[math.nan] * 5, *verdict)


# ---- which runs can be compared, and what changed ------------------------------------------------


def _check_comparable(base: Run, new: Run) -> None:
    """Refuse a pair of runs whose numbers mean different things."""
    pair = f"{base.folder} and {new.folder}"
    if not set(base.workloads) & set(new.workloads):
        raise CompareError(
            f"{pair} have no workload in common"
            f" ({', '.join(base.workloads)} and {', '.join(new.workloads)}): run the same plan"
        )
    both = pd.concat([_minibatches(base), _minibatches(new)], axis=1, join="inner")
    for (workload, metric, _), *values in both.itertuples(name=None):
        if values[0] != values[1]:
            a, b = (" and ".join(f"{value:.15g}" for value in of_run) for of_run in values)
            raise CompareError(
                f"{workload}: {metric} of an epoch were {a} in {base.folder} and {b} in"
                f" {new.folder}: these are different minibatches (another version of the dataset or"
                " of the sampler?), and their times cannot be compared"
            )
    for name, remedy in _TABLES["remedies"].items():
        if differing := _differing(name, base, new):
            raise CompareError(f"{pair} have different {name} ({'; '.join(differing)}): {remedy}")


def _minibatches(run: Run) -> pd.Series[Any]:
    """Return number and bytes of an epoch's minibatches, by workload, column and set of them."""
    epochs = run.measured.reset_index()
    fresh = run.plan["measure"].get("minibatches") != "same"  # as in older runs
    sets = epochs["minibatch_set"].fillna(epochs["epoch"] if fresh else 0)
    sizes = epochs[["workload", "minibatches", "fetch_payload_bytes"]]
    long = sizes.assign(set=sets.astype(float))
    long = long.melt(["workload", "set"], var_name="metric").dropna(subset="value")
    values = long.groupby(["workload", "metric", "set"])["value"]
    return values.agg(lambda of_set: tuple(sorted(set(of_set))))


def changes(base: Run, new: Run) -> list[str]:
    """Return other changes that may explain a difference: code, kernel, driver, libraries."""
    return sorted(_differing("software", base, new))


def choices(base: Run, new: Run) -> pd.DataFrame:
    """Return what paths chose otherwise while they were set up, such as their threads.

    Columns: ``workload``, ``strategy``, ``variant``, ``choice``, and its values ``a`` and ``b``.
    """
    both = pd.concat([_chosen(base), _chosen(new)], axis=1, keys=["a", "b"], join="inner")
    return sort_series(both[both["a"] != both["b"]].reset_index(), base.workloads)


def _chosen(run: Run) -> pd.Series[str]:
    """Return the numbers without a unit of each path's set-up, in words, by path and name."""
    steps = run.ended[run.ended["used"]].reset_index()
    about = run.columns[run.columns.index.isin(steps.columns)]
    metrics = about.query("stage == 'setup' and unit == '1'")["metric"]
    metrics = metrics[~metrics.str.match(_SEARCHED)]
    long = steps.melt(PATH, [*metrics.index], "choice").dropna().sort_values(["choice", "value"])
    choice = long["choice"].map(metrics).astype(str)
    kept = choice.str.extract("^kept (.*)")[0]  # the path that `auto` kept
    texts = kept.fillna(long["value"].map("{:g}".format))
    long = long.assign(value=texts, choice=choice.mask(kept.notna(), "kept"))
    values = long.groupby([*PATH, "choice"])["value"]
    in_words: pd.Series[str] = values.agg(lambda of: " or ".join(dict.fromkeys(of)))
    return in_words


def _differing(group: str, *runs: Run) -> list[str]:
    """Return in words the facts of a group (``compare.toml``) in which two runs differ."""
    a, b = (_facts(run, _TABLES["facts"][group]) for run in runs)
    return [
        f"{name}: {a.get(name) or 'none'} in A, {b.get(name) or 'none'} in B"
        for name in {**a, **b}
        if a.get(name) != b.get(name)
    ]


def _facts(run: Run, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return facts by name; a field that is a table has several."""
    env, gpus = run.env, run.env.get("gpus") or ()
    known = {**(env.get("cpu") or {}), **env, "minibatches": "fresh", **run.plan["measure"]}
    known |= {"machine": run.machine, "commit": run.commit or env.get("commit")}
    known["drivers"] = ", ".join(sorted({str(gpu["driver"]) for gpu in gpus if gpu.get("driver")}))
    known["gpus"] = {
        name: ", ".join(str(gpu.get(of)) for gpu in gpus) for name, of in _TABLES["gpus"].items()
    }
    facts = dict[str, Any]()
    for name, field in fields.items():
        value = known.get(field) or None
        facts |= value if isinstance(value, dict) else {name: value}
    return facts
