"""The way the CPU gathers is chosen by whole steps: threads, or torch's pool in its turn."""

from __future__ import annotations

import pytest
import torch
from host_paths import HOST
from torch import Tensor

from gatherbench.kernels import host_gather
from gatherbench.kernels.reference import reference_gather, same_bytes
from gatherbench.strategies import host_fetcher
from gatherbench.strategies.base import Fetcher
from gatherbench.strategies.cpu_gather import CpuGather
from gatherbench.strategies.host_fetcher import (
    EARLIER,
    TORCH,
    DirectPath,
    PathFetcher,
    tuned,
    way_of,
)
from gatherbench.strategies.registry import build

TABLE = torch.arange(30_000.0).view(3000, 10)
IDS = torch.randint(0, 3000, (500,), generator=torch.Generator().manual_seed(0))


class Steps:
    """A clock that each step of a way moves on by what that takes, in ms."""

    def __init__(self, path: DirectPath, takes: dict[int, float]) -> None:
        self.now, self.way, self.takes = 0.0, 0, takes
        self.turns: list[int] = []
        self._take = path.take

    def take(self, way: int) -> None:
        self.way = way
        self.turns.append(way)
        self._take(way)

    def step(self) -> None:
        self.now += self.takes[self.way] / 1e3


@pytest.fixture
def open_fetcher(monkeypatch):
    opened = []

    def opens(mode: str = "pinned") -> PathFetcher:
        fetcher = CpuGather(mode=mode).open(TABLE, HOST)  # type: ignore[arg-type]
        opened.append(fetcher)
        return fetcher

    monkeypatch.setattr(host_fetcher, "available_cores", lambda: 4)
    monkeypatch.setattr(host_gather, "CHUNK_BYTES", 1 << 10)
    yield opens
    for fetcher in opened:
        fetcher.close()


@pytest.mark.parametrize(
    ("takes", "chosen"),
    [
        ({1: 20.0, 2: 10.2, 3: 10.0, 4: 10.4, TORCH: 10.0}, 2),  # 10 / 10.2 = 0.98
        ({1: 20.0, 2: 10.4, 3: 10.0, 4: 10.4, TORCH: 10.0}, 3),  # 10 / 10.4 = 0.96
        ({1: 20.0, 2: 15.0, 3: 12.0, 4: 11.0, TORCH: 10.0}, TORCH),
        ({1: 9.8, 2: 10.4, 3: 10.0, 4: 10.4, TORCH: 9.6}, 1),
    ],
)
def test_the_fewest_threads_whose_step_is_fast_enough_and_torchs_pool_last(
    open_fetcher, monkeypatch, takes, chosen
):
    fetcher = open_fetcher()
    clock = Steps(fetcher._path, takes)
    monkeypatch.setattr(host_fetcher.time, "perf_counter", lambda: clock.now)
    found = tuned(fetcher, clock.take, list(takes), IDS, clock.step, lambda: None)
    values = {step.metric: step.value for step in found}
    assert values["gather_threads"] == (chosen or torch.get_num_threads())
    assert values["gather_on_torch_pool"] == (chosen == TORCH)
    assert values["gather_2_threads_step_time"] == pytest.approx(takes[2] / 1e3)
    assert values["gather_torch_pool_step_time"] == pytest.approx(takes[TORCH] / 1e3)
    assert values["gathered"] == 6 * 500 * 10 * 4
    assert clock.turns[:10] == [*takes, *takes], "in turns, so that all meet the same machine"
    assert clock.turns[-1] == way_of(found) == chosen


def test_no_step_finds_the_rows_of_another_in_the_caches(open_fetcher, monkeypatch):
    seen: list[bytes] = []
    submit = Fetcher.submit

    def noted(self: Fetcher, ids: Tensor) -> object:
        seen.append(ids.numpy().tobytes())
        return submit(self, ids)

    monkeypatch.setattr(Fetcher, "submit", noted)
    open_fetcher().tune(IDS, lambda: None)
    assert len(seen) > 20
    assert len(set(seen)) > 0.95 * len(seen)  # a shift is drawn of 3000


@pytest.mark.parametrize("way", [1, 2, TORCH])
def test_rows_are_right_whatever_way_was_taken(open_fetcher, way):
    fetcher = open_fetcher()
    fetcher._path.take(way)
    for ids in (IDS, IDS.int(), IDS[:0]):
        assert same_bytes(fetcher.submit(ids).result(), reference_gather(TABLE, ids)) is None
    assert fetcher.counts()["gather_time"] > 0


def test_torchs_pool_is_for_who_waits_for_staged_rows_on_the_host(open_fetcher, monkeypatch):
    """Ahead of the training it would be a second pool, and a GPU that reads in place has none."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert open_fetcher()._ways(IDS) == [1, 2, 3, 4, TORCH]
    assert open_fetcher("prefetch")._ways(IDS) == [1, 2, 3, 4]
    with build("unified_zero_copy").open(TABLE, HOST) as fetcher:
        assert fetcher._ways(IDS) == [1, 2, 3, 4]  # type: ignore[attr-defined]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert open_fetcher()._ways(IDS) == [1, 2, 3, 4]
    monkeypatch.setattr(host_gather, "CHUNK_BYTES", 1 << 20)
    fetcher = open_fetcher()
    (step,) = fetcher.tune(IDS, lambda: None)
    assert (step.metric, step.value) == ("gather_threads", 1)
    assert step.source == "a minibatch is too small to share"


def test_another_process_does_as_the_first(open_fetcher):
    first, second = open_fetcher("prefetch"), open_fetcher("prefetch")
    found = first.tune(IDS, lambda: None)
    told = second.recall(found)
    assert second._path.cpu.threads == first._path.cpu.threads == way_of(found)
    assert [step.value for step in told] == [step.value for step in found]
    assert all(step.source.endswith(EARLIER) for step in told)
    assert second.setup[-len(told) :] == told
    assert first.tuning == second.tuning != open_fetcher().tuning
    pinned = open_fetcher()
    with build("unified_zero_copy").open(TABLE, HOST) as direct:
        assert direct.tuning != pinned.tuning, "it takes no torch pool from who stages"
