"""Define a source of graphs: it has a name, knows its sizes beforehand, and makes the graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from gatherbench.datasets.dataset import DatasetSpec

#: A callback for long work: the current task, and its finished fraction, from 0 to 1.
Progress = Callable[[str, float], None]


def silent(_what: str, _fraction: float) -> None:
    """Ignore progress: the default callback."""


@runtime_checkable
class GraphSource(Protocol):
    """A source of a graph: its name in a plan, a line for ``gatherbench list datasets``, and
    whether it can make sizes other than ``scale=1``."""

    @property
    def name(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def scalable(self) -> bool: ...

    def estimate(self, scale: float) -> DatasetSpec:
        """Return the sizes before any work is done; the number of edges may be slightly off. A
        scale at which the graph cannot be made, e.g. too small a one, is a ``DatasetError``."""
        ...

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        """Make the graph and write it to ``folder`` with a ``DatasetWriter``. A graph that is
        unavailable here is a ``DatasetError`` with cause and remedy."""
        ...
