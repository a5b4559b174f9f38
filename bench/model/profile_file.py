"""Profiles as files: the shipped ones by name, one of the user's own by path, errors in words.

[link]
raw_rate = { value = 31.51e9, unit = "B/s", source = "PCIe 4.0 x16 after 128b/130b" }
max_request = { low = 64.0, high = 128.0, unit = "B", source = "why no more is known" }
round_trip = { unit = "s", source = "not published: why there is no value" }
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gatherbench.bench.model.constants import Constant, Curve, ProfileError, Range
from gatherbench.bench.model.profile import SECTIONS, SPECS, LinkProfile, checked, nearest

PROFILES_FOLDER = Path(__file__).parent / "profiles"
#: The machine of the paper's evaluation (Min et al., PVLDB 14(11) 2021) on its faster link.
DEFAULT_PROFILE = "rtx3090-pcie4"


def profile_names() -> list[str]:
    """The profiles that come with the package."""
    return sorted(path.stem for path in PROFILES_FOLDER.glob("*.toml"))


def load_profile(name_or_path: str | Path) -> LinkProfile:
    """Read and check a profile: the name of a shipped one, or a path that ends in ``.toml``.

    Raises:
        ProfileError: no such profile, no valid TOML, a key that is missing or not known, a wrong
            unit, or a value outside its range; the message names the key and what it may be.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml":
        known = profile_names()
        if str(name_or_path) not in known:
            raise ProfileError(
                f"no profile {str(name_or_path)!r}{nearest(str(name_or_path), known)}; shipped:"
                f" {', '.join(known)}; one of your own is given as a path that ends in .toml"
            )
        path = PROFILES_FOLDER / f"{name_or_path}.toml"
    try:
        text = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ProfileError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{path}: not valid TOML: {error}") from error
    where = f"{path.name}: "
    _only(text, ["name", "description", *SECTIONS], where)
    for key in ("name", "description"):
        if not isinstance(text.get(key, ""), str):
            raise ProfileError(f"{where}{key}: expected a string")
    tables = {section: _section(text.get(section, {}), section, where) for section in SECTIONS}
    return LinkProfile(text.get("name", path.stem), text.get("description", ""), **tables)


def profile_of_machine(machine: str, otherwise: str = DEFAULT_PROFILE) -> LinkProfile:
    """The shipped profile that was fitted on this machine, else the one called ``otherwise``."""
    return load_profile(machine if machine in profile_names() else otherwise)


def _section(given: Any, section: str, where: str) -> Any:
    if not isinstance(given, dict):
        raise ProfileError(f"{where}{section}: expected a table of constants")
    names = [f.name for f in dataclasses.fields(SECTIONS[section])]
    _only(given, names, f"{where}{section}.")
    constants = {name: _constant(given.get(name), f"{section}.{name}", where) for name in names}
    return SECTIONS[section](**constants)


def _constant(entry: Any, key: str, where: str) -> Constant | Curve:
    spec = SPECS[key]
    shape = f'{{ value = …, unit = "{spec.unit}", source = "…" }}'
    if entry is None:
        raise ProfileError(
            f"{where}{key} is missing ({spec.meaning}); expected {shape}, without a value where"
            " it is not known, with low and high in place of value where only a range is"
        )
    if not isinstance(entry, dict):
        raise ProfileError(f"{where}{key} = {entry!r}: expected {shape}")
    _only(entry, ["value", "low", "high", "unit", "source"], f"{where}{key}.")
    if entry.get("unit") != spec.unit:
        raise ProfileError(f"{where}{key}: unit {entry.get('unit')!r}, expected {spec.unit!r}")
    source = entry.get("source")
    if not isinstance(source, str) or not source.strip():
        raise ProfileError(f"{where}{key}: no source; say where it is from, or why there is none")
    value, low, high = (_value(entry.get(n), f"{where}{key}") for n in ("value", "low", "high"))
    if low is None and high is None:
        return checked(key, value, source, where)
    if value is not None or low is None or high is None:
        raise ProfileError(f"{where}{key}: a range has low and high, and no value beside them")
    return checked(key, Range(low, high), source, where)


def _value(entry: Any, key: str) -> Any:
    """A number as it stands in the file, a curve as tuples."""
    if not isinstance(entry, list):
        return entry
    if not all(isinstance(p, list) and len(p) == 2 for p in entry):
        raise ProfileError(f"{key} = {entry}: expected [[span in bytes, rate], …]")
    return tuple((span, rate) for span, rate in entry)


def _only(given: dict[str, Any], known: Iterable[str], where: str) -> None:
    for key in given:
        if key not in known:
            raise ProfileError(f"{where}{key}: unknown key{nearest(key, known)}")
