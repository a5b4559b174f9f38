"""The variants that differ in what they do on a GPU, and how a test opens one.

All 64 took longer on an H200 than a session of ten minutes has. The producer process
takes seconds to start and has tests of its own, in a process that is a client of MPS from its start
(``test_mps_on_gpu.py``).
"""

import dataclasses

import pytest
import torch
from torch import Tensor

from gatherbench.strategies.base import Strategy
from gatherbench.strategies.conformance import open_known
from gatherbench.strategies.cuda_kernel_fetcher import KernelFetcher
from gatherbench.strategies.registry import STRATEGIES, build, representatives

CUDA = torch.device("cuda")


#: What makes no difference on the GPU, as it is the host's or only sets a number: the words beside
#: the one that stands for all.
_ALIKE = {
    "budget": {"1", "2", "5", "15", "25", "50"},
    "policy": {"degree", "reverse_pagerank", "weighted_reverse_pagerank", "random", "oracle"}
    | {"s3-fifo", "belady"},
    "share": {"1%", "5%", "20%", "50%"},
    "advice": {"normal"},
    "start": {"cold"},
    "engine": {"threads"},
    "merge": {"no"},
    "depth": {"32", "8"},
    "provider": {"mps"},
}


def _tells_something(strategy: Strategy) -> bool:
    said = dataclasses.asdict(strategy)
    return not any(said.get(name) in words for name, words in _ALIKE.items())


#: But the floor, whose rows are not those that it is asked for.
VARIANTS = [
    pytest.param(strategy, id=f"{strategy.name}-{strategy.variant}")
    for kind in STRATEGIES
    for strategy in representatives(kind)
    if _tells_something(strategy) and strategy.role != "no_fetch"
]


def runnable(strategy: Strategy) -> Strategy:
    """``strategy``, or the test is skipped with its reason."""
    reason = strategy.skip(CUDA, 1 << 20)
    if reason is not None:
        pytest.skip(str(reason))
    return strategy


def opened(name: str, table: Tensor, **params: str) -> KernelFetcher:
    """A path on which our kernel gathers."""
    fetcher = open_known(runnable(build(name, params)), table, CUDA)
    assert isinstance(fetcher, KernelFetcher)
    return fetcher
