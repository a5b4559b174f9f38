"""What sampling remembers of neighbours: ``[structure]`` of a plan.

A workload has it as a text of one policy and its parameters, such as ``otf alpha=2 refresh=0.1
fetch=0.1 threshold=30``. All but
``fbl``, plain sampling, which is a workload without any of this, draw other minibatches, which
learn another model as fast as they may:

- ``fcr`` and ``otf`` (GraphSnapShot, NoakLiu/GraphSnapShot) draw for each node of a degree above
  ``threshold`` from a cache of ``alpha`` × fan-out of its neighbours. Of ``fcr`` all are drawn anew
  every ``every`` minibatches. Of ``otf`` a share ``refresh`` is, whenever the node is a target, and
  a share ``fetch`` of what is drawn comes from its whole list. Each layer has a cache of its own,
  or all share one (``shared``, the paper's SC).
- ``dependent`` has each node keep what it drew for some minibatches, so that a share ``keep`` of
  the nodes draws in each minibatch what it drew in the one before (after Balin et al., "Cooperative
  minibatching in graph neural networks", arXiv 2310.12403; GraphBolt's ``--batch-dependency`` of
  1 / (1 - keep)).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

Policy = Literal["fbl", "fcr", "otf", "dependent"]
#: What each policy takes.
PARAMETERS: dict[str, tuple[str, ...]] = {
    "fbl": (),
    "fcr": ("alpha", "every", "threshold", "shared"),
    "otf": ("alpha", "refresh", "fetch", "threshold", "shared"),
    "dependent": ("keep",),
}


@dataclass(frozen=True, slots=True)
class Structure:
    """A policy and its parameters.

    Attributes:
        alpha: neighbours in a cache for each that is drawn, at least 1.
        every: minibatches after which a cache is drawn anew.
        refresh, fetch: shares, 0 to 1.
        threshold: a node with no more neighbours has no cache.
        shared: by all layers.
        keep: share of the nodes that draw again what they drew in the minibatch before, below 1.
    """

    policy: str
    alpha: float = 2.0
    every: int = 8
    refresh: float = 0.1
    fetch: float = 0.1
    threshold: int = 30
    shared: bool = False
    keep: float = 0.9

    def __post_init__(self) -> None:
        if self.policy not in PARAMETERS:
            raise ValueError(f"structure {self.policy!r}: one of {', '.join(PARAMETERS)}")
        for name in ("refresh", "fetch"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)}: a share, from 0 to 1")
        if self.alpha < 1 or self.every < 1 or self.threshold < 0 or not 0 <= self.keep < 1:
            raise ValueError("structure: alpha and every are at least 1, keep is from 0 to below 1")

    @property
    def words(self) -> str:
        """As a workload has it: empty for ``fbl``."""
        told = (f"{name}={_word(getattr(self, name))}" for name in PARAMETERS[self.policy])
        return " ".join([self.policy, *told]) if self.policy != "fbl" else ""

    @classmethod
    def parse(cls, words: str) -> Self:
        """What :attr:`words` says.

        Raises:
            ValueError: it says nothing that could be done.
        """
        policy, *told = (words or "fbl").split()
        given: dict[str, Any] = {}
        kinds = {field.name: field.type for field in fields(cls)}
        for one in told:
            name, _, value = one.partition("=")
            if name not in PARAMETERS.get(policy, ()):
                raise ValueError(f"structure {policy}: takes no {name!r}")
            given[name] = _READ[str(kinds[name])](value)
        return cls(policy=policy, **given)

    @property
    def lifetime(self) -> int:
        """Of ``dependent``: minibatches for which a node keeps what it drew."""
        return max(1, round(1 / (1 - self.keep)))


def _word(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


_READ: dict[str, Callable[[str], Any]] = {
    "float": float,
    "int": int,
    "str": str,
    "bool": "True".__eq__,
}
