"""What the link model knows of a machine: constants, each with its unit and its source.

A constant that nobody has published or measured has no value, and its source says why. What needs
it is then predicted as *unknown*. A *roof* (a limit that stands beside the link's own) that is not
known is left out instead, and the prediction says so. Of some constants only a *range* is known:
predictions are made at its ends (:meth:`LinkProfile.corners`). A file may leave out what came later
than the first profiles (``[peer]``, ``[disk]`` and some more): nobody
knows it then.

A profile is a TOML file: a shipped one by its name, one of the user's own by its path.

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
from typing import Any, Self

import numpy as np

from gatherbench.outside import read_text
from gatherbench.plugins import nearest

PROFILES_FOLDER = Path(__file__).parent / "profiles"
#: The machine of the paper's evaluation (Min et al., PVLDB 14(11) 2021) on its faster link.
DEFAULT_PROFILE = "rtx3090-pcie4"

#: Why a constant has no value that older files do not name.
_UNTOLD = "the profile does not name it"
_NO_MANAGED = "managed memory was not read there"
_UNTIMED = "it was not timed there"
_NO_DISK = f"{_UNTOLD}: measure the disk (gatherbench calibrate)"

#: A curve: ``((bytes, rate), …)`` in ascending order of the bytes, or of the reads in flight.
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Range:
    """The ends between which a constant lies, where nobody knows more."""

    low: float | Points
    high: float | Points


#: A number or a curve, or the range of one; ``None`` where it is not known.
Value = float | Points | Range | None


class ProfileError(ValueError):
    """A profile that cannot be used; the message names the key and what it may be."""


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant of a machine: a number, or a curve.

    A curve is a rate over bytes, of the table that is read (its span) or of a row; of a disk's
    reads, over so many in flight.
    """

    values: tuple[float | Points, ...]  # one, the two ends of a range, or none: nothing is known
    unit: str  # an SI unit: ``B/s``, ``B``, ``s``, ``1``, ``1/s``
    source: str  # the document or measurement that it comes from; without a value, why

    @property
    def value(self) -> float | None:
        """The one number, ``None`` where nothing is known; of a curve the rate where it begins.

        Raises:
            ProfileError: a range is known: neither end of it is the value.
        """
        return self.at(0.0)

    def at(self, num_bytes: float) -> float | None:
        """A curve's rate for ``num_bytes``: straight lines over their logarithm.

        Outside the points that were measured the nearest holds. A number is the same for all.

        Raises:
            ProfileError: as of :attr:`value`.
        """
        if len(self.values) > 1:
            raise ProfileError(
                f"of a constant only a range is known ({self.source}), and one value is needed"
                " here: give it one in a profile of your own"
            )
        return _at(self.values[0], num_bytes) if self.values else None

    @property
    def reach(self) -> float | None:
        """The most bytes that a curve is known of; ``None`` of a number, or where none is known.

        Of a range the less of both. One point stands for all: it reaches nowhere.
        """
        ends = [value[-1][0] for value in self.values if isinstance(value, tuple)]
        return min((end for end in ends if end > 1), default=None)

    @property
    def numbers(self) -> tuple[float, ...]:
        """Every number in it: the value, the ends of a range, the rates of curves."""
        curves = (v if isinstance(v, tuple) else ((0.0, v),) for v in self.values)
        return tuple(rate for points in curves for _, rate in points)


def _at(value: float | Points, num_bytes: float) -> float:
    if not isinstance(value, tuple):
        return value
    spans, rates = zip(*value, strict=True)
    return float(np.interp(math.log(max(num_bytes, 1.0)), np.log(spans), rates))


@dataclass(frozen=True, slots=True)
class Spec:
    """What a constant is."""

    unit: str
    low: float  # the least value that makes sense
    high: float  # the greatest
    meaning: str
    whole: bool = False  # only whole numbers make sense
    curve: bool = False  # it may be a curve
    otherwise: str = ""  # why it has no value where a file does not name it; empty: every file must

    @property
    def expected(self) -> str:
        """The values that make sense, in words."""
        whole, unit = "whole, " if self.whole else "", "" if self.unit == "1" else f" {self.unit}"
        return f"expected {whole}{self.low:g} to {self.high:g}{unit}"

    @property
    def shape(self) -> str:
        """How the constant is written in a file."""
        return f'{{ value = …, unit = "{self.unit}", source = "…" }}'

    def known(self, value: Value, source: str) -> Constant:
        """The constant with this value. For a curve one number stands for every number of bytes.

        Raises:
            ValueError: it may not have this value, or the ends of a range are not in order.
        """
        ends = (value.low, value.high) if isinstance(value, Range) else (value,)
        values = tuple(self._checked(end) for end in ends if end is not None)
        if len(values) > 1:
            spans = [span for end in values if isinstance(end, tuple) for span, _ in end] or [1.0]
            pairs = [[_at(end, span) for end in values] for span in spans]
            if any(low > high for low, high in pairs) or all(low == high for low, high in pairs):
                raise ValueError(": low must be below high; one value has no ends")
        return Constant(values, self.unit, source)

    def read(self, entry: Any) -> Constant:
        """The constant from its entry in a file.

        Raises:
            ValueError: the entry is missing or not of that shape, or its value makes no sense.
        """
        if entry is None and self.otherwise:
            return self.known(None, self.otherwise)
        if entry is None:
            raise ValueError(
                f" is missing ({self.meaning}); expected {self.shape}, without a value where it is"
                " not known, with low and high in place of value where only a range is"
            )
        if not isinstance(entry, dict):
            raise ValueError(f" = {entry!r}: expected {self.shape}")
        words = ("value", "low", "high", "unit", "source")
        for word in entry:
            if word not in words:
                raise ValueError(f".{word}: unknown key{nearest(word, words)}")
        value, low, high, unit, source = (entry.get(word) for word in words)
        if unit != self.unit:
            raise ValueError(f": unit {unit!r}, expected {self.unit!r}")
        if not isinstance(source, str) or not source.strip():
            raise ValueError(": no source; say where it is from, or why there is none")
        if low is None and high is None:
            return self.known(value, source)
        if value is not None or low is None or high is None:
            raise ValueError(": a range has low and high, and no value beside them")
        return self.known(Range(low, high), source)

    def _checked(self, value: Any) -> float | Points:
        if not self.curve:
            return self._number(value)
        points = value if isinstance(value, (list, tuple)) else ((1.0, value),)
        if not all(isinstance(point, (list, tuple)) and len(point) == 2 for point in points):
            raise ValueError(f" = {value}: expected [[span in bytes, rate], …]")
        spans = [span for span, _ in points]
        numbers = all(isinstance(span, (int, float)) and 0 < span < math.inf for span in spans)
        if not spans or not numbers or spans != sorted(set(spans)):
            raise ValueError(": the bytes must be above 0 and ascend")
        return tuple((float(span), self._number(rate)) for span, rate in points)

    def _number(self, value: Any) -> float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not self.low <= value <= self.high or (self.whole and value % 1):
            raise ValueError(f" = {value!r}: {self.expected}")
        return float(value)


#: Every constant that a profile has, by its key: the table of a file, and the name in it.
SPECS: dict[str, Spec] = {
    # The link between the host and one GPU.
    "link.raw_rate": Spec("B/s", 1e8, 1e13, "one direction, after line coding"),
    "link.header": Spec("B", 0, 64, "header of a read completion"),
    "link.framing": Spec("B", 0, 64, "framing of a packet"),
    "link.dllp_share": Spec("1", 0, 0.5, "flow control and acknowledgements"),
    "link.max_payload": Spec("B", 16, 4096, "largest payload of a completion"),
    "link.max_request": Spec("B", 32, 4096, "largest read by a multiprocessor"),
    "link.outstanding_reads": Spec("1", 1, 1e6, "read requests in flight at most"),
    "link.round_trip": Spec("s", 1e-8, 1e-3, "from a read request to its data"),
    # Copies by the copy engine. The rates of page-locked memory are roofs.
    "copy.to_device": Spec("B/s", 1e8, 1e13, "page-locked memory to the GPU; a roof"),
    "copy.to_host": Spec("B/s", 1e8, 1e13, "the GPU to page-locked memory; a roof"),
    "copy.pageable": Spec(
        "B/s", 1e7, 1e13, "the CPU's part of a gather into fresh memory and its staged copy"
    ),
    "copy.batched": Spec(
        "1/s",
        1e4,
        1e12,
        "copies of one batch, each of a row or more (cuMemcpyBatchAsync)",
        otherwise="copies of single rows were not timed there, and nobody has published a rate",
    ),
    # Reads of host memory by the GPU's multiprocessors.
    "read.roof": Spec("B/s", 1e8, 1e13, "bytes read, over the table's span; a roof", curve=True),
    "read.page_visits": Spec(
        "1/s",
        1e5,
        1e12,
        "reads of another 64 KiB of registered memory, or of the next page of 4 KiB, over the"
        " table's span; a roof",
        curve=True,
    ),
    "read.managed_page_visits": Spec(
        "1/s",
        1e5,
        1e12,
        "reads of another 2 MiB of managed memory, over the table's span; a roof",
        curve=True,
        otherwise=_NO_MANAGED,
    ),
    # The processor and its memory.
    "host.cores": Spec("1", 1, 4096, "physical cores"),
    "host.memory_rate": Spec("B/s", 1e9, 1e13, "reads and writes together"),
    "host.gather_rate": Spec(
        "B/s", 1e7, 1e12, "payload of a core while all gather, over a row", curve=True
    ),
    "host.gather_scaling": Spec(
        "1",
        1e-4,
        1e4,
        "rate of a gather on so many cores over that on all, over cores",
        curve=True,
        otherwise=_UNTOLD,
    ),
    "host.sample_rate": Spec("1/s", 1e3, 1e12, "edges sampled for one GPU"),
    "host.sample_cores": Spec("1", 0.1, 4096, "cores that this keeps busy"),
    "gpu.memory": Spec("B", 1e8, 1e13, "size of its memory"),
    "gpu.memory_rate": Spec("B/s", 1e9, 1e14, "reads and writes of its memory"),
    "gpu.flops": Spec("1/s", 1e10, 1e16, "float32 operations"),
    "gpu.launch": Spec("s", 1e-7, 1e-2, "issuing one operation of a training step"),
    "gpu.issue": Spec(
        "s", 1e-7, 1e-2, "issuing one operation of a training step of torch", otherwise=_UNTIMED
    ),
    "gpu.replay": Spec(
        "s", 1e-8, 1e-3, "an operation of a replayed step, for the GPU", otherwise=_UNTIMED
    ),
    "gpu.draw": Spec("s", 1e-7, 1e-1, "issuing the draw of a layer to the GPU", otherwise=_UNTIMED),
    "gpu.submit": Spec("s", 1e-7, 1e-1, "starting the fetch of a minibatch"),
    # How many GPUs there are, and what they share.
    "node.gpus": Spec("1", 1, 64, "GPUs of the machine", whole=True),
    "node.root_ports": Spec("1", 1, 64, "full-width ports that they share", whole=True),
    # From GPU to GPU of one machine: NVLink, or PCI Express.
    "peer.rate": Spec("B/s", 1e8, 1e13, "of each GPU, in each direction", otherwise=_UNTOLD),
    "peer.latency": Spec("s", 1e-8, 1e-2, "a hop of a collective", otherwise=_UNTOLD),
    # What holds a table that is larger than memory; all GPUs of a machine share it.
    "disk.iops": Spec(
        "1/s", 10, 1e9, "random reads, over reads in flight", curve=True, otherwise=_NO_DISK
    ),
    "disk.block": Spec("B", 512, 1e6, "bytes of such a read", otherwise=_NO_DISK),
    "disk.bandwidth": Spec("B/s", 1e6, 1e12, "long reads, one after another", otherwise=_NO_DISK),
}


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """A machine as the link model sees it: ``constants`` has every key of :data:`SPECS`."""

    name: str
    description: str
    constants: Mapping[str, Constant] = field(hash=False)

    @classmethod
    def blank(cls, name: str, description: str, why: str) -> Self:
        """A machine of which nothing is known yet, for this reason."""
        return cls(name, description, {key: spec.known(None, why) for key, spec in SPECS.items()})

    def __getitem__(self, key: str) -> Constant:
        """The constant of this key, e.g. ``link.raw_rate``."""
        return self.constants[key]

    def unknown(self) -> dict[str, str]:
        """Key → why, for every constant without a value."""
        return {key: c.source for key, c in self.constants.items() if not c.values}

    def ranges(self) -> dict[str, Constant]:
        """The constants of which only a range is known, by their keys."""
        return {key: c for key, c in self.constants.items() if len(c.values) > 1}

    def corners(self) -> tuple[Self, ...]:
        """The machine at every combination of the ends of its ranges; itself without a range."""
        ranges = self.ranges()
        every = itertools.product(
            *([replace(c, values=(v,)) for v in c.values] for c in ranges.values())
        )
        return tuple(
            replace(self, constants={**self.constants, **dict(zip(ranges, some, strict=True))})
            for some in every
        )

    def corner_names(self) -> tuple[str, ...]:
        """Each corner's ends: ``link.max_request low, read.roof high``; empty without a range."""
        ends = [[f"{key} low", f"{key} high"] for key in self.ranges()]
        return tuple(", ".join(some) for some in itertools.product(*ends))

    def with_constant(self, key: str, value: Value, source: str) -> Self:
        """The same machine with one constant replaced, checked as in a file.

        Raises:
            ProfileError: there is no such key, or it may not have this value.
        """
        where = f"profile {self.name}: "
        if key not in SPECS:
            raise ProfileError(f"{where}unknown constant {key!r}{nearest(key, SPECS)}")
        try:
            known = SPECS[key].known(value, source)
        except ValueError as error:
            raise ProfileError(f"{where}{key}{error}") from None
        return replace(self, constants={**self.constants, key: known})

    def to_toml(self) -> str:
        """The profile as the text of a file, a line for each constant."""
        lines = [f"{name} = {_toml(getattr(self, name))}" for name in ("name", "description")]
        for section, keys in itertools.groupby(SPECS, lambda key: key.partition(".")[0]):
            lines += ["", f"[{section}]"]
            for key in keys:
                constant = self[key]
                names = ("low", "high") if len(constant.values) > 1 else ("value",)
                entry: dict[str, Any] = dict(zip(names, constant.values, strict=False))
                entry |= {"unit": constant.unit, "source": constant.source}
                said = ", ".join(f"{name} = {_toml(value)}" for name, value in entry.items())
                lines.append(f"{key.partition('.')[2]} = {{ {said} }}")
        return "\n".join(lines) + "\n"


def profile_names() -> list[str]:
    """The profiles that come with the package."""
    return sorted(path.stem for path in PROFILES_FOLDER.glob("*.toml"))


def profile_of_machine(machine: str, otherwise: str = DEFAULT_PROFILE) -> LinkProfile:
    """The shipped profile that was fitted on this machine, else the one called ``otherwise``."""
    return load_profile(machine if machine in profile_names() else otherwise)


def load_profile(name_or_path: str | Path) -> LinkProfile:
    """Read and check a profile: the name of a shipped one, or a path that ends in ``.toml``.

    Raises:
        ProfileError: no such profile, no valid TOML, a key that is missing or not known, a wrong
            unit, or a value that makes no sense; the message names the key and what it may be.
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
    except FileNotFoundError:
        raise ProfileError(f"{path}: no such file") from None
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{path}: not valid TOML: {error}") from error
    except RecursionError as error:
        raise ProfileError(f"{path}: nested too deep") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: cannot be read: {error}") from error
    named = {"name": text.pop("name", path.stem), "description": text.pop("description", "")}
    problems = [f"{n}: expected a string" for n, said in named.items() if not isinstance(said, str)]
    for gone in ("loop", "network"):  # of earlier profiles; nothing asks for it any more
        text.pop(gone, None)
    if isinstance(host := text.get("host"), dict):
        host.pop("memory", None)  # the same
    constants: dict[str, Constant] = {}
    given = _entries(text, problems)
    for key, spec in SPECS.items():
        try:
            constants[key] = spec.read(given.get(key))
        except ValueError as error:
            problems.append(f"{key}{error}")
    if problems:
        raise ProfileError(f"{path.name}: " + "\n  ".join(problems))
    return LinkProfile(**named, constants=constants)


def _entries(text: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """The entries of a file's tables by key; what no profile has is added to the problems."""
    sections = dict.fromkeys(key.partition(".")[0] for key in SPECS)
    found: dict[str, Any] = {}
    for section, table in text.items():
        if section not in sections:
            problems.append(f"{section}: unknown key{nearest(section, sections)}")
        elif not isinstance(table, dict):
            problems.append(f"{section}: expected a table of constants")
        else:
            found |= {f"{section}.{name}": entry for name, entry in table.items()}
    problems += [f"{key}: unknown key{nearest(key, SPECS)}" for key in found if key not in SPECS]
    return found


def _toml(value: str | float | Points) -> str:
    """A text, a number or a list, which JSON writes as TOML does."""
    return json.dumps(value, ensure_ascii=False)
