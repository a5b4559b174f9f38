"""Was the machine busy with other work while a case was measured?

A burst of other work may meet all epochs of one case. It then tilts every ratio to that case, and
neither spread nor interval shows it. So the question is asked case by case, and a disturbed repeat
counts only where its series has no quiet one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from gatherbench.bench.meters.cpu import quiet_cores
from gatherbench.bench.read.once import once
from gatherbench.bench.run.rows import SERIES, Key

if TYPE_CHECKING:
    from gatherbench.bench.read.tables import Run

#: The host's clock may be off by a tick on each core: in a short case that looks like other work.
TICK_S = 0.01

_CASE = [*SERIES, "repeat"]
_METRICS = ["system_cpu_busy", "system_cpu_steal", "cpu_user", "cpu_system", "window_time"]


def mark_disturbed(rows: pd.DataFrame, env: dict[str, Any]) -> pd.DataFrame:
    """The rows of a run with three columns more.

    ``other_cores``: cores of the host that other work had beside the row's case, over all of its
    epochs; NaN where the host was not metered. ``disturbed``: that was too much. ``used``: the row
    counts in medians: its case did not fail, and was quiet or its series has no quiet case.

    What other work is: :class:`gatherbench.bench.meters.cpu.OtherWork`.
    """
    rows = rows.drop(columns=["other_cores", "disturbed", "used"], errors="ignore")
    case = rows.groupby(_CASE).ngroup()
    wanted = (rows["stage"] == "epoch") & rows["metric"].isin(_METRICS) & (rows["epoch"] >= 0)
    sums = (
        rows.assign(case=case)[wanted & (rows["status"] == "ok")]
        .pivot_table(index=["case", "epoch"], columns="metric", values="value")
        .reindex(columns=_METRICS)
        .fillna({"system_cpu_steal": 0.0})
        .dropna()
        .groupby("case")
        .sum()
    )
    cores = logical_cores(env)
    ours, window = sums["cpu_user"] + sums["cpu_system"], sums["window_time"]
    other = sums["system_cpu_busy"] + sums["system_cpu_steal"] - ours
    too_much = other - quiet_cores(cores) * window > TICK_S * cores
    disturbed = case.isin(too_much.index[too_much])
    failed = case.isin(case[(rows["stage"] == "case") & (rows["status"] == "failed")])
    unless_quiet = disturbed | failed | (rows["epoch"] < 0)
    no_quiet_case = unless_quiet.groupby(rows.groupby(SERIES).ngroup()).transform("all")
    return rows.assign(
        # Clocks tick: less than nothing is none.
        other_cores=case.map((other / window).clip(lower=0)),
        disturbed=disturbed,
        used=~failed & (~disturbed | no_quiet_case),
    )


def logical_cores(env: dict[str, Any]) -> int:
    """Of the machine of a run."""
    return env.get("cpu", {}).get("logical_cores") or 1


def other_load(run: Run) -> pd.Series[float]:
    """Cores of the host that other work had beside each measured case.

    Returns:
        Indexed by :data:`SERIES` and repeat; without the cases whose host was not metered.
    """
    return _worst(run.rows, _CASE).dropna()


def disturbed(run: Run) -> pd.Series[float]:
    """:func:`other_load` of the cases beside which it was too much."""
    return _worst(run.select(disturbed=True), _CASE)


@once
def disturbed_alone(run: Run) -> dict[Key, float]:
    """Cores that other work had beside the series without a quiet repeat: the worst repeat's."""
    worst = _worst(run.select(disturbed=True, used=True), SERIES)
    return {Key(*series): cores for series, cores in worst.items()}  # type: ignore[misc]


@once
def disturbed_series(run: Run) -> dict[Key, float]:
    """:func:`disturbed_alone`, and modelled series that take times from such series alone."""
    found = dict(disturbed_alone(run))
    lenders: dict[str, list[float | None]] = {}
    for series in _measured(run):
        lenders.setdefault(series.workload, []).append(found.get(series))
    predicted = run.select(basis="predicted")
    borrowing = predicted.loc[predicted["borrowed"] != "", SERIES].drop_duplicates()
    for series in map(Key._make, borrowing.itertuples(index=False)):
        lent = lenders.get(series.workload, [None])
        if None not in lent:
            found[series] = max(cores for cores in lent if cores is not None)
    return found


def modelled_from_disturbed(run: Run) -> set[Key]:
    """Modelled series that take times from series without a quiet repeat alone: none is a ratio.

    What they borrow is then as long as other work made it.
    """
    return disturbed_series(run).keys() - disturbed_alone(run).keys()


def mostly_disturbed(run: Run) -> bool:
    """Whether most measured series have no quiet repeat."""
    return 2 * len(disturbed_alone(run)) > len(_measured(run))


def no_ratio_over(run: Run, reference: Key) -> str:
    """Why no ratio of measured epochs over this series decides anything; empty where one may."""
    if mostly_disturbed(run):
        return f"{disturbance(run)}: no ratio is given; measure again on an idle machine"
    if reference in disturbed_alone(run):
        return f"no quiet repeat of {reference.strategy} {reference.variant} to compare with"
    return ""


def _measured(run: Run) -> list[Key]:
    names = run.values("epoch", "wall_time").dropna().index
    return list(dict.fromkeys(Key(*series) for *series, _, _ in names))


def _worst(rows: pd.DataFrame, by: list[str]) -> pd.Series[float]:
    return rows.groupby(by)["other_cores"].max()


def disturbance(run: Run) -> str:
    """How much other work there was beside how many cases, in words; empty for a quiet run."""
    found = disturbed(run)
    if found.empty:
        return ""
    return (
        f"other work had up to {found.max():.1f} cores of the host beside {len(found)} of"
        f" {len(other_load(run))} cases"
    )
