"""The loop: every strategy meets the same order of calls, and the times add up."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gatherbench.bench.run.loop import EpochTimes, run_epoch
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
