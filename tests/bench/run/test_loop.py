"""The loop: every strategy meets the same order of calls, and the times add up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from gatherbench.bench.run import loop
from gatherbench.bench.run.group import ALONE, Alone
from gatherbench.bench.run.loop import EpochTimes, Watch, run_epoch
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.strategies.base import Fetcher, Ticket

CPU = torch.device("cpu")
TABLE = torch.arange(100, dtype=torch.float32).reshape(50, 2)


class Logged(Fetcher):
    """Fetches plainly and writes down what was asked of it."""

    def __init__(self, lookahead: int, log: list[tuple[str, int]]) -> None:
        super().__init__(TABLE, CPU)
        self.lookahead = lookahead
        self.log = log

    def _submit(self, ids: Tensor) -> Ticket:
        number = int(ids[0])
        self.log.append(("submit", number))
        fetcher = self

        class Done:
            def result(self) -> Tensor:
                fetcher.log.append(("result", number))
                return TABLE[ids]

        return Done()


class LoggedSteps:
    def __init__(self, log: list[tuple[str, int]]) -> None:
        self.log = log

    def step(self, x: Tensor, batch: MiniBatch) -> Tensor:
        assert torch.equal(x, TABLE[batch.input_ids])
        self.log.append(("train", int(batch.input_ids[0])))
        return torch.tensor(float(batch.input_ids[0]))


def batches(count: int, log: list[tuple[str, int]]) -> Iterator[MiniBatch]:
    for i in range(count):
        log.append(("sample", i))
        yield MiniBatch(torch.tensor([i, 49]), (), (2,))


def run(lookahead: int, count: int) -> tuple[list[tuple[str, int]], EpochTimes]:
    log: list[tuple[str, int]] = []
    return log, run_epoch(batches(count, log), Logged(lookahead, log), LoggedSteps(log).step)


@pytest.mark.parametrize("lookahead", [0, 1, 2, 5])
def test_as_many_fetches_as_the_lookahead_are_under_way_while_training(lookahead):
    log, times = run(lookahead, 6)
    assert sum(map(sum, times.stages.values())) <= times.wall_s
    for i in range(6):
        ahead = min(i + lookahead, 5)
        assert log.index(("submit", ahead)) < log.index(("train", i))
        if i + lookahead + 1 < 6:
            assert log.index(("submit", i + lookahead + 1)) > log.index(("train", i))


@pytest.mark.parametrize("lookahead", [0, 1, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_every_minibatch_is_trained_on_once_and_in_order(lookahead, count):
    log, times = run(lookahead, count)
    assert [i for what, i in log if what == "train"] == list(range(count))
    assert times.losses == [float(i) for i in range(count)]
    assert times.payload_rows == 2 * count
    assert {len(v) for v in times.stages.values()} == {count}


@pytest.mark.parametrize(("lookahead", "announced"), [(0, 1), (0, 3), (1, 2), (2, 9)])
def test_a_path_hears_of_minibatches_before_it_fetches_them(lookahead, announced):
    class Announced(Logged):
        def announce(self, ids: Tensor) -> None:
            self.log.append(("announce", int(ids[0])))

    log: list[tuple[str, int]] = []
    fetcher = Announced(lookahead, log)
    fetcher.announced = announced
    run_epoch(batches(6, log), fetcher, LoggedSteps(log).step)
    for what in ("announce", "submit", "train"):
        assert [i for said, i in log if said == what] == list(range(6))
    for i in range(6):
        heard = [k for said, k in log[: log.index(("submit", i))] if said == "announce"]
        assert heard == list(range(min(i + announced, 5) + 1))


def test_an_error_in_a_fetch_ends_the_epoch():
    class Broken(Logged):
        def _submit(self, ids: Tensor) -> Ticket:
            raise RuntimeError("the link is gone")

    with pytest.raises(RuntimeError, match="link is gone"):
        run_epoch(batches(2, []), Broken(0, []), LoggedSteps([]).step)


def test_an_id_that_a_gpu_finds_bad_in_its_own_time_ends_the_epoch_once_all_is_trained():
    class Late(Logged):
        def check_fetched(self) -> None:
            raise IndexError(f"a bad id, {self.log.count(('train', 1))} step 1")

    log: list[tuple[str, int]] = []
    with pytest.raises(IndexError, match="1 step 1"):
        run_epoch(batches(2, log), Late(1, log), LoggedSteps(log).step)


# ---- what it times -------------------------------------------------------------------------------
# By clocks that the test itself moves: every number was worked out by hand. A host and a device
# have a clock each. Sampling, submitting and waiting move the host's; what was queued moves the
# device's, and an event takes down when the device gets to it.


#: Seconds of minibatches 0, 1, 2 in each call, all different; sums tell which were added.
SAMPLE, SUBMIT, RESULT, TRAIN = (
    [unit * number for number in (1.0, 2.0, 4.0)] for unit in (1.0, 10.0, 100.0, 1000.0)
)
#: What the sampler needs to find that there is no more, a look at a minibatch's rows, freeing one,
#: and a look at its ids.
LAST, LOOK, FREE, HANDED = 1 / 2, 1 / 4, 1 / 8, 1 / 16


class Clocks:
    """Stands for the host's clock and for CUDA's events."""

    def __init__(self) -> None:
        self.host, self.device = 5.0, 9000.0  # the device is still at an earlier epoch's work
        self.waited: list[float] = []

    def perf_counter(self) -> float:
        return self.host

    def queue(self, seconds: float) -> None:
        self.device = max(self.device, self.host) + seconds

    def synchronize(self) -> None:
        self.host = max(self.host, self.device)
        self.waited.append(self.host)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = max(clocks.device, clocks.host)

        def elapsed_time(self, end: Event) -> float:
            assert clocks.host >= end.at, "read before the device got there"
            return 1e3 * (end.at - self.at)  # CUDA's unit is the millisecond

    monkeypatch.setattr(loop, "time", clocks)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", clocks.synchronize)
    monkeypatch.setattr(loop.CudaClock, "_spare", [])
    return clocks


class Delayed(Fetcher):
    """A fetcher whose calls take their time; on a GPU the fetch itself is queued by ``submit``."""

    def __init__(self, clocks: Clocks, device: str, lookahead: int) -> None:
        super().__init__(TABLE, torch.device(device))
        self.clocks, self.lookahead, self.count = clocks, lookahead, 0

    def _submit(self, ids: Tensor) -> Ticket:
        number, clocks = self.count, self.clocks
        self.count += 1
        clocks.host += SUBMIT[number]
        waiting = RESULT[number]
        if self.device.type == "cuda":
            clocks.queue(waiting)
            waiting = 0.0

        class Taken:
            def result(self) -> Tensor:
                clocks.host += waiting
                return TABLE[ids]

            def __del__(self) -> None:
                clocks.host += FREE

        return Taken()


class DelayedSteps:
    def __init__(self, clocks: Clocks, device: str) -> None:
        self.clocks, self.device, self.count = clocks, device, 0

    def step(self, x: Tensor, batch: MiniBatch) -> Tensor:
        seconds = TRAIN[self.count]
        self.count += 1
        if self.device == "cuda":
            self.clocks.queue(seconds)
        else:
            self.clocks.host += seconds
        return torch.tensor(seconds)


def epoch(
    clocks: Clocks, device: str, lookahead: int, batches: int = 3, group: Alone = ALONE
) -> EpochTimes:
    def drawn() -> Iterator[MiniBatch]:
        for number in range(batches):
            clocks.host += SAMPLE[number]
            # One seed; two rows in the inner layer; 3, 4 and 5 rows in all, the same one twice.
            ids = torch.tensor([0, 1, 1, 2, 3][: 3 + number])
            yield MiniBatch(ids, (), (1, 2, 3 + number))
        clocks.host += LAST

    class Look(Watch):
        def handed(self, number: int, ids: Tensor) -> None:
            assert len(ids) == 3 + number
            clocks.host += HANDED

        @contextmanager
        def looked_at(self, number: int, ids: Tensor, x: Tensor) -> Iterator[None]:
            assert len(x) == len(ids) == 3 + number
            clocks.host += LOOK
            yield
            clocks.host += LOOK

    fetcher, steps = Delayed(clocks, device, lookahead), DelayedSteps(clocks, device)
    return run_epoch(drawn(), fetcher, steps.step, Look(), group)


class Among(Alone):
    """Others who take long to come to the epoch, and to tell what they waited."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks, self.told = clocks, list[str]()

    def begin_epoch(self) -> None:
        self.clocks.host += 1e4
        self.told.append("all are there")

    def end_epoch(self) -> dict[str, list[float]]:
        self.clocks.host += 1e5
        self.told.append("ended")
        return {"wait": [7.0, 8.0, 9.0]}


def test_an_epoch_is_timed_from_when_all_ranks_are_there_to_its_own_end(clocks, monkeypatch):
    group = Among(clocks)
    monkeypatch.setattr(Delayed, "drop_caches", lambda _: group.told.append("cold"))
    times = epoch(clocks, "cpu", 1, group=group)
    assert group.told == ["cold", "all are there", "ended"], "what is lost, is before"
    assert times.wall_s == epoch(clocks, "cpu", 1).wall_s
    assert times.stages["wait"] == [7.0, 8.0, 9.0]
    assert list(times.stages) == ["sample", "fetch", "train", "wait"]


@pytest.mark.parametrize("lookahead", [0, 1])
def test_what_a_path_does_when_an_epoch_begins_is_fetching(clocks, monkeypatch, lookahead):
    """A whole epoch gathered there would cost nothing, were no clock to run."""
    before = epoch(clocks, "cpu", lookahead)

    def gather_all(_: Delayed) -> None:
        clocks.host += 5000.0

    monkeypatch.setattr(Delayed, "begin_epoch", gather_all)
    times = epoch(clocks, "cpu", lookahead)
    assert times.stages == before.stages | {"fetch": [5110.0, 220.0, 440.0]}
    assert times.wall_s == before.wall_s + 5000.0
    assert epoch(clocks, "cpu", lookahead, batches=0).stages["fetch"] == []


def test_hearing_of_minibatches_is_fetching(clocks, monkeypatch):
    """Sorting what was announced, say, for 2000, 3000 and 4000 s: of the minibatch it is about."""
    before = epoch(clocks, "cpu", 0)

    def announce(_: Delayed, ids: Tensor) -> None:
        clocks.host += 1000.0 * (len(ids) - 1)

    monkeypatch.setattr(Delayed, "announced", 2)
    monkeypatch.setattr(Delayed, "announce", announce)
    times = epoch(clocks, "cpu", 0)
    assert times.stages == before.stages | {"fetch": [2110.0, 3220.0, 4440.0]}
    assert times.wall_s == before.wall_s + 9000.0


@pytest.mark.parametrize("lookahead", [0, 1, 2, 5])
def test_on_the_host_each_stage_has_its_own_calls_and_nothing_else(clocks, lookahead):
    times = epoch(clocks, "cpu", lookahead)
    # A blocking path works in ``submit``, another makes the loop wait in ``result``: both count.
    assert times.stages == {
        "sample": [1.0, 2.0, 4.0],
        "fetch": [110.0, 220.0, 440.0],
        "train": [1000.125, 2000.125, 4000.125],
    }
    # The loop's own cost: three looks at each of three minibatches, and finding no fourth.
    assert times.wall_s == 7777.375 + 3 * (0.5 + 0.0625) + 0.5
    assert times.losses == [1000.0, 2000.0, 4000.0]
    assert times.payload_rows == 3 + 4 + 5


def test_on_a_gpu_stages_are_what_the_stream_spent_and_the_host_does_not_wait(clocks):
    times = epoch(clocks, "cuda", 0)
    # Host and device both begin at 9000, when earlier work is done. The host is at 9011 when it
    # has sampled (1), looked at (1/16) and submitted (10) minibatch 0; the stream has its rows at
    # 9111 and its step at 10111. The others queue up behind it: the host is never waited for.
    assert times.stages == {
        "sample": [1.0, 2.0, 4.0],
        # Minibatch 0: from 9001, when the idle stream meets the event, through the 10 s in which
        # nothing was queued. The others: their fetch alone, though the host submits for 20 and 40.
        "fetch": [pytest.approx(110.0), pytest.approx(200.0), pytest.approx(400.0)],
        "train": [pytest.approx(1000.0), pytest.approx(2000.0), pytest.approx(4000.0)],
    }
    assert times.wall_s == pytest.approx(1.0625 + 110 + 1000 + 200 + 2000 + 400 + 4000)
    # Twice only: before the first sample and after the last step; the reading may ask again.
    assert [round(at) for at in clocks.waited] in ([9000, 16711], [9000, 16711, 16711])
    # What the host did within the stages: submits, freed minibatches; no waiting.
    assert times.issue_s == {"fetch": 70.0, "train": 3 * 0.125}
    # The rest of the epoch the host waits: beside that it looked at three and found no fourth.
    alone = 7.0 + 70.0 + 3 * 0.125 + 3 * (0.5 + 0.0625) + 0.5
    assert times.drain_s == pytest.approx(times.wall_s - alone)
    assert times.payload_rows == 3 + 4 + 5


def test_events_are_made_once_and_used_by_every_epoch(clocks, monkeypatch):
    made, real = [], torch.cuda.Event
    monkeypatch.setattr(
        torch.cuda,
        "Event",
        lambda **how: made.append(how) or real(**how),  # type: ignore[func-returns-value]
    )
    first = epoch(clocks, "cuda", 1)
    count = len(made)
    assert count > 0
    again = epoch(clocks, "cuda", 1)
    assert len(made) == count
    assert again.stages == first.stages


def test_on_a_gpu_a_fetch_ahead_takes_the_time_for_which_the_stream_has_it(clocks):
    times = epoch(clocks, "cuda", 1)
    # One stream does all here, so the order is fetch 0, fetch 1, train 0, fetch 2, train 1, ...
    assert [round(s, 6) for s in times.stages["fetch"]] == [110.0, 200.0, 400.0]
    assert [round(s, 6) for s in times.stages["train"]] == [1000.0, 2000.0, 4000.0]
    assert times.wall_s == pytest.approx(7711.0625)
