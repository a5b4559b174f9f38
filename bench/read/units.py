"""Numbers and names for readers, equal in terminal, figures and report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal

#: Names longer than this are cut in the middle where they are shown.
LONGEST_NAME = 64
MISSING = "–"
#: The multiples of a unit.
_PREFIXES = {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "": 1.0}
#: The suffixes of a large count as it is typed.
_COUNTS = {"k": 10**3, "M": 10**6, "B": 10**9}


def scale(unit: str, largest: float) -> tuple[str, float]:
    """Return the unit in which values up to ``largest`` (in ``unit``) read well, and its factor."""
    if unit == "s":
        if not largest < 1:  # NaN: no times
            return "s", 1.0
        return ("ms", 1e3) if largest >= 1e-3 else ("µs", 1e6)
    if unit in ("B", "B/s", "Hz", "1/s"):
        name, size = next((p for p in _PREFIXES.items() if largest >= p[1]), ("", 1.0))
        return name + unit.removeprefix("1"), 1 / size
    return ("%", 100.0) if unit == "share" else ("" if unit in ("1", "×") else unit, 1.0)


def number(value: float) -> str:
    """Return a number with three significant digits, no exponent, thousands separated."""
    if math.isnan(value):
        return MISSING
    if abs(value) >= 1e3:
        return _thousands(value)
    exponent = int(f"{value:.2e}".rpartition("e")[2]) if value else 2
    return f"{value:.{max(0, 2 - exponent)}f}"


def count(value: float) -> str:
    """Return a count as a whole number, any other plain number as :func:`number` does."""
    return _thousands(value) if float(value).is_integer() else number(value)


def _thousands(value: float) -> str:
    return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def quantity(value: float | None, unit: str) -> str:
    """Return a number with a unit that suits it: ``213 ms``, ``1.44×``, ``328 MB``, ``20 B``."""
    if value is None or math.isnan(value):
        return MISSING
    name, factor = scale(unit, abs(value))
    named = f"{number(value)}×" if unit == "×" else count(value)
    return f"{number(value * factor) if name not in ('', 'B') else named} {name}".rstrip()


def with_ends(value: float, low: float, high: float, unit: str = "×") -> str:
    """Return ``2.31× (2.20–2.43)``; one repeat has no ends (NaN), and the text says so."""
    factor = scale(unit, abs(value))[1]
    ends = "one repeat" if math.isnan(low) else f"{number(low * factor)}–{number(high * factor)}"
    return MISSING if math.isnan(value) else f"{quantity(value, unit)} ({ends})"


def span(low: float, high: float, unit: str) -> str:
    """Return two ends in one unit, ``25.8 to 26.2 ms``; one number if both read alike."""
    name, factor = scale(unit, high)
    ends = dict.fromkeys(number(end * factor) for end in (low, high))
    if unit == "×":
        return " to ".join(f"{end}×" for end in ends)
    return f"{' to '.join(ends)} {name}".rstrip()


def listed(names: Sequence[str], most: int = 4) -> str:
    """Return names in a row: ``a, b and c``; of more than ``most``, how many are left."""
    shown = [short(name) for name in names[:most]]
    if len(names) > most:
        return f"{', '.join(shown)} and {len(names) - most} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def short(text: object, longest: int = LONGEST_NAME) -> str:
    """Return the text on one line, cut in its middle if it is longer than ``longest``."""
    line = " ".join(str(text).split())
    head = longest * 2 // 3
    return line if len(line) <= longest else f"{line[:head]}…{line[-(longest - head - 1) :]}"


def whole(text: str | int) -> int:
    """Parse a large count as people write it: ``2400000``, ``2_400_000``, ``2.4e6``, ``2.4M``.

    Raises:
        ValueError: the text is not a count.
    """
    try:
        digits = str(text).strip()
        unit = _COUNTS.get(digits[-1:], 1)
        value = Decimal(digits[:-1] if unit > 1 else digits) * unit
        if abs(value) < 2**63 and value == value.to_integral_value():
            return int(value)
    except ArithmeticError:
        pass
    raise ValueError(f"{text!r} is no whole number, such as 2400000, 2.4e6 or 2.4M")
