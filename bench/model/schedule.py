"""An epoch as activities: how sampling, gathering, transfer and training of minibatches overlap.

One description for every strategy. What differs is in the load: who moves the bytes, and how many
minibatches ahead. The order of events is that of ``bench/run/loop.py`` on a GPU: one thread of the
host draws a minibatch, starts its fetch and issues its training, one after the other. A step ends
when the GPU has done its work and not before the host has issued it. The host does not wait for the
training, so the next minibatch is drawn, and gathered by the CPU, while the GPU trains. For rows it
waits where the CPU brings them, and where the training's edges are copied behind them from host
memory; what was drawn on the GPU is there already, but drawing there comes behind the step before.
A CPU gather in the background takes the issuing thread its share of the cores. Lookahead ``L`` lets
``L`` further fetches run meanwhile, into ``L + 1`` buffers used in turn. Workers draw ahead
whatever the host waits for (``bench/sampling/workers.py``), which then takes what they have drawn.

Activities share resources in a fluid event simulation. Why not simpy: its resources are held whole,
while a link, a memory or a processor is *shared* by whoever uses it at the moment. Here an activity
runs at a rate between 0 and 1 of its full speed; the rates are max-min fair (Bertsekas & Gallager,
*Data Networks*, §6.5.2: raise all alike until a resource is full, freeze those that use it, go on),
and they change only when an activity begins or ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from gatherbench.bench.model.estimate import Estimate
from gatherbench.bench.model.physics import ISSUING, Part
from gatherbench.bench.sampling.workers import AHEAD

#: Minibatches that are simulated; beyond them an epoch repeats itself.
_SIMULATED = 32
#: Between these minibatches an epoch has found its pace and does not end yet.
_STEADY = (12, 28)
_EPSILON = 1e-12
_NOTHING: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The activities of one minibatch; ``None`` where a path has no such part."""

    sample: Part  # the host, or one of its workers, draws the minibatch
    disk: Part | None = None  # rows come off the disk, which all GPUs of the machine share
    gather: Part | None = None  # the CPU gathers
    transfer: Part | None = None  # over the link, by copy engine, driver or multiprocessors
    expand: Part | None = None  # the rows are read from the GPU's own memory
    train: Part  # the training step
    all_reduce: Part | None = None  # the ranks average the gradients, at the end of the step
    submit_s: Estimate  # the host starts its fetch
    issue_s: Estimate = field(default=Estimate(0.0))  # the host issues its training
    gpu_samples: bool = False  # minibatches are drawn on the GPU
    by_kernel: bool  # the GPU's multiprocessors do the transfer
    lookahead: int  # minibatches that are fetched ahead
    gpu_share: float  # of the multiprocessors, while a kernel transfers beside training
    sample_workers: int = 0  # how many draw ahead of the loop; 0: the loop draws

    @property
    def named(self) -> dict[str, Part]:
        """The parts that there are, by name."""
        every = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: part for name, part in every.items() if isinstance(part, Part)}


@dataclass(frozen=True, slots=True)
class Timeline:
    """Seconds of an epoch; training and what it waited for add up to ``epoch_s``."""

    epoch_s: float  # from the first sample to the end of the last step
    sample_s: float  # waiting while the minibatch was being drawn
    fetch_s: float  # waiting otherwise: for its rows
    train_s: float
    all_reduce_s: float = 0.0  # of ``train_s``, averaging gradients


def run_epoch(parts: Parts, batches: int, gpus: int = 1, gpus_per_port: int = 1) -> Timeline:
    """Simulate an epoch in which each of ``gpus`` GPUs has ``batches`` alike minibatches.

    They share the processor and its memory, the disk, and ``gpus_per_port`` of them a port of the
    host.
    Beyond some dozens of minibatches the pace of the middle ones is continued.

    Raises:
        ValueError: no minibatch or no GPU, or a part whose time is not known.
    """
    if batches < 1 or gpus < 1 or gpus_per_port < 1:
        raise ValueError("an epoch needs at least one minibatch, one GPU and one port")
    # What workers draw comes in waves of as many minibatches: whole waves are continued. And more
    # of the first and last minibatches are not yet, or no more, drawn beside all others.
    wave = max(1, parts.sample_workers)
    queue = AHEAD * (wave - 1)
    steady = _STEADY[0] + queue
    behind = steady + wave * -(-(_STEADY[1] - _STEADY[0]) // wave)
    count = _SIMULATED - _STEADY[1] + behind + queue
    count = min(batches, count + (batches - count) % wave)
    activities: list[Activity] = []
    # GPUs of full ports are in step with each other, and so are those of a port that is not full.
    rest = gpus % gpus_per_port
    alike = [
        (number, port) for number, port in ((gpus - rest, gpus_per_port), (rest, rest)) if number
    ]
    programs = [_Program(parts, *group, str(n), activities) for n, group in enumerate(alike)]
    for _ in range(count):
        for program in programs:
            program.add_minibatch()
    for program in programs:
        program.finish()
    times = simulate(activities)
    whole = programs[0].timeline(times, count)
    if count == batches:
        return whole
    # The pace is that of minibatches with others behind them: the last ones have the machine alone.
    begin, end = (programs[0].timeline(times, n) for n in (steady, behind))
    more = (batches - count) / (behind - steady)
    columns = ([getattr(t, f.name) for f in fields(Timeline)] for t in (whole, begin, end))
    return Timeline(*(w + more * (e - b) for w, b, e in zip(*columns, strict=True)))


class _Program:
    """What each of some GPUs in step does, as activities that are appended to a common list."""

    def __init__(
        self, parts: Parts, gpus: int, on_port: int, name: str, activities: list[Activity]
    ) -> None:
        self.parts, self.name, self.all = parts, name, activities
        #: How many share a resource: those of a port its link, each GPU what is its own.
        self.sharers = dict.fromkeys(("multiprocessors", "peer link", ISSUING), 1)
        self.sharers["link"] = on_port
        self.gpus = gpus
        #: What each part takes of a GPU's resources, and on all GPUs of the common ones.
        self._demands: dict[int, dict[str, float]] = {}
        #: Numbers of the activities of each kind, minibatch by minibatch.
        self.samples: list[int] = []
        self.taken: list[int] = []
        self.gathers: list[int] = []
        self.fetches: list[int] = []
        #: The rows are there, as far as the host waits for them.
        self.at_hand: list[int] = []
        #: The host has issued the step; of the steps that are issued, ``lookahead`` behind.
        self.issued: list[int] = []
        self.trains: list[int] = []
        #: The step is issued and done.
        self.stepped: list[int] = []
        #: What ends each step: its training, or the average of the gradients.
        self.ends: list[int] = []

    def add_minibatch(self) -> None:
        """Sample, fetch and train on one more minibatch."""
        p, ahead = self.parts, self.parts.lookahead
        # A GPU draws in its stream, behind the step before. A step is issued behind its rows.
        host_free = self._ended(self.ends, 1 if p.gpu_samples else 2)
        host_free += self._ended(self.taken, 1) + self._ended(self.issued, 1)
        workers, drawn_from = p.sample_workers, host_free
        if workers:
            room = self._ended(self.taken, AHEAD * workers)
            drawn_from = self._ended(self.samples, workers) + room
        sample = self._add(p.sample, drawn_from)
        self.samples.append(sample)
        self.taken.append(self._append(Activity(0.0, _NOTHING, (sample, *host_free))))
        submit = self._on_host(p.submit_s, (self.taken[-1],))
        fetched = submit
        buffer_free = self._ended(self.ends, 1)
        # One thread reads a minibatch's rows off the disk and gathers them, then the next one's.
        for by_host in (p.disk, p.gather):
            if by_host is not None:
                fetched = self._add(by_host, (fetched, *self._ended(self.gathers, 1)))
                self.gathers.append(fetched)
        at_hand = fetched
        if p.transfer is not None:
            begin = (fetched, *buffer_free, *self._ended(self.fetches, 1))
            fetched = self._add(p.transfer, begin, beside_training=p.by_kernel and ahead > 0)
        if p.expand is not None:
            begin = (fetched, *buffer_free)
            fetched = self._add(p.expand, begin, beside_training=ahead > 0)
        self.fetches.append(fetched)
        # The driver stages a copy as the host waits.
        staged = p.transfer is not None and not p.by_kernel and p.gather is None
        waits = not p.gpu_samples or staged
        self.at_hand.append(fetched if waits else at_hand)
        if len(self.fetches) > ahead:
            self._train((submit,))

    def finish(self) -> None:
        """Train on the minibatches that were fetched ahead."""
        while len(self.trains) < len(self.fetches):
            self._train(())

    def _train(self, host_free: tuple[int, ...]) -> None:
        """The next step, that the host issues when it has started the fetches ahead of it."""
        p, number = self.parts, len(self.trains)
        before = self._ended(self.issued, 1)
        self.issued.append(self._on_host(p.issue_s, (self.at_hand[number], *host_free, *before)))
        step = self._add(p.train, (self.fetches[number], *host_free, *self._ended(self.ends, 1)))
        self.trains.append(step)
        end = self._append(Activity(0.0, _NOTHING, (step, self.issued[-1])))
        self.ends.append(end if p.all_reduce is None else self._add(p.all_reduce, (end,)))
        self.stepped.append(end)

    def timeline(self, times: list[tuple[float, float]], count: int) -> Timeline:
        """The first ``count`` minibatches: training, and what it waited for."""
        trained = sample_s = fetch_s = train_s = all_reduce_s = 0.0
        # Before a step the host draws the minibatch whose rows are fetched beside it; of workers it
        # takes what they have drawn.
        ahead = 0 if self.parts.sample_workers else self.parts.lookahead
        steps = zip(self.trains[:count], self.stepped, self.ends, strict=False)
        for number, (train, stepped, last) in enumerate(steps):
            begin, end = times[train][0], times[last][1]
            drawing = 0.0
            for sample in self.samples[number : number + ahead + 1]:
                drawing += max(0.0, min(times[sample][1], begin) - max(times[sample][0], trained))
            sample_s += drawing
            fetch_s += begin - trained - drawing
            train_s += end - begin
            all_reduce_s += end - times[stepped][1]
            trained = end
        return Timeline(trained, sample_s, fetch_s, train_s, all_reduce_s)

    def _ended(self, kind: Sequence[int], back: int) -> tuple[int, ...]:
        """The activity of this kind ``back`` minibatches ago, if there were so many."""
        return (kind[-back],) if len(kind) >= back else ()

    def _add(self, part: Part, after: tuple[int, ...], beside_training: bool = False) -> int:
        demands = self._demands.get(id(part))
        if demands is None:
            shares = dict(part.demands)
            if beside_training:
                shares["multiprocessors"] = self.parts.gpu_share
            demands = self._demands[id(part)] = self._of_all(shares)
        return self._append(Activity(_seconds(part.seconds), demands, after, beside_training))

    def _on_host(self, seconds: Estimate, after: tuple[int, ...]) -> int:
        """Something that the issuing thread does."""
        demands = self._demands.setdefault(0, self._of_all({ISSUING: 1.0}))
        return self._append(Activity(_seconds(seconds), demands, after))

    def _append(self, activity: Activity) -> int:
        self.all.append(activity)
        return len(self.all) - 1

    def _of_all(self, shares: Mapping[str, float]) -> dict[str, float]:
        """What all GPUs in step take of each resource, if each takes such a share."""
        own = self.sharers
        return {
            f"{name} {self.name}" if name in own else name: own.get(name, self.gpus) * share
            for name, share in shares.items()
        }


def _seconds(estimate: Estimate) -> float:
    if estimate.value is None:
        raise ValueError(f"a part's time is not known: {'; '.join(estimate.unknown)}")
    return estimate.value


@dataclass(frozen=True, slots=True)
class Activity:
    """Something that takes time."""

    seconds: float  # at full speed
    #: Resource → share of it that full speed takes, more than 1 if it is short of it.
    demands: Mapping[str, float] = field(default_factory=dict)
    after: tuple[int, ...] = ()  # numbers of earlier activities that must have ended
    reserved: bool = False  # it takes its demands before those that are not share the rest


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
    known: dict[tuple[tuple[int, bool], ...], list[float]] = {}
    now = 0.0
    while ready or left:
        for number in ready:
            begin[number], left[number] = now, activities[number].seconds
        ready = []
        kinds = tuple((id(activities[n].demands), activities[n].reserved) for n in left)
        if kinds not in known:  # a few kinds of activities run beside each other again and again
            known[kinds] = list(_rates(activities, left).values())
        rates = dict(zip(left, known[kinds], strict=True))
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


def _rates(activities: Sequence[Activity], running: Iterable[int]) -> dict[int, float]:
    """The max-min fair rates of the running activities, the reserved ones first.

    All that rise do so together until each is at 1 or meets a full resource.
    """
    rates = dict.fromkeys(running, 0.0)
    free = {resource: 1.0 for number in rates for resource in activities[number].demands}
    for reserved in (True, False):
        rising = [n for n in rates if activities[n].reserved is reserved]
        while rising:
            wanted: dict[str, float] = {}
            for number in rising:
                for resource, share in activities[number].demands.items():
                    if share > 0:
                        wanted[resource] = wanted.get(resource, 0.0) + share
            room = (max(free[resource], 0.0) / share for resource, share in wanted.items())
            rise = min((1.0 - rates[rising[0]], *room))  # all that rise are level
            for number in rising:
                rates[number] += rise
            for resource, share in wanted.items():
                free[resource] -= share * rise
            full = {resource for resource in wanted if free[resource] <= _EPSILON}
            rising = [
                n
                for n in rising
                if rates[n] < 1.0 - _EPSILON
                and not any(s > 0 and r in full for r, s in activities[n].demands.items())
            ]
    return rates
