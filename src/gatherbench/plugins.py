"""Strategies, datasets and meters of other people's packages, installed beside ours.

A package announces each as an entry point of one of our groups. Names are known from the installed
metadata; a package is imported only when one of its names is asked for, or all are. What cannot be
used is named with its package and the reason, and stops nothing else.
"""

from __future__ import annotations

import difflib
import functools
import importlib.metadata
import io
import shlex
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class PluginError(ValueError):
    """Something of another package that cannot be used; names the package and the reason."""


class PluginWarning(RuntimeWarning):
    """Something of another package is passed over; the message is all there is to say."""


@dataclass(frozen=True, slots=True)
class Package:
    """An installed distribution."""

    package: str
    version: str

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


@dataclass(frozen=True)
class Plugins(Generic[T]):
    """The entry points of one group. Each is called what the thing that it loads is called.

    Attributes:
        group: e.g. ``gatherbench.strategies``.
        checked: what an entry point loads, as something that can be used; raises anything if it
            cannot.
        ours: the names that are taken.
    """

    group: str
    checked: Callable[[Any], T]
    ours: Callable[[], Iterable[str]]

    def packages(self) -> dict[str, Package]:
        """The names that are announced and not ours, in order, with their packages."""
        ours = set(self.ours())
        found = {e.name: _package(e) for e in reversed(_entries(self.group)) if e.name not in ours}
        return dict(sorted(found.items()))

    def load(self, name: str) -> T | None:
        """What is announced as ``name``, or ``None`` where nothing is.

        Raises:
            PluginError: it cannot be used.
        """
        entry = next((e for e in _entries(self.group) if e.name == name), None)
        return None if entry is None else self._load(entry)

    def usable(self) -> list[T]:
        """Everything that can be used, by name. Warns once of each that cannot."""
        taken, made = set(self.ours()), []
        for entry in _entries(self.group):
            try:
                if entry.name in taken:
                    raise _fault(entry, "the name is taken")
                taken.add(entry.name)
                made.append(self._load(entry))
            except PluginError as error:
                warnings.warn(str(error), PluginWarning, stacklevel=2)
        return made

    def _load(self, entry: EntryPoint) -> T:
        try:
            found: Any = self.checked(entry.load())
            if found.name != entry.name:
                raise ValueError(f"it calls itself {found.name!r}")
            require_read_back(found.name)
        except (Exception, SystemExit) as error:  # anything may happen in somebody else's code
            raise _fault(entry, f"{type(error).__name__}: {error}") from error
        checked: T = found
        return checked


def require_read_back(*words: str) -> None:
    """Refuse words that pandas reads as a missing value: a table's rows of that name would vanish.

    Raises:
        ValueError: one is such a word; names it.
    """
    import pandas as pd

    written = io.StringIO(pd.DataFrame({"word": words}).to_csv(index=False))
    lost = pd.read_csv(written, dtype=str)["word"].isna()
    if lost.any():
        word = words[int(lost.argmax())]
        raise ValueError(f"pandas reads {word!r} as a missing value: choose another word")


def nearest(word: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """``"; did you mean 'x'?"`` for the known word that is like ``word``, else nothing.

    Those of which it is a part between hyphens are likelier than those that are spelt alike.
    """
    known = list(known)
    close = [one for one in known if str(word) in str(one).split("-")]
    close = close or difflib.get_close_matches(str(word), known, n=1, cutoff=cutoff)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def installing(extra: str) -> str:
    """The command that adds an extra: no registry has this package, so it names the checkout."""
    root = Path(__file__).resolve().parents[2]
    where = root if (root / "pyproject.toml").is_file() else "CHECKOUT"
    return f"pip install {shlex.quote(f'{where}[{extra}]')}"


@functools.cache
def _entries(group: str) -> tuple[EntryPoint, ...]:
    """By name, and where two packages announce one name, by package."""
    found = importlib.metadata.entry_points(group=group)
    return tuple(sorted(found, key=lambda entry: (entry.name, str(_package(entry)))))


def _package(entry: EntryPoint) -> Package:
    assert entry.dist is not None  # set by importlib.metadata.entry_points
    return Package(entry.dist.name, entry.dist.version)


def _fault(entry: EntryPoint, why: str) -> PluginError:
    return PluginError(f"{entry.name} of {_package(entry)} ({entry.group}) cannot be used: {why}")
