"""Has a build become slower? Two runs of one plan, case by case and metric by metric.

A is the run before (the base), B the new one. Ratios are B over A. What is measured is judged by
``compare_judge.py``; what is computed (modelled times, declared bytes and requests) is compared
exactly. What only one of the runs has is listed, never dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import pandas as pd

from gatherbench.bench.compare_check import CompareError, check_comparable
from gatherbench.bench.compare_judge import THRESHOLD, Factor, judge, judge_exactly
from gatherbench.bench.compare_metrics import METRICS, Metric
from gatherbench.bench.derive import SERIES, other_load, problems, reference_variant, sort_series
from gatherbench.bench.tables import Run

#: What decides whether a build is slower unless others are asked for: the stages say where the time
#: went, they do not count it again.
DECIDING = ("epoch",)
#: Cores, or share of the machine's cores, that other work may keep busy in a quiet run.
QUIET_CORES, QUIET_SHARE = 0.3, 0.05
#: Verdicts that end a comparison with exit status 1.
BAD = ("SLOW", "FAILED")

Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One line: a metric of a case in both runs, or a case that only one of them has.

    Attributes:
        workload, strategy, variant, backend: the series.
        metric, unit: see :data:`gatherbench.bench.compare_metrics.METRICS`; ``epoch`` for a case
            that one run lacks.
        base, new: medians; over the run's own reference where machines differ. NaN: there is none.
        ratio, low, high: new over base with its 95 % interval; NaN likewise.
        verdict: SAME, FAST, SLOW or AMBIGUOUS; FAILED (in B alone), MISSING (from B), NEW (in B).
        reason: in words.
    """

    workload: str
    strategy: str
    variant: str
    backend: str
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
            over each run's own reference (:func:`gatherbench.bench.derive.reference_variant`).
        metrics: names in :data:`~gatherbench.bench.compare_metrics.METRICS`; all if empty.
        threshold: the smallest difference that matters, as a share.

    Returns:
        Columns :data:`COLUMNS`, one row a :class:`Comparison`, in the plan's order of workloads,
        the reading order of strategies and the order of the metrics. The same runs give the same
        table.

    Raises:
        CompareError: the runs cannot be compared, or there is no such metric.
        RunError: a run's table is damaged.
    """
    unknown = sorted(set(metrics) - METRICS.keys())
    if unknown:
        raise CompareError(f"unknown metric {unknown[0]!r}: one of {', '.join(METRICS)}")
    check_comparable(base, new, across_machines=across_machines)
    wanted = [METRICS[name] for name in METRICS if name in metrics or not metrics]
    reference = reference_variant(new) if across_machines else None
    busy = _busy(base, new)
    found = list(_one_sided(base, new))
    listed = {(c.workload, c.strategy, c.variant) for c in found if c.verdict != "FAILED"}
    for metric in wanted:
        found += _compare_metric(metric, base, new, reference, threshold, busy, listed)
    table = pd.DataFrame([asdict(comparison) for comparison in found], columns=COLUMNS)
    workloads = list(dict.fromkeys([*base.workloads, *new.workloads]))
    order = table.assign(
        _workload=table["workload"].map(workloads.index),
        _metric=table["metric"].map(list(METRICS).index),
    )
    order = sort_series(order).sort_values("_workload", kind="stable")
    by = ["_workload", "strategy", "variant", "backend"]
    order["_series"] = order.groupby(by, sort=False).ngroup()
    ordered = order.sort_values(["_series", "_metric"], kind="stable")
    return ordered[COLUMNS].reset_index(drop=True)


def deciding(table: pd.DataFrame, metrics: Sequence[str] = ()) -> pd.DataFrame:
    """The lines of :func:`compare_runs` that decide: of ``metrics``, or of :data:`DECIDING`.

    Modelled times decide like measured ones: nothing but the code changes them.
    """
    chosen = table["metric"].isin(list(metrics or DECIDING))
    return table[chosen | (table["verdict"] == "FAILED")]


def _compare_metric(
    metric: Metric,
    base: Run,
    new: Run,
    reference: tuple[str, str] | None,
    threshold: float,
    busy: str,
    listed: set[tuple[str, str, str]],
) -> Iterator[Comparison]:
    """Lines of one metric, for cases that are not ``listed`` as absent from a run."""
    one, other = (_by_series(metric.read(run)) for run in (base, new))
    for key in dict.fromkeys([*one, *other]):
        if key[:3] in listed or (reference == key[1:3] and not metric.declared):
            continue
        before, now = one.get(key), other.get(key)
        if before is None or now is None:
            yield _half(key, metric, before, now)
        elif key[3] == "model":
            yield _modelled(key, metric, base, new, before, now)
        else:
            factors: list[Factor] = [(1, now), (-1, before)]
            if reference is not None:
                over = (key[0], *reference, key[3])
                if over not in one or over not in other:
                    yield _half(key, metric, one.get(over), other.get(over), " of the reference")
                    continue
                factors += [(-1, other[over]), (1, one[over])]
            yield _measured(key, metric, factors, threshold, busy)


def _measured(
    key: Key, metric: Metric, factors: list[Factor], threshold: float, busy: str
) -> Comparison:
    found = judge(factors, threshold=threshold, more_is_better=metric.more_is_better, busy=busy)
    new, base = (float(values.median()) for _, values in factors[:2])
    unit = metric.unit
    if len(factors) > 2:
        new, base = (
            mine / float(over.median())
            for mine, (_, over) in zip((new, base), factors[2:], strict=True)
        )
        unit = "1"
    return Comparison(
        *key, metric.name, unit, base, new, found.ratio, found.low, found.high,
        found.word, found.reason,
    )  # fmt: skip


def _modelled(
    key: Key,
    metric: Metric,
    base: Run,
    new: Run,
    before: pd.Series[float],
    now: pd.Series[float],
) -> Comparison:
    one, other = float(before.median()), float(now.median())
    found = judge_exactly(one, other, more_is_better=metric.more_is_better)
    word, reason = str(found.word), found.reason
    profiles = [", ".join(sorted(_profiles(run, key))) for run in (base, new)]
    if not metric.declared and profiles[0] != profiles[1]:
        word = "AMBIGUOUS"
        reason = f"modelled for {profiles[0]} in A and for {profiles[1]} in B"
    return Comparison(
        *key, metric.name, metric.unit, one, other, found.ratio, found.low, found.high, word, reason
    )


def _profiles(run: Run, key: Key) -> set[str]:
    rows = run.rows[(run.rows[SERIES] == list(key)).all(axis=1) & (run.rows["epoch"] >= 0)]
    return set(rows["machine"])


def _half(
    key: Key,
    metric: Metric,
    before: pd.Series[float] | None,
    now: pd.Series[float] | None,
    whose: str = "",
) -> Comparison:
    """A metric that only one run has."""
    base, new = (float("nan") if v is None else float(v.median()) for v in (before, now))
    word, where = ("NEW", "A") if before is None else ("MISSING", "B")
    return _empty(key, metric, word, f"no {metric.name}{whose} in {where}", base, new)


def _one_sided(base: Run, new: Run) -> Iterator[Comparison]:
    """Cases that one run lacks, and those that failed in B alone."""
    measured = [_cases(run) for run in (base, new)]
    bad = [_problems(run) for run in (base, new)]
    epoch = METRICS["epoch"]
    for case in dict.fromkeys([*measured[0], *measured[1]]):
        for lacks, has, word, name in ((1, 0, "MISSING", "B"), (0, 1, "NEW", "A")):
            if case in measured[has] and case not in measured[lacks]:
                status, reason = bad[lacks].get(case, ("", f"not in {name}'s plan"))
                if status == "failed" and word == "MISSING":
                    continue  # told below
                said = f"{status} in {name}: {reason}" if status else reason
                yield _empty((*case, measured[has][case]), epoch, word, said)
    for case, (status, reason) in bad[1].items():
        if status == "failed" and bad[0].get(case, ("", ""))[0] != "failed":
            backend = measured[1].get(case) or measured[0].get(case) or ""
            yield _empty((*case, backend), epoch, "FAILED", f"failed in B: {reason}")


def _cases(run: Run) -> dict[tuple[str, str, str], str]:
    """Cases with a measured epoch, and their backend."""
    series = _by_series(METRICS["epoch"].read(run))
    return {key[:3]: key[3] for key in series if key[3] != "model"}


def _problems(run: Run) -> dict[tuple[str, str, str], tuple[str, str]]:
    return {
        (str(p["workload"]), str(p["strategy"]), str(p["variant"])): (p["status"], p["reason"])
        for p in problems(run).to_dict("records")
    }


def _by_series(values: pd.Series[float]) -> dict[Key, pd.Series[float]]:
    groups = values.dropna().groupby(SERIES, sort=False)
    return {(str(k[0]), str(k[1]), str(k[2]), str(k[3])): v for k, v in groups}


def _empty(
    key: Key,
    metric: Metric,
    word: str,
    reason: str,
    base: float = float("nan"),
    new: float = float("nan"),
) -> Comparison:
    nan = float("nan")
    return Comparison(*key, metric.name, metric.unit, base, new, nan, nan, nan, word, reason)


def _busy(base: Run, new: Run) -> str:
    """Which of the runs other work disturbed; empty if none."""
    said = []
    for name, run in (("A", base), ("B", new)):
        load, cores = other_load(run) or 0.0, run.env.get("cpu", {}).get("logical_cores") or 1
        if load > max(QUIET_CORES, QUIET_SHARE * cores):
            said.append(f"other work took {load:.1f} cores in {name}")
    return ", ".join(said)
