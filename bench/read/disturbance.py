"""Was the machine busy with other work while a case was measured?

A burst of other work may meet all epochs of one case. It then tilts every ratio to that case, and
neither spread nor interval shows it. So the question is asked case by case, and a disturbed repeat
counts only where its series has no quiet one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pandas as pd

from gatherbench.bench.meters.cpu import quiet_cores
from gatherbench.bench.run.rows import HEADER, SERIES, Key, Row

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

    What other work is: :class:`gatherbench.bench.meters.cpu.OtherWork`.
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
    cores = logical_cores(env)
    ours, window = sums["cpu_user"] + sums["cpu_system"], sums["window_time"]
    other = sums["system_cpu_busy"] + sums["system_cpu_steal"] - ours
    # Clocks tick: less than nothing is none.
    found = pd.DataFrame({"other_cores": (other / window).clip(lower=0)})
    found["disturbed"] = other - quiet_cores(cores) * window > TICK_S * cores
    ended = rows[(rows["stage"] == "case") & (rows["status"] == "failed")]
    failed = pd.MultiIndex.from_frame(rows[case]).isin(pd.MultiIndex.from_frame(ended[case]))
    marked = rows.merge(found.reset_index(), on=case, how="left")
    marked["disturbed"] = marked["disturbed"].eq(True)
    measured = (marked["epoch"] >= 0) & ~failed
    beside = marked["disturbed"].where(measured, True).groupby([marked[k] for k in SERIES])
    marked["used"] = ~failed & (~marked["disturbed"] | beside.transform("all"))
    return marked


def marked(rows: Iterable[Row], cores: int) -> pd.DataFrame:
    """The observations of whole cases among these, as :func:`mark_disturbed` has them."""
    wanted = [asdict(row) for row in rows if row.stage in ("epoch", "case") and row.rank < 0]
    table = pd.DataFrame([row for row in wanted if row["basis"] == "measured"], columns=HEADER)
    return mark_disturbed(table.astype({"value": float}), {"cpu": {"logical_cores": cores}})


def logical_cores(env: dict[str, Any]) -> int:
    """Of the machine of a run."""
    return env.get("cpu", {}).get("logical_cores") or 1


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
