"""Find strategies, datasets and meters of other installed packages.

A package registers each as an entry point of one of gatherbench's groups (docs/extending.md). Names
are known from the installed metadata; a package is imported only when one of its names is
requested, or all are. An unusable entry is reported, and does not affect the others.

Contracts: :mod:`gatherbench.strategies.base`, :mod:`gatherbench.bench.meters.base`, and what
``gatherbench check NAME`` and ``gatherbench check meter NAME`` test.
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

from gatherbench.outside import InputError, plain, words_of

T = TypeVar("T")


class PluginError(InputError):
    """An entry of another package cannot be used; the message names the package and the reason."""


class PluginWarning(RuntimeWarning):
    """An entry of another package is skipped; the message has all details."""


@dataclass(frozen=True, slots=True)
class Package:
    """An installed distribution."""

    package: str
    version: str

    def __str__(self) -> str:
        return plain(f"{self.package} {self.version}")


@dataclass(frozen=True)
class Plugins(Generic[T]):
    """The entry points of a ``group``. Each has the same name as the object that it loads.

    ``checked`` turns the loaded object into a usable one, or raises any error; ``ours`` returns the
    names that gatherbench itself uses.
    """

    group: str
    checked: Callable[[Any], T]
    ours: Callable[[], Iterable[str]]

    def packages(self) -> dict[str, Package]:
        """Return the names of other packages' entry points, in order, with their packages."""
        entries = {entry.name: _package(entry) for entry in reversed(_entries(self.group))}
        return {name: entries[name] for name in sorted(entries.keys() - set(self.ours()))}

    def load(self, name: str) -> T | None:
        """Load the entry point ``name``, or raise ``PluginError``; ``None`` if there is none."""
        entry = next((e for e in _entries(self.group) if e.name == name), None)
        return None if entry is None else self._load(entry)

    def usable(self) -> list[T]:
        """Load all usable entry points, by name; warn once about each unusable one."""
        names, objects = set(self.ours()), []
        for entry in _entries(self.group):
            try:
                if entry.name in names:
                    raise _fault(entry, "the name is taken")
                names.add(entry.name)
                objects.append(self._load(entry))
            except PluginError as error:
                warnings.warn(str(error), PluginWarning, stacklevel=2)
        return objects

    def _load(self, entry: EntryPoint) -> T:
        try:
            loaded: Any = self.checked(entry.load())
            if loaded.name != entry.name:
                raise ValueError(f"it calls itself {loaded.name!r}")
            require_read_back(loaded.name)
        except (Exception, SystemExit) as error:  # other packages' code may raise anything
            raise _fault(entry, words_of(error)) from error
        checked: T = loaded
        return checked


def require_read_back(*words: str) -> None:
    """Refuse words (``ValueError``) that pandas reads as a missing value: rows would vanish."""
    import pandas as pd

    written = io.StringIO(pd.DataFrame({"word": words}).to_csv(index=False))
    missing = pd.read_csv(written, dtype=str)["word"].isna()
    if missing.any():
        word = words[int(missing.argmax())]
        raise ValueError(f"pandas reads {word!r} as a missing value: choose another word")


def nearest(word: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return ``"; did you mean 'x'?"`` for the known word that is like ``word``, else ``""``.

    Words that contain it as a part between hyphens come before words with a similar spelling.
    """
    known = list(known)
    close = [name for name in known if str(word) in str(name).split("-")]
    close = close or difflib.get_close_matches(str(word), known, n=1, cutoff=cutoff)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def nearest_or_all(word: object, known: Iterable[str]) -> str:
    """Return a hint for an unknown word: the nearest known one, or all of them."""
    known = list(known)
    return nearest(word, known) or f" (known: {', '.join(known) or 'none'})"


def installing(extra: str) -> str:
    """Return the command that adds an extra, from a checkout: no registry has this package."""
    root = Path(__file__).resolve().parents[2]
    checkout = root if (root / "pyproject.toml").is_file() else "CHECKOUT"
    return f"pip install {shlex.quote(f'{checkout}[{extra}]')}"


@functools.cache
def _entries(group: str) -> tuple[EntryPoint, ...]:
    """Return a group's entry points, sorted by name and then by package."""
    entries = importlib.metadata.entry_points(group=group)
    return tuple(sorted(entries, key=lambda entry: (entry.name, str(_package(entry)))))


def _package(entry: EntryPoint) -> Package:
    assert entry.dist is not None  # set by importlib.metadata.entry_points
    return Package(entry.dist.name, entry.dist.version)


def _fault(entry: EntryPoint, cause: str) -> PluginError:
    whose = f"{entry.name} of {_package(entry)} ({entry.group})"
    return PluginError(plain(f"{whose} cannot be used: {cause}"))
