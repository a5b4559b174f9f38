"""How much of the feature table is worth keeping in GPU memory: the link model over hit rates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pandas as pd

from gatherbench.bench.model.advise.question import Question
from gatherbench.bench.model.advise.rank import average_load, gpu_need, predict
from gatherbench.bench.model.advise.sizes import MinibatchSizes
from gatherbench.bench.model.hits import policies, simulated
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.strategies.aligned_zero_copy import AlignedZeroCopy
from gatherbench.strategies.places import TABLE_SHARE

#: By how much one more percent of the table has to shorten the epoch.
WORTH = 0.01


@dataclass(frozen=True, slots=True)
class KeptShare:
    """Modelled epochs of ``cached_zero_copy``, none ahead, over the percent of the table kept.

    Attributes:
        policy: which rows are kept.
        profile: of the machine.
        epochs_s: at each corner of the profile, seconds at 0, 1, … % of the table, as far as the
            GPU's memory goes; empty where a constant is not known.
        unknown: these constants.
        room: the largest percent for which the GPU has memory, -1 where it has not even enough to
            train, ``None`` where its memory is not known.
        remarks: what the model leaves out or takes from elsewhere.
    """

    policy: str
    profile: str
    epochs_s: tuple[tuple[float, ...], ...]
    unknown: tuple[str, ...]
    room: int | None
    remarks: tuple[str, ...] = ()

    @property
    def enough(self) -> tuple[int | None, ...]:
        """At each corner the first percent where one more gains less than :data:`WORTH`.

        ``None``: each one gains more, as far as it goes.
        """
        return tuple(
            next((p for p, (a, b) in enumerate(pairwise(line)) if a - b < WORTH * a), None)
            for line in self.epochs_s
        )


def best_policy(rates: pd.DataFrame) -> str:
    """The policy with the highest hit rate per fetched row, on average over all shares.

    Left out are those that nobody would train with, and those that are known at few shares. Empty:
    there is no other.
    """
    able = [name for name, path in policies().items() if not (path.aside or simulated(path))]
    mean = rates[rates["policy"].isin(able)].groupby("policy")["per_fetched"].mean()
    return str(mean.idxmax()) if len(mean) else ""


def kept_share(
    question: Question,
    sizes: MinibatchSizes,
    profile: LinkProfile,
    rates: pd.DataFrame,
) -> KeptShare | None:
    """Predict an epoch at each percent, from the hit rates of the best policy.

    ``None``: the rates are of no policy that one would train with.

    Requests and page visits are taken to fall as the bytes that are read over the link do.

    Args:
        sizes: the average minibatch.
        rates: of :func:`~gatherbench.bench.model.hits.hit_rates`.
    """
    policy = best_policy(rates)
    if not policy:
        return None
    mine = rates[rates["policy"] == policy]
    shares = [percent / 100 for percent in range(101)]
    hit = np.interp(shares, [0.0, *mine["share"]], [0.0, *mine["per_fetched"]]).tolist()
    nothing_kept = average_load(AlignedZeroCopy(), question, sizes)
    loads = [keeping(nothing_kept, share, rate) for share, rate in zip(shares, hit, strict=True)]
    memory, room = profile["gpu.memory"].value, None
    if memory is not None:
        fits = [gpu_need(load, question, sizes) <= TABLE_SHARE * memory for load in loads]
        room = sum(fits) - 1
        loads = loads[: room + 1]
    corners = list(zip(*(predict(question, load, profile) for load in loads), strict=True))
    every = [[epoch.epoch_s for epoch in line] for line in corners]
    unknown = dict.fromkeys(text for line in every for epoch in line for text in epoch.unknown)
    remarks = dict.fromkeys(text for line in every for epoch in line for text in epoch.remarks)
    epochs = () if unknown else tuple(tuple(e.value or 0.0 for e in line) for line in every)
    return KeptShare(policy, profile.name, epochs, tuple(unknown), room, tuple(remarks))


def keeping(load: MinibatchLoad, share: float, hit_rate: float) -> MinibatchLoad:
    """A zero-copy load where ``share`` of the table is kept, and holds ``hit_rate`` of the rows."""
    missed = 1 - hit_rate
    requests, visits = load.gpu_requests, load.gpu_page_visits
    return replace(
        load,
        gpu_link_read_bytes=missed * load.gpu_link_read_bytes,
        gpu_requests=requests and {size: missed * count for size, count in requests.items()},
        gpu_page_visits=None if visits is None else missed * visits,
        gpu_table_bytes=share * load.table_bytes,
    )
