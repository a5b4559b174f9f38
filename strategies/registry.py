"""All strategies: one explicit tuple, from which plans, tests and plots take them.

To add one, write its file and add its class here; the conformance suite then runs it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from gatherbench.strategies.aligned_zero_copy import AlignedZeroCopy
from gatherbench.strategies.all_in_gpu import AllInGpu
from gatherbench.strategies.async_zero_copy import AsyncZeroCopy
from gatherbench.strategies.base import Strategy, nearest, parameters
from gatherbench.strategies.cached_zero_copy import CachedZeroCopy
from gatherbench.strategies.cpu_gather import CpuGather
from gatherbench.strategies.unified_zero_copy import UnifiedZeroCopy

__all__ = [
    "STRATEGIES",
    "build",
    "default_variants",
    "get",
    "parameters",
    "representatives",
    "variants",
]

STRATEGIES: tuple[type[Strategy], ...] = (
    CpuGather,
    UnifiedZeroCopy,
    AlignedZeroCopy,
    AsyncZeroCopy,
    CachedZeroCopy,
    AllInGpu,
)


def get(name: str) -> type[Strategy]:
    """The strategy called ``name``.

    Raises:
        ValueError: there is none; names the nearest.
    """
    by_name = {strategy.name: strategy for strategy in STRATEGIES}
    if name not in by_name:
        raise ValueError(
            f"no strategy is called {name!r}; there are {', '.join(by_name)}"
            + nearest(name, by_name)
        )
    return by_name[name]


def build(name: str, params: Mapping[str, object] | None = None) -> Strategy:
    """The strategy ``name`` with ``params``, as a plan gives them.

    Raises:
        ValueError: no such strategy, no such parameter, or no such value; names the nearest.
    """
    strategy = get(name)
    known = parameters(strategy)
    for param in params or {}:
        if param not in known:
            there_are = f"its parameters are {', '.join(known)}" if known else "it has none"
            raise ValueError(
                f"{name} has no parameter {param!r}; {there_are}" + nearest(param, known)
            )
    return strategy(**(params or {}))


def variants(strategy: type[Strategy]) -> tuple[Strategy, ...]:
    """Every variant of a strategy, the default first; some may ``skip`` on a given device."""
    known = parameters(strategy)
    return tuple(
        strategy(**dict(zip(known, values, strict=True)))
        for values in itertools.product(*known.values())
    )


def representatives(strategy: type[Strategy]) -> tuple[Strategy, ...]:
    """The default, and each other word of each parameter beside the defaults of the rest.

    Enough to run every line of a strategy whose parameters do not depend on each other.
    """
    known = parameters(strategy)
    others = (strategy(**{name: word}) for name, words in known.items() for word in words[1:])
    return (strategy(), *others)


def default_variants() -> tuple[Strategy, ...]:
    """Each registered strategy with its default parameters."""
    return tuple(strategy() for strategy in STRATEGIES)
