"""Read edges from a text file: find its separator and the meaning of its columns.

The first record shows the separator: tabs if it has some, else semicolons, commas, or single
blanks. A file that is ambiguous, or describes its graph in words, is refused until an option
decides. PyArrow reads the cells, and refuses records of unequal length and what is no whole number.
"""

from __future__ import annotations

import csv
import re
from itertools import islice, permutations, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from gatherbench.datasets.arrays import explained
from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.files import check_memory
from gatherbench.datasets.import_files import Field, Graph
from gatherbench.datasets.import_options import Import

#: Characters that are inspected first; they contain the comments and two records.
_SAMPLE = 1 << 18
_SEPARATORS = {"\t": "tabs", ";": "semicolons", ",": "commas", " ": "blanks"}
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
#: Words, and a comment of KONECT, by which a file says that edges go both ways.
_BOTH_WAYS = r"(?i)\b(undirected|symmetric)\b|(?m:^)% *sym\b"


class _Table(NamedTuple):
    """The structure of a text file."""

    separator: str
    header: list[str]  #: names of the columns, if it has them
    first: list[str]  #: cells of the first record, names or data
    skip: int  #: lines before the data
    comments: str  #: lines before the first record


def read_text(options: Import, _room: Path) -> Graph:
    """Read the edges of a text file from the columns of the options or of its header."""
    path, table = options.path, _inspect(options)
    places = _choose(options, table)
    source, target, *kinds = _read(options, table, places)
    names = table.header or [f"column {at + 1}" for at in range(len(table.first))]
    uses = ", ".join(f"{use} {names[at]!r}" for use, at in places.items())
    cut = f"cut at {_SEPARATORS[table.separator]}, with{'' if table.header else 'out'} a header"
    took = f"{path.name}: text {cut}: {uses}, of {len(names)} columns"
    fields = {"edge_type": Field(str(path), kinds[0].to_pandas())} if kinds else {}
    first = None if options.one_based is None else int(options.one_based)
    graph = Graph(source.to_numpy(), target.to_numpy(), fields, took, first)
    if not table.header and options.header is None:
        _refuse_sizes(options, graph, table)
    return graph


def _inspect(options: Import) -> _Table:
    """Find the structure of a text file from its comments and its first two records."""
    path, header = options.path, options.header
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        lines = file.read(_SAMPLE).split("\n")
    skip = next((at for at, line in enumerate(lines) if not re.match(r"\s*([#%]|$)", line)), None)
    if skip is None:
        raise DatasetError(f"{path}: holds no record, or none in {_SAMPLE >> 10} KiB")
    line, following = lines[skip], next(filter(str.strip, lines[skip + 1 :]), "")
    comments = "\n".join(lines[:skip]).strip()
    words = re.search(_BOTH_WAYS, f"{comments}\n{line}\n{following}")
    if words and options.undirected is None:
        raise DatasetError(f"{path}: it says {words[0].lower()!r}: say --undirected or --directed")
    if re.search(r"(?i)\bbipartite\b|(?m:^)% *bip\b", comments):
        remedy = "number both sets of nodes in one range of ids, and take out the line that says so"
        raise DatasetError(f"{path}: its comments say that it is bipartite: {remedy}")
    separator = next((mark for mark in _SEPARATORS if mark in line), " ")
    with explained(f"{path}: its first records cannot be cut", _REMEDY):
        records = (csv.reader([record], delimiter=separator) for record in (line, following))
        first, second = ([cell.strip() for cell in next(cells, [])] for cells in records)
    if header is None:
        numeric = ([bool(_NUMBER.fullmatch(cell)) for cell in cells] for cells in (first, second))
        header = any(then and not now for now, then in zip_longest(*numeric, fillvalue=True))
        counted = [cell for cell in first if cell] == [str(n) for n in range(sum(map(bool, first)))]
        counted &= not comments and (separator, len(first)) != (" ", 2)  # 0 1 is a common edge
        if not header and (counted or ('"' in line and following and '"' not in following)):
            question = f"is its first line, {line.strip()[:40]!r}, a header?"
            raise DatasetError(f"{path}: {question} Say --header or --no-header")
    return _Table(separator, first if header else [], first, skip + header, comments)


def _choose(options: Import, table: _Table) -> dict[str, int]:
    """Find the place of each column: from an option's word (a name, or a number from 1), from the
    header (or a comment that names all), or from the order if there are no further columns."""
    wanted = {"source": options.source, "target": options.target, "relations": options.relations}
    wanted = {use: word for use, word in wanted.items() if word or use in _ENDS}
    width, header = len(table.first), table.header
    columns = f"columns {', '.join(map(repr, header[:10]))}"
    label = f"{options.path}: {columns if header else f'{width} columns, no header'}"
    comment = re.split(r"[\s,;]+", table.comments.split("\n")[-1].strip("#% \t"))
    names = [re.sub(r"[^a-z0-9]", "", name.lower()) for name in header or comment]
    ends = {use: [bool(re.fullmatch(form, name)) for name in names] for use, form in _ENDS.items()}
    single = {use: fits.index(True) for use, fits in ends.items() if sum(fits) == 1}
    if len(names) != width or not (header or len(single) == len(wanted)):
        single = {}
    places = {}
    for use, word in wanted.items():
        if word and word in header:
            places[use] = header.index(word)
        elif word.isdecimal() and 1 <= int(word) <= width:
            places[use] = int(word) - 1
        elif word:
            raise DatasetError(f"{label}: no column {word!r} for --{use}")
        elif use in single:
            places[use] = single[use]
    missing = [use for use in wanted if use not in places]
    free = [at for at in range(width) if at not in places.values()]
    if missing and (any(not name.isdecimal() for name in header) or len(free) != len(missing)):
        question = f"which is the {' and which the '.join(missing)}?"
        flags = " and ".join(f"--{use} COLUMN" for use in missing)
        raise DatasetError(f"{label}: {question} Say {flags} (its name, or its number from 1)")
    places |= zip(missing, free, strict=False)
    if len(set(places.values())) < len(places):
        raise DatasetError(f"{label}; expected one each for {', '.join(wanted)}")
    return {use: places[use] for use in wanted}


def _read(options: Import, table: _Table, places: dict[str, int]) -> list[Any]:
    """Read the columns at these places, as PyArrow arrays."""
    import pyarrow as pa
    from pyarrow import csv as arrow

    path, cells = options.path, [*map(str, range(len(table.first)))]
    records = path.stat().st_size // (2 * sum(len(cell) + 1 for cell in table.first))  # at least
    check_memory(8 * len(places) * records, f"{path}: its records")
    types = {str(at): pa.string() if use not in _ENDS else pa.int32() for use, at in places.items()}
    # Of a single thread an error names the bad record.
    reading = arrow.ReadOptions(use_threads=False, skip_rows=table.skip, column_names=cells)
    kept = arrow.ConvertOptions(include_columns=list(types), column_types=types, null_values=[])
    with explained(f"{path}: cannot be read as text", _REMEDY):
        cutting = arrow.ParseOptions(delimiter=table.separator)
        columns = arrow.read_csv(pa.OSFile(str(path)), reading, cutting, kept)
    with path.open(encoding="latin-1") as text:
        lines = sum(not line.isspace() for line in islice(text, table.skip, None))
    if columns.num_rows != lines:
        raise DatasetError(f"{path}: a quote is not closed on its line, and joins records")
    return [columns.column(name) for name in types]


def _refuse_sizes(options: Import, graph: Graph, table: _Table) -> None:
    """Refuse a first record that may say how many nodes and edges follow, as that of METIS does."""
    later = len(graph.source) - 1
    if later < 1:
        return
    # The column of relations cannot be a size.
    cells = [graph.source[0], graph.target[0]] if graph.fields else table.first
    sizes = [int(cell) for cell in map(str, cells) if cell.isdecimal() and len(cell) < 20]
    high = max(int(end[1:].max()) for end in (graph.source, graph.target))
    counts = (later, 2 * later, later / 2)
    if any(edges in counts and nodes >= high for edges, nodes in permutations(sizes, 2)):
        sizes_of = f"{' '.join(table.first)[:40]}, may be the sizes of a graph (METIS has them)"
        remedy = "say --no-header if it is an edge, else remove it"
        raise DatasetError(f"{options.path}: its first record, {sizes_of}; {remedy}")
