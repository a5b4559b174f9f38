"""The training loop: one for all strategies, so that they differ in nothing but the data path.

With lookahead L the rows of the next L minibatches are on their way while the model trains on the
current one; a path that looks further ahead receives minibatches before it fetches them. Timing
never makes the device wait: on a GPU, events on the training stream are read after the epoch.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from gatherbench.bench.run.group import ALONE, Alone
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.strategies.base import Fetcher, Ticket, copied

STAGES = ("sample", "fetch", "train")

_NOTHING = nullcontext()


class Watch:
    """A hook that sees minibatches, by number, outside the stages' times; this one does nothing."""

    def handed(self, number: int, ids: Tensor) -> None:
        """Act before a path sees the ids, which it might change."""

    def looked_at(self, number: int, ids: Tensor, x: Tensor) -> AbstractContextManager[object]:
        """Return a context that spans the step that trains on the rows ``x``."""
        return _NOTHING


UNWATCHED = Watch()


@dataclass(frozen=True, slots=True)
class EpochTimes:
    """Seconds of one epoch.

    ``stages`` has the seconds of each minibatch, in order. ``fetch`` is the time for which the
    training waited for rows: for an overlapped strategy less than the fetch itself took. If several
    processes train together, it has also the parts of ``train`` that
    :meth:`~gatherbench.bench.run.group.Alone.end_epoch` returns.
    """

    wall_s: float  # from the first sample to the end of the last step, device work included
    stages: dict[str, list[float]]
    losses: list[float]  # of each minibatch
    payload_rows: int  # feature rows that were fetched
    #: The host's time to issue a stage that a device runs; a gather on the CPU is part of it.
    issue_s: dict[str, float] = field(default_factory=dict)
    drain_s: float = 0.0  # the device's remaining time when the host had issued everything


class HostClock:
    """Stage times by the host's clock: correct if every stage runs on the host."""

    source = "time.perf_counter"

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {stage: [] for stage in STAGES}
        #: The host's time to issue a stage that the device runs, s.
        self.issued = defaultdict[str, float](float)

    @contextmanager
    def stage(self, name: str, batch: int) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.add(name, batch, time.perf_counter() - begin)

    def add(self, name: str, batch: int, seconds: float) -> None:
        values = self.seconds[name]
        if batch == len(values):
            values.append(seconds)
        else:
            values[batch] += seconds

    def finish(self) -> dict[str, list[float]]:
        """Return all stage times, once the epoch's work is done."""
        return self.seconds


class CudaClock(HostClock):
    """Stage times by events on the training stream; of sampling, host work, by the host's clock.

    An event costs the stream about a microsecond and the host no wait.
    """

    source = "torch.cuda.Event on the training stream (sample: time.perf_counter)"
    #: Events to use again: making one takes time of the host during an epoch.
    _spare: ClassVar[list[torch.cuda.Event]] = []

    def __init__(self) -> None:
        super().__init__()
        self._events: list[tuple[str, int, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def stage(self, name: str, batch: int) -> Iterator[None]:
        begin, end = self._event(), self._event()
        host_begin = time.perf_counter()
        begin.record()
        yield
        end.record()
        self.issued[name] += time.perf_counter() - host_begin
        self._events.append((name, batch, begin, end))

    def _event(self) -> torch.cuda.Event:
        return self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def finish(self) -> dict[str, list[float]]:
        torch.cuda.synchronize()
        for name, batch, begin, end in self._events:
            self.add(name, batch, begin.elapsed_time(end) / 1e3)
            self._spare.extend((begin, end))
        return self.seconds


def run_epoch(
    batches: Iterable[MiniBatch],
    fetcher: Fetcher,
    step: Callable[[Tensor, MiniBatch], Tensor],
    watch: Watch = UNWATCHED,
    group: Alone = ALONE,
) -> EpochTimes:
    """Fetch every minibatch once, and train on it by ``step``, which returns the loss.

    The time that the loop waits for one counts as ``sample``: that of drawing it, or the rest of it
    if others draw ahead. The processes of ``group`` begin at once.
    """
    on_cuda = fetcher.device.type == "cuda"
    clock = CudaClock() if on_cuda else HostClock()
    source = iter(batches)
    announced: deque[tuple[int, MiniBatch]] = deque()
    in_flight: deque[tuple[int, MiniBatch, Ticket]] = deque()
    losses: list[Tensor] = []
    drawn = rows = 0

    def draw() -> bool:
        nonlocal drawn, rows
        begin = time.perf_counter()
        batch = next(source, None)
        if batch is None:
            return False
        clock.add("sample", drawn, time.perf_counter() - begin)
        watch.handed(drawn, batch.input_ids)
        if drawn == 0 or fetcher.announced:
            with clock.stage("fetch", drawn):
                _tell(fetcher, drawn, batch.input_ids)
        announced.append((drawn, batch))
        drawn += 1
        rows += batch.num_nodes[-1]
        return True

    def advance() -> bool:
        while len(announced) <= fetcher.announced and draw():
            pass
        if not announced:
            return False
        number, batch = announced.popleft()
        with clock.stage("fetch", number):
            ticket = fetcher.submit(fetcher.to_fetch_device(batch.input_ids))
        in_flight.append((number, batch, ticket))
        return True

    began = _begin(fetcher, group)
    while len(in_flight) <= fetcher.lookahead and advance():
        pass
    while in_flight:
        number, batch, ticket = in_flight.popleft()
        with clock.stage("fetch", number):
            x = ticket.result()
        looked_at = watch.looked_at(number, batch.input_ids, x)
        with looked_at, clock.stage("train", number):
            losses.append(step(x, batch))
            del x, batch, ticket  # freeing a minibatch takes time: the step's, not the loop's
        while len(in_flight) <= fetcher.lookahead and advance():
            pass
    issued = time.perf_counter()
    if on_cuda:
        torch.cuda.synchronize()
    ended = time.perf_counter()
    fetcher.check_fetched()
    stages = {**clock.finish(), **group.end_epoch()}
    values = torch.stack(losses).tolist() if losses else []  # one copy for all
    return EpochTimes(ended - began, stages, values, rows, clock.issued, ended - issued)


def _begin(fetcher: Fetcher, group: Alone) -> float:
    """Begin an epoch when the device is idle; return the time."""
    fetcher.drop_caches()
    group.begin_epoch()
    if fetcher.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _tell(fetcher: Fetcher, number: int, ids: Tensor) -> None:
    """Announce minibatch ``number`` of an epoch to a path before it fetches it."""
    if number == 0:
        fetcher.begin_epoch()
    if fetcher.announced:
        fetcher.announce(copied(fetcher.to_fetch_device(ids)))
