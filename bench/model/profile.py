"""What the link model knows of a machine: constants, each with its unit and its source.

A constant that nobody has published or measured has no value, and its source says why. What needs
it is then predicted as *unknown*. A *roof* (a limit that stands beside the link's own) that is not
known is left out instead, and the prediction says so. Of some constants only a *range* is known:
predictions are made at its ends (:meth:`LinkProfile.corners`). A file may leave out what came later
than the first profiles (``[peer]``, ``[network]``, ``[disk]``, ``host.memory``): nobody knows it
then.

A profile is a TOML file: a shipped one by its name, one of the user's own by its path.

[link]
raw_rate = { value = 31.51e9, unit = "B/s", source = "PCIe 4.0 x16 after 128b/130b" }
max_request = { low = 64.0, high = 128.0, unit = "B", source = "why no more is known" }
round_trip = { unit = "s", source = "not published: why there is no value" }
"""

from __future__ import annotations

import difflib
import itertools
import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Generic, Self, TypeVar, get_args, get_type_hints

PROFILES_FOLDER = Path(__file__).parent / "profiles"
#: The machine of the paper's evaluation (Min et al., PVLDB 14(11) 2021) on its faster link.
DEFAULT_PROFILE = "rtx3090-pcie4"

#: Why a constant has no value that older files do not name.
_UNTOLD = "the profile does not name it"
_NO_DISK = (
    f"{_UNTOLD}: measure the disk (gatherbench calibrate) or say it (gatherbench advise --disk"
    " IOPS,BANDWIDTH)"
)

#: A curve: ``((bytes, rate), …)`` in ascending order of the bytes, or of the reads in flight.
Points = tuple[tuple[float, float], ...]
_T = TypeVar("_T", float, Points)


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
class _Known(Generic[_T]):
    """
    Attributes:
        values: in ``unit``: one, the two ends of a range, or none where nothing is known.
        unit: an SI unit (``B/s``, ``B``, ``s``, ``1``, ``1/s``).
        source: the document or measurement that it comes from; without a value, why.
    """

    values: tuple[_T, ...]
    unit: str
    source: str

    @property
    def value(self) -> _T | None:
        """The one value, ``None`` where nothing is known.

        Raises:
            ProfileError: a range is known: neither end of it is the value.
        """
        if len(self.values) > 1:
            raise ProfileError(
                f"of a constant only a range is known ({self.source}), and one value is needed"
                " here: give it one in a profile of your own"
            )
        return self.values[0] if self.values else None


@dataclass(frozen=True, slots=True)
class Constant(_Known[float]):
    """One constant of a machine."""


@dataclass(frozen=True, slots=True)
class Curve(_Known[Points]):
    """A rate over bytes, of the table that is read (its span) or of a row; or over a depth."""

    def at(self, num_bytes: float) -> float | None:
        """The rate for a span, or a row, of ``num_bytes``: straight lines over its logarithm.

        Of a disk's reads, for so many in flight.

        Outside the points that were measured the nearest holds.
        """
        if self.value is None:
            return None
        (low, rate), *rest = self.value
        for high, rate_there in rest:
            if num_bytes <= low:
                return rate
            if num_bytes <= high:
                return rate + (rate_there - rate) * math.log(num_bytes / low, high / low)
            low, rate = high, rate_there
        return rate


@dataclass(frozen=True, slots=True)
class Spec:
    """What a constant is: its unit, the least and greatest value that make sense, its meaning.

    ``whole``: only whole numbers make sense. ``curve``: it is a :class:`Curve`. ``otherwise``: why
    it has no value where a file does not name it; empty: every file has to.
    """

    unit: str
    low: float
    high: float
    meaning: str
    whole: bool = False
    curve: bool = False
    otherwise: str = ""

    @property
    def expected(self) -> str:
        """The values that make sense, in words."""
        whole, unit = "whole, " if self.whole else "", "" if self.unit == "1" else f" {self.unit}"
        return f"expected {whole}{self.low:g} to {self.high:g}{unit}"

    @property
    def shape(self) -> str:
        """How the constant is written in a file."""
        return f'{{ value = …, unit = "{self.unit}", source = "…" }}'

    def known(self, value: Value, source: str) -> Constant | Curve:
        """The constant with this value. For a curve one number stands for every number of bytes.

        Raises:
            ValueError: it may not have this value, or the ends of a range are not in order.
        """
        ends: tuple[float | Points, ...] = ()
        if value is not None:
            ends = (value.low, value.high) if isinstance(value, Range) else (value,)
        if not self.curve:
            numbers = tuple(self._number(end) for end in ends)
            pairs = [numbers]
            made: Constant | Curve = Constant(numbers, self.unit, source)
        else:
            made = Curve(tuple(self._points(end) for end in ends), self.unit, source)
            curves = [replace(made, values=(end,)) for end in made.values]
            spans = [span for points in made.values for span, _ in points]
            pairs = [tuple(curve.at(span) or 0.0 for curve in curves) for span in spans]
        if len(ends) > 1 and (
            any(low > high for low, high in pairs) or all(low == high for low, high in pairs)
        ):
            raise ValueError(": low must be below high; one value has no ends")
        return made

    def read(self, entry: Any) -> Constant | Curve:
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
        if entry.get("unit") != self.unit:
            raise ValueError(f": unit {entry.get('unit')!r}, expected {self.unit!r}")
        source = entry.get("source")
        if not isinstance(source, str) or not source.strip():
            raise ValueError(": no source; say where it is from, or why there is none")
        value, low, high = (entry.get(word) for word in words[:3])
        if low is None and high is None:
            return self.known(value, source)
        if value is not None or low is None or high is None:
            raise ValueError(": a range has low and high, and no value beside them")
        return self.known(Range(low, high), source)

    def _points(self, value: Any) -> Points:
        if isinstance(value, (int, float)):
            value = ((1.0, value),)
        if not all(isinstance(point, (list, tuple)) and len(point) == 2 for point in value):
            raise ValueError(f" = {value}: expected [[span in bytes, rate], …]")
        spans = [span for span, _ in value]
        numbers = all(isinstance(span, (int, float)) and 0 < span < math.inf for span in spans)
        if not spans or not numbers or spans != sorted(set(spans)):
            raise ValueError(": the bytes must be above 0 and ascend")
        return tuple((float(span), self._number(rate)) for span, rate in value)

    def _number(self, value: Any) -> float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not self.low <= value <= self.high or (self.whole and value % 1):
            raise ValueError(f" = {value!r}: {self.expected}")
        return float(value)


@dataclass(frozen=True, slots=True)
class Link:
    """The link between the host and one GPU."""

    raw_rate: Annotated[Constant, Spec("B/s", 1e8, 1e13, "one direction, after line coding")]
    header: Annotated[Constant, Spec("B", 0, 64, "header of a read completion")]
    framing: Annotated[Constant, Spec("B", 0, 64, "framing of a packet")]
    dllp_share: Annotated[Constant, Spec("1", 0, 0.5, "flow control and acknowledgements")]
    max_payload: Annotated[Constant, Spec("B", 16, 4096, "largest payload of a completion")]
    max_request: Annotated[Constant, Spec("B", 32, 4096, "largest read by a multiprocessor")]
    outstanding_reads: Annotated[Constant, Spec("1", 1, 1e6, "read requests in flight at most")]
    round_trip: Annotated[Constant, Spec("s", 1e-8, 1e-3, "from a read request to its data")]


@dataclass(frozen=True, slots=True)
class Copy:
    """Copies by the copy engine. The rates of page-locked memory are roofs."""

    to_device: Annotated[Constant, Spec("B/s", 1e8, 1e13, "page-locked memory to the GPU; a roof")]
    to_host: Annotated[Constant, Spec("B/s", 1e8, 1e13, "the GPU to page-locked memory; a roof")]
    pageable: Annotated[
        Constant,
        Spec("B/s", 1e7, 1e13, "the CPU's part of a gather into fresh memory and its staged copy"),
    ]


@dataclass(frozen=True, slots=True)
class Read:
    """Reads of host memory by the GPU's multiprocessors."""

    roof: Annotated[
        Curve, Spec("B/s", 1e8, 1e13, "bytes read, over the table's span; a roof", curve=True)
    ]
    page_visits: Annotated[
        Curve,
        Spec("1/s", 1e5, 1e12, "reads of another page, over the table's span; a roof", curve=True),
    ]


@dataclass(frozen=True, slots=True)
class Host:
    """The processor and its memory."""

    cores: Annotated[Constant, Spec("1", 1, 4096, "physical cores")]
    memory_rate: Annotated[Constant, Spec("B/s", 1e9, 1e13, "reads and writes together")]
    gather_rate: Annotated[
        Curve,
        Spec("B/s", 1e7, 1e12, "payload of a core while all gather, over a row", curve=True),
    ]
    sample_rate: Annotated[Constant, Spec("1/s", 1e3, 1e12, "edges sampled for one GPU")]
    sample_cores: Annotated[Constant, Spec("1", 0.1, 4096, "cores that this keeps busy")]
    memory: Annotated[Constant, Spec("B", 1e8, 1e15, "size of its memory", otherwise=_UNTOLD)]


@dataclass(frozen=True, slots=True)
class Gpu:
    """The GPU itself."""

    memory: Annotated[Constant, Spec("B", 1e8, 1e13, "size of its memory")]
    memory_rate: Annotated[Constant, Spec("B/s", 1e9, 1e14, "reads and writes of its memory")]
    flops: Annotated[Constant, Spec("1/s", 1e10, 1e16, "float32 operations")]
    launch: Annotated[Constant, Spec("s", 1e-7, 1e-2, "issuing one operation of a training step")]
    submit: Annotated[Constant, Spec("s", 1e-7, 1e-1, "starting the fetch of a minibatch")]


@dataclass(frozen=True, slots=True)
class Node:
    """How many GPUs there are, and what they share."""

    gpus: Annotated[Constant, Spec("1", 1, 64, "GPUs of the machine", whole=True)]
    root_ports: Annotated[
        Constant, Spec("1", 1, 64, "full-width ports that they share", whole=True)
    ]


@dataclass(frozen=True, slots=True)
class Peer:
    """From GPU to GPU of one machine: NVLink, or PCI Express."""

    rate: Annotated[
        Constant, Spec("B/s", 1e8, 1e13, "of each GPU, in each direction", otherwise=_UNTOLD)
    ]
    latency: Annotated[Constant, Spec("s", 1e-8, 1e-2, "a hop of a collective", otherwise=_UNTOLD)]


@dataclass(frozen=True, slots=True)
class Network:
    """From machine to machine. It is the cluster's, so that whoever asks has to say it."""

    rate: Annotated[
        Constant, Spec("B/s", 1e7, 1e13, "of each machine, in each direction", otherwise=_UNTOLD)
    ]
    latency: Annotated[Constant, Spec("s", 1e-8, 1e-1, "a hop of a collective", otherwise=_UNTOLD)]


@dataclass(frozen=True, slots=True)
class Disk:
    """What holds a table that is larger than memory; all GPUs of a machine share it."""

    iops: Annotated[
        Curve,
        Spec("1/s", 10, 1e9, "random reads, over reads in flight", curve=True, otherwise=_NO_DISK),
    ]
    block: Annotated[Constant, Spec("B", 512, 1e6, "bytes of such a read", otherwise=_NO_DISK)]
    bandwidth: Annotated[
        Constant, Spec("B/s", 1e6, 1e12, "long reads, one behind the other", otherwise=_NO_DISK)
    ]


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """A machine as the link model sees it."""

    name: str
    description: str
    link: Link
    copy: Copy
    read: Read
    host: Host
    gpu: Gpu
    node: Node
    peer: Peer
    network: Network
    disk: Disk

    @classmethod
    def of(cls, name: str, description: str, constants: Mapping[str, Constant | Curve]) -> Self:
        """The machine with these constants, all that there are, by their keys."""
        tables: dict[str, Any] = {
            section: kind(**{f.name: constants[f"{section}.{f.name}"] for f in fields(kind)})
            for section, kind in _SECTIONS.items()
        }
        return cls(name, description, **tables)

    @classmethod
    def blank(cls, name: str, description: str, why: str) -> Self:
        """A machine of which nothing is known yet, for this reason."""
        return cls.of(name, description, {k: spec.known(None, why) for k, spec in SPECS.items()})

    def constants(self) -> Iterator[tuple[str, Constant | Curve]]:
        """Every constant by its key, e.g. ``link.raw_rate``, in the order of :data:`SPECS`."""
        for key in SPECS:
            yield key, self.constant(key)

    def constant(self, key: str) -> Constant | Curve:
        """The constant of this key."""
        section, _, name = key.partition(".")
        found: Constant | Curve = getattr(getattr(self, section), name)
        return found

    def unknown(self) -> dict[str, str]:
        """Key → why, for every constant without a value."""
        return {key: c.source for key, c in self.constants() if not c.values}

    def ranges(self) -> dict[str, Constant | Curve]:
        """The constants of which only a range is known, by their keys."""
        return {key: c for key, c in self.constants() if len(c.values) > 1}

    def corners(self) -> tuple[Self, ...]:
        """The machine at every combination of the ends of its ranges; itself without a range."""
        corners = [self]
        for key, constant in self.ranges().items():
            ends: tuple[Value, ...] = constant.values
            corners = [c.with_constant(key, end, constant.source) for c in corners for end in ends]
        return tuple(corners)

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
        section, _, name = key.partition(".")
        changed = replace(getattr(self, section), **{name: known})
        return replace(self, **{section: changed})

    def to_toml(self) -> str:
        """The profile as the text of a file, a line for each constant."""
        lines = [f"name = {_quoted(self.name)}", f"description = {_quoted(self.description)}"]
        section = ""
        for key, constant in self.constants():
            before, (section, _, name) = section, key.partition(".")
            if section != before:
                lines += ["", f"[{section}]"]
            names = ("low", "high") if len(constant.values) > 1 else ("value",)
            values = json.loads(json.dumps(constant.values))  # tuples become lists
            shown = "".join(f"{n} = {v!r}, " for n, v in zip(names, values, strict=False))
            rest = f"unit = {_quoted(constant.unit)}, source = {_quoted(constant.source)}"
            lines.append(f"{name} = {{ {shown}{rest} }}")
        return "\n".join(lines) + "\n"


_SECTIONS: dict[str, Any] = {
    name: kind for name, kind in get_type_hints(LinkProfile).items() if is_dataclass(kind)
}
#: Every constant that a profile has, by its key.
SPECS: dict[str, Spec] = {
    f"{section}.{name}": get_args(hint)[1]
    for section, kind in _SECTIONS.items()
    for name, hint in get_type_hints(kind, include_extras=True).items()
}


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
    problems = _unknown_keys(text)
    for word in ("name", "description"):
        if not isinstance(text.get(word, ""), str):
            problems.append(f"{word}: expected a string")
    constants: dict[str, Constant | Curve] = {}
    for key, spec in SPECS.items():
        section, _, name = key.partition(".")
        given = text.get(section, {})
        try:
            constants[key] = spec.read(given.get(name) if isinstance(given, dict) else None)
        except ValueError as error:
            problems.append(f"{key}{error}")
    if problems:
        raise ProfileError(f"{path.name}: " + "\n  ".join(problems))
    named = (text.get("name", path.stem), text.get("description", ""))
    return LinkProfile.of(*named, constants)


def _unknown_keys(text: dict[str, Any]) -> list[str]:
    """What stands in a file and no profile has."""
    words = ("name", "description", *_SECTIONS)
    problems = [f"{key}: unknown key{nearest(key, words)}" for key in text if key not in words]
    for section, kind in _SECTIONS.items():
        given = text.get(section, {})
        if not isinstance(given, dict):
            problems.append(f"{section}: expected a table of constants")
            continue
        names = [field.name for field in fields(kind)]
        problems += [
            f"{section}.{key}: unknown key{nearest(key, names)}"
            for key in given
            if key not in names
        ]
    return problems


def nearest(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the known word that is like ``word``, else nothing.

    A word that ``word`` begins is more like it than one of equal length.
    """
    words = list(known)
    begun = [one for one in words if word and one.startswith(word)]
    close = begun or difflib.get_close_matches(word, words, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
