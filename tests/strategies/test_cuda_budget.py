"""The SM budget: which one a sweep's times lead to, and how large a grid it allows."""

from collections.abc import Callable
from types import SimpleNamespace

import torch

from gatherbench.strategies import cuda_kernel_fetcher
from gatherbench.strategies.base import SetupStep
from gatherbench.strategies.cuda_kernel_fetcher import BUDGETS, OverlappedFetcher, blocks_of
from gatherbench.strategies.host_fetcher import first_good
from gatherbench.strategies.registry import build, parameters


def test_the_smallest_budget_that_is_good_enough():
    assert first_good({5: 2.0, 10: 1.02, 15: 1.0, 25: 1.01, 50: 1.3}) == 10
    assert first_good({5: 2.0, 10: 1.5, 15: 1.3, 25: 1.1, 50: 1.0}) == 50
    assert first_good({5: 1.0, 10: 1.0, 50: 1.0}) == 5


def test_a_budget_is_a_share_of_the_threads_that_fit(monkeypatch):
    gpu = SimpleNamespace(multi_processor_count=132, max_threads_per_multi_processor=2048)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    device = torch.device("cuda", 0)
    assert blocks_of(10, 256, device) == 132 * 2048 // 10 // 256
    assert blocks_of(5, 1024, device) == 13
    gpu.multi_processor_count = 1
    assert blocks_of(5, 1024, device) == 1


def test_every_budget_that_can_be_asked_for_is_swept():
    words = parameters(type(build("async_zero_copy")))["budget"]
    assert words == ("auto", *map(str, BUDGETS))


class FakeFetcher(OverlappedFetcher):
    """Knows only what tuning needs: how long a step takes with each share."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.setup: list[SetupStep] = []
        self.taken: list[int] = []
        self.seconds = seconds
        self.device = torch.device("cpu")

    def limit(self, percent: int) -> None:
        self.taken.append(percent)

    def step_seconds(self, ids: torch.Tensor, beside: Callable[[], object]) -> float:
        beside()
        return self.seconds[self.taken[-1]]


def test_what_runs_beside_decides(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    beside = dict(zip(BUDGETS, (9.0, 7.0, 4.0, 2.0, 2.0, 3.0, 6.0), strict=True))
    fetcher = FakeFetcher(beside)
    fetcher.take(50, "chosen before")
    steps = []
    found = fetcher.tune(torch.arange(9), lambda: steps.append(1))
    assert fetcher.taken[-1] == 10
    assert steps
    named = {step.metric: step for step in found}
    assert [named[f"budget_{p}_step_time"].value for p in BUDGETS] == [
        *(9.0, 7.0, 4.0, 2.0, 2.0, 3.0, 6.0)
    ]
    assert named["budget_beside_training"].value == 0.1
    assert "capped grid; smallest" in named["budget_beside_training"].source
    assert "train_alone_step_time" in named
    assert named["fetch_alone_step_time"].value == 2.0, "a share that slows it is no excuse"
    everything = [step.metric for step in fetcher.setup]
    assert len(everything) == len(set(everything)), "a row for each, and no row twice"
    assert next(s for s in fetcher.setup if s.metric == "budget").value == 0.5


def test_a_step_time_is_that_of_one_step(monkeypatch):
    """Four steps of 3 s each by a clock of the test's own."""
    now = [100.0]
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(cuda_kernel_fetcher, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    fetcher = FakeFetcher({})

    def step() -> None:
        now[0] += 3.0

    assert fetcher.alone_seconds(step) == 3.0
    assert now == [112.0]
