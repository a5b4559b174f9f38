"""A modelled value that knows whether it is known, and what was left out of it.

An unknown constant must not become a 0 on its way through the formulas: whatever is computed from
an unknown estimate is unknown too, for the same reasons.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self

from gatherbench.bench.model.profile import LinkProfile


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value, or why there is none."""

    value: float | None  # ``None`` where a constant that it needs is not known
    unknown: tuple[str, ...] = ()  # what is not: ``gpu.launch: not published``; empty with a value
    remarks: tuple[str, ...] = ()  # what the value leaves out, or takes from elsewhere

    def __post_init__(self) -> None:
        if (self.value is None) != bool(self.unknown):
            raise ValueError(f"exactly one of value and reasons is set, got {self}")

    @classmethod
    def of(cls, profile: LinkProfile, key: str, at: float = 0.0) -> Self:
        """A profile's constant, e.g. ``gpu.launch``; of a curve its rate ``at`` so many bytes."""
        constant = profile[key]
        value = constant.at(at)
        return cls(None, (f"{key}: {constant.source}",)) if value is None else cls(value)

    @property
    def known(self) -> bool:
        return self.value is not None

    def __add__(self, other: Estimate) -> Estimate:
        return combine(operator.add, self, other)

    def __mul__(self, times: float) -> Estimate:
        return combine(lambda value: value * times, self)

    def remark(self, *texts: str) -> Estimate:
        """The same with further remarks."""
        return Estimate(self.value, self.unknown, _merged([self.remarks, texts]))


def combine(function: Callable[..., float], *parts: Estimate | float) -> Estimate:
    """``function`` of the parts' values; unknown if any part is, for every part's reasons."""
    estimates = [p if isinstance(p, Estimate) else Estimate(p) for p in parts]
    unknown = _merged(e.unknown for e in estimates)
    remarks = _merged(e.remarks for e in estimates)
    if unknown:
        return Estimate(None, unknown, remarks)
    return Estimate(function(*(e.value for e in estimates)), (), remarks)


def slowest(limits: Iterable[tuple[str, Estimate]]) -> tuple[Estimate, str]:
    """The longest of several lower bounds of one time, and the name of the limit that sets it.

    Unknown limits are left out with a remark; without a known one the result is unknown.
    """
    named = list(limits)
    known = [(name, e) for name, e in named if e.value is not None]
    missing = _merged(e.unknown for _, e in named)
    if not known:
        return Estimate(None, missing or ("no limit is known",)), "unknown"
    name, longest = max(known, key=lambda pair: pair[1].value or 0.0)
    remarks = [r for _, e in known for r in e.remarks]
    left_out = [f"a limit is not known and left out: {text}" for text in missing]
    return Estimate(longest.value, (), _merged([remarks, left_out])), name


def _merged(groups: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for group in groups for text in group))
