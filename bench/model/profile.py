"""Define a profile of a machine: the link model's constants, each with its unit and its source.

A constant that nobody has published or measured has no value, and its source says why: predictions
that need it are unknown. Some constants have only a range: a caller predicts with both ends. A
profile is a TOML file, a shipped one by its name, one of the user's own by its path:

[link]
raw_rate = { value = 31.51e9, unit = "B/s", source = "PCIe 4.0 x16 after 128b/130b" }
max_request = { low = 64.0, high = 128.0, unit = "B", source = "why no more is known" }
round_trip = { unit = "s", source = "not published: why there is no value" }
"""

from __future__ import annotations

import itertools
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator

from gatherbench.outside import read_text
from gatherbench.plugins import nearest

PROFILES_FOLDER = Path(__file__).parent / "profiles"
#: The machine of the paper's evaluation (Min et al., PVLDB 14(11) 2021) on its faster link.
DEFAULT_PROFILE = "rtx3090-pcie4"
#: Tables and keys of earlier profiles, which are ignored.
_GONE = ("loop", "network", "node", "peer")
_GONE_KEYS = ("copy.to_host", "disk.block", "gpu.replay")

Number = Annotated[float, Field(strict=True)]
#: A curve ``((bytes, rate), …)``: a rate over the bytes of the table (its span) or of a row, or a
#: disk's rate over its reads in flight.
Points = tuple[tuple[Number, Number], ...]
#: A number or a curve; ``None``: unknown.
Value = float | Points | None


class ProfileError(ValueError):
    """A profile is invalid; the message names the key and its valid values."""


@dataclass(frozen=True, slots=True)
class Spec:
    """The definition of a constant in ``constants.toml``."""

    unit: str
    low: float  # the smallest valid value
    high: float  # the largest valid value
    meaning: str
    curve: bool = False  # whether it may be a curve
    otherwise: str = ""  # why it has no value if a file omits it; empty: every file must have it

    @property
    def expected(self) -> str:
        """The valid values, in words."""
        return f"expected {self.low:g} to {self.high:g}" + f" {self.unit}" * (self.unit != "1")

    def constant(self, entry: Any) -> Constant:
        """Read its entry of a file, or ``None``; a :class:`ValueError` has what is wrong."""
        shape = f'expected {{ value = …, unit = "{self.unit}", source = "…" }}'
        if entry is None and not self.otherwise:
            raise ValueError(
                f"missing ({self.meaning}); {shape}, without value where it is not known, with low"
                " and high in its place where only a range is"
            )
        if entry is None:
            entry = {"unit": self.unit, "source": self.otherwise}
        try:
            return Constant.model_validate(entry, context=self)
        except ValidationError as error:
            first = error.errors()[0]
        where, why = "".join(map(str, first["loc"][:1])), first["msg"].removeprefix("Value error, ")
        hint = nearest(where, _FIELDS) if first["type"] == "extra_forbidden" else ""
        raise ValueError(f"{where}{': ' * bool(where)}{why}{hint}; {shape}")


class Constant(BaseModel):
    """One constant of a machine: a number, a curve, or the two ends of a range."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    given: Number | Points | None = Field(None, alias="value")
    low: Number | Points | None = None
    high: Number | Points | None = None
    unit: str  # an SI unit: ``B/s``, ``B``, ``s``, ``1``, ``1/s``
    source: str  # its document or measurement; without a value, why

    @model_validator(mode="after")
    def _makes_sense(self, info: ValidationInfo) -> Self:
        if not self.source.strip():
            raise ValueError("no source; say where it is from, or why there is none")
        if (self.low is None) != (self.high is None) or None not in (self.low, self.given):
            raise ValueError("a range has low and high, and no value beside them")
        curves = [[at for at, _ in value] for value in self.values if isinstance(value, tuple)]
        for spans in curves:
            if not spans or spans != sorted(set(spans)) or not 0 < spans[0] <= spans[-1] < math.inf:
                raise ValueError("the bytes of a curve must be above 0 and ascend")
        if self.low is not None:
            every = [span for spans in curves for span in spans] or [1.0]
            low, high = ([_at(end, span) for span in every] for end in self.values)
            if low == high or any(a > b for a, b in zip(low, high, strict=True)):
                raise ValueError("low must be below high; one value has no ends")
        if spec := info.context:
            if self.unit != spec.unit:
                raise ValueError(f"unit {self.unit!r}, expected {spec.unit!r}")
            if curves and not spec.curve:
                raise ValueError("one number, not a list")
            if wrong := [n for n in self.numbers if not spec.low <= n <= spec.high]:
                raise ValueError(f"{wrong[0]!r}: {spec.expected}")
        return self

    @property
    def values(self) -> tuple[float | Points, ...]:
        """One value, the two ends of a range, or, if it is unknown, none."""
        return tuple(v for v in (self.given, self.low, self.high) if v is not None)

    @property
    def value(self) -> float | None:
        """The number, or the first rate of a curve; ``None``: unknown."""
        return self.at(0.0)

    def at(self, num_bytes: float) -> float | None:
        """Return a curve's rate for ``num_bytes``, else the number; ``None``: unknown.

        Rates are interpolated over the bytes' logarithm; outside the measured points the nearest
        counts. A range has no single value: it raises :class:`ProfileError`.
        """
        if len(self.values) > 1:
            raise ProfileError(
                f"of a constant only a range is known ({self.source}), and one value is needed"
                " here: give it one in a profile of your own"
            )
        return _at(self.values[0], num_bytes) if self.values else None

    @property
    def reach(self) -> float | None:
        """The last point's bytes of a curve, the lesser ones of a range; ``None`` for a number."""
        return min((v[-1][0] for v in self.values if isinstance(v, tuple)), default=None)

    @property
    def numbers(self) -> tuple[float, ...]:
        """Every number of it: the value, the ends of a range, the rates of curves."""
        curves = (v if isinstance(v, tuple) else ((0.0, v),) for v in self.values)
        return tuple(rate for points in curves for _, rate in points)


def _at(value: float | Points, num_bytes: float) -> float:
    if not isinstance(value, tuple):
        return value
    spans, rates = zip(*value, strict=True)
    return float(np.interp(math.log(max(num_bytes, 1.0)), np.log(spans), rates))


#: The keys of a file's entry.
_FIELDS = ("value", "low", "high", "unit", "source")
_TABLES = tomllib.loads(Path(__file__).with_name("constants.toml").read_text(encoding="utf-8"))
#: Every constant of a profile, by its key: the table of a file, and the name in it.
SPECS = {
    f"{t}.{name}": Spec(**spec) for t, specs in _TABLES.items() for name, spec in specs.items()
}


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """A machine for the link model: ``constants`` has every key of :data:`SPECS`."""

    name: str
    description: str
    constants: Mapping[str, Constant] = field(hash=False)

    @classmethod
    def blank(cls, name: str, description: str, why: str) -> Self:
        """Return a machine without values, for this reason."""
        nothing = {k: Constant(value=None, unit=s.unit, source=why) for k, s in SPECS.items()}
        return cls(name, description, nothing)

    def __getitem__(self, key: str) -> Constant:
        """Return the constant of this key, e.g. ``link.raw_rate``."""
        return self.constants[key]

    def number(self, key: str, at: float = 0.0) -> float:
        """Return :meth:`Constant.at` of a constant; NaN: unknown."""
        found = self[key].at(at)
        return math.nan if found is None else found

    def why(self, *keys: str) -> tuple[str, ...]:
        """Return, for each unknown one of these constants, its key and the reason."""
        return tuple(f"{key}: {self[key].source}" for key in keys if not self[key].values)

    def unknown(self) -> dict[str, str]:
        """Return key → reason for every constant without a value."""
        return {key: c.source for key, c in self.constants.items() if not c.values}

    def ranges(self) -> list[str]:
        """Return the keys of the constants that have only a range."""
        return [key for key, c in self.constants.items() if len(c.values) > 1]

    def ends(self) -> tuple[LinkProfile, ...]:
        """Return the machine with every range at its low end, the slow one, and at its high end.

        Without a range, return the machine itself.
        """
        ranged, ends = self.ranges(), []
        for number in (0, 1) if ranged else ():
            there = dict(self.constants)
            for key in ranged:
                of = self[key]
                there[key] = Constant(value=of.values[number], unit=of.unit, source=of.source)
            ends.append(replace(self, constants=there))
        return tuple(ends) or (self,)

    def with_constant(self, key: str, value: Value, source: str, *, high: Value = None) -> Self:
        """Return the same machine with one constant replaced, checked as in a file.

        Args:
            high: if it is given, ``value`` is the low end of a range.

        Raises:
            ProfileError: the key is unknown, or the value is invalid for it.
        """
        if key not in SPECS:
            raise ProfileError(
                f"profile {self.name}: unknown constant {key!r}{nearest(key, SPECS)}"
            )
        entry = {"value": value} if high is None else {"low": value, "high": high}
        try:
            known = SPECS[key].constant({**entry, "unit": SPECS[key].unit, "source": source})
        except ValueError as error:
            raise ProfileError(f"profile {self.name}: {key}: {error}") from None
        return replace(self, constants={**self.constants, key: known})

    def to_toml(self) -> str:
        """Return the profile as the text of a file, a line for each constant."""
        lines = [f"name = {_toml(self.name)}", f"description = {_toml(self.description)}"]
        for section, keys in itertools.groupby(SPECS, lambda key: key.partition(".")[0]):
            lines += ["", f"[{section}]"]
            for key in keys:
                entry = self[key].model_dump(by_alias=True, exclude_none=True)
                text = ", ".join(f"{name} = {_toml(value)}" for name, value in entry.items())
                lines.append(f"{key.partition('.')[2]} = {{ {text} }}")
        return "\n".join(lines) + "\n"


def profile_names() -> list[str]:
    """Return the names of the profiles in the package."""
    return sorted(path.stem for path in PROFILES_FOLDER.glob("*.toml"))


def profile_of_machine(machine: str, otherwise: str = DEFAULT_PROFILE) -> LinkProfile:
    """Return the shipped profile that was fitted on this machine, else ``otherwise``."""
    return load_profile(machine if machine in profile_names() else otherwise)


def load_profile(name_or_path: str | Path) -> LinkProfile:
    """Read and check a profile: the name of a shipped one, or a path that ends in ``.toml``.

    Raises:
        ProfileError: it is missing or wrong; the message names each key and its valid values.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml":
        known = profile_names()
        if str(name_or_path) not in known:
            raise ProfileError(
                f"no profile is called {str(name_or_path)!r}{nearest(name_or_path, known)}; shipped"
                f" are {', '.join(known)}; for one of your own give a path that ends in .toml"
            )
        path = PROFILES_FOLDER / f"{name_or_path}.toml"
    try:
        text = tomllib.loads(read_text(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{path}: not valid TOML: {error}") from error
    named = {"name": text.pop("name", path.stem), "description": text.pop("description", "")}
    problems = [f"{n}: expected a string" for n, said in named.items() if not isinstance(said, str)]
    given: dict[str, Any] = {}
    for section, table in text.items():
        if section not in (*_TABLES, *_GONE):
            problems.append(f"{section}: unknown key{nearest(section, _TABLES)}")
        elif not isinstance(table, dict):
            problems.append(f"{section}: expected a table of constants")
        elif section not in _GONE:
            given |= {f"{section}.{name}": entry for name, entry in table.items()}
    unknown = given.keys() - SPECS.keys() - {*_GONE_KEYS}
    problems += [f"{key}: unknown key{nearest(key, SPECS)}" for key in sorted(unknown)]
    constants: dict[str, Constant] = {}
    for key, spec in SPECS.items():
        try:
            constants[key] = spec.constant(given.get(key))
        except ValueError as error:
            problems.append(f"{key}: {error}")
    if problems:
        raise ProfileError(f"{path.name}: " + "\n  ".join(problems))
    return LinkProfile(**named, constants=constants)


def _toml(value: str | float | Points) -> str:
    """Format a text, a number or a list, which JSON writes as TOML does."""
    return json.dumps(value, ensure_ascii=False)
