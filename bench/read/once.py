"""What is found of a run once, though many views ask for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from gatherbench.bench.read.tables import Run

_T = TypeVar("_T")


def once(find: Callable[[Run], _T]) -> Callable[[Run], _T]:
    """``find``, which looks at a run the first time alone: nobody may change what it returns."""
    found: WeakKeyDictionary[Run, _T] = WeakKeyDictionary()

    @wraps(find)
    def known(run: Run) -> _T:
        if run not in found:
            found[run] = find(run)
        return found[run]

    return known
