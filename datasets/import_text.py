"""Read edges from a text file: find its separator and the meaning of its columns.

The first record shows the separator: tabs if it has some, else semicolons, commas, or single
blanks. An ambiguous file is refused with the name of the option that decides, and so is a file that
describes its graph in words until an option agrees. PyArrow reads the cells, and refuses a record
whose length differs from the first, or a cell that is no whole number.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from itertools import islice, permutations, zip_longest
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from gatherbench.datasets.arrays import explained
from gatherbench.datasets.asked import Import
from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.files import check_memory
from gatherbench.datasets.import_files import Field, Graph

#: Characters that are inspected first; they contain the comments and two records.
_SAMPLE = 1 << 18
_CUTS = {"\t": "tabs", ";": "semicolons", ",": "commas", " ": "blanks"}
_NUMBER = re.compile(r"[+-]?[\d.,]*\d[\d.,]*([eE][+-]?\d+)?|nan|inf")
_REMEDY = (
    "write whole numbers (ids below 2**31 - 1), as many cells in each record, one record a line; "
    "pandas.read_csv reads what is cut otherwise"
)
#: Names that a header may give the ends of an edge, without signs and in lower case.
_FORMS = r"(node|){}(id|node|nodeid|vertex|idx|index|)"
_ENDS = {
    "source": _FORMS.format("(source|src|from|head|u|start|citing|follower)"),
    "target": _FORMS.format("(target|dst|to|tail|v|end|cited|followee)"),
}


@dataclass(frozen=True, slots=True)
class Table:
    """The structure of a text file: its separator; the names of its columns, if it has them; the
    cells of its first record (names or data); the number of lines before the data; the comments in
    these; and the text up to the second record."""

    path: Path
    separator: str
    header: list[str]
    first: list[str]
    skip: int
    comments: str
    begin: str


def read_text(asked: Import) -> Graph:
    """Read the edges of a text file from the columns of the options or of its header.

    Raises:
        DatasetError: the columns are ambiguous; a record differs in length from the first or shares
            its line; a cell is no whole number.
    """
    path, table = asked.path, _look(asked.path, asked.header)
    both = re.search(r"(?i)\b(undirected|symmetric)\b|(?m:^)% *sym\b", table.begin)
    if both and asked.undirected is None:
        raise DatasetError(f"{path}: it says {both[0].lower()!r}: say --undirected or --directed")
    if re.search(r"(?i)\bbipartite\b|(?m:^)% *bip\b", table.comments):
        raise DatasetError(
            f"{path}: its comments say that it is bipartite: number both sets of nodes in one range"
            " of ids, and take out the line that says so"
        )
    told = {"source": asked.source, "target": asked.target}
    places = _choose(table, told | ({"relations": asked.relations} if asked.relations else {}))
    source, target, *kinds = _read(table, places)
    names = table.header or [f"column {at + 1}" for at in range(len(table.first))]
    head = "with" if table.header else "without"
    uses = ", ".join(f"{what} {names[at]!r}" for what, at in places.items())
    graph = Graph(
        source.to_numpy(),
        target.to_numpy(),
        {"edge_type": Field(str(path), kinds[0].to_pandas())} if kinds else {},
        f"{path.name}: text cut at {_CUTS[table.separator]}, {head} a header: {uses}, of "
        f"{len(names)} columns",
        None if asked.one_based is None else int(asked.one_based),
    )
    if not table.header and asked.header is None:
        _refuse_sizes(graph, table)
    return graph


def _look(path: Path, header: bool | None) -> Table:
    """Find the structure of a text file from its first two records.

    Args:
        header: whether its first record names the columns; ``None``: find out.

    Raises:
        DatasetError: the file holds no record, or its first one may be a header or data.
    """
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        lines = file.read(_SAMPLE).split("\n")
    skip = next((at for at, line in enumerate(lines) if not re.match(r"\s*([#%]|$)", line)), None)
    if skip is None:
        raise DatasetError(f"{path}: holds no record, or none in {_SAMPLE >> 10} KiB")
    line, following = lines[skip], next((line for line in lines[skip + 1 :] if line.strip()), "")
    separator = next((mark for mark in _CUTS if mark in line), " ")
    with explained(f"{path}: its first records cannot be cut", _REMEDY):
        records = [csv.reader([one], delimiter=separator, strict=True) for one in (line, following)]
        first, second = ([cell.strip() for cell in next(cells, [])] for cells in records)
    comments = "\n".join(lines[:skip]).strip()
    if header is None:
        numeric = ([bool(_NUMBER.fullmatch(cell)) for cell in cells] for cells in (first, second))
        header = any(then and not now for now, then in zip_longest(*numeric, fillvalue=True))
        counted = [cell for cell in first if cell] == [str(n) for n in range(sum(map(bool, first)))]
        counted &= not comments and (separator, len(first)) != (" ", 2)  # 0 1 is a common edge
        if not header and (counted or ('"' in line and following and '"' not in following)):
            shown = line.strip()[:40]
            raise DatasetError(
                f"{path}: is its first line, {shown!r}, a header? Say --header or --no-header"
            )
    names, begin = first if header else [], f"{comments}\n{line}\n{following}"
    return Table(path, separator, names, first, skip + header, comments, begin)


def _choose(table: Table, told: dict[str, str]) -> dict[str, int]:
    """Find the place of each column: from an option (a name, or a number from 1), from the header
    (or a comment that names all), or from the order if there are no further columns."""
    width, header = len(table.first), table.header
    words = header or re.split(r"[\s,;]+", table.comments.split("\n")[-1].strip("#% \t"))
    names = [re.sub(r"[^a-z0-9]", "", word.lower()) for word in words]
    known = {
        what: [at for at, name in enumerate(names) if re.fullmatch(_ENDS.get(what, r"\0"), name)]
        for what in told
    }
    heard = len(names) == width and (header or all(len(found) == 1 for found in known.values()))
    there = f"{table.path}: columns {', '.join(map(repr, header[:10]))}"
    there = there if header else f"{table.path}: {width} columns, no header"
    places = {}
    for what, word in told.items():
        if not word:
            if heard and len(known[what]) == 1:
                places[what] = known[what][0]
        elif word in header:
            places[what] = header.index(word)
        elif word.isdecimal() and 1 <= int(word) <= width:
            places[what] = int(word) - 1
        else:
            raise DatasetError(f"{there}: no column {word!r} for --{what}")
    missing = [what for what in told if what not in places]
    free = [at for at in range(width) if at not in places.values()]
    if missing and (any(not name.isdecimal() for name in header) or len(free) != len(missing)):
        flags = " and ".join(f"--{what} COLUMN" for what in missing)
        raise DatasetError(
            f"{there}: which is the {' and which the '.join(missing)}? Say {flags} (its name, or "
            "its number from 1)"
        )
    places |= zip(missing, free, strict=False)
    if len(set(places.values())) < len(places):
        raise DatasetError(f"{there}; expected one each for {', '.join(told)}")
    return {what: places[what] for what in told}


def _read(table: Table, places: dict[str, int]) -> list[Any]:
    """Read the columns at these places, as PyArrow arrays."""
    import pyarrow as pa
    from pyarrow import csv as arrow

    path = table.path
    records = path.stat().st_size // (2 * sum(len(cell) + 1 for cell in table.first))  # at least
    check_memory(8 * len(places) * records, f"{path}: its records")
    _refuse_open_quotes(table)
    types = {
        str(at): pa.string() if what == "relations" else pa.int32() for what, at in places.items()
    }
    with explained(f"{path}: cannot be read as text", _REMEDY):
        found = arrow.read_csv(
            pa.OSFile(str(path)),
            arrow.ReadOptions(
                use_threads=False,  # then an error names the bad record
                skip_rows=table.skip,
                column_names=[str(at) for at in range(len(table.first))],
            ),
            arrow.ParseOptions(delimiter=table.separator),
            arrow.ConvertOptions(include_columns=list(types), column_types=types, null_values=[]),
        )
    return [found.column(name) for name in types]


def _refuse_open_quotes(table: Table) -> None:
    """Refuse a quote that stays open at the end of its line: it would swallow later records."""
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
    # The column of relations cannot be a size.
    cells = [graph.source[0], graph.target[0]] if graph.fields else table.first
    said = [int(cell) for cell in map(str, cells) if cell.isdecimal() and len(cell) < 20]
    high = max(int(end[1:].max()) for end in (graph.source, graph.target))
    edges = (rest, 2 * rest, rest / 2)
    if any(many in edges and nodes >= high for many, nodes in permutations(said, 2)):
        raise DatasetError(
            f"{table.path}: its first record, {' '.join(table.first)[:40]}, may be the sizes of a "
            "graph (METIS has them); say --no-header if it is an edge, else remove it"
        )
