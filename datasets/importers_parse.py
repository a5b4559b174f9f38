"""The compiled loop under the text importers: two node ids a line, and where it gave up."""

from __future__ import annotations

from typing import Any

import numba

NOT_A_NUMBER, NEGATIVE, MISSING, TOO_LARGE, TOO_SMALL = 1, 2, 3, 4, 5

_TAB, _NEWLINE, _RETURN, _BLANK = 9, 10, 13, 32
_HASH, _PERCENT, _MINUS, _ZERO, _NINE = 35, 37, 45, 48, 57


@numba.njit(nogil=True, cache=True)
def parse_edges(
    text: Any, separator: int, first: int, second: int, lowest: int, highest: int, ids: Any
) -> Any:
    """Parse whole lines; blank ones and those that begin with ``#`` or ``%`` are passed over.

    Args:
        text: uint8 ``[n]``.
        separator: the byte between columns, or 0 for any run of blanks.
        first, second: which columns hold the ids, from 0; others are ignored.
        lowest, highest: the ids that are allowed, below 2^31.
        ids: int32 ``[2, lines]``, filled from the left.

    Returns:
        the number of edges; 0 or what is wrong; and the position in ``text`` where it is.
    """
    end = len(text)
    last = max(first, second)
    at = found = 0
    while at < end:
        at = _skip_blanks(text, at)
        if at < end and text[at] not in (_NEWLINE, _HASH, _PERCENT):
            for column in range(last + 1):
                if at == end or text[at] == _NEWLINE:
                    return found, MISSING, at
                if column in (first, second):
                    value, after, problem = _scan_id(text, at, separator, lowest, highest)
                    if problem:
                        return found, problem, at
                    ids[int(column == second), found] = value
                    at = after
                at = _next_column(text, at, separator)
            found += 1
        while at < end and text[at] != _NEWLINE:
            at += 1
        at += 1
    return found, 0, at


@numba.njit(inline="always")
def _skip_blanks(text: Any, at: int) -> Any:
    while at < len(text) and text[at] in (_BLANK, _TAB, _RETURN):
        at += 1
    return at


@numba.njit(inline="always")
def _next_column(text: Any, at: int, separator: int) -> Any:
    """From anywhere in a column to the first character of the next, or to the line's end."""
    while at < len(text) and text[at] not in (_NEWLINE, separator):
        if separator == 0 and text[at] in (_BLANK, _TAB, _RETURN):
            break
        at += 1
    if at < len(text) and separator != 0 and text[at] == separator:
        at += 1
    return _skip_blanks(text, at)


@numba.njit(inline="always")
def _scan_id(text: Any, start: int, separator: int, lowest: int, highest: int) -> Any:
    """The number at ``start``: its value, the position behind it, and 0 or what is wrong."""
    at, value = start, 0
    while at < len(text) and _ZERO <= text[at] <= _NINE:
        value = 10 * value + (text[at] - _ZERO)
        if value > highest:  # stops long before the sum could overflow
            return value, at, TOO_LARGE
        at += 1
    if at == start:
        return value, at, NEGATIVE if text[at] == _MINUS else NOT_A_NUMBER
    behind = at if separator == 0 else _skip_blanks(text, at)
    if behind < len(text) and text[behind] not in (_BLANK, _TAB, _RETURN, _NEWLINE, separator):
        return value, at, NOT_A_NUMBER
    return value, at, TOO_SMALL if value < lowest else 0
