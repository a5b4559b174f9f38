"""Was the machine busy with other work while a case was measured?

A burst beside one case tilts every ratio to it, and neither spread nor interval need show it: all
of the case's epochs may have met it. So the question is put case by case.
"""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.derive.epochs import SERIES, epoch_values
from gatherbench.bench.tables import Run

#: Cores, or share of the host's cores, that other work may have beside a quiet case: daemons and
#: kernel threads take that much.
QUIET_CORES, QUIET_SHARE = 0.3, 0.05
#: The host's clock may be off by a tick on each core: in a short case that looks like other work.
TICK_S = 0.01


def other_load(run: Run) -> pd.Series[float]:
    """Cores of the host that other work had beside each measured case, over all of its epochs.

    Other work: processes that are not ours, kernel threads (those that work for us as well, since
    nobody is charged for them), and what a hypervisor gave to other machines (steal). In a
    container the host may be larger than our share.

    Returns:
        Indexed by :data:`gatherbench.bench.derive.epochs.SERIES` and repeat; without the cases
        whose host was not metered.
    """
    sums = _core_seconds(run)
    return sums["other"] / sums["window"]


def disturbed(run: Run) -> pd.Series[float]:
    """:func:`other_load` of the cases beside which it was too much."""
    sums, cores = _core_seconds(run), run.env.get("cpu", {}).get("logical_cores") or 1
    quiet = max(QUIET_CORES, QUIET_SHARE * cores)
    found = sums[sums["other"] - quiet * sums["window"] > TICK_S * cores]
    return found["other"] / found["window"]


def _core_seconds(run: Run) -> pd.DataFrame:
    """What other work had (``other``) and the time in which it had it (``window``), by case."""
    names = ("system_cpu_busy", "cpu_user", "cpu_system", "window_time")
    busy, user, system, window = (epoch_values(run, "epoch", name) for name in names)
    table = pd.DataFrame({"other": busy - user - system, "window": window}).dropna()
    steal = epoch_values(run, "epoch", "system_cpu_steal").reindex(table.index).fillna(0.0)
    return table.assign(other=table["other"] + steal).groupby([*SERIES, "repeat"]).sum()


def disturbance(run: Run) -> str:
    """How much other work there was beside how many cases, in words; empty for a quiet run."""
    found = disturbed(run)
    if found.empty:
        return ""
    return (
        f"other work had up to {found.max():.1f} cores of the host beside {len(found)} of"
        f" {len(other_load(run))} cases"
    )
