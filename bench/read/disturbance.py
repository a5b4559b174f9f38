"""Was the machine busy with other work while a case was measured?

A burst of other work may meet all epochs of one case. It then tilts every ratio to that case, and
neither spread nor interval shows it. So the question is asked case by case, and a disturbed repeat
counts only where its series has no quiet one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gatherbench.bench.meters.other_work import quiet_cores
from gatherbench.bench.run.rows import SERIES, Key, Row

if TYPE_CHECKING:
    from gatherbench.bench.read.tables import Run

#: The host's clock may be off by a tick on each core: in a short case that looks like other work.
TICK_S = 0.01

_METRICS = ["system_cpu_busy", "system_cpu_steal", "cpu_user", "cpu_system", "window_time"]


def mark_disturbed(rows: pd.DataFrame, env: dict[str, Any]) -> pd.DataFrame:
    """The rows of a run with three columns more.

    ``other_cores``: cores of the host that other work had beside the row's case, over all of its
    epochs; NaN where the host was not metered. ``disturbed``: that was too much. ``used``: the row
    counts in medians: its case did not fail, and was quiet or its series has no quiet case.

    What other work is: :mod:`gatherbench.bench.meters.other_work`.
    """
    rows = rows.drop(columns=["other_cores", "disturbed", "used"], errors="ignore")
    wanted = (rows["stage"] == "epoch") & rows["metric"].isin(_METRICS) & (rows["epoch"] >= 0)
    case = [*SERIES, "repeat"]
    sums = (
        rows[wanted & (rows["status"] == "ok")]
        .pivot_table(index=[*case, "epoch"], columns="metric", values="value")
        .reindex(columns=_METRICS)
        .fillna({"system_cpu_steal": 0.0})
        .dropna()
        .groupby(case)
        .sum()
    )
    other, too_much = _other_work(sums, logical_cores(env))
    found = pd.DataFrame({"other_cores": other, "disturbed": too_much})
    ended = rows[(rows["stage"] == "case") & (rows["status"] == "failed")]
    failed = pd.MultiIndex.from_frame(rows[case]).isin(pd.MultiIndex.from_frame(ended[case]))
    marked = rows.merge(found.reset_index(), on=case, how="left")
    marked["disturbed"] = marked["disturbed"].eq(True)
    measured = (marked["epoch"] >= 0) & ~failed
    beside = marked["disturbed"].where(measured, True).groupby([marked[k] for k in SERIES])
    marked["used"] = ~failed & (~marked["disturbed"] | beside.transform("all"))
    return marked


def beside(rows: Sequence[Row], cores: int) -> tuple[float, bool] | None:
    """Cores of other work beside the case that wrote these rows, and whether that was too much.

    As :func:`mark_disturbed` says it of whole runs. ``None``: the host was not metered.
    """
    epochs: dict[int, dict[str, float]] = defaultdict(lambda: {"system_cpu_steal": 0.0})
    for row in rows:
        if (
            row.stage == "epoch"
            and row.epoch >= 0
            and row.metric in _METRICS
            and row.value is not None
        ):
            epochs[row.epoch][row.metric] = row.value
    metered = [epoch for epoch in epochs.values() if len(epoch) == len(_METRICS)]
    if not metered:
        return None
    sums = {metric: sum(epoch[metric] for epoch in metered) for metric in _METRICS}
    other, too_much = _other_work(sums, cores)
    return float(other), bool(too_much)


def logical_cores(env: dict[str, Any]) -> int:
    """Of the machine of a run."""
    return env.get("cpu", {}).get("logical_cores") or 1


def _other_work(sums: Any, cores: int) -> tuple[Any, Any]:
    """The same two of seconds summed over epochs: of one case, or columns of many."""
    ours = sums["cpu_user"] + sums["cpu_system"]
    other = sums["system_cpu_busy"] + sums["system_cpu_steal"] - ours
    # Clocks tick: less than nothing is none.
    had = np.maximum(other / sums["window_time"], 0.0)
    return had, other - quiet_cores(cores) * sums["window_time"] > TICK_S * cores


def other_load(run: Run) -> pd.Series[float]:
    """Cores of the host that other work had beside each measured case.

    Returns:
        Indexed by :data:`SERIES` and repeat; without the cases whose host was not metered.
    """
    return _cases(run)["other_cores"]


def disturbed(run: Run) -> pd.Series[float]:
    """:func:`other_load` of the cases beside which it was too much."""
    cases = _cases(run)
    found: pd.Series[float] = cases.loc[cases["disturbed"], "other_cores"]
    return found


def disturbed_alone(run: Run) -> dict[Key, float]:
    """Cores that other work had beside the series without a quiet repeat: the worst repeat's."""
    found = disturbed(run)
    used = run.rows[run.rows["used"] & run.rows["disturbed"]].set_index([*SERIES, "repeat"]).index
    worst = found[found.index.isin(used)].groupby(SERIES).max()
    return {Key(*map(str, k)): v for k, v in worst.items()}  # type: ignore[call-overload]


def _cases(run: Run) -> pd.DataFrame:
    known = run.rows[run.rows["other_cores"].notna()]
    return known.groupby([*SERIES, "repeat"])[["other_cores", "disturbed"]].first()


def disturbance(run: Run) -> str:
    """How much other work there was beside how many cases, in words; empty for a quiet run."""
    found = disturbed(run)
    if found.empty:
        return ""
    return (
        f"other work had up to {found.max():.1f} cores of the host beside {len(found)} of"
        f" {len(other_load(run))} cases"
    )
