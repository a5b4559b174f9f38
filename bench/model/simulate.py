"""Activities that wait for each other and share resources: a fluid event simulation.

Why not simpy: its resources are held whole, while a link, a memory or a processor is *shared* by
whoever uses it at the moment. Here an activity runs at a rate between 0 and 1 of its full speed;
the rates are max-min fair (Bertsekas & Gallager, *Data Networks*, §6.5.2: raise all alike until a
resource is full, freeze those that use it, go on), and they change only when an activity begins or
ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_EPSILON = 1e-12


@dataclass(frozen=True, slots=True)
class Activity:
    """Something that takes time.

    Attributes:
        seconds: at full speed.
        demands: resource → share of it (0 to 1) that full speed takes; every resource is 1 large.
        after: numbers of earlier activities that must have ended.
        reserved: it takes its demands before those that are not reserved share the rest.
    """

    seconds: float
    demands: Mapping[str, float] = field(default_factory=dict)
    after: tuple[int, ...] = ()
    reserved: bool = False


def simulate(activities: Sequence[Activity]) -> list[tuple[float, float]]:
    """When each activity begins and ends, in seconds from the start.

    Raises:
        ValueError: an activity waits for one that stands behind it, or takes a negative time.
    """
    waits, dependants = [], [[] for _ in activities]  # type: tuple[list[int], list[list[int]]]
    for number, activity in enumerate(activities):
        if activity.seconds < 0 or any(not 0 <= a < number for a in activity.after):
            raise ValueError(f"activity {number}: waits for a later one or takes negative time")
        waits.append(len(set(activity.after)))
        for earlier in set(activity.after):
            dependants[earlier].append(number)
    begin, end = [0.0] * len(activities), [0.0] * len(activities)
    ready = [number for number, count in enumerate(waits) if count == 0]
    left: dict[int, float] = {}
    now = 0.0
    while ready or left:
        for number in ready:
            begin[number], left[number] = now, activities[number].seconds
        ready = []
        rates = _rates(activities, left)
        step = min(left[n] / rates[n] if left[n] > 0 else 0.0 for n in left if rates[n] > 0)
        now += step
        for number in list(left):
            left[number] -= rates[number] * step
            if left[number] > _EPSILON * activities[number].seconds:
                continue
            del left[number]
            end[number] = now
            for waiting in dependants[number]:
                waits[waiting] -= 1
                if waits[waiting] == 0:
                    heapq.heappush(ready, waiting)
    return list(zip(begin, end, strict=True))


def _rates(activities: Sequence[Activity], running: Mapping[int, float]) -> dict[int, float]:
    """The max-min fair rates of the running activities, the reserved ones first."""
    free: dict[str, float] = {}
    for number in running:
        for resource in activities[number].demands:
            free[resource] = 1.0
    rates: dict[int, float] = {}
    for reserved in (True, False):
        _fill([n for n in running if activities[n].reserved is reserved], activities, free, rates)
    return rates


def _fill(
    rising: list[int],
    activities: Sequence[Activity],
    free: dict[str, float],
    rates: dict[int, float],
) -> None:
    """Raise the rates of ``rising`` together until each is at 1 or meets a full resource."""
    for number in rising:
        rates[number] = 0.0
    while rising:
        wanted: dict[str, float] = {}
        for number in rising:
            for resource, share in activities[number].demands.items():
                wanted[resource] = wanted.get(resource, 0.0) + share
        room = min(
            [max(free[r], 0.0) / share for r, share in wanted.items() if share > 0],
            default=1.0,
        )
        rise = min(room, 1.0 - rates[rising[0]])  # all that rise are level
        for number in rising:
            rates[number] += rise
        for resource, share in wanted.items():
            free[resource] -= share * rise
        full = {r for r, share in wanted.items() if share > 0 and free[r] <= _EPSILON}
        rising = [
            n
            for n in rising
            if rates[n] < 1.0 - _EPSILON
            and not any(s > 0 and r in full for r, s in activities[n].demands.items())
        ]
