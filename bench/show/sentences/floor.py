"""The floor in sentences: which part of an epoch is the data path's, and whether any has one."""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.read.epochs import epoch_times, reference_variant
from gatherbench.bench.read.floor import floor_of, path_shares
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import LONGEST_WORKLOAD, short, with_ends
from gatherbench.bench.run.rows import SERIES

#: What to change where fetching is too small a part of an epoch.
REMEDY = (
    "to tell them apart, fetch more in each minibatch (fanouts, batch_size, wider rows) or train"
    " less on it (hidden)"
)
#: Workloads of which is told one by one.
_MOST_WORKLOADS = 4


def none_differs(run: Run) -> str:
    """Says that no path is told from the floor; empty: one is, or nobody knows."""
    shares, floor = path_shares(run), floor_of(run)
    known = shares[shares["low"].notna()]
    if floor is None or known.empty or (known["low"] > 0).any():
        return ""
    return (
        f"No data path differs from {floor[0]}, the floor of the harness, by more than its"
        f" interval: what these epochs take is sampling and training. No path is faster; {REMEDY}."
    )


def floor_sentence(run: Run) -> str:
    """The data path's share of an epoch, of the reference and the fastest path by workload."""
    shares = path_shares(run)
    if shares.empty or none_differs(run):
        return ""
    reference = reference_variant(run)
    medians = epoch_times(run).set_index(SERIES)["median"]
    clauses = []
    for workload in run.workloads[:_MOST_WORKLOADS]:
        mine = shares[shares["workload"] == workload].set_index(SERIES[1:3])
        if mine.empty:
            continue
        times = mine.reset_index().apply(lambda line: medians[tuple(line[SERIES])], axis=1)
        wanted = [reference, mine.index[int(times.argmin())]]
        said = [_share(mine.loc[[names]]) for names in dict.fromkeys(wanted) if names in mine.index]
        on = f" on {short(run.names[workload], LONGEST_WORKLOAD)}" * (len(run.workloads) > 1)
        clauses.append(f"{' and '.join(said)}{on}")
    return f"Of an epoch the data path is {'; '.join(clauses)}. The rest is common to all."


def _share(line: pd.DataFrame) -> str:
    (strategy, variant), row = line.index[0], line.iloc[0]
    ends = with_ends(row["share"], row["low"], row["high"], "share")
    return f"{ends} of {short(f'{strategy} {variant}')}’s"
