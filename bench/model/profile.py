"""What the link model knows of a machine: constants, each with its unit and its source.

A constant that nobody has published or measured has no value, and its source says why. What needs
it is then predicted as *unknown*. A *roof* (a limit that stands beside the link's own) that is not
known is left out instead, and the prediction says so. Of some constants only a *range* is known:
predictions are made at its ends (:meth:`LinkProfile.corners`). ``profile_file.py`` reads profiles
from TOML.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Self, get_args, get_type_hints

from gatherbench.bench.model.constants import (
    Constant,
    Curve,
    Points,
    ProfileError,
    Range,
    Spec,
    Value,
)


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

    roof: Annotated[Curve, Spec("B/s", 1e8, 1e13, "bytes read, over the table's span; a roof")]
    page_visits: Annotated[
        Curve, Spec("1/s", 1e5, 1e12, "reads of another page, over the table's span; a roof")
    ]


@dataclass(frozen=True, slots=True)
class Host:
    """The processor and its memory."""

    cores: Annotated[Constant, Spec("1", 1, 4096, "physical cores")]
    memory_rate: Annotated[Constant, Spec("B/s", 1e9, 1e13, "reads and writes together")]
    gather_rate: Annotated[
        Curve, Spec("B/s", 1e7, 1e12, "payload of a core while all gather, over a row's bytes")
    ]
    sample_rate: Annotated[Constant, Spec("1/s", 1e3, 1e12, "edges sampled for one GPU")]
    sample_cores: Annotated[Constant, Spec("1", 0.1, 4096, "cores that this keeps busy")]


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

    def constants(self) -> Iterator[tuple[str, Constant | Curve]]:
        """Every constant by its key, e.g. ``link.raw_rate``, in the order of :data:`SPECS`."""
        for key in SPECS:
            section, _, name = key.partition(".")
            yield key, getattr(getattr(self, section), name)

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

    def with_constant(self, key: str, value: Value, source: str) -> Self:
        """The same machine with one constant replaced, checked as in a file.

        Raises:
            ProfileError: there is no such key, or the value is outside its range.
        """
        made = checked(key, value, source, f"profile {self.name}: ")
        section, _, name = key.partition(".")
        table = dataclasses.replace(getattr(self, section), **{name: made})
        return dataclasses.replace(self, **{section: table})

    def corner_names(self) -> tuple[str, ...]:
        """Each corner's ends: ``link.max_request low, read.roof high``; empty without a range."""
        ends = [[f"{key} low", f"{key} high"] for key in self.ranges()]
        return tuple(", ".join(some) for some in itertools.product(*ends))

    def to_toml(self) -> str:
        """The profile as the text of a file."""
        lines = [f"name = {_quoted(self.name)}", f"description = {_quoted(self.description)}"]
        section = ""
        for key, constant in self.constants():
            table, _, name = key.partition(".")
            if table != section:
                lines += ["", f"[{table}]"]
                section = table
            names = ("low", "high") if len(constant.values) > 1 else ("value",)
            values = [_toml(value) for value in constant.values]
            shown = "".join(f"{n} = {v}, " for n, v in zip(names, values, strict=False))
            rest = f"unit = {_quoted(constant.unit)}, source = {_quoted(constant.source)}"
            lines.append(f"{name} = {{ {shown}{rest} }}")
        return "\n".join(lines) + "\n"


SECTIONS: dict[str, Any] = {
    name: kind
    for name, kind in get_type_hints(LinkProfile).items()
    if dataclasses.is_dataclass(kind)
}
_HINTS = {
    f"{section}.{name}": get_args(hint)
    for section, kind in SECTIONS.items()
    for name, hint in get_type_hints(kind, include_extras=True).items()
}
#: Every constant that a profile has, by its key.
SPECS: dict[str, Spec] = {key: spec for key, (_, spec) in _HINTS.items()}


def checked(key: str, value: Value, source: str, where: str = "") -> Constant | Curve:
    """The constant ``key``, if it may have this value.

    For a curve one number stands for every number of bytes.

    Raises:
        ProfileError: no such key, or a value that is no number or outside what makes sense, or a
            range whose ends are not in order.
    """
    if key not in SPECS:
        raise ProfileError(f"{where}unknown constant {key!r}{nearest(key, SPECS)}")
    if isinstance(value, Range):
        return _range(key, value, source, where)
    spec, is_curve = SPECS[key], _HINTS[key][0] is Curve
    if is_curve and isinstance(value, (int, float)):
        value = ((1.0, value),)
    if isinstance(value, tuple) and is_curve:
        spans = [
            span for span, _ in value if isinstance(span, (int, float)) and 0 < span < math.inf
        ]
        if not spans or len(spans) < len(value) or spans != sorted(set(spans)):
            raise ProfileError(f"{where}{key}: the bytes must be above 0 and ascend")
        value = tuple((float(span), _in_range(rate, spec)) for span, rate in value)
        if any(math.isnan(rate) for _, rate in value):
            raise ProfileError(f"{where}{key} = {value}: {spec.expected} everywhere")
        return Curve((value,), spec.unit, source)
    if value is None:
        return (Curve if is_curve else Constant)((), spec.unit, source)
    number = _in_range(value, spec)
    if math.isnan(number):
        raise ProfileError(f"{where}{key} = {value!r}: {spec.expected}")
    return Constant((number,), spec.unit, source)


def _range(key: str, ends: Range, source: str, where: str) -> Constant | Curve:
    """The constant whose ends these are; a curve's low end may nowhere be above its high one."""
    low: Any = checked(key, ends.low, source, where)
    high: Any = checked(key, ends.high, source, where)
    if isinstance(low, Curve):
        spans = [span for points in (*low.values, *high.values) for span, _ in points]
        pairs = [(low.at(span), high.at(span)) for span in spans]
    else:
        pairs = [(low.value, high.value)]
    if any(a > b for a, b in pairs) or all(a == b for a, b in pairs):
        raise ProfileError(f"{where}{key}: low must be below high; one value has no ends")
    made: Constant | Curve = dataclasses.replace(low, values=low.values + high.values)
    return made


def _in_range(value: object, spec: Spec) -> float:
    """The value as a float, NaN where it may not be that."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    fits = spec.low <= value <= spec.high and (value == int(value) or not spec.whole)
    return float(value) if fits else math.nan


def nearest(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the known word that is like ``word``, else nothing.

    A word that ``word`` begins is more like it than one of equal length.
    """
    words = list(known)
    begun = [one for one in words if word and one.startswith(word)]
    close = begun or difflib.get_close_matches(word, words, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _toml(value: float | Points) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(f'[{span!r}, {rate!r}]' for span, rate in value)}]"
    return repr(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
