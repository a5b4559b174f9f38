"""Edges from a text file: how it is cut, and which of its columns is for what.

The first record says how records are cut: at tabs where there are some, else at semicolons, commas,
or single blanks. What it leaves open is refused with the option that says it, and what the comments
say of the graph has to be said by an option too. PyArrow reads the cells, and refuses a record that
is not as long as the first, or a cell that is no whole number.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice, permutations, zip_longest
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from gatherbench.datasets.arrays import explained
from gatherbench.datasets.asked import Import
from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.files import check_memory
from gatherbench.datasets.import_kind import Field, Graph

#: Characters looked at first: comments and two records are among them.
_SAMPLE = 1 << 18
_CUTS = {"\t": "tabs", ";": "semicolons", ",": "commas", " ": "blanks"}
_NUMBER = re.compile(r"[+-]?[\d.,]*\d[\d.,]*([eE][+-]?\d+)?|nan|inf")
_REMEDY = (
    "write whole numbers (ids below 2**31 - 1), as many cells in each record, one record a line; "
    "pandas.read_csv reads what is cut otherwise (docs/guide.md)"
)
_ENDS = (
    *(("source", "target"), ("src", "dst"), ("from", "to"), ("head", "tail"), ("u", "v")),
    *(("start", "end"), ("citing", "cited"), ("follower", "followee")),
)
_FORMS = ("{}", "{}id", "{}node", "{}nodeid", "node{}", "{}vertex", "{}idx", "{}index")
_SOURCES, _TARGETS = ({f.format(pair[end]) for pair in _ENDS for f in _FORMS} for end in (0, 1))


@dataclass(frozen=True, slots=True)
class Column:
    """A column that is wanted: what for, which is its option too; what that says; what a header may
    call it (letters and digits, in lower case); and its PyArrow dtype."""

    what: str
    told: str
    names: Collection[str] = ()
    dtype: str = "int32"


@dataclass(frozen=True, slots=True)
class Table:
    """How a text file is cut: the names of its columns, if it has them; the cells of its first
    record (these names or data); how many lines come before the data, and the comments there."""

    path: Path
    separator: str
    header: list[str]
    first: list[str]
    skip: int
    comments: str


def read_text(asked: Import) -> Graph:
    """The edges of a text file, in the columns that are told or that its header names.

    Raises:
        DatasetError: what is what cannot be told; a record is not as long as the first, or no line
            of its own; a cell is no whole number.
    """
    path, table = asked.path, _look(asked.path, asked.header)
    comments = table.comments.lower()
    both = re.search(r"\b(undirected|symmetric)\b|(?m:^)% *sym\b", comments)
    if both and asked.undirected is None:
        raise DatasetError(f"{path}: its comments say {both[0]!r}: say --undirected or --directed")
    if re.search(r"\bbipartite\b|(?m:^)% *bip\b", comments):
        raise DatasetError(
            f"{path}: its comments say that it is bipartite: number both sets of nodes in one range"
            " of ids, and take out the line that says so"
        )
    wanted = [Column("source", asked.source, _SOURCES), Column("target", asked.target, _TARGETS)]
    if asked.relations:
        wanted.append(Column("relations", asked.relations, dtype="string"))
    places = _choose(table, wanted)
    source, target, *kinds = _read(table, wanted, places)
    head = "with" if table.header else "without"
    uses = ", ".join(
        f"{column.what} {table.header[at] if table.header else f'column {at + 1}'!r}"
        for column, at in zip(wanted, places, strict=True)
    )
    graph = Graph(
        source.to_numpy(),
        target.to_numpy(),
        {"edge_type": Field(str(path), kinds[0].to_pandas())} if kinds else {},
        f"{path.name}: text cut at {_CUTS[table.separator]}, {head} a header: {uses}, of "
        f"{len(table.first)} columns",
        None if asked.one_based is None else int(asked.one_based),
    )
    if not table.header and asked.header is None:
        _refuse_sizes(graph, table)
    return graph


def _look(path: Path, header: bool | None) -> Table:
    """How a text file is cut, by its first two records.

    Args:
        header: whether its first record names the columns, where that can be doubted.

    Raises:
        DatasetError: it holds no record, or what may be a header or not.
    """
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        lines = file.read(_SAMPLE).split("\n")
    skip = next((at for at, line in enumerate(lines) if not re.match(r"\s*([#%]|$)", line)), None)
    if skip is None:
        raise DatasetError(f"{path}: holds no record, or none in {_SAMPLE >> 10} KiB")
    line, following = lines[skip], next((line for line in lines[skip + 1 :] if line.strip()), "")
    separator = next((mark for mark in _CUTS if mark in line), " ")
    with explained(f"{path}: its first records cannot be cut", _REMEDY):
        records = [
            csv.reader([text], delimiter=separator, strict=True) for text in (line, following)
        ]
        first, second = ([cell.strip() for cell in next(cells, [])] for cells in records)
    numeric, will = ([bool(_NUMBER.fullmatch(cell)) for cell in cells] for cells in (first, second))
    named = any(then and not now for now, then in zip_longest(numeric, will, fillvalue=True))
    comments = "\n".join(lines[:skip]).strip()
    counted = [cell for cell in first if cell] == [str(n) for n in range(sum(map(bool, first)))]
    counted &= not comments and (separator, len(first)) != (" ", 2)  # as edge lists begin
    if not named and (counted or ('"' in line and following and '"' not in following)):
        if header is None:
            shown = line.strip()[:40]
            raise DatasetError(
                f"{path}: is its first line, {shown!r}, a header? Say --header or --no-header"
            )
        named = header
    return Table(path, separator, first if named else [], first, skip + named, comments)


def _choose(table: Table, wanted: Sequence[Column]) -> list[int]:
    """The place of each column: as told (a name, or a number from 1), by the header (or a comment
    that names all), or by the order where there are no others."""
    width, header = len(table.first), table.header
    said = header or re.split(r"[\s,;]+", table.comments.split("\n")[-1].strip("#% \t"))
    names = [re.sub(r"[^a-z0-9]", "", name.lower()) for name in said]
    known = [[at for at, name in enumerate(names) if name in column.names] for column in wanted]
    heard = len(names) == width and (header or all(len(found) == 1 for found in known))
    there = f"{table.path}: columns {', '.join(map(repr, header[:10]))}"
    there = there if header else f"{table.path}: {width} columns, no header"
    places = []
    for column, found in zip(wanted, known, strict=True):
        told = column.told
        if not told:
            places.append(found[0] if heard and len(found) == 1 else -1)
        elif told in header:
            places.append(header.index(told))
        elif told.isdecimal() and 1 <= int(told) <= width:
            places.append(int(told) - 1)
        else:
            raise DatasetError(f"{there}: no column {told!r} for --{column.what}")
    missing = [at for at, place in enumerate(places) if place < 0]
    free = [place for place in range(width) if place not in places]
    if missing and (any(not name.isdecimal() for name in header) or len(free) != len(missing)):
        which = " and which the ".join(wanted[at].what for at in missing)
        flags = " and ".join(f"--{wanted[at].what} COLUMN" for at in missing)
        raise DatasetError(
            f"{there}: which is the {which}? Say {flags} (its name, or its number from 1)"
        )
    for at, place in zip(missing, free, strict=False):
        places[at] = place
    if len(set(places)) < len(places):
        uses = ", ".join(column.what for column in wanted)
        raise DatasetError(f"{there}; expected one each for {uses}")
    return places


def _read(table: Table, wanted: Sequence[Column], places: Sequence[int]) -> list[Any]:
    """The columns at these places, as PyArrow arrays."""
    import pyarrow as pa
    from pyarrow import csv as arrow

    path = table.path
    records = path.stat().st_size // (2 * sum(len(cell) + 1 for cell in table.first))  # at least
    check_memory(8 * len(wanted) * records, f"{path}: its records")
    _refuse_open_quotes(table)
    types = {str(at): pa.type_for_alias(c.dtype) for at, c in zip(places, wanted, strict=True)}
    with explained(f"{path}: cannot be read as text", _REMEDY):
        found = arrow.read_csv(
            pa.OSFile(str(path)),
            arrow.ReadOptions(
                use_threads=False,  # which says the number of a bad record
                skip_rows=table.skip,
                column_names=[str(at) for at in range(len(table.first))],
            ),
            arrow.ParseOptions(delimiter=table.separator),
            arrow.ConvertOptions(include_columns=list(types), column_types=types, null_values=[]),
        )
    return [found.column(name) for name in types]


def _refuse_open_quotes(table: Table) -> None:
    """A quote that is not closed on its line swallows the next records."""
    path, skip = table.path, table.skip
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        if content.find(b'"') < 0:
            return
    remedy = "close each quote on its line, and write a quote within quotes twice"
    with explained(f"{path}: a quote is not closed", remedy), path.open(encoding="latin-1") as text:
        records = csv.reader(islice(text, skip, None), delimiter=table.separator, strict=True)
        for record, _ in enumerate(records, start=1):
            if records.line_num != record:
                raise ValueError(f"line {skip + record}")


def _refuse_sizes(graph: Graph, table: Table) -> None:
    """Refuse a first record that may say how many nodes and edges follow, as that of METIS does."""
    rest = len(graph.source) - 1
    if rest < 1:
        return
    # Kinds of edges say nothing of sizes.
    cells = [graph.source[0], graph.target[0]] if graph.fields else table.first
    said = [int(cell) for cell in map(str, cells) if cell.isdecimal() and len(cell) < 20]
    high = max(int(end[1:].max()) for end in (graph.source, graph.target))
    edges = (rest, 2 * rest, rest / 2)
    if any(many in edges and nodes >= high for many, nodes in permutations(said, 2)):
        raise DatasetError(
            f"{table.path}: its first record, {' '.join(table.first)[:40]}, may be the sizes of a "
            "graph (METIS has them); say --no-header if it is an edge, else remove it"
        )
