"""What comes from outside: texts that anybody may have written, files that may be anything.

The words of an exception, the name of a file, a cell of a table may hold a terminal's escapes, half
a character or a million lines. What stands where a file should may be a FIFO, whose reader waits
for ever.
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

#: Characters of a text.
LONGEST = 2000
#: Lists within lists of a JSON file.
_DEEPEST = 50
#: A terminal's: colours and cursors, titles and links, and those of two characters.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")


def plain(said: object) -> str:
    """The text in one printable line of at most :data:`LONGEST` characters; once is enough.

    Lines are joined by ``|``, and escapes left out. What else cannot be printed is a replacement
    character, and what was cut off an ellipsis.
    """
    text = str(said)
    if len(text) <= LONGEST and text.isprintable():
        return text
    head = _ESCAPES.sub("", text[: 4 * LONGEST])
    kept = "".join(
        one if one.isprintable() else " " if one.isspace() else "\N{REPLACEMENT CHARACTER}"
        for one in " | ".join(head.splitlines())
    )
    whole = len(text) <= 4 * LONGEST and len(kept) <= LONGEST
    return kept if whole else kept[: LONGEST - 1] + "…"


def words_of(error: BaseException) -> str:
    """``Type: message`` of an error, :func:`plain`, whatever its message does when it is asked."""
    try:
        said = str(error)
    except Exception as failed:
        said = f"its message cannot be read ({type(failed).__name__})"
    return plain(f"{type(error).__name__}: {said}")


def open_file(path: Path) -> io.BufferedReader:
    """Open a file to be read.

    Raises:
        OSError: it cannot be read, or is a folder, a FIFO, a socket or a device.
    """
    return open(path, "rb", opener=_regular)


def _regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # nobody need write into a FIFO
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "it is no regular file", path)


def read_bytes(path: Path) -> bytes:
    """The file's content; for errors see :func:`open_file`."""
    with open_file(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    """The file's text.

    Raises:
        OSError: as :func:`open_file`.
        UnicodeDecodeError: it is no UTF-8.
    """
    return read_bytes(path).decode()


def parsed(text: bytes | str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is none, nested too deep, or has a number of thousands of digits.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def read_json(path: Path) -> Any:
    """The value of a JSON file, its texts :func:`plain`.

    Raises:
        OSError: as :func:`open_file`.
        ValueError: as :func:`parsed`, or it has a whole number of more than 64 bits.
    """
    return cleaned(parsed(read_bytes(path)))


def cleaned(value: Any, depth: int = _DEEPEST) -> Any:
    """A value of JSON with its texts :func:`plain`.

    Raises:
        ValueError: it has more than ``depth`` lists within lists, or a whole number of more than 64
            bits.
    """
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
    """The path as that of an empty file, whatever was there."""
    path.unlink(missing_ok=True)
    path.touch()
    return path
