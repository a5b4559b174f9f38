"""Define a profile of a machine: the link model's constants, each with its unit and its source.

A constant that nobody has published or measured has no value, and its source says why: predictions
that need it are unknown. Where only a range is known there is a profile for each end. A profile is
a TOML file, a shipped one by its name, one of the user's own by its path.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator

from gatherbench.outside import InputError, read_bytes
from gatherbench.plugins import nearest

PROFILES_FOLDER = Path(__file__).parent / "profiles"
#: The machine of the paper's evaluation (Min et al., PVLDB 14(11) 2021) on its faster link.
DEFAULT_PROFILE = "rtx3090-pcie4"
#: Tables and keys of earlier profiles, which are ignored.
_GONE = ("loop", "network", "node", "peer")
_GONE_KEYS = ("copy.to_host", "disk.block", "gpu.replay", "host.gather_scaling")

Number = Annotated[float, Field(strict=True)]
#: A curve ``((bytes, rate), …)``: a rate over the bytes of the table (its span) or of a row, or a
#: disk's rate over its reads in flight.
Points = tuple[tuple[Number, Number], ...]
#: A number or a curve; ``None``: unknown.
Value = Number | Points | None


class ProfileError(InputError):
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

    def constant(self, entry: Any) -> Constant:
        """Read its entry of a file, or ``None``; a :class:`ValueError` has what is wrong."""
        shape = f'expected {{ value = …, unit = "{self.unit}", source = "…" }}'
        if entry is None and not self.otherwise:
            raise ValueError(
                f"missing ({self.meaning}); {shape}, without value where it is not known"
            )
        if entry is None:
            entry = {"unit": self.unit, "source": self.otherwise}
        try:
            return Constant.model_validate(entry, context=self)
        except ValidationError as error:
            first = error.errors()[0]
        where, why = "".join(map(str, first["loc"][:1])), first["msg"].removeprefix("Value error, ")
        hint = nearest(where, Constant.model_fields) if first["type"] == "extra_forbidden" else ""
        raise ValueError(f"{where}{': ' * bool(where)}{why}{hint}; {shape}")


class Constant(BaseModel):
    """One constant of a machine: a number, or a curve."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: Value = None
    unit: str  # an SI unit: ``B/s``, ``B``, ``s``, ``1``, ``1/s``
    source: str  # its document or measurement; without a value, why

    @model_validator(mode="after")
    def _makes_sense(self, info: ValidationInfo) -> Self:
        if not self.source.strip():
            raise ValueError("no source; say where it is from, or why there is none")
        curve = isinstance(self.value, tuple)
        points = self.value if isinstance(self.value, tuple) else ((1.0, self.value),)
        spans = [span for span, _ in points]
        if not spans or spans != sorted(set(spans)) or not 0 < spans[0] <= spans[-1] < math.inf:
            raise ValueError("the bytes of a curve must be above 0 and ascend")
        if spec := info.context:
            if self.unit != spec.unit:
                raise ValueError(f"unit {self.unit!r}, expected {spec.unit!r}")
            if curve and not spec.curve:
                raise ValueError("one number, not a list")
            for _, rate in points:
                if rate is not None and not spec.low <= rate <= spec.high:
                    unit = f" {spec.unit}" * (spec.unit != "1")
                    raise ValueError(f"{rate!r}: expected {spec.low:g} to {spec.high:g}{unit}")
        return self

    def at(self, num_bytes: float) -> float | None:
        """Return a curve's rate for ``num_bytes``, else the number; ``None``: unknown.

        Rates are interpolated over the bytes' logarithm; outside the measured points the nearest
        counts.
        """
        if not isinstance(self.value, tuple):
            return self.value
        spans, rates = zip(*self.value, strict=True)
        return float(np.interp(math.log(max(num_bytes, 1.0)), np.log(spans), rates))


#: Formats a text, a number or a list, which JSON writes as TOML does.
_toml = partial(json.dumps, ensure_ascii=False)
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

    def __getitem__(self, key: str) -> Constant:
        """Return the constant of this key, e.g. ``link.raw_rate``."""
        return self.constants[key]

    def number(self, key: str, at: float = 0.0, otherwise: float = math.nan) -> float:
        """Return :meth:`Constant.at` of a constant, or ``otherwise`` if it is unknown."""
        value = self[key].at(at)
        return otherwise if value is None else value

    def unknown(self) -> dict[str, str]:
        """Return key → reason for every constant without a value."""
        return {key: c.source for key, c in self.constants.items() if c.value is None}

    def why(self, *keys: str) -> tuple[str, ...]:
        """Return, for each unknown one of these constants, its key and the reason."""
        return tuple(f"{key}: {self[key].source}" for key in keys if self[key].value is None)

    def with_constant(self, key: str, value: Value, source: str) -> Self:
        """Return the same machine with one constant replaced, checked as in a file."""
        if key not in SPECS:
            raise ProfileError(
                f"profile {self.name}: unknown constant {key!r}{nearest(key, SPECS)}"
            )
        entry = {"value": value, "unit": SPECS[key].unit, "source": source}
        try:
            known = SPECS[key].constant(entry)
        except ValueError as error:
            raise ProfileError(f"profile {self.name}: {key}: {error}") from None
        return replace(self, constants={**self.constants, key: known})

    def to_toml(self) -> str:
        """Return the profile as the text of a file, a line for each constant."""
        lines = [f"name = {_toml(self.name)}", f"description = {_toml(self.description)}"]
        for section, names in _TABLES.items():
            lines += ["", f"[{section}]"]
            for name in names:
                entry = self[f"{section}.{name}"].model_dump(exclude_none=True)
                text = ", ".join(f"{field} = {_toml(value)}" for field, value in entry.items())
                lines.append(f"{name} = {{ {text} }}")
        return "\n".join(lines) + "\n"


def profile_names() -> list[str]:
    """Return the names of the profiles in the package."""
    return sorted(path.stem for path in PROFILES_FOLDER.glob("*.toml"))


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
        content = tomllib.loads(read_bytes(path).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{path}: not valid TOML: {error}") from error
    name, description = (str(content.pop(key, "")) for key in ("name", "description"))
    entries, problems = dict[str, Any](), list[str]()
    for section, table in content.items():
        if section in _TABLES and isinstance(table, dict):
            entries |= {f"{section}.{key}": entry for key, entry in table.items()}
        elif section not in _GONE:
            tables = f"expected the tables {', '.join(_TABLES)}{nearest(section, _TABLES)}"
            problems.append(f"{section}: {tables}")
    unknown = sorted(entries.keys() - SPECS.keys() - {*_GONE_KEYS})
    problems += [f"{key}: unknown key{nearest(key, SPECS)}" for key in unknown]
    constants: dict[str, Constant] = {}
    for key, spec in SPECS.items():
        try:
            constants[key] = spec.constant(entries.get(key))
        except ValueError as error:
            problems.append(f"{key}: {error}")
    if problems:
        raise ProfileError(f"{path.name}: " + "\n  ".join(problems))
    return LinkProfile(name or path.stem, description, constants)
