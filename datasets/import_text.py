"""Reads whole numbers from gigabytes of text, and names line and column of the first that is none.

The files of this field are text: one edge a line, ids separated by blanks or commas, comments
behind ``#`` or ``%``, often gzipped. pandas reads them piece by piece. A piece that pandas refuses
is read again line by line: that names the record at fault or, if there is none (a comment of
another kind), gives the same numbers.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.source import Progress, silent

#: Bytes parsed at a time, and the longest line that is taken for a record.
_CHUNK_BYTES, _LINE_BYTES = 16 << 20, 1 << 20
_COMMENT = (b"#", b"%")
#: No list of edges unpacks to more than this many times its size, of which gzip's most is 1032; the
#: first bytes may.
MOST_RATIO, _FREE_BYTES = 100, 1 << 17
#: Also 3.0 and the like, which pandas writes for a column with gaps.
_NUMBER = re.compile(rb"[+-]?\d{1,999}(\.\d*)?([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a text file: what it holds, its bounds, and what a header may call it.

    ``remedy`` says what to do about a number that is too large, if anything.
    """

    what: str
    lowest: int
    highest: int
    names: tuple[str, ...] = ()
    remedy: str = ""


def numbers(
    path: Path, columns: Sequence[Column], progress: Progress = silent, skip_first: bool = False
) -> Iterator[NDArray[np.int64]]:
    """A text file, gzipped or not, in runs of records, ``[n, len(columns)]``.

    The separator is a comma or a semicolon if the first record has one, else blanks. A ``.csv`` or
    ``.tsv`` may begin with a header. Where it names all the columns these are taken, else the
    first ones.

    Args:
        skip_first: leave out the first record, whatever it is.

    Raises:
        DatasetError: it cannot be opened, its compression is broken, or a record cannot be read:
            then with its line and column.
    """
    with opened(path) as (stream, raw):
        size = max(1, path.stat().st_size)
        line, rest = first_record(stream)
        separator = next((chr(s) for s in b",;" if s in rest), None)
        places = list(range(len(columns)))
        named = any(suffix in (".csv", ".tsv") for suffix in path.suffixes[-2:])
        if skip_first or (named and not _NUMBER.match(rest.strip())):
            places = _named(rest, separator, columns) or places
            line, rest = line + 1, b""
        while True:
            progress("read text", min(1.0, raw.tell() / size))
            block = stream.read(_CHUNK_BYTES)
            text = rest + block
            end = text.rfind(b"\n") + 1 if block else len(text)
            text, rest = text[:end], text[end:]
            found = by_pandas(text, separator, places, columns)
            if found is None:
                found = line_by_line(path, line, text, separator, places, columns)
            line += text.count(b"\n")
            if len(rest) > _LINE_BYTES:
                raise DatasetError(
                    f"{path}: line {line + 1}: is longer than {_LINE_BYTES} bytes; is this a text "
                    "file?"
                )
            if len(found):
                yield found
            if not block:
                return


def text_column(path: Path, column: str) -> NDArray[np.object_]:
    """The words of one column of a text file, ``[E]``, as :func:`numbers` cuts it into records.

    Args:
        column: its name in the header, or its number, from 1.

    Raises:
        DatasetError: there is no such column, or a record ends before it.
    """
    import pandas as pd

    with opened(path) as (stream, _):
        before, first = first_record(stream)
        rest = stream.read()
    separator = next((chr(s) for s in b",;" if s in first), None)
    cells = [cell.strip(" \t\r\n\"'") for cell in first.decode(errors="replace").split(separator)]
    named = any(suffix in (".csv", ".tsv") for suffix in path.suffixes[-2:])
    header = named and not _NUMBER.match(first.strip())
    numbered = int(column) - 1 if column.isdecimal() else -1
    place = cells.index(column) if header and column in cells else numbered
    if not 0 <= place < len(cells):
        said = f"columns {', '.join(cells[:10])}" if header else f"{len(cells)} columns, no header"
        raise DatasetError(f"{path}: line {before + 1}: no column {column!r}: it has {said}")
    try:
        frame = pd.read_csv(
            io.BytesIO(rest if header else first + rest),
            sep=r"\s+" if separator is None else separator,
            header=None,
            usecols=[place],
            dtype=str,
            comment="#",
            skipinitialspace=True,
            na_filter=False,
        )
    except ValueError as error:
        raise DatasetError(f"{path}: column {column}: cannot be read ({error})") from error
    words: NDArray[np.object_] = frame[place].to_numpy(object)
    return words


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[IO[bytes], BinaryIO]]:
    """The text of a file, and the file itself, which may be its gzipped form.

    Raises:
        DatasetError: it cannot be opened, or (while reading) its compression is broken.
    """
    try:
        raw = path.open("rb")
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror})") from error
    with raw:
        unpacked: Any = _Unpacked(fileobj=raw) if path.suffix == ".gz" else raw
        try:
            yield unpacked, raw
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DatasetError(
                f"{path}: the gzip file is cut short or damaged ({error}); fetch it again"
            ) from error


class _Unpacked(gzip.GzipFile):
    """Refuses a file that unpacks to far more than text does, before all of it is unpacked."""

    def read(self, size: int | None = -1) -> bytes:
        return self._bounded(super().read(size))

    def readline(self, size: int | None = -1) -> bytes:
        return self._bounded(super().readline(size))

    def _bounded(self, found: bytes) -> bytes:
        packed = self.fileobj.tell()  # type: ignore[union-attr]
        if self.tell() > max(_FREE_BYTES, MOST_RATIO * packed):
            raise DatasetError(
                f"{self.name}: {packed:,} bytes of it unpack to {self.tell():,}, which no graph's"
                " edges do; if it is right, unpack it first"
            )
        return found


def first_record(stream: IO[bytes]) -> tuple[int, bytes]:
    """The first line that is neither blank nor a comment (empty if there is none), and how many
    lines are before it."""
    before = 0
    while line := stream.readline(_LINE_BYTES):
        if before == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.strip() and not line.lstrip().startswith(_COMMENT):
            return before, line
        before += 1
    return before, b""


def _named(header: bytes, separator: str | None, columns: Sequence[Column]) -> list[int] | None:
    """Where the columns stand; ``None`` if the header lacks the name of one."""
    cells = header.decode(errors="replace").lower().split(separator)
    found = [cell.strip(" \t\r\n\"'") for cell in cells]
    places = [next((found.index(n) for n in c.names if n in found), None) for c in columns]
    given = [place for place in places if place is not None]
    return given if len(given) == len(columns) else None


def line_by_line(
    path: Path,
    line: int,
    text: bytes,
    separator: str | None,
    places: list[int],
    columns: Sequence[Column],
) -> NDArray[np.int64]:
    """The numbers that pandas would give, or the error where there is one.

    Args:
        line: how many lines are before the ``text``.
    """
    records = []
    cut = None if separator is None else separator.encode()
    for number, content in enumerate(text.split(b"\n"), start=line + 1):
        record = content.partition(b"#")[0].strip(b" \t\r")
        if not record or record.startswith(_COMMENT):
            continue
        cells = [cell.strip() for cell in record.split(cut)]
        values = []
        for place, column in zip(places, columns, strict=True):
            try:
                values.append(_number(cells, place, column))
            except ValueError as error:
                where = f"{path}: line {number}, column {place + 1}"
                raise DatasetError(f"{where}: {error}") from None
        records.append(values)
    return np.array(records, np.int64).reshape(-1, len(columns))


def _number(cells: list[bytes], place: int, column: Column) -> int:
    what = column.what
    if len(cells) <= place:
        raise ValueError(f"expected {place + 1} columns or more, the line ends before")
    found = cells[place][:40].decode(errors="replace")
    if not (number := _NUMBER.fullmatch(cells[place])) or not float(cells[place]).is_integer():
        raise ValueError(f"expected a {what} (a whole number), found {found!r}")
    value = int(float(cells[place])) if any(number.groups()) else int(cells[place])
    if value > column.highest:
        remedy = column.remedy and f"; {column.remedy}"
        raise ValueError(f"{what} {found} is too large: the largest is {column.highest}{remedy}")
    if value < column.lowest:
        raise ValueError(f"{what} {found} is too small: the smallest is {column.lowest}")
    return value


def by_pandas(
    text: bytes, separator: str | None, places: list[int], columns: Sequence[Column]
) -> NDArray[np.int64] | None:
    """The numbers, or ``None`` if there is anything in the text that pandas does not take."""
    import pandas as pd

    try:
        with np.errstate(invalid="ignore"):  # 1e300 becomes a number out of bounds
            frame = pd.read_csv(
                io.BytesIO(text),
                sep=r"\s+" if separator is None else separator,
                header=None,
                usecols=places,
                dtype=np.int64,
                comment="#",
                quoting=csv.QUOTE_NONE,
                skipinitialspace=True,
                na_filter=False,
            )
    except (ValueError, OverflowError):
        return None
    found = frame[places].to_numpy()
    low, high = [column.lowest for column in columns], [column.highest for column in columns]
    return None if ((found < low) | (found > high)).any() else found
