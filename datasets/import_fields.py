"""What a file of any kind holds of a graph, by the names of PyG's ``Data``.

In MatrixMarket, the exchange format of the SuiteSparse collection, the entry in row ``i`` and
column ``j`` is the edge ``i -> j``. What the comments of a text say of the graph has to be said by
an option too.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from numpy.typing import NDArray

from gatherbench.datasets.arrays import expect, explained, mapped, unpacked
from gatherbench.datasets.asked import Import
from gatherbench.datasets.dataset import SPLITS, DatasetError
from gatherbench.datasets.files import check_memory
from gatherbench.datasets.import_kind import identify
from gatherbench.datasets.import_text import Column, Table, look, read
from gatherbench.datasets.import_torch import as_array, load_fields

#: Bytes of memory an edge takes while it is read and sorted; more where each is stored both ways.
EDGE_BYTES = 16
#: The splits by their names in PyG's ``Data``, and all that is taken of one beside the edges.
MASKS = tuple(f"{split}_mask" for split in SPLITS)
_NAMES = ("", "edge_index", "edge_type", "num_nodes", "x", "y", *MASKS)

_ENDS = (
    *(("source", "target"), ("src", "dst"), ("from", "to"), ("head", "tail"), ("u", "v")),
    *(("start", "end"), ("citing", "cited"), ("follower", "followee")),
)
_FORMS = ("{}", "{}id", "{}node", "{}nodeid", "node{}", "{}vertex", "{}idx", "{}index")
_SOURCES, _TARGETS = ({f.format(pair[end]) for pair in _ENDS for f in _FORMS} for end in (0, 1))
_NODE = {"node", "nodeid", "nodeidx", "id", "nodes", "newid"}
_CLASS = {"label", "labels", "class", "classid", "y", "target"}


@dataclass(slots=True)
class Field:
    """An array of the user's, and where it is. ``ids``: the nodes that its entries are of, where
    its file names them."""

    where: str
    array: NDArray[Any]
    ids: NDArray[Any] | None = None


@dataclass(slots=True)
class Graph:
    """What a graph's file holds.

    Attributes:
        path: that file.
        source, target: the edges ``source -> target`` in the ids of the file, ``[E]``.
        fields: the rest, by PyG's names.
        took: what was taken for what, in one line.
        first: the number from which ids count; ``None`` where that has to be found.
        nodes: how many there are; 0 where that is not known.
        both_ways: each edge stands for its reverse too.
    """

    path: Path
    source: NDArray[Any]
    target: NDArray[Any]
    fields: dict[str, Field]
    took: str
    first: int | None = 0
    nodes: int = 0
    both_ways: bool = False


def read_graph(asked: Import, room: Path) -> Graph:
    """Read a graph's file of any kind.

    Args:
        room: a folder for what is unpacked.

    Raises:
        DatasetError: a bad file, no edges, or more than memory can hold; or what is what cannot be
            told.
    """
    reader = {"text": _text, "matrix": _matrix}.get(identify(asked.path))
    graph = reader(asked) if reader else _arrays(asked, room)
    if not len(graph.source):
        raise DatasetError(f"{asked.path}: holds no edges")
    if asked.relations and "edge_type" not in graph.fields:
        raise DatasetError(f"{asked.path}: no edge_type called {asked.relations!r}")
    graph.both_ways = bool(asked.undirected)
    return graph


def _text(asked: Import) -> Graph:
    path, table = asked.path, look(asked.path, asked.header)
    said = table.comments.lower()
    both = re.search(r"\b(undirected|symmetric)\b|(?m:^)% *sym\b", said)
    if both and asked.undirected is None:
        raise DatasetError(f"{path}: its comments say {both[0]!r}: say --undirected or --directed")
    if re.search(r"\bbipartite\b|(?m:^)% *bip\b", said):
        raise DatasetError(
            f"{path}: its comments say that it is bipartite: number both sets of nodes in one range"
            " of ids, and take out the line that says so"
        )
    wanted = [
        Column("source", "--source", asked.source, _SOURCES),
        Column("target", "--target", asked.target, _TARGETS),
    ]
    if asked.relations:
        wanted.append(Column("relation", "--relations", asked.relations, dtype="string"))
    (source, target, *kinds), took = read(table, wanted)
    fields = {"edge_type": Field(str(path), kinds[0].to_pandas())} if kinds else {}
    first = None if asked.one_based is None else int(asked.one_based)
    graph = Graph(path, source.to_numpy(), target.to_numpy(), fields, took, first)
    if not table.header and asked.header is None:
        _refuse_sizes(graph, table)
    return graph


def _refuse_sizes(graph: Graph, table: Table) -> None:
    """Refuse a first record that may say how many nodes and edges follow, as that of METIS does."""
    # Kinds of edges say nothing of sizes.
    cells = [graph.source[0], graph.target[0]] if graph.fields else table.first
    said = [int(cell) for cell in map(str, cells) if cell.isdecimal() and len(cell) < 20]
    rest = len(graph.source) - 1
    high = max(int(end[1:].max(initial=0)) for end in (graph.source, graph.target))
    edges = (rest, 2 * rest, rest / 2)
    if rest and any(many in edges and nodes >= high for many, nodes in permutations(said, 2)):
        raise DatasetError(
            f"{table.path}: its first record, {' '.join(table.first)[:40]}, may be the sizes of a "
            "graph (METIS has them); say --no-header if it is an edge, else remove it"
        )


def _matrix(asked: Import) -> Graph:
    """A square sparse matrix; values are ignored, symmetric entries count both ways."""
    from scipy.io import mminfo, mmread

    path = asked.path
    with explained(f"{path}: cannot be read as MatrixMarket", "fetch or write it again"):
        content = path.read_bytes()
        content = b"%" * (content[:2] != b"%%") + content  # the network repository has one
        rows, columns, entries, kind, _, symmetry = mminfo(io.BytesIO(content))
        if kind != "coordinate" or rows != columns:
            raise DatasetError(
                f"{path}: a graph is a square matrix in coordinates, this is {rows} by {columns}, "
                f"{kind}"
            )
        check_memory(2 * EDGE_BYTES * entries * (1 + (symmetry != "general")), f"{path}: its edges")
        source, target = mmread(io.BytesIO(content), spmatrix=False).coords
    return Graph(path, source, target, {}, f"{path.name}: MatrixMarket, {symmetry}", nodes=rows)


def _arrays(asked: Import, room: Path) -> Graph:
    path = asked.path
    fields, rest = arrays_of(path, room)
    ends = fields.pop("edge_index", None) or fields.pop("", None)
    if ends is None:
        raise DatasetError(
            f"{path}: holds {', '.join([*fields, *rest][:5]) or 'no arrays'}; expected edge_index "
            "(of a SciPy matrix, numpy.save('edges.npy', matrix.nonzero()) saves it)"
        )
    array = ends.array.T if ends.array.ndim == 2 and len(ends.array) != 2 else ends.array
    count = expect(array, ends.where, "iu", 2, None).shape[1]
    check_memory(EDGE_BYTES * count, f"{ends.where}: its edges")
    nodes = fields.pop("num_nodes", None)
    kinds = fields.pop("edge_type", None)
    if kinds and asked.relations == "edge_type":
        expect(kinds.array, kinds.where, "iu", count)
        fields["edge_type"] = kinds
    elif kinds:
        rest.append("edge_type")
    took = f"{path.name}: edge_index{'; not used: ' * bool(rest)}{', '.join(rest)}"
    graph = Graph(path, array[0], array[1], fields, took, int(bool(asked.one_based)))
    if nodes:
        graph.nodes = int(expect(nodes.array.reshape(-1), nodes.where, "iu", 1)[0])
    return graph


def arrays_of(path: Path, room: Path) -> tuple[dict[str, Field], list[str]]:
    """What a file of arrays holds of a graph, by PyG's names, and the names of the rest.

    The array of a ``.npy``, or a tensor that stands alone, has an empty name.

    Args:
        room: a folder for what is unpacked.

    Raises:
        DatasetError: it is no file of arrays, is damaged, or could run code.
    """
    held: dict[str, Callable[[], NDArray[Any]]]
    kind = identify(path)
    if kind == "npy":
        held = {"": partial(mapped, path)}
    elif kind == "folder":
        held = {file.stem: partial(mapped, file) for file in sorted(path.glob("*.npy"))}
    elif kind == "npz":
        with ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
        held = {name: partial(unpacked, path, name, room) for name in names}
    elif kind == "torch":
        fields = load_fields(path).items()
        held = {name: partial(as_array, value, f"{path}, {name}") for name, value in fields}
    else:
        raise DatasetError(f"{path}: is text, expected an array: numpy.save it")
    return {
        name: Field(f"{path}, {name}" if name else str(path), make())
        for name, make in held.items()
        if name in _NAMES
    }, [name for name in held if name not in _NAMES]


def read_files(asked: Import, room: Path) -> dict[str, Field]:
    """What the user's other files hold, by the names of PyG's ``Data``: ``x``, ``y``, masks.

    Raises:
        DatasetError: a file that cannot be read, or of which it cannot be told what is what.
    """
    node = Column("node id", "--node", asked.node.lstrip("0"), _NODE)
    label = Column("class", "--label", asked.label, _CLASS, "int64")
    files = {"x": (asked.features, []), "y": (asked.labels, [node, label])}
    files |= {f"{split}_mask": (getattr(asked, split), [node]) for split in SPLITS}
    found = {}
    for name, (path, wanted) in files.items():
        if path and wanted and identify(path) == "text":
            table = look(path, asked.header)
            if len(table.first) == 1:  # line k is of node k; there is nothing to choose
                of = [replace(wanted[-1], told="")]
            else:
                of = wanted[-1:] if asked.node == "0" else wanted
            (*ids, values), _ = read(table, of)
            found[name] = Field(str(path), values.to_numpy(), *(one.to_numpy() for one in ids))
        elif path:
            fields, rest = arrays_of(path, room)
            if "" not in fields:
                held = ", ".join([*fields, *rest][:9]) or "none"
                raise DatasetError(f"{path}: expected one array, found {held}")
            found[name] = fields[""]
    return found
