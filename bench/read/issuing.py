"""Does the host bound an epoch by issuing it to a GPU? Then it says nothing of the data path.

A GPU does what it is told in its order, and the host tells it call by call. The thread that trains
issues draws, steps and fetches; what the GPU has left to do when all is issued is the rest of the
epoch. Almost nothing left, and more than two thirds of the epoch spent issuing: a faster path would
change nothing, and how fast a process issues differs from one to the next.

So between two such paths there is no verdict (:func:`gatherbench.stats.judge.between`). A path that
gathers on the CPU is none: its gather takes part in what keeps the host.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from gatherbench.bench.plan.plan import GPU_SAMPLING
from gatherbench.bench.read.derive import sort_series
from gatherbench.bench.read.once import once
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES, Key

#: Share of an epoch that issuing takes more than, and steps that the GPU has left at most, where it
#: bounds the epoch.
BOUND_SHARE, BOUND_STEPS = 2 / 3, 2.0
#: As of :meth:`Run.values`.
Values = Callable[[str, str], "pd.Series[float]"]
#: Roles of paths whose fetches are issued and no more: others may do their work meanwhile.
_ISSUED = ("zero_copy", "bound", "floor", "control")


@once
def host_bound(run: Run) -> frozenset[Key]:
    """The measured series whose epochs issuing bounds."""
    return bound_in(issue_shares(run))


def bound_in(found: pd.DataFrame) -> frozenset[Key]:
    """Those among :func:`shares_of`."""
    return frozenset(map(Key._make, found.loc[found["bound"], SERIES].itertuples(index=False)))


def issue_shares(run: Run) -> pd.DataFrame:
    """:func:`shares_of` the measured epochs of a run."""
    drawn_ahead = run.sampler_workers > 0 or run.drawn in GPU_SAMPLING
    return shares_of(run.values, drawn_ahead=drawn_ahead)


def shares_of(values: Values, *, drawn_ahead: bool) -> pd.DataFrame:
    """Medians over repeats and epochs, as shares of the epoch.

    Args:
        values: the observations that count of a stage and metric, as of :meth:`Run.values`.
        drawn_ahead: minibatches are drawn by a GPU or by threads ahead, not by the loop.

    Returns:
        :data:`SERIES`, ``train`` and ``fetch`` (what the host needed to issue them),
    ``draw`` (minibatches, or to have a GPU do so; NaN where that is not told), ``wait`` (for them),
    ``left`` (what the GPU still had to do then), ``issued`` (draws, steps, and the fetches of paths
    that do no more than issue them), and ``bound``, whether that bounds the epoch.
    """
    from gatherbench.strategies.registry import role_of  # imports torch

    whole, steps = (values("epoch", metric) for metric in ("wall_time", "minibatches"))
    parts = {"train": "issue_train", "fetch": "issue_fetch", "left": "drain"}
    shares = {name: values("host", metric) / whole for name, metric in parts.items()}
    sample, waited = values("sample", "wall_time"), values("host", "wait_sample")
    waited = waited.reindex(sample.index)
    if not drawn_ahead:
        waited = waited.fillna(0.0)  # the loop draws, or reads back
    shares["draw"] = (sample - waited) / whole
    shares["wait"] = waited.fillna(sample) / whole
    shares["steps_left"] = shares["left"] * steps
    known = pd.DataFrame(shares).dropna(subset=["train", "fetch", "left"])
    found = known.groupby(SERIES).median().reset_index()
    roles = [role_of(*pair) for pair in zip(found["strategy"], found["variant"], strict=True)]
    only_issued = np.array([role in _ISSUED for role in roles], bool)
    found["issued"] = found["train"] + found["draw"].fillna(0.0)
    found["issued"] += found["fetch"].where(only_issued, 0.0)
    gathers = np.array([role in ("baseline", "conventional") for role in roles], bool)
    bound = (found["issued"] > BOUND_SHARE) & (found["steps_left"] <= BOUND_STEPS)
    found["bound"] = bound & ~gathers
    return sort_series(found)
