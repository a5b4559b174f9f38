"""Edges from text, gigabytes of it, with line and column of the first record that is none.

The files of this field are text: one edge a line, ids separated by blanks or commas, comments
behind ``#`` or ``%``, often gzipped. They are read piece by piece by a compiled parser that knows
at which byte it gave up, which is more than the fast readers of the data-frame libraries tell.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets import importers_parse
from gatherbench.datasets.layout import DatasetError
from gatherbench.datasets.source import Progress

#: Bytes parsed at a time, and the longest line that is taken for a record.
_CHUNK_BYTES, _LINE_BYTES = 16 << 20, 1 << 20
#: Largest id: nodes are numbered by int32.
LARGEST_ID = 2**31 - 2

_COMMENT = (b"#", b"%")
_HEADER_NAMES = (("source", "src", "from", "head", "u"), ("target", "dst", "to", "tail", "v"))


@dataclass(slots=True)
class Edges:
    """What a file says: edges ``source -> target``, in the ids of the file.

    Attributes:
        chunks: pairs of int32 arrays, in the order of the file.
        low, high: the smallest and the largest id; -1 where there are no edges.
        num_nodes: as declared by the file, if it does.
        one_based: whether ids count from 1, if the format says.
        both_ways: each edge stands for its reverse too (a symmetric matrix).
        notes: what a reader of the dataset's spec should know.
    """

    chunks: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = field(default_factory=list)
    low: int = -1
    high: int = -1
    num_nodes: int | None = None
    one_based: bool | None = None
    both_ways: bool = False
    notes: tuple[str, ...] = ()

    def add(self, source: NDArray[Any], target: NDArray[Any]) -> None:
        """Append a piece of the list; the arrays are int32 ``[n]`` or will be."""
        if len(source) == 0:
            return
        low = int(min(source.min(), target.min()))
        self.low = low if self.low < 0 else min(self.low, low)
        self.high = max(self.high, int(source.max()), int(target.max()))
        self.chunks.append((source.astype(np.int32), target.astype(np.int32)))

    def __len__(self) -> int:
        return sum(len(source) for source, _ in self.chunks)


@dataclass(frozen=True, slots=True)
class Records:
    """How the records of a text file are to be read.

    Attributes:
        separator: one byte, or 0 for any run of blanks.
        columns: positions of source and target, from 0.
        lowest, highest: ids outside are refused.
        remedy: what to do about an id that is larger, if there is a remedy.
    """

    separator: int
    columns: tuple[int, int]
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
        packed = path.suffix == ".gz"
        stream = TextStream(path, gzip.GzipFile(fileobj=raw) if packed else raw, raw, progress)
        try:
            yield stream
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DatasetError(
                f"{path}: the gzip file is cut short or damaged ({error}), after line "
                f"{stream.line}; fetch it again"
            ) from error


class TextStream:
    """Lines first, one by one, then the rest as edges; counts lines for error messages."""

    def __init__(
        self, path: Path, stream: io.BufferedIOBase, raw: BinaryIO, progress: Progress
    ) -> None:
        self.path = path
        #: Lines read so far.
        self.line = 0
        self._stream, self._raw, self._progress = stream, raw, progress
        self._size = max(1, path.stat().st_size)
        self._unread = b""

    def next_record(self) -> bytes:
        """The next line that is neither blank nor a comment; empty at the end of the file."""
        while line := self.next_line():
            text = line.strip()
            if text and not text.startswith(_COMMENT):
                return line
        return b""

    def next_line(self) -> bytes:
        """The next line, whatever it is; empty at the end of the file."""
        line = self._stream.readline(_LINE_BYTES)
        if self.line == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")
        self.line += bool(line)
        return line

    def unread(self, line: bytes) -> None:
        """Put the line back that was read last."""
        self._unread = line
        self.line -= 1

    def error(self, what: str, column: int | None = None) -> DatasetError:
        """An error at the line that was read last."""
        place = f"line {self.line}" + ("" if column is None else f", column {column}")
        return DatasetError(f"{self.path}: {place}: {what}")

    def read_edges(self, edges: Edges, records: Records) -> None:
        """Append the rest of the file to ``edges``.

        Raises:
            DatasetError: with line, column and text of the first record that cannot be read.
        """
        rest = self._unread
        while True:
            self._progress("read edges", min(1.0, self._raw.tell() / self._size))
            block = self._stream.read(_CHUNK_BYTES)
            text = rest + block
            end = text.rfind(b"\n") + 1 if block else len(text)
            text, rest = text[:end], text[end:]
            if len(rest) > _LINE_BYTES:
                self.line += text.count(b"\n") + 1
                raise self.error(f"is longer than {_LINE_BYTES} bytes; is this a text file?")
            self._parse(text, edges, records)
            if not block:
                return

    def _parse(self, text: bytes, edges: Edges, records: Records) -> None:
        ids = np.empty((2, text.count(b"\n") + 1), np.int32)
        found, problem, position = importers_parse.parse_edges(
            np.frombuffer(text, np.uint8),
            records.separator,
            *records.columns,
            records.lowest,
            records.highest,
            ids,
        )
        if problem:
            self.line += text.count(b"\n", 0, position) + 1
            start = text.rfind(b"\n", 0, position) + 1
            raise self.error(_describe(problem, text, position, records), position - start + 1)
        self.line += text.count(b"\n")
        edges.add(ids[0, :found], ids[1, :found])


def _describe(problem: int, text: bytes, position: int, records: Records) -> str:
    if problem == importers_parse.MISSING:
        return f"expected {max(records.columns) + 1} columns or more, the line ends before"
    stops = b" \t\r\n" + bytes([records.separator] if records.separator else [])
    end = position
    while end < len(text) and text[end] not in stops and end < position + 40:
        end += 1
    found = text[position:end].decode(errors="replace")
    return {
        importers_parse.NOT_A_NUMBER: f"expected a node id (a whole number), found {found!r}",
        importers_parse.NEGATIVE: f"expected a node id, found the negative {found!r}",
        importers_parse.TOO_LARGE: (
            f"node id {found} is too large: the largest id is {records.highest}"
            + (records.remedy and f"; {records.remedy}")
        ),
        importers_parse.TOO_SMALL: f"node id {found} is too small: ids count from {records.lowest}",
    }[problem]


def read_edge_list(
    path: Path,
    one_based: bool | None,
    num_nodes: int | None,
    header: bool | None,
    progress: Progress,
) -> Edges:
    """Read an edge list: text or CSV, gzipped or not.

    The separator is a comma or a semicolon if the first record has one, else blanks. A header is
    looked for in files called ``.csv`` or ``.tsv`` unless ``header`` says; its columns ``source``
    and ``target`` (or ``src``/``dst``, ``from``/``to``) are taken where it has both, else the
    first two. Further columns are ignored.

    Raises:
        DatasetError: with line and column of the first bad record; or no record at all.
    """
    edges = Edges(one_based=one_based)
    with text_stream(path, progress) as stream:
        first = stream.next_record()
        if not first:
            raise DatasetError(f"{path}: holds no edges")
        separator = next((s for s in b",;" if s in first), 0)
        columns = (0, 1)
        if header is None:
            named = any(suffix in (".csv", ".tsv") for suffix in path.suffixes[-2:])
            header = named and not first.strip()[:1].isdigit()
        if header:
            columns = _columns(first, separator)
        else:
            stream.unread(first)
        lowest = 1 if one_based else 0
        highest = LARGEST_ID if num_nodes is None else num_nodes - 1 + (one_based is not False)
        remedy = too_large_remedy(num_nodes)
        stream.read_edges(edges, Records(separator, columns, lowest, highest, remedy))
    if not edges.chunks:
        raise DatasetError(f"{path}: holds no edges")
    return edges


def too_large_remedy(num_nodes: int | None) -> str:
    """What to do about an id that is no node; ``num_nodes`` is what other files say, if they do."""
    if num_nodes is None:
        return "number the nodes from 0 first (numpy.unique(edges, return_inverse=True) does)"
    return (
        f"there are {num_nodes} nodes, as features and labels have one row for each; where ids have"
        " gaps, --relabel numbers those that occur"
    )


def _columns(header: bytes, separator: int) -> tuple[int, int]:
    text = header.decode(errors="replace").lower()
    names = [name.strip(" \t\r\n\"'") for name in text.split(chr(separator) if separator else None)]
    source, target = (
        next((names.index(name) for name in known if name in names), None)
        for known in _HEADER_NAMES
    )
    return (0, 1) if source is None or target is None else (source, target)
