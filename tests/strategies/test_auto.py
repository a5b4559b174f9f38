"""``auto``: what it keeps, what is open meanwhile, which rows come, and what it remembers.

Its clock stands still but for what the paths and the training say that they took.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from host_paths import HOST
from torch import Tensor
from torch_geometric.data import Data

import gatherbench
from gatherbench.bench.run.loop import run_epoch
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.kernels.reference import reference_gather
from gatherbench.strategies import auto, conformance, zero_copy
from gatherbench.strategies.auto import (
    MOST,
    Auto,
    AutoFetcher,
    NoPathError,
    Outcome,
    Turn,
    candidates,
    search,
)
from gatherbench.strategies.base import Fetcher, SetupStep, Strategy, Ticket
from gatherbench.strategies.host_fetcher import DirectPath, HostFetcher
from gatherbench.strategies.knowledge import Knowledge
from gatherbench.strategies.pyg_features import FeatureLoader

from .right_paths import Made

TABLE = torch.randn(500, 7, generator=torch.Generator().manual_seed(0))
#: Seconds of a training step, and how many rows a minibatch has.
STEP_S, ROWS = 1.0, 50


class Clock:
    """``time`` of the module under test."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(auto, "time", made)
    monkeypatch.setattr(Timed, "clock", made, raising=False)
    monkeypatch.setattr(Timed, "open_now", [], raising=False)
    monkeypatch.setattr(Timed, "most_open", 0, raising=False)
    return made


@dataclass(frozen=True)
class Timed(Made):
    """A right path whose fetch takes ``cost`` seconds more than nothing."""

    name: ClassVar[str] = "timed"
    clock: ClassVar[Clock]
    open_now: ClassVar[list[Timed]]
    most_open: ClassVar[int]

    label: str = "a"
    cost: float = 0.1
    ahead: int = 0
    fails: Literal["", "open", "submit"] = ""

    def __post_init__(self) -> None:
        pass  # its fields are no words

    @property
    def variant(self) -> str:
        return self.label

    @property
    def lookahead(self) -> int:
        return self.ahead

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        if self.fails == "open":
            raise RuntimeError("cannot be had")
        return TimedFetcher(self, features)


class TimedFetcher(HostFetcher):
    def __init__(self, strategy: Timed, features: Tensor) -> None:
        super().__init__(DirectPath(features), features, strategy.ahead)
        self._strategy = strategy
        Timed.open_now.append(strategy)
        Timed.most_open = max(Timed.most_open, len(Timed.open_now))

    def _submit(self, ids: Tensor) -> Ticket:
        Timed.clock.now += self._strategy.cost
        return super()._submit(ids)

    def _close(self) -> None:
        super()._close()
        Timed.open_now.remove(self._strategy)


def opened(*paths: Strategy, kind: type[AutoFetcher] = AutoFetcher) -> Any:
    return kind(TABLE, HOST, paths=list(paths))


class Trainer:
    """A step takes :data:`STEP_S`; the rows have to be right before it and after it."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.steps = clock, 0

    def step(self, x: Tensor, batch: MiniBatch) -> Tensor:
        assert torch.equal(x, TABLE[batch.input_ids])
        self.clock.now += STEP_S
        self.steps += 1
        return torch.zeros(())


def batches(count: int, seed: int = 0) -> Iterator[Any]:
    draw = torch.Generator().manual_seed(seed)
    for _ in range(count):
        ids = torch.randint(0, len(TABLE), (ROWS,), generator=draw)
        yield SimpleNamespace(input_ids=ids, num_nodes=(1, ROWS))


def trained(fetcher: AutoFetcher, clock: Clock, count: int = 400) -> Trainer:
    """By the loop of every measurement, in epochs of 100 minibatches."""
    trainer = Trainer(clock)
    for epoch in range(count // 100):
        run_epoch(batches(100, epoch), fetcher, trainer.step)
        clock.now += 1000.0  # what lies between epochs is no training
    return trainer


def kept(fetcher: AutoFetcher) -> SetupStep:
    return next(step for step in fetcher.setup if step.metric.startswith("kept "))


def value(fetcher: AutoFetcher, metric: str) -> Any:
    return next(step.value for step in fetcher.setup if step.metric == metric)


A, B = Timed("a"), Timed("b")
SLOW = Timed("slow", cost=1.0)


# ---- what is kept --------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_path_made_slow_by_hand_is_never_kept(clock, place, ahead):
    paths: list[Strategy] = [A, replace(B, ahead=1)]
    paths.insert(place, replace(SLOW, ahead=ahead))
    with opened(*paths) as fetcher:
        assert trained(fetcher, clock).steps == 400
        assert kept(fetcher).metric in ("kept timed a", "kept timed b")
        assert value(fetcher, "search_minibatches") <= auto.LONGEST


def test_equal_paths_end_level_within_the_budget(clock):
    with opened(A, B) as fetcher:
        trained(fetcher, clock, 100)
        # Two first turns, and four blocks of two: five minibatches each, and the loop's first.
        most = 10 * (auto.WARM + auto.TIMED) + 1
        assert value(fetcher, "search_minibatches") <= most
        tie = fetcher.setup[-1]
        assert (tie.metric[:16], tie.value) == ("over_kept timed ", pytest.approx(1))
        assert tie.source == "the whole interval is within 5%"


def test_what_is_told_of_a_search_was_worked_out_by_hand(clock):
    """A step of 1 s: 1.1 s a minibatch with ``a``, 2 s with ``slow``: 1.82 times as much.

    It is slow both in its first turn and in its first block: there it is left.
    """
    with opened(A, SLOW) as fetcher:
        trained(fetcher, clock, 100)
        assert kept(fetcher).metric == "kept timed a"
        assert value(fetcher, "over_kept timed slow") == pytest.approx(2.0 / 1.1)
        slow = 2 * (auto.WARM + auto.TIMED)
        assert value(fetcher, "search_extra_time") == pytest.approx(slow * 0.9, abs=1e-6)


def test_the_training_beside_decides_and_not_the_fetch_alone(clock):
    """A path that slows the training down costs what the user waits for."""

    class Beside(Trainer):
        def step(self, x: Tensor, batch: MiniBatch) -> Tensor:
            self.clock.now += 2.0 if fetcher._serving._strategy.label == "greedy" else 0.0
            return super().step(x, batch)

    with opened(Timed("greedy", cost=0.0, ahead=1), Timed("fair", cost=0.5)) as fetcher:
        trainer = Beside(clock)
        run_epoch(batches(200), fetcher, trainer.step)
        assert kept(fetcher).metric == "kept timed fair"


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_pause_of_the_training_decides_nothing(clock, ahead):
    """Each seventh minibatch the user evaluates for 500 steps; only in the turns of the best."""
    paths = [replace(path, ahead=ahead) for path in (SLOW, A, Timed("c", cost=0.3))]
    drawn = [batch.input_ids for batch in batches(400)]
    with opened(*paths) as fetcher:
        tickets = deque(fetcher.submit(ids) for ids in drawn[:ahead])
        for number, ids in enumerate(drawn):
            if not ahead:
                tickets.append(fetcher.submit(ids))
            rows = tickets.popleft().result()
            if ahead:
                tickets.extend(fetcher.submit(later) for later in drawn[number + 1 : number + 2])
            assert torch.equal(rows, TABLE[ids])
            clock.now += STEP_S
            if number % 7 == 6 and fetcher._serving._strategy == paths[1]:
                clock.now += 500 * STEP_S
        assert kept(fetcher).metric == "kept timed a"


def test_a_search_ends_however_the_training_stops_and_goes(clock):
    """Epochs of one minibatch: no turn is ever whole. And several fetches a step."""
    with opened(A, SLOW) as fetcher:
        for epoch in range(auto.LONGEST + 20):
            run_epoch(batches(1, epoch), fetcher, Trainer(clock).step)
        assert fetcher._race is None
    with opened(SLOW, A) as fetcher:
        for number, batch in enumerate(batches(200)):
            fetcher.submit(batch.input_ids).result()
            clock.now += STEP_S if number % 3 == 2 else 0.0
        assert kept(fetcher).metric == "kept timed a"


# ---- what is open --------------------------------------------------------------------------------


class KeepsTwo(AutoFetcher):
    """Wrong: the loser stays open when the search is over."""

    def _settle(self) -> None:
        race = self._race
        if race is not None and race.found is not None:
            other = next(one for one in self._open if one != race.turn.path)
            race.turn = Turn(race.turn.path, other)
        super()._settle()


class OpensAll(AutoFetcher):
    """Wrong: paths of earlier turns stay open beside the two that meet."""

    def _settle(self) -> None:
        before = dict(self._open)
        super()._settle()
        for path in self._paths:
            if path not in before and path not in self._open:
                path.open(self._features, self.device)


def check_open(kind: type[AutoFetcher], clock: Clock) -> None:
    fetcher = opened(A, B, SLOW, Timed("c", cost=0.2, ahead=1), kind=kind)
    trained(fetcher, clock)
    assert fetcher._race is None
    assert Timed.most_open <= 2
    assert len(Timed.open_now) == 1
    assert f"kept timed {Timed.open_now[0].label}" == kept(fetcher).metric
    fetcher.close()
    assert Timed.open_now == []


def test_two_paths_are_open_at_most_and_one_in_the_end(clock):
    check_open(AutoFetcher, clock)


@pytest.mark.parametrize("wrong", [KeepsTwo, OpensAll])
def test_what_stays_open_is_noticed(wrong, clock):
    with pytest.raises(AssertionError):
        check_open(wrong, clock)


def test_closed_in_the_search_it_leaves_nothing_open(clock):
    released = list[int]()
    for count in range(1, 60, 7):
        with opened(A, B, SLOW) as fetcher:
            fetcher._held.callback(released.append, count)
            run_epoch(batches(count), fetcher, Trainer(clock).step)
        assert Timed.open_now == []
        assert released[-1] == count


def test_a_path_that_cannot_be_opened_is_left(clock):
    with opened(Timed("x", fails="open"), SLOW, Timed("y", fails="open"), A) as fetcher:
        trained(fetcher, clock)
        assert kept(fetcher).metric == "kept timed a"
    with pytest.raises(NoPathError):
        opened(Timed("x", fails="open"))


def test_a_path_that_fails_while_two_meet_leaves_the_other():
    """Of two, either may fail, in either place of a block."""
    for seed in range(4):
        for lost in "ab":
            going = search("ab", random.Random(seed), lambda: False)
            turn = next(going)
            answers = iter([1.0, 1.0])
            try:
                while True:
                    turn = going.send(next(answers, None if turn.path == lost else 1.0))
            except StopIteration as end:
                assert end.value.kept == ({"a", "b"} - {lost}).pop()  # noqa: PT017


# ---- which rows come -----------------------------------------------------------------------------


def test_it_keeps_the_contract_of_every_strategy(monkeypatch):
    monkeypatch.undo()  # a real clock
    conformance.check_strategy(Auto(), HOST)


class OfAnother(AutoFetcher):
    """Wrong: when the path changes, the rows of the fetch before are handed out once more."""

    _before: tuple[Fetcher, Ticket] | None = None

    def _submit(self, ids: Tensor) -> Ticket:
        ticket = super()._submit(ids)
        before, self._before = self._before, (self._serving, ticket)
        changed = before is not None and before[0] is not self._serving
        return before[1] if before is not None and changed else ticket


def test_rows_of_another_path_are_noticed(clock):
    paths = [replace(one, ahead=ahead) for one in (A, B, SLOW) for ahead in (0, 1)]
    with opened(*paths) as right:
        assert trained(right, clock).steps == 400
    with opened(*paths, kind=OfAnother) as wrong, pytest.raises((AssertionError, RuntimeError)):
        trained(wrong, clock)


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_prefetched_rows_are_right_while_the_path_changes(copy, seed, monkeypatch, clock):
    paths = [replace(SLOW, ahead=1), A, replace(B, ahead=1), Timed("c")]
    monkeypatch.setattr(auto, "candidates", lambda *_: paths)
    drawn = [one.input_ids for one in batches(400)]
    draw, seen = random.Random(seed), set()
    with gatherbench.unified(TABLE, "auto", "cpu", copy=copy) as features:
        for number, ids in enumerate(drawn):
            rows = features[ids]
            seen.add(features.lookahead)
            assert torch.equal(rows, reference_gather(TABLE, ids))
            for _ in range(draw.randrange(4)):  # the next one, or one in vain
                later = number + draw.choice([1, 5, 7])
                features.prefetch(drawn[min(later, len(drawn) - 1)])
            clock.now += STEP_S
        assert seen == {0, 1}
        assert any(step.metric.startswith("kept ") for step in features.setup)


def test_a_loader_has_each_batch_fetched_once_while_the_path_changes(monkeypatch, clock):
    paths = [A, replace(B, ahead=1), SLOW, replace(SLOW, ahead=1), Timed("c", cost=0.2)]
    monkeypatch.setattr(auto, "candidates", lambda *_: paths)
    given = [Data(n_id=one.input_ids, number=torch.tensor(n)) for n, one in enumerate(batches(90))]
    with gatherbench.unified(TABLE, "auto", "cpu") as features:
        numbers = []
        for _ in range(3):
            for batch in FeatureLoader(given, features):
                assert torch.equal(batch.x, TABLE[batch.n_id])
                numbers.append(int(batch.number))
                clock.now += STEP_S
                del batch.x
        assert features._fetcher._submitted == 270
        assert any(step.metric.startswith("kept ") for step in features.setup)
    assert numbers == [*range(90)] * 3


def test_only_exact_paths_that_somebody_trains_with_are_tried():
    found = candidates(TABLE, HOST)
    assert [auto.path_words(one) for one in found[:1]] == ["cpu_gather pinned"]
    names = {one.name for one in found}
    assert {"aligned_zero_copy", "async_zero_copy"} <= names
    assert not names & {"no_fetch", "all_in_gpu", "auto", "disk_mmap"}
    assert not any(one.role == "control" or one.needs for one in found)
    assert "cpu_gather naive" not in map(auto.path_words, found)
    assert len(found) == len(set(found))


def test_rows_in_gpu_memory_are_a_path_where_they_fit(monkeypatch):
    from gatherbench.strategies.bounds import AllInGpu

    room = 1 << 20
    skip = lambda self, device, size=0: None if size <= room else "no_memory"  # noqa: E731
    monkeypatch.setattr(AllInGpu, "skip", skip)
    gpu = torch.device("cuda", 127)
    assert [one.name for one in candidates(TABLE, gpu)] == ["all_in_gpu"]
    assert candidates(torch.empty(room, 1), gpu) == []


def test_dgls_grid_is_tried_with_sorted_ids_alone(monkeypatch):
    monkeypatch.setattr(zero_copy, "mapped_skip", lambda *_: None)
    paths = candidates(TABLE, torch.device("cuda", 127))
    found = [one.variant for one in paths if one.name == "aligned_zero_copy"]
    assert found == ["given", "sorted", "unique", "given,managed", "sorted,dgl"]


def test_what_was_fetched_before_the_training_is_found_out_anew(clock):
    """As in a plan: rows are compared before the model is there."""
    with opened(SLOW, A) as fetcher:
        trained(fetcher, clock, 200)
        assert fetcher._race is None
        assert fetcher.tune(torch.arange(3), lambda: None) == []
        assert fetcher._race is not None
        assert not any(step.metric.startswith("kept ") for step in fetcher.setup)
        trained(fetcher, clock)
        assert kept(fetcher).metric == "kept timed a"


# ---- the search alone ----------------------------------------------------------------------------

#: Searches on drawn minibatch times, where the cost of every path is known. Minibatches scatter
#: lognormally about their path's cost; the machine's own pace wanders, and bursts of other work
#: slow all paths down for a while.
RUNS = 20


@dataclass(frozen=True, slots=True)
class Machine:
    """Standard deviations of the logarithm: of a minibatch, and of a step of the machine's pace.

    ``burst``: how often, a minibatch, other work begins, which takes half the machine for 20.
    """

    minibatch: float
    drift: float = 0.002
    burst: float = 0.0

    def __str__(self) -> str:
        told = f"{self.minibatch:.0%}"
        return told + (f", a burst each {1 / self.burst:.0f}" if self.burst else "")


def searched(costs: Sequence[float], machine: Machine, seed: int) -> tuple[float, int]:
    """A search among paths with these true costs of a minibatch: how much slower than the best what
    it kept is, as a share of an epoch, and the minibatches of the search."""
    rng, draw = np.random.default_rng(seed), random.Random(seed)
    pace, burst, seen = 0.0, 0, 0
    going = search(range(len(costs)), draw, lambda: auto.spent_by(seen))
    turn = next(going)
    while True:
        timed = []
        for number in range(auto.WARM + auto.TIMED):
            pace += rng.normal(0, machine.drift)
            burst = 20 if rng.random() < machine.burst else max(0, burst - 1)
            slowed = pace + (math.log(2) if burst else 0.0)
            took = costs[turn.path] * math.exp(slowed + rng.normal(0, machine.minibatch))
            seen += 1
            timed += [took] if number >= auto.WARM else []
        try:
            turn = going.send(sum(timed) / auto.TIMED)
        except StopIteration as end:
            found: Outcome[int] = end.value
            return costs[found.kept] / min(costs) - 1, seen


#: Costs of a minibatch, the best is 1.
FIELDS: dict[str, tuple[float, ...]] = {
    "two, level": (1.0, 1.0),
    "two, 10 % apart": (1.1, 1.0),
    "two, 30 % apart": (1.3, 1.0),
    "host: ten within 60 %": (1.1, 1.6, 1.0, 1.0, 1.02, 1.15, 1.5, 1.3, 1.05, 1.2),
    "GPU: fourteen, 1 to 6": (
        *(3.0, 1.0, 1.9, 1.7, 1.1, 2.8, 1.3),
        *(1.25, 1.6, 1.7, 1.04, 2.5, 6.0, 1.2),
    ),
}
MACHINES = (Machine(0.03), Machine(0.1), Machine(0.1, burst=0.01))


def test_a_search_stops_before_a_comparison_that_would_exceed_its_minibatches():
    meeting = 2 * MOST * (auto.WARM + auto.TIMED)
    left = auto.LONGEST - meeting
    assert (auto.spent_by(left), auto.spent_by(left + 1)) == (False, True)


@pytest.mark.parametrize("machine", MACHINES, ids=str)
@pytest.mark.parametrize("field", FIELDS)
def test_after_the_search_an_epoch_is_hardly_longer_than_with_the_best(field, machine):
    """Mean over 20 searches on drawn times."""
    runs = [searched(FIELDS[field], machine, seed) for seed in range(RUNS)]
    assert sum(regret for regret, _ in runs) / RUNS <= 0.03
    assert max(minibatches for _, minibatches in runs) <= auto.LONGEST
