"""How large the link's requests are, and how many may be in flight: the pair that explains gathers.

Neither can be timed from outside. For each size that a request may have, the physics of the link
model predicts the gathers with one number of reads in flight after the other; the pair that misses
them least is taken, if it misses them clearly less than others do. Otherwise the constant is not
known, and the reason says so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from gatherbench.bench.model.profile import SPECS, LinkProfile
from gatherbench.bench.probe.calibrate.check import Measured, predicted_rate
from gatherbench.bench.probe.calibrate.points import Point

SIZE_KEY, TAGS_KEY = "link.max_request", "link.outstanding_reads"
VISITS_KEY = "read.page_visits"
#: A whole line as the papers saw, half a line as counters of an H100 imply, and a sector.
SIZES = (128, 64, 32)
#: Reads in flight that are tried: 4 % apart, about as fine as they can be told.
TAGS = tuple(8 * 1.04**k for k in range(200))
#: A fit is better than another if it misses by this share of it or less ...
BETTER = 0.9
#: ... and by so much less, since gathers vary by as much.
NOISE = 0.005


@dataclass(frozen=True, slots=True)
class RequestFit:
    """The constants that were found; ``None`` where the gathers do not tell, and why.

    ``misfit`` is the root mean square of the relative errors over the gathers that were fitted.
    """

    size: float | None
    tags: float | None
    misfit: float
    why_no_size: str = ""
    why_no_tags: str = ""


def fit_requests(profile: LinkProfile, gathers: Mapping[Point, Measured]) -> RequestFit:
    """Fit ``link.max_request`` and ``link.outstanding_reads`` to ``gpu_gather`` points.

    The profile's other constants stay as they are, but for the rate of page visits, which would
    explain what the requests of narrow rows are to explain.
    """
    profile = profile.with_constant(VISITS_KEY, SPECS[VISITS_KEY].high, "no limit")
    best = {size: _with_size(profile, float(size), gathers) for size in SIZES}
    size = min(best, key=lambda s: (best[s].misfit, -s))
    if not math.isfinite(best[size].misfit):
        why = "the gathers cannot be predicted: neither link.raw_rate nor read.roof is known"
        return RequestFit(None, None, math.inf, why, why)
    # Whole lines are what is assumed anyway: they need to be told from every other size, another
    # size from them alone.
    whole = best[SIZES[0]]
    rivals = [best[s] for s in SIZES[1:]] if size == SIZES[0] else [whole]
    if all(_better(best[size].misfit, rival.misfit) for rival in rivals):
        return best[size]
    why = f"another size fits as well; requests of up to {SIZES[0]} B are then assumed"
    return RequestFit(None, whole.tags, whole.misfit, why, whole.why_no_tags)


def _with_size(profile: LinkProfile, size: float, gathers: Mapping[Point, Measured]) -> RequestFit:
    sized = profile.with_constant(SIZE_KEY, size, "tried")
    unlimited = _misfit(sized.with_constant(TAGS_KEY, None, "tried"), gathers)
    tried = [(_misfit(sized.with_constant(TAGS_KEY, t, "tried"), gathers), t) for t in TAGS]
    least, tags = min(tried)
    if profile.link.round_trip.value is not None and _better(least, unlimited):
        return RequestFit(size, tags, least)
    why = "not reached: the other limits explain every gather as well"
    return RequestFit(size, None, unlimited, why_no_tags=why)


def _misfit(profile: LinkProfile, gathers: Mapping[Point, Measured]) -> float:
    """Root mean square of log(predicted / measured); infinite where one cannot be predicted."""
    errors = []
    for point, measured in gathers.items():
        rate = predicted_rate(profile, point)
        if rate is None:
            return math.inf
        errors.append(math.log(rate / measured.median))
    return math.sqrt(statistics.fmean(error**2 for error in errors))


def _better(one: float, other: float) -> bool:
    return one < BETTER * other and other - one > NOISE
