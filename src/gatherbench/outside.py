"""Handle input from outside: texts by any author, files of any kind.

An exception's message, a file's name or a cell may hold a terminal's escapes, half a character or
a million lines. A path that should be a file may be a FIFO, whose reader waits for ever.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

#: The most characters of a text.
LONGEST = 2000
#: The most nested lists in a JSON file.
_DEEPEST = 50
#: A terminal's escapes: colours and cursors, titles and links, and those of two characters.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")


class InputError(ValueError):
    """The input of a user is wrong; a command ends with the message and status 2."""


def plain(value: object) -> str:
    """Return a value's text as one printable line of up to :data:`LONGEST` characters; idempotent.

    Lines are joined by ``|``, and escapes left out. A replacement character stands for each other
    unprintable character, an ellipsis for the cut part.
    """
    text = str(value)
    if len(text) <= LONGEST and text.isprintable():
        return text
    line = " | ".join(_ESCAPES.sub("", text[: 4 * LONGEST]).splitlines())
    spaced = (" " if c.isspace() else c for c in line)
    kept = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in spaced)
    complete = len(text) <= 4 * LONGEST and len(kept) <= LONGEST
    return kept if complete else kept[: LONGEST - 1] + "…"


def words_of(error: BaseException) -> str:
    """Return ``Type: message`` of an error as :func:`plain` text, even if its message raises."""
    try:
        message = str(error)
    except Exception as failed:
        message = f"its message cannot be read ({type(failed).__name__})"
    return plain(f"{type(error).__name__}: {message}")


def open_file(path: Path) -> io.BufferedReader:
    """Open a file for reading; an ``OSError`` for a folder, a FIFO, a socket or a device, too."""
    return open(path, "rb", opener=_regular)


def _regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # a FIFO needs no writer
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "it is no regular file", path)


def read_bytes(path: Path) -> bytes:
    """Return the file's content; for errors see :func:`open_file`."""
    with open_file(path) as file:
        return file.read()


def parsed(text: bytes | str) -> Any:
    """Return the value of a JSON text; a ``ValueError`` for other text, or one nested too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def read_json(path: Path) -> Any:
    """Return the value of a JSON file, with its texts made :func:`plain`; raises as
    :func:`open_file`, :func:`parsed` and :func:`cleaned`."""
    return cleaned(parsed(read_bytes(path)))


def cleaned(value: Any, depth: int = _DEEPEST) -> Any:
    """Return a value of JSON with its texts made :func:`plain`; a ``ValueError`` for more than
    ``depth`` nested lists, or a whole number of more than 64 bits."""
    match value:
        case str():
            return plain(value)
        case int() if not -(2**63) <= value < 2**63:
            raise ValueError("it has a whole number of more than 64 bits")
        case dict() | list() if not depth:
            raise ValueError("it is nested too deep")
        case dict():
            return {plain(key): cleaned(inner, depth - 1) for key, inner in value.items()}
        case list():
            return [cleaned(inner, depth - 1) for inner in value]
    return value


def fresh(path: Path) -> Path:
    """Make ``path`` an empty file, whatever was there, and return it."""
    path.unlink(missing_ok=True)
    path.touch()
    return path
