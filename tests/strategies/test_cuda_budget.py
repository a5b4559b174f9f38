"""The SM budget: which one a sweep's times lead to, and how large a grid it allows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gatherbench.strategies.cuda_zero_copy import BUDGETS, blocks_of, smallest_good_budget
from gatherbench.strategies.registry import STRATEGIES, build, parameters, variants


def test_the_smallest_budget_that_is_good_enough() -> None:
    assert smallest_good_budget({5: 2.0, 10: 1.02, 15: 1.0, 25: 1.01, 50: 1.3}) == 10
    assert smallest_good_budget({5: 2.0, 10: 1.5, 15: 1.3, 25: 1.1, 50: 1.0}) == 50
    assert smallest_good_budget({5: 1.0, 10: 1.0, 50: 1.0}) == 5


def test_a_budget_is_a_share_of_the_threads_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(multi_processor_count=132, max_threads_per_multi_processor=2048)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    device = torch.device("cuda", 0)
    assert blocks_of(10, 256, device) == 132 * 2048 // 10 // 256
    assert blocks_of(5, 1024, device) == 13
    gpu.multi_processor_count = 1
    assert blocks_of(5, 1024, device) == 1


def test_every_budget_that_can_be_asked_for_is_swept() -> None:
    words = parameters(type(build("async_zero_copy")))["budget"]
    assert words == ("auto", *map(str, BUDGETS))


def test_on_the_host_one_variant_of_each_parameter_remains() -> None:
    host = torch.device("cpu")
    runnable = {
        cls.name: [v.variant for v in variants(cls) if v.skip(host) is None] for cls in STRATEGIES
    }
    assert runnable["async_zero_copy"] == ["stream,auto"]
    assert runnable["unified_zero_copy"] == ["registered"]
