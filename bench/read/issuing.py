"""Find epochs bounded by the host that issues them to a GPU: they show little of the data path.

A GPU runs its operations in order, and the host issues them call by call. The thread that trains
issues draws, steps and fetches; the GPU's remaining work when all is issued is the rest of the
epoch. If that is almost nothing, and issuing took more than two thirds of the epoch, a faster path
would change nothing, and the speed of issuing differs from one process to the next.

So between two such paths there is no verdict (:func:`gatherbench.stats.judge.between`). A path that
gathers on the CPU is exempt: its gather is part of the host's work.
"""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.plan.plan import GPU_SAMPLING
from gatherbench.bench.read.derive import sort_series
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES, Key

#: An epoch is host-bound if issuing takes more than this share of it, and the GPU then has at most
#: this many steps left.
BOUND_SHARE, BOUND_STEPS = 2 / 3, 2.0
#: Roles of paths whose host work for a fetch is only issuing it: others may work meanwhile.
_ISSUED = ("zero_copy", "upper_bound", "no_fetch", "control")


def host_bound(run: Run) -> frozenset[Key]:
    """Return the measured series with host-bound epochs."""
    shares = issue_shares(run)
    return frozenset(Key(*one) for one in shares.loc[shares["bound"], SERIES].to_numpy())


def issue_shares(run: Run) -> pd.DataFrame:
    """Return issuing as shares of the measured epochs: medians over repeats and epochs.

    Columns: :data:`SERIES`, ``train`` and ``fetch`` (the host's time to issue them), ``draw``
    (minibatches, or to have a GPU do so; NaN if unknown), ``wait`` (for them), ``left``
    (the GPU's remaining time then), ``issued`` (draws, steps, and the fetches of paths that only
    issue them), and ``bound``, whether that bounds the epoch.
    """
    from gatherbench.strategies.registry import role_of  # imports torch

    epochs = run.measured
    whole, sample, waited = epochs["epoch_s"], epochs["sample_s"], epochs["host_wait_sample_s"]
    if run.sampler_workers == 0 and run.drawn not in GPU_SAMPLING:
        waited = waited.fillna(0.0)  # the loop draws, or reads back
    shares = {
        "train": epochs["host_issue_train_s"] / whole,
        "fetch": epochs["host_issue_fetch_s"] / whole,
        "left": epochs["host_drain_s"] / whole,
        "draw": (sample - waited) / whole,
        "wait": waited.fillna(sample) / whole,
        "steps_left": epochs["host_drain_s"] / whole * epochs["minibatches"],
    }
    known = pd.DataFrame(shares).dropna(subset=["train", "fetch", "left"])
    found = known.groupby(SERIES).median().reset_index()
    pairs = zip(found["strategy"], found["variant"], strict=True)
    roles = pd.Series([role_of(*pair) for pair in pairs], found.index, dtype=object)
    found["issued"] = found["train"] + found["draw"].fillna(0.0)
    found["issued"] += found["fetch"].where(roles.isin(_ISSUED), 0.0)
    bound = (found["issued"] > BOUND_SHARE) & (found["steps_left"] <= BOUND_STEPS)
    found["bound"] = bound & ~roles.isin(("baseline", "conventional"))
    return sort_series(found)
