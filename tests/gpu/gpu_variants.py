"""The variants that differ in what they do on a GPU, and how a test opens one.

A budget only sets a number, so one fixed budget and ``auto`` stand for all. The producer process
takes seconds to start and has tests of its own, in a process that is a client of MPS from its start
(``test_mps_on_gpu.py``).
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from gatherbench.strategies.base import Strategy
from gatherbench.strategies.conformance import open_known
from gatherbench.strategies.cuda_kernel_fetcher import KernelFetcher
from gatherbench.strategies.registry import STRATEGIES, build, representatives

CUDA = torch.device("cuda")


def _tells_something(strategy: Strategy) -> bool:
    said = dataclasses.asdict(strategy)
    return said.get("provider") != "mps" and said.get("budget") not in (
        "1",
        "2",
        "5",
        "15",
        "25",
        "50",
    )


VARIANTS = [
    pytest.param(strategy, id=f"{strategy.name}-{strategy.variant}")
    for kind in STRATEGIES
    for strategy in representatives(kind)
    if _tells_something(strategy)
]


def runnable(strategy: Strategy) -> Strategy:
    """``strategy``, or the test is skipped with its reason."""
    reason = strategy.skip(CUDA, 1 << 20)
    if reason is not None:
        pytest.skip(reason)
    return strategy


def opened(name: str, table: Tensor, **params: str) -> KernelFetcher:
    """A path on which our kernel gathers."""
    fetcher = open_known(runnable(build(name, params)), table, CUDA)
    assert isinstance(fetcher, KernelFetcher)
    return fetcher
