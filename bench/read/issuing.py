"""Does the host bound an epoch by issuing it to a GPU? Then it says nothing of the data path.

A GPU does what it is told in its order, and the host tells it call by call. The thread that trains
issues draws, steps and fetches; what the GPU has left to do when all is issued is the rest of the
epoch. Almost nothing left, and more than two thirds of the epoch spent issuing: a faster path would
change nothing, and how fast a process issues differs from one to the next.

So between two such paths there is no verdict (:func:`gatherbench.stats.judge.between`). A path that
gathers on the CPU is none: its gather takes part in what keeps the host.
"""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.plan.plan import GPU_SAMPLING
from gatherbench.bench.read.derive import sort_series
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES, Key

#: Share of an epoch that issuing takes more than, and steps that the GPU has left at most, where it
#: bounds the epoch.
BOUND_SHARE, BOUND_STEPS = 2 / 3, 2.0
#: Roles of paths whose fetches are issued and no more: others may do their work meanwhile.
_ISSUED = ("zero_copy", "upper_bound", "no_fetch", "control")


def host_bound(run: Run) -> frozenset[Key]:
    """The measured series whose epochs issuing bounds."""
    shares = issue_shares(run)
    return frozenset(Key(*one) for one in shares.loc[shares["bound"], SERIES].to_numpy())


def issue_shares(run: Run) -> pd.DataFrame:
    """What issuing took of the measured epochs: medians over repeats and epochs, as shares of it.

    Columns: :data:`SERIES`, ``train`` and ``fetch`` (what the host needed to issue them), ``draw``
    (minibatches, or to have a GPU do so; NaN where that is not told), ``wait`` (for them), ``left``
    (what the GPU still had to do then), ``issued`` (draws, steps, and the fetches of paths that do
    no more than issue them), and ``bound``, whether that bounds the epoch.
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
