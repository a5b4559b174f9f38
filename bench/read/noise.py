"""Was the machine busy with other work while a case was measured?

A burst of other work may meet all epochs of one case. It then tilts every ratio to that case, which
neither spread nor interval shows. So each case is examined, and a noisy repeat counts only if its
series has no quiet one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from gatherbench.bench.meters.cpu import quiet_cores
from gatherbench.bench.run.rows import SERIES, Key

if TYPE_CHECKING:
    from gatherbench.bench.read.tables import Run

#: The host's clock may be off by a tick on each core: in a short case that looks like other work.
TICK_S = 0.01
_CASE = [*SERIES, "repeat"]
_METERED = ["system_cpu_busy_s", "cpu_user_s", "cpu_system_s", "window_s"]


def noise_of(epochs: pd.DataFrame, cases: pd.DataFrame, env: dict[str, Any]) -> pd.DataFrame:
    """Return how quiet the machine was during each case, by :data:`SERIES` and repeat.

    ``noisy``: other work (:class:`gatherbench.bench.meters.cpu.OtherWork`) had too much of it.
    ``other_cores``: cores of the host that other work had over all of the case's epochs; NaN if the
    host was not metered. ``used``: the case counts: it did not fail, and was quiet or its series
    has no quiet case.
    """
    epochs, cases = epochs[epochs["rank"] < 0], cases[cases["rank"] < 0]
    sums = epochs.reindex(columns=[*_CASE, *_METERED, "system_cpu_steal_s"])
    sums = sums.fillna({"system_cpu_steal_s": 0.0}).dropna(subset=_METERED).groupby(_CASE).sum()
    window, cores = sums["window_s"], logical_cores(env)
    busy = sums["system_cpu_busy_s"] + sums["system_cpu_steal_s"]
    other = busy - (sums["cpu_user_s"] + sums["cpu_system_s"])
    too_much = other - quiet_cores(cores) * window > TICK_S * cores
    measured, failed, known = (
        pd.MultiIndex.from_frame(frame[_CASE])
        for frame in (epochs, cases[cases["status"] == "failed"], pd.concat([epochs, cases]))
    )
    series = pd.DataFrame(index=known.drop_duplicates())
    series["noisy"] = series.index.isin(too_much[too_much].index)
    # Clocks tick: a negative load is none.
    series["other_cores"] = (other / window).clip(lower=0).reindex(series.index)
    quiet = ~series["noisy"] & series.index.isin(measured)  # a case that is no result has no epochs
    none_quiet = ~quiet.groupby(SERIES).transform("any").astype(bool)
    return series.assign(used=~series.index.isin(failed) & (~series["noisy"] | none_quiet))


def logical_cores(env: dict[str, Any]) -> int:
    """Return the number of logical cores of a run's machine."""
    return env.get("cpu", {}).get("logical_cores") or 1


def noisy_series(run: Run) -> dict[Key, float]:
    """Return the series without a quiet repeat, with the worst repeat's cores of other work."""
    noisy = run.ended[run.ended["noisy"] & run.ended["used"]]
    worst = noisy["other_cores"].groupby(SERIES).max()
    return {Key(*series): cores for series, cores in worst.items()}  # type: ignore[misc]


def modelled_from_noisy(run: Run) -> set[Key]:
    """Return predicted series that take times only from series without a quiet repeat.

    They have no valid ratios, as other work has lengthened these times.
    """
    noisy = noisy_series(run)
    quiet = {series.workload for series in series_of(run) if series not in noisy}
    lent = {series.workload for series in noisy} - quiet
    borrowing = run.predicted.index[run.predicted["borrowed"].notna()]
    return {Key(*names[:5]) for names in borrowing if names[0] in lent}


def mostly_noisy(run: Run) -> bool:
    """Return whether most measured series lack a quiet repeat."""
    return 2 * len(noisy_series(run)) > len(series_of(run))


def no_ratio_over(run: Run, reference: Key) -> str:
    """Return why ratios of measured epochs over this series decide nothing; empty if they may."""
    if mostly_noisy(run):
        return f"{noise(run)}: no ratio is given; measure again on an idle machine"
    if reference in noisy_series(run):
        return f"no quiet repeat of {reference.strategy} {reference.variant} to compare with"
    return ""


def series_of(run: Run) -> list[Key]:
    """Return the series with an epoch that counts."""
    known = run.measured.index[run.measured["epoch_s"].notna()]
    return list(dict.fromkeys(Key(*names[:5]) for names in known))


def noise(run: Run) -> str:
    """Return how much other work there was during how many cases, in words; empty if quiet."""
    load = run.ended.loc[run.ended["noisy"], "other_cores"]
    if load.empty:
        return ""
    counted = f"{len(load)} of {run.ended['other_cores'].count()} cases"
    return f"other work had up to {load.max():.1f} cores of the host while {counted} ran"
