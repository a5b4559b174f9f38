"""All strategies: one explicit tuple of this package's, then those of other packages.

To add one here, write its file and add its class to the tuple; the conformance suite then runs it.
Those of other packages (``docs/extending.md``) are imported only when one is requested or all are
listed.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping

from gatherbench.outside import InputError
from gatherbench.plugins import Plugins, nearest, require_read_back
from gatherbench.strategies.auto import Auto
from gatherbench.strategies.base import Role, Strategy
from gatherbench.strategies.base import parameters as parameters  # noqa: PLC0414 - what a plan asks for
from gatherbench.strategies.bounds import AllInGpu, NoFetch
from gatherbench.strategies.cached_zero_copy import CachedZeroCopy
from gatherbench.strategies.copy_engine_gather import CopyEngineGather
from gatherbench.strategies.cpu_gather import CpuGather
from gatherbench.strategies.declared import check_parameters
from gatherbench.strategies.disk import DiskCached, DiskDirect, DiskMmap
from gatherbench.strategies.partition_buffer import PartitionBuffer
from gatherbench.strategies.zero_copy import AlignedZeroCopy, AsyncZeroCopy, UnifiedZeroCopy

STRATEGIES: tuple[type[Strategy], ...] = (
    CpuGather,
    CopyEngineGather,
    UnifiedZeroCopy,
    AlignedZeroCopy,
    AsyncZeroCopy,
    CachedZeroCopy,
    DiskMmap,
    DiskDirect,
    DiskCached,
    PartitionBuffer,
    AllInGpu,
    NoFetch,
)

#: Names that work like a strategy's but choose one of the data paths above.
CHOICES: tuple[type[Strategy], ...] = (Auto,)


def _checked(loaded: object) -> type[Strategy]:
    if not (isinstance(loaded, type) and issubclass(loaded, Strategy)):
        raise TypeError("it is no subclass of gatherbench.strategies.base.Strategy")
    if not (loaded.name.isidentifier() and loaded.summary):
        raise ValueError(f"it needs a summary, and a name of letters, digits and _: {loaded.name}")
    bad = [name for name, words in parameters(loaded).items() if not words]
    if bad or variants(loaded)[0] != loaded():
        rule = "each parameter must be a Literal of words, the default first"
        raise ValueError(": ".join([rule, ", ".join(bad)] if bad else [rule]))
    require_read_back(*(path.variant for path in variants(loaded)))
    if taken := {path.role for path in variants(loaded)} - {"zero_copy", "control", "other"}:
        raise ValueError(f"its role is {min(taken)}, which ours alone have")
    return loaded


#: Strategies of other packages.
PLUGINS = Plugins(
    "gatherbench.strategies", _checked, lambda: (s.name for s in (*STRATEGIES, *CHOICES))
)


def get(name: str) -> type[Strategy]:
    """Return the strategy called ``name``, of this or another package; a ``ValueError`` names the
    nearest, or why the other package's cannot be used."""
    by_name = {strategy.name: strategy for strategy in (*STRATEGIES, *CHOICES)}
    strategy = by_name.get(name) or PLUGINS.load(name)
    if strategy is None:
        known = [*by_name, *PLUGINS.packages()]
        raise InputError(
            f"no strategy is called {name!r}; there are {', '.join(known)}" + nearest(name, known)
        )
    return strategy


def build(name: str, params: Mapping[str, object] | None = None) -> Strategy:
    """Build the strategy ``name`` with ``params``, as a plan gives them; a ``ValueError`` names the
    nearest strategy, parameter or value."""
    strategy = get(name)
    check_parameters(name, params or {}, parameters(strategy))
    return strategy(**(params or {}))


def variants(strategy: type[Strategy]) -> tuple[Strategy, ...]:
    """Return all variants of a strategy, the default first; some may ``skip`` on a device."""
    known = parameters(strategy)
    return tuple(
        strategy(**dict(zip(known, values, strict=True)))
        for values in itertools.product(*known.values())
    )


def role_of(name: str, variant: str) -> Role:
    """Return the role of a series from the name and variant in its rows; ``other`` if unknown. A
    variant that no longer exists counts as the strategy's default."""
    known = _known(name)
    path = known.get(variant) or next(iter(known.values()), None)
    return path.role if path else "other"


def named(name: str, variant: str) -> Strategy | None:
    """Return the strategy of a series from its rows' name and variant; ``None`` if unknown."""
    return _known(name).get(variant)


def in_words(name: str, variant: str) -> str:
    """Name a series by its differences from the default: ``cached_zero_copy (degree, 10 %)``;
    shares and a strategy's only parameter (of several values) always, numbers behind their
    parameter's name: ``(ahead 1)``."""
    path = named(name, variant)
    if path is None:
        return name if variant in ("", "default") else f"{name} ({variant.replace(',', ', ')})"
    known = parameters(type(path))
    words = []
    for parameter, (default, *others) in known.items():
        word = str(getattr(path, parameter))
        if word != default or word.endswith("%") or (others and len(known) == 1):
            alone = not word.isdigit() and word not in ("yes", "no")
            words.append(word.replace("%", " %") if alone else f"{parameter} {word}")
    return f"{name} ({', '.join(words)})" if words else name


def _known(name: str) -> dict[str, Strategy]:
    try:
        return _by_variant(get(name))
    except ValueError:
        return {}


@functools.cache
def _by_variant(strategy: type[Strategy]) -> dict[str, Strategy]:
    return {path.variant: path for path in variants(strategy)}


def representatives(strategy: type[Strategy]) -> tuple[Strategy, ...]:
    """Return the default, and a variant for each other value of each parameter: enough to run every
    line of a strategy whose parameters do not depend on each other."""
    known = parameters(strategy)
    others = (strategy(**{name: word}) for name, words in known.items() for word in words[1:])
    return (strategy(), *others)
