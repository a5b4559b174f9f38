"""What every source of graphs offers: a name, a size known beforehand, and the work itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from gatherbench.datasets.dataset import DatasetSpec

#: Called now and then during long work with what is being done and how much of *that* is done,
#: from 0 to 1.
Progress = Callable[[str, float], None]


def silent(_what: str, _fraction: float) -> None:
    """The progress callback of a caller who does not want to know."""


@runtime_checkable
class GraphSource(Protocol):
    """One way of getting a graph with features, labels and splits.

    ``name`` is what a plan calls it, ``summary`` a line for ``gatherbench list datasets``.
    ``scalable``: whether sizes other than ``scale=1`` can be made.
    """

    @property
    def name(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def scalable(self) -> bool: ...

    def estimate(self, scale: float) -> DatasetSpec:
        """The sizes before any work is done; the number of edges may be off by a little.

        Raises:
            DatasetError: no such graph can be made, e.g. the scale leaves too few nodes.
        """
        ...

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        """Make the graph and write it to ``folder`` with a ``DatasetWriter``.

        Raises:
            DatasetError: it cannot be had here; the message says why and what would help.
        """
        ...
