"""The variants that differ in what they do on a GPU.

A budget only sets a number, so one fixed budget and ``auto`` stand for all. The producer process
takes seconds to start and has tests of its own, in a process that is a client of MPS from its start
(``test_mps_on_gpu.py``).
"""

from __future__ import annotations

import pytest

from gatherbench.strategies.base import Strategy
from gatherbench.strategies.registry import STRATEGIES, variants


def _tells_something(strategy: Strategy) -> bool:
    words = strategy.variant.split(",")
    return "mps" not in words and not {"5", "15", "25", "50"} & set(words)


VARIANTS = [
    pytest.param(strategy, id=f"{strategy.name}-{strategy.variant}")
    for kind in STRATEGIES
    for strategy in variants(kind)
    if _tells_something(strategy)
]
