"""Columns of numbers and words from gigabytes of text, and which column is for what.

The files of this field are a record a line, cut at tabs, semicolons, commas or blanks, with
comments. The first records decide how a file is read; what they leave open is refused with the
option that says it. PyArrow reads the cells, block by block.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.import_kind import opened
from gatherbench.datasets.source import Progress, silent

#: Bytes parsed at a time, looked at first, and of the longest line that is taken for a record.
_CHUNK_BYTES, _SAMPLE_BYTES, _LINE_BYTES = 16 << 20, 1 << 18, 1 << 20
_CUTS = {"\t": "tabs", ";": "semicolons", ",": "commas", " ": "blanks"}
_COMMENTS = re.compile(rb"(?m)^[ \t]*[#%].*(\n|\Z)")
#: An empty line between two records.
_GAP = re.compile(rb"(?m)^[ \t]*[^\s#%].*\n([ \t]*\n)(?:\s|[#%].*)*[^\s#%]")
_NUMBER = re.compile(r"[+-]?[\d.,]*\d[\d.,]*([eE][+-]?\d+)?|nan|inf")
#: Also 3.0 and 3.000e+00, as pandas and NumPy write it. 3.000 may be three thousand.
_WHOLE = r"^[+-]?\d{1,40}(\.|\.0|\.00|\.0{4,40})?$|^[+-]?\d{1,40}(\.\d{0,40})?[eE][+-]?\d{1,3}$"


@dataclass(frozen=True, slots=True)
class Role:
    """What a column is for, the option that names it, and what a header may call it (letters and
    digits, in lower case); the bounds of its numbers, and what to do about a number too large.

    ``words``: its cells are no numbers.
    """

    what: str
    option: str
    names: Collection[str] = ()
    lowest: int = 0
    highest: int = 2**62
    remedy: str = ""
    words: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """How a text file is cut.

    Attributes:
        header: the names of its columns; empty where it has none.
        sample: its first records.
        comments: the lines before them.
        doubt: why its first record may be data or a header; empty where that is clear.
    """

    path: Path
    separator: str
    header: tuple[str, ...]
    sample: list[list[str]]
    comments: str
    doubt: str

    @property
    def width(self) -> int:
        return len(self.header or self.sample[0])

    def choose(self, roles: Sequence[Role], told: Sequence[str]) -> list[int]:
        """The place of each role's column: as told (a name, or a number from 1), by the header, or
        by the order.

        Raises:
            DatasetError: it cannot be told, or a column has two uses; names the options.
        """
        said = self.header or re.split(r"[\s,;]+", self.comments.split("\n")[-1].strip("#% \t"))
        names = [re.sub(r"[^a-z0-9]", "", name.lower()) for name in said]
        places = [self._told(*each) if each[1] else -1 for each in zip(roles, told, strict=True)]
        known = [[i for i, name in enumerate(names) if name in role.names] for role in roles]
        if len(names) == self.width and (self.header or all(len(found) == 1 for found in known)):
            for n, found in enumerate(known):
                places[n] = found[0] if places[n] < 0 and len(found) == 1 else places[n]
        missing = [n for n, place in enumerate(places) if place < 0]
        free = [place for place in range(self.width) if place not in places]
        if missing and self._vague(free, len(missing)):
            which = " and which the ".join(roles[n].what for n in missing)
            flags = " and ".join(f"{roles[n].option} COLUMN" for n in missing)
            raise DatasetError(
                f"{self.path}: {self._columns()}: which is the {which}? Say {flags} (its name, "
                "or its number from 1)"
            )
        for n, place in zip(missing, free, strict=False):
            places[n] = place
        if len(set(places)) < len(places) or -1 in places:
            uses = ", ".join(role.what for role in roles)
            raise DatasetError(f"{self.path}: {self._columns()}; expected one each for {uses}")
        return places

    def _vague(self, free: list[int], count: int) -> bool:
        """Whether the first ``count`` of these columns may be others than those that are meant.

        They are not where there are no more, or where the others hold other than whole numbers.
        Files of KONECT have source, target, weight, time.
        """
        if any(not name.isdecimal() for name in self.header):
            return self.width > 1
        if len(free) <= count or re.search(KONECT, self.comments):
            return False
        whole = [all(re.match(_WHOLE, cells[place]) for cells in self.sample) for place in free]
        return any(whole[count:]) or not all(whole[:count])

    def _told(self, role: Role, name: str) -> int:
        if name in self.header:
            return self.header.index(name)
        if name.isdecimal() and 1 <= int(name) <= self.width:
            return int(name) - 1
        raise DatasetError(f"{self.path}: no column {name!r} for {role.option}: {self._columns()}")

    def _columns(self) -> str:
        if not self.header:
            return f"{self.width} columns, no header"
        return f"columns {', '.join(map(repr, self.header[:10]))}"

    def took(self, roles: Sequence[Role], places: Sequence[int]) -> str:
        """What was taken for what, in one line."""
        columns = [repr(self.header[at]) if self.header else f"column {at + 1}" for at in places]
        uses = ", ".join(f"{role.what} {at}" for role, at in zip(roles, columns, strict=True))
        head = "with" if self.header else "without"
        of = f"{self.path.name}: text cut at {_CUTS[self.separator]}, {head} a header"
        return f"{of}: {uses}, of {self.width} columns"

    def read(
        self, roles: Sequence[Role], places: Sequence[int], progress: Progress = silent
    ) -> Iterator[list[Any]]:
        """The columns in runs of records: int64 ``[n]``, or a PyArrow array of words.

        Raises:
            DatasetError: a record has not as many columns as the first, or a cell is no number
                within the bounds; with its line and column.
        """
        done, skip = 0, bool(self.header)
        for text, share in _blocks(self.path, self.separator, gaps=self.width == 1):
            progress("read text", share)
            body = text.partition(b"\n")[2] if skip else text
            skip = skip and not text.strip()
            if not body.strip():
                continue
            cells = self._parsed(body, places, done)
            yield [
                found if role.words else self._whole(found, role, place, done)
                for found, role, place in zip(cells, roles, places, strict=True)
            ]
            done += len(cells[0])

    def _parsed(self, text: bytes, places: Sequence[int], done: int) -> list[Any]:
        import pyarrow as pa
        import pyarrow.csv

        if b'"' in text:
            self._check_quotes(text, done)
        names = [str(n) for n in range(self.width)]
        uneven: list[Any] = []

        def keep(row: Any) -> str:
            uneven.append(row)
            return "error"

        try:
            table = pyarrow.csv.read_csv(
                pa.BufferReader(text),
                pyarrow.csv.ReadOptions(
                    use_threads=False, column_names=names, block_size=max(1024, len(text))
                ),
                pyarrow.csv.ParseOptions(
                    delimiter=self.separator,
                    invalid_row_handler=keep,
                ),
                pyarrow.csv.ConvertOptions(
                    include_columns=[str(place) for place in places],
                    column_types=dict.fromkeys(names, pa.string()),
                ),
            )
        except pa.ArrowInvalid as error:
            if not uneven:
                raise DatasetError(
                    f"{self.path}: {error}; iconv -f WINDOWS-1252 -t UTF-8 converts such text"
                ) from error
            line = self.line(done + uneven[0].number - 1)
            raise self.uneven(line, uneven[0].actual_columns) from error
        return [table.column(str(place)).combine_chunks() for place in places]

    def _check_quotes(self, text: bytes, done: int) -> None:
        """Refuse a quote that is not closed on its line: it would swallow the next records."""
        cell = rb'(?:"(?:[^"]|"")*+"[^"CUT]*+|(?:[^"CUT][^CUT]*+)?+)'
        pattern = rb"CELL(?:CUTCELL)*+".replace(b"CELL", cell)
        closed = re.compile(pattern.replace(b"CUT", re.escape(self.separator.encode())))
        records = (line for line in text.split(b"\n") if line.strip())
        for record, line in enumerate(records, start=done):
            if b'"' in line and not closed.fullmatch(line):
                raise DatasetError(
                    f"{self.path}: line {self.line(record)}: a quote is opened and not closed; "
                    "write each record on one line, and a quote within quotes twice"
                )

    def uneven(self, line: int, columns: int) -> DatasetError:
        """The error of a record that is longer or shorter than the first."""
        return DatasetError(
            f"{self.path}: line {line}: has {columns} columns, the first record has {self.width}: "
            "is it an adjacency list, a METIS graph, or one with a line of sizes? Write a source "
            "and a target a line, and nothing else"
        )

    def _whole(self, cells: Any, role: Role, place: int, done: int) -> NDArray[np.int64]:
        import pyarrow as pa
        import pyarrow.compute as pc

        def refuse(at: int, why: str) -> DatasetError:
            found = repr(cells[at].as_py()[:40])
            where = f"{self.path}: line {self.line(done + at)}, column {place + 1}"
            return DatasetError(f"{where}: {why.replace('FOUND', found)}")

        try:
            if b"x" in cells.buffers()[2].to_pybytes().lower():  # Arrow reads 0x1
                raise pa.ArrowInvalid("x")
            numbers = pc.cast(cells, pa.int64()).to_numpy()
        except pa.ArrowInvalid:
            cells = pc.utf8_trim_whitespace(cells)
            floats = pc.cast(
                pc.if_else(pc.match_substring_regex(cells, _WHOLE), cells, "nan"), pa.float64()
            ).to_numpy()
            if (bad := ~(np.floor(floats) == floats)).any():
                expected = f"expected a {role.what} (a whole number), found FOUND"
                raise refuse(int(bad.argmax()), expected) from None
            numbers = np.clip(floats, -(2.0**62), 2.0**62).astype(np.int64)
        if (bad := numbers > role.highest).any():
            remedy = role.remedy and f"; {role.remedy}"
            why = f"{role.what} FOUND is too large: the largest is {role.highest}{remedy}"
            raise refuse(int(bad.argmax()), why)
        if (bad := numbers < role.lowest).any():
            why = f"{role.what} FOUND is too small: the smallest is {role.lowest}"
            raise refuse(int(bad.argmax()), why)
        return numbers

    def line(self, record: int) -> int:
        """The number of the line, from 1, of a record (from 0, the header apart)."""
        with opened(self.path) as (stream, _):
            text = stream.read().removeprefix(b"\xef\xbb\xbf")
        full = (
            number
            for number, content in enumerate(re.split(rb"\r\n|\n|\r", text), start=1)
            if content.strip() and not _COMMENTS.match(content)
        )
        return next((n for at, n in enumerate(full) if at == record + bool(self.header)), 0)


#: Banner of the files of KONECT: symmetric, asymmetric or bipartite; their ids count from 1.
KONECT = r"(?m)^% *(sym|asym|bip)\b"


def look(path: Path, header: bool | None) -> Table:
    """How a text file is cut, by its first records.

    Args:
        header: whether its first record names the columns, if that was told.

    Raises:
        DatasetError: it holds no record, or records of several lengths.
    """
    with opened(path) as (stream, _):
        text = stream.read(_SAMPLE_BYTES).removeprefix(b"\xef\xbb\xbf")
        text = re.sub(rb"\r\n?", b"\n", text)
        if stream.read(1):
            text = text[: text.rfind(b"\n") + 1]
    before = re.match(rb"(?:[ \t]*(?:[#%].*)?\n)*", text)
    comments = before[0].decode(errors="replace").strip() if before else ""
    first = text[before.end() if before else 0 :].partition(b"\n")[0].decode(errors="replace")
    separator = next((mark for mark in _CUTS if mark in first), " ")
    if separator == "\t" and re.fullmatch(
        r"[\d.]+( +[\d.]+)+(\t[\d.]+( +[\d.]+)*)+", first.strip()
    ):
        separator = " "  # numbers apart by blanks and tabs
    lines = _cleaned(text, separator).decode(errors="replace").split("\n")
    records = [_cells(line, separator) for line in lines[:1000] if line.strip()]
    if not records:
        raise DatasetError(f"{path}: holds no record, or none in {_SAMPLE_BYTES >> 10} KiB")
    top, data = records[0], records[1:]
    numeric = [bool(_NUMBER.fullmatch(cell)) for cell in top]
    following = [bool(_NUMBER.fullmatch(cell)) for cell in data[0]] if data else [True] * len(top)
    named = any(not is_ and will for is_, will in zip(numeric, following, strict=False))
    counted = [cell for cell in top if cell] == [str(n) for n in range(sum(map(bool, top)))]
    quoted = '"' in first and bool(data) and '"' not in next(x for x in lines[1:] if x.strip())
    doubt = ""
    if not named and (quoted or (counted and not comments and (separator, len(top)) != (" ", 2))):
        named = header is True
        if header is None:
            shown = first.strip()[:40]
            doubt = f"is its first line, {shown!r}, a header? Say --header or --no-header"
    head, sample = (tuple(top), data) if named else ((), records)
    table = Table(path, separator, head, sample, comments, doubt)
    for at, cells in enumerate(table.sample):
        if len(cells) != table.width:
            raise table.uneven(table.line(at), len(cells))
    return table


def _cells(line: str, separator: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error as error:
        raise DatasetError(f"a line cannot be cut ({error}); is this a text file?") from error


def _cleaned(text: bytes, separator: str) -> bytes:
    """Without comments; runs of blanks as one where these are the separator."""
    text = _COMMENTS.sub(b"", text) if b"#" in text or b"%" in text else text
    if separator == " ":
        text = text.replace(b"\t", b" ")
        text = re.sub(rb" {2,}", b" ", text) if b"  " in text else text
        text = re.sub(rb"(?m)^ | $", b"", text) if b" \n" in text or b"\n " in text else text
        text = text.strip(b" ")
    return text


def _blocks(path: Path, separator: str, gaps: bool) -> Iterator[tuple[bytes, float]]:
    """The cleaned text in blocks of whole records, and the share that has been read.

    Args:
        gaps: refuse an empty line between others, which in a list of labels may be one of them.
    """
    with opened(path) as (stream, raw):
        rest, size, lines, mark = b"", max(1, path.stat().st_size), 0, b"\xef\xbb\xbf"
        while True:
            block = stream.read(_CHUNK_BYTES)
            text = rest + block
            # Up to the last record, which may be cut: so each block but the first begins with one.
            full = len(text.rstrip())
            ends = (text.rfind(end, 0, full) + 1 for end in (b"\n", b"\r"))
            end = max(ends) if block else len(text)
            text, rest = re.sub(rb"\r\n?", b"\n", text[:end]), text[end:]
            if gaps and (gap := _GAP.search(text)):
                line = lines + text.count(b"\n", 0, gap.start(1)) + 1
                raise DatasetError(
                    f"{path}: line {line}: is empty: write -1 for a node without a class"
                )
            lines += text.count(b"\n")
            if len(rest) > _LINE_BYTES + len(block) * (not text):
                raise DatasetError(
                    f"{path}: line {lines + 1}: is longer than {_LINE_BYTES} bytes; is this text?"
                )
            yield _cleaned(text.removeprefix(mark), separator).lstrip(b"\n"), raw.tell() / size
            mark = mark if not text else b""
            if not block:
                return
