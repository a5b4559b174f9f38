"""``auto``: the user's own training decides which data path it gets.

The paths that can run here take turns at serving the first minibatches. A turn gives one number:
the time of a row, from one fetch to the next, training included. First each path has one turn. Then
the best is compared with the others one by one, the fastest first, in blocks of one turn each in
random order, until the rule for all verdicts (:mod:`gatherbench.stats.judge`) decides, at the
latest after :data:`LONGEST` minibatches; the winner stays open, and nothing is kept for the next
training. At most two paths are open at a time, and each holds at most one table's worth of memory.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from gatherbench.kernels.cuda_calls import CudaCallError
from gatherbench.kernels.managed_memory import span_of
from gatherbench.kernels.mapped_memory import HostRegistration
from gatherbench.kernels.modes import plain_torch
from gatherbench.reason import Reason, unsupported
from gatherbench.strategies.base import UNRANKED, Fetcher, Residency, SetupStep, Strategy, Ticket
from gatherbench.strategies.cpu_gather import CpuGather
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.knowledge import Knowledge
from gatherbench.strategies.places import no_room, path_skip, reads_managed, with_index
from gatherbench.strategies.zero_copy import AlignedZeroCopy

if TYPE_CHECKING:
    from gatherbench.stats.judge import Judgement

P = TypeVar("P")

LONGEST = 250  #: The minibatches that a search may take.
#: Minibatches of a turn: the WARM first ones are not timed, because they wait for rows of the
#: previous path and for buffers that grow. TIMED ones follow.
WARM, TIMED = 2, 3
#: Blocks in which two paths are compared: before the rule is first applied, and at most.
FEWEST, MOST = 4, 10
#: A path gets no second block if it costs this many times the best path, both in its first turn
#: and in its first block.
FAR = 1.5
#: An interval between two calls is left out if it is this many times as long as usual: the
#: training evaluated the model, or wrote a checkpoint.
PAUSE = 10.0
#: DGL's grid is for sorted ids: a variant that differs from the default in two parameters.
DGL_GRID = AlignedZeroCopy(order="sorted", grid="dgl")
_CANNOT = (RuntimeError, ValueError, MemoryError, OSError)  # errors of a path that cannot open
CLOCK = "from one fetch's submit to the next, training included; turns in shuffled blocks"


@dataclass(frozen=True)
class Auto(Strategy):
    """``search`` is ``fresh``, its only value: each training searches anew in its first
    minibatches."""

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "whichever exact path the training itself shows to be the fastest"
    role = "choice"

    search: Literal["fresh"] = "fresh"

    def skip(self, device: torch.device, table_bytes: int = 0) -> Reason | None:
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            return unsupported("each rank would choose on its own; search in one process first")
        return path_skip(device)

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        """Return that of the path with which the search begins: the winner is not known yet."""
        return CpuGather().data_path(ids, row_bytes)

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        return AutoFetcher(features, with_index(device))


def candidates(features: Tensor, device: torch.device) -> list[Strategy]:
    """List the exact paths that need to know only the table, in the order of their first turns: the
    conventional path, then each strategy's default, then variants that differ from the default in
    one parameter. Rows in GPU memory are a separate path only where there is a GPU."""
    from gatherbench.strategies.registry import STRATEGIES, representatives  # imports this

    def fits(path: Strategy) -> bool:
        if path.needs or path.role in (*UNRANKED, "baseline"):
            return False
        if path.role == "upper_bound" and device.type != "cuda":
            return False
        if getattr(path, "budget", "auto") != "auto":  # the default finds its share
            return False
        copied = reads_managed(path) and span_of(features) is None
        if copied and no_room(torch.device("cpu"), features.nbytes):
            return False
        return path.skip(device, features.nbytes) is None

    paths = [path for kind in STRATEGIES for path in representatives(kind)]
    last = max(k for k, path in enumerate(paths) if type(path) is AlignedZeroCopy)
    paths.insert(last + 1, DGL_GRID)
    paths_here = [path for path in paths if fits(path)]
    return sorted(paths_here, key=lambda path: (path != type(path)(), path.role != "conventional"))


def spent_by(minibatches: int) -> bool:
    """Tell whether too few are left for another full comparison of two paths."""
    return minibatches + 2 * MOST * (WARM + TIMED) > LONGEST


def path_words(path: Strategy) -> str:
    return f"{path.name} {path.variant}"  # e.g. ``cpu_gather pinned``


class NoPathError(RuntimeError):
    """No path can be opened."""


@dataclass(frozen=True, slots=True)
class Turn(Generic[P]):
    """``path`` serves the next minibatches; ``beside`` is the only other path that stays open."""

    path: P
    beside: P | None


@dataclass(frozen=True, slots=True)
class Outcome(Generic[P]):
    """The path to keep, the cost of a row with it (s), and its rivals: their cost over its own."""

    kept: P
    row_s: float
    met: dict[P, Judgement] = field(default_factory=dict)


#: Reads no clock: it yields turns and is sent the cost of a row in each, in seconds; ``None``: the
#: path does not open.
Search = Generator[Turn[P], float | None, Outcome[P]]


def search(paths: Sequence[P], draw: random.Random, enough: Callable[[], bool]) -> Search[P]:
    """Find the fastest of ``paths``, which have their first turns in this order; ``NoPathError``:
    none can be opened. It ends with the best path so far when ``enough`` tells that too few
    minibatches are left for another :data:`MOST` blocks."""
    first: dict[P, float] = {}
    best: P | None = None
    for path in paths:
        if best is not None and enough():
            break
        if (cost := (yield Turn(path, best))) is None:
            continue
        first[path] = cost
        if best is None or cost < first[best]:
            best = path
    if best is None:
        raise NoPathError("none of the data paths can be had here")
    outcome = Outcome(best, first[best])
    rivals = sorted((path for path in first if path != best), key=first.__getitem__)
    for rival in rivals:
        if not enough():
            outcome = yield from _meet(outcome, rival, first, draw, len(rivals))
    return outcome


def _meet(
    outcome: Outcome[P], rival: P, first: Mapping[P, float], draw: random.Random, family: int
) -> Search[P]:
    """Compare the best so far with a rival in blocks; ``family``: the number of comparisons."""
    # Imported here: the registry loads this file, and machines that only probe may lack scipy.
    from gatherbench.stats.interval import interval_of
    from gatherbench.stats.judge import judge

    best, logs, spent = outcome.kept, list[float](), 0.0
    far = first[rival] > FAR * first[best]
    while True:
        costs: dict[P, float] = {}
        for path in draw.sample([best, rival], 2):
            if (cost := (yield Turn(path, rival if path == best else best))) is None:
                return outcome if path == rival else Outcome(rival, first[rival])
            costs[path] = cost
        logs.append(math.log(costs[rival] / costs[best]))
        spent += costs[best]
        verdict = judge(interval_of(logs), family=family)
        decided = len(logs) >= FEWEST and verdict.word != "AMBIGUOUS"
        if decided or len(logs) == MOST or (far and logs[0] > math.log(FAR)):
            break
    row_s = spent / len(logs)
    if verdict.interval.value >= 1:
        return Outcome(best, row_s, {**outcome.met, rival: verdict})
    verdict = judge(verdict.interval.inverse, family=family)
    return Outcome(rival, row_s / verdict.interval.value, {best: verdict})


class _Race:
    """A running search. It measures the times between submits: on a GPU by events on the training's
    stream, for which the host waits once a turn. ``lasted_s`` (by the host's clock) and ``rows`` do
    not count pauses."""

    def __init__(self, paths: Sequence[Strategy], device: torch.device) -> None:
        self.began = self._left_at = time.perf_counter()
        self.minibatches, self.lasted_s, self.rows = 0, 0.0, 0
        self._paths = paths
        self._begin()
        self.found: Outcome[Strategy] | None = None
        self._stream = device if device.type == "cuda" else None
        self._usual, self._away = deque[float](maxlen=100), 0.0
        #: The time and rows of the last submit; when timing of the turn began, and its rows since.
        self._last: tuple[float, int] | None = None
        self._mark: tuple[float, torch.cuda.Event | None] = self.began, None
        self._seen = self._timed_rows = 0

    def _begin(self) -> None:
        draw = random.Random(self.began)
        self._search = search(self._paths, draw, lambda: spent_by(self.minibatches))
        self.turn = next(self._search)

    def entered(self) -> None:
        """Note that the training calls: since the last call it was busy with its own work."""
        self._away = max(self._away, time.perf_counter() - self._left_at)

    def left(self) -> None:
        self._left_at = time.perf_counter()

    def interrupted(self) -> None:
        """Restart the turn: until the next submit no training runs, and then the pipeline refills.
        After :data:`LONGEST` minibatches the turn goes on, so that the search ends."""
        if self.minibatches < LONGEST:
            self._last, self._seen = None, 0

    def submit(self, rows: int, *, served: bool) -> None:
        """Note a fetch of ``rows`` rows; ``served``: the path whose turn it is was already open."""
        self.entered()
        now = time.perf_counter()
        away, self._away = self._away, 0.0
        # Not the median: a loop that fetches several times a step often calls again at once.
        usual = sorted(self._usual)
        if len(usual) > WARM and away > PAUSE * usual[3 * len(usual) // 4]:
            self.interrupted()
        self._usual.append(away)
        if self._last is not None:
            since, fetched = self._last
            self.lasted_s += now - since
            self.rows += fetched
            self._timed_rows += fetched
        self._last = now, rows
        self.minibatches += 1
        self._seen += served
        if self._seen == WARM:
            self._mark, self._timed_rows = (now, self._event()), 0
        elif self._seen >= WARM + TIMED and self._timed_rows:
            begin, event = self._mark
            seconds, end = now - begin, self._event()
            if event is not None and end is not None:
                end.synchronize()
                seconds = event.elapsed_time(end) / 1e3
            self.over(seconds / self._timed_rows)

    def _event(self) -> torch.cuda.Event | None:
        if self._stream is None:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._stream))
        return event

    def over(self, cost: float | None) -> None:
        """End the turn: a row cost ``cost`` seconds, or (``None``) the path cannot be opened."""
        self._seen = 0
        try:
            self.turn = self._search.send(cost)
        except StopIteration as end:
            self.found = end.value
            self.turn = Turn(end.value.kept, None)
        except BaseException as error:  # an interrupt, say, has ended the generator for good
            if not isinstance(error, NoPathError):
                self._begin()
            raise


class _TimedTicket:
    def __init__(self, ticket: Ticket, race: _Race) -> None:
        self._ticket, self._race = ticket, race

    def result(self) -> Tensor:
        self._race.entered()
        rows = self._ticket.result()
        self._race.left()
        return rows


class AutoFetcher(Fetcher):
    """Fetches by each of ``paths`` in turn during the search, then by the winner."""

    tunable = True

    def __init__(
        self, features: Tensor, device: torch.device, paths: Sequence[Strategy] | None = None
    ) -> None:
        super().__init__(features, device)
        self._features = features
        self.live = device.type == "cpu"  # on a GPU a path that copies may be kept
        self._paths = candidates(features, device) if paths is None else paths
        #: The open paths, and those to close at a later fetch, when their rows are used up.
        self._open: dict[Strategy, Fetcher] = {}
        self._leaving: list[tuple[int, Fetcher]] = []
        self._submitted = 0
        self._race: _Race | None = None
        self._begin()

    def _submit(self, ids: Tensor) -> Ticket:
        race = self._race
        if race is not None:
            race.submit(ids.numel(), served=self._serving is self._open.get(race.turn.path))
        self._settle()
        ticket = self._serving.submit(self._serving.to_fetch_device(ids))
        self._submitted += 1
        if self._race is None:
            return ticket
        self._race.left()
        return _TimedTicket(ticket, self._race)

    def fetch(self, ids: Tensor) -> Tensor:
        if self._race is not None or self._leaving:
            return super().fetch(ids)
        with plain_torch():
            self.check_usable()
            return self._serving.fetch(ids)

    def hand_over(self, rows: Tensor) -> Tensor:
        return self._serving.hand_over(rows)

    def begin_epoch(self) -> None:
        if self._race is not None:
            self._race.interrupted()
        self._serving.begin_epoch()

    def tune(self, ids: Tensor, beside: Callable[[], object]) -> list[SetupStep]:
        """Search anew: the minibatches fetched until now were not for training."""
        self._close()
        self.setup.clear()
        self._begin()
        return []

    def check_fetched(self) -> None:
        for path in self._open.values():
            path.check_fetched()

    def residency(self) -> tuple[Residency, ...]:
        return self._serving.residency()

    def _close(self) -> None:
        for path in (*self._open.values(), *(fetcher for _, fetcher in self._leaving)):
            path.close()
        self._open.clear()
        self._leaving.clear()
        self._held.close()

    def _begin(self) -> None:
        self._held = ExitStack()
        if self.device.type == "cuda":
            with suppress(CudaCallError, ValueError):  # else each path registers it anew
                memory = HostRegistration(self._features, self.device.index or 0)
                self._held.callback(memory.close)
        self._race = _Race(self._paths, self.device)
        self._settle()

    def _serve(self, path: Strategy) -> None:
        if path not in self._open:
            self._open[path] = path.open(self._features, self.device)
        self._serving = self._open[path]
        self.lookahead, self.ids_device = self._serving.lookahead, self._serving.ids_device

    def _settle(self) -> None:
        """Open the paths that the race needs, and serve by the one whose turn it is."""
        while True:
            race = self._race
            if race is not None:
                for path in self._open.keys() - {race.turn.path, race.turn.beside}:
                    gone = self._open.pop(path)
                    self._leaving.append((self._submitted + gone.lookahead, gone))
            for entry in [entry for entry in self._leaving if entry[0] <= self._submitted]:
                self._leaving.remove(entry)
                entry[1].close()
            if race is None:
                return
            wait = self._leaving and race.turn.path not in self._open
            try:
                self._serve(race.turn.beside if wait and race.turn.beside else race.turn.path)
            except _CANNOT:
                race.over(None)
                continue
            if race.found is not None:
                self._end(race, race.found)
            return

    def _end(self, race: _Race, outcome: Outcome[Strategy]) -> None:
        self._race = None
        self._held.close()
        extra_s = race.lasted_s - race.rows * outcome.row_s
        self.setup += [
            SetupStep(f"kept {path_words(outcome.kept)}", "1", 1.0, CLOCK),
            SetupStep("search_minibatches", "1", race.minibatches, CLOCK),
            SetupStep("search_time", "s", time.perf_counter() - race.began, CLOCK),
            SetupStep("search_extra_time", "s", extra_s, CLOCK),
        ]
        for path, judged in outcome.met.items():
            metric = f"over_kept {path_words(path)}"
            self.setup.append(SetupStep(metric, "1", judged.interval.value, judged.reason))
