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
from typing import IO, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.source import Progress

#: Bytes parsed at a time, and the longest line that is taken for a record.
_CHUNK_BYTES, _LINE_BYTES = 16 << 20, 1 << 20
_COMMENT = (b"#", b"%")
#: Also 3.0 and the like, which pandas writes for a column with gaps.
_NUMBER = re.compile(rb"[+-]?\d{1,999}(\.\d*)?([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a text file: its position from 0, what it holds, and its bounds.

    ``remedy`` says what to do about a number that is too large, if anything.
    """

    position: int
    what: str
    lowest: int
    highest: int
    remedy: str = ""


@contextlib.contextmanager
def text_stream(path: Path, progress: Progress) -> Iterator[TextStream]:
    """Open a text file, gzipped or not.

    Raises:
        DatasetError: it cannot be opened, or (while reading) its compression is broken.
    """
    try:
        raw = path.open("rb")
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror})") from error
    with raw:
        unpacked = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
        stream = TextStream(path, unpacked, raw, path.stat().st_size, progress)
        try:
            yield stream
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DatasetError(
                f"{path}: the gzip file is cut short or damaged ({error}), after line "
                f"{stream.line}; fetch it again"
            ) from error


class TextStream:
    """The first record of a file, then all of them as numbers; counts lines for error messages."""

    def __init__(
        self,
        path: Path,
        stream: IO[bytes] | io.BufferedIOBase,
        raw: BinaryIO,
        size: int,
        progress: Progress,
    ) -> None:
        self.path = path
        #: Lines read so far.
        self.line = 0
        self._stream, self._raw, self._progress = stream, raw, progress
        self._size = max(1, size)
        self._rest = b""

    def first_record(self) -> bytes:
        """The first line that is neither blank nor a comment, still to be read; empty if none."""
        while not self._rest and (line := self._stream.readline(_LINE_BYTES)):
            if self.line == 0:
                line = line.removeprefix(b"\xef\xbb\xbf")
            text = line.strip()
            if text and not text.startswith(_COMMENT):
                self._rest = line
            else:
                self.line += 1
        return self._rest

    def skip_record(self) -> None:
        """Leave the first record out: it is a header."""
        self._rest = b""
        self.line += 1

    def layout(
        self, header: bool | None, names: Sequence[Sequence[str]]
    ) -> tuple[str | None, list[int]]:
        """Look at the first record for the separator and the positions of the columns ``names``.

        Without a header, or where it lacks one of them, these are the first columns. ``header``
        is ``None`` where nobody knows: then one is looked for in ``.csv`` and ``.tsv`` files.
        """
        first = self.first_record()
        separator = next((chr(s) for s in b",;" if s in first), None)
        in_order = list(range(len(names)))
        if header is None:
            named = any(suffix in (".csv", ".tsv") for suffix in self.path.suffixes[-2:])
            header = named and not _NUMBER.match(first.strip())
        if not header:
            return separator, in_order
        self.skip_record()
        cells = first.decode(errors="replace").lower().split(separator)
        found = [cell.strip(" \t\r\n\"'") for cell in cells]
        places = [next((found.index(n) for n in known if n in found), None) for known in names]
        given = [place for place in places if place is not None]
        return separator, given if len(given) == len(names) else in_order

    def error(self, what: str, column: int | None = None) -> DatasetError:
        """An error at the line that was read last; columns count from 1."""
        place = f"line {self.line}" + ("" if column is None else f", column {column}")
        return DatasetError(f"{self.path}: {place}: {what}")

    def numbers(
        self, separator: str | None, columns: Sequence[Column], dense: bool = False
    ) -> Iterator[NDArray[np.int64]]:
        """The rest of the file in runs of records, ``[n, len(columns)]``.

        Args:
            separator: one character, or ``None`` for any run of blanks.
            dense: refuse an empty line between others, as it may stand for a record.

        Raises:
            DatasetError: with line and column of the first record that cannot be read.
        """
        rest = self._rest
        while True:
            self._progress("read text", min(1.0, self._raw.tell() / self._size))
            block = self._stream.read(_CHUNK_BYTES)
            text = rest + block
            end = text.rfind(b"\n") + 1 if block else len(text)
            text, rest = text[:end], text[end:]
            if len(rest) > _LINE_BYTES:
                self.line += text.count(b"\n") + 1
                raise self.error(f"is longer than {_LINE_BYTES} bytes; is this a text file?")
            if dense:  # empty lines wait for a record behind them: at the end they do no harm
                content = len(text.rstrip())
                end = (text.find(b"\n", content) + 1 or len(text)) if content else 0
                text, rest = text[:end], text[end:] + rest
            found = by_pandas(text, separator, columns, dense)
            if found is None:
                found = self.line_by_line(text, separator, columns, dense)
            else:
                self.line += text.count(b"\n")
            if len(found):
                yield found
            if not block:
                return

    def line_by_line(
        self, text: bytes, separator: str | None, columns: Sequence[Column], dense: bool
    ) -> NDArray[np.int64]:
        """The numbers that pandas would give, or the error where there is one."""
        records = []
        cut = None if separator is None else separator.encode()
        for line in text.removesuffix(b"\n").split(b"\n") if text else ():
            self.line += 1
            record = line.partition(b"#")[0].strip(b" \t\r")
            if not record or record.startswith(_COMMENT):
                if dense and not line.strip():
                    raise self.error("is empty: write -1 for a node without a class")
                continue
            cells = [cell.strip() for cell in record.split(cut)]
            records.append([self._number(cells, column) for column in columns])
        return np.array(records, np.int64).reshape(-1, len(columns))

    def _number(self, cells: list[bytes], column: Column) -> int:
        place, what = column.position + 1, column.what
        if len(cells) < place:
            raise self.error(f"expected {place} columns or more, the line ends before", place)
        cell = cells[column.position]
        found = cell[:40].decode(errors="replace")
        if not (number := _NUMBER.fullmatch(cell)) or not float(cell).is_integer():
            raise self.error(f"expected a {what} (a whole number), found {found!r}", place)
        value = int(float(cell)) if any(number.groups()) else int(cell)
        if value > column.highest:
            remedy = column.remedy and f"; {column.remedy}"
            raise self.error(
                f"{what} {found} is too large: the largest is {column.highest}{remedy}", place
            )
        if value < column.lowest:
            raise self.error(f"{what} {found} is too small: the smallest is {column.lowest}", place)
        return value


def by_pandas(
    text: bytes, separator: str | None, columns: Sequence[Column], dense: bool
) -> NDArray[np.int64] | None:
    """The numbers, or ``None`` if there is anything in the text that pandas does not take."""
    import pandas as pd

    try:
        with np.errstate(invalid="ignore"):  # 1e300 becomes a number out of bounds
            frame = pd.read_csv(
                io.BytesIO(text),
                sep=r"\s+" if separator is None else separator,
                header=None,
                usecols=[column.position for column in columns],
                dtype=np.int64,
                comment="#",
                quoting=csv.QUOTE_NONE,
                skipinitialspace=True,
                skip_blank_lines=not dense,
                na_filter=False,
            )
    except (ValueError, OverflowError):
        return None
    numbers = frame[[column.position for column in columns]].to_numpy()
    if (numbers <= 1).all(axis=0).any() and re.search(rb"(?i)true|false", text):
        return None  # to pandas these words are ones and zeros
    lowest = [column.lowest for column in columns]
    highest = [column.highest for column in columns]
    return None if ((numbers < lowest) | (numbers > highest)).any() else numbers
