"""The edges of a graph of one's own, from a file of any kind, with nodes numbered from 0.

In MatrixMarket, the exchange format of the SuiteSparse collection, the entry in row ``i`` and
column ``j`` is the edge ``i -> j``. Files of arrays hold PyG's ``edge_index``, or compressed sparse
columns or rows. What a file says of itself (symmetric, bipartite, counted from 1) is heard.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.asked import Import
from gatherbench.datasets.columns import edge_keys, typed_keys
from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.files import check_memory
from gatherbench.datasets.import_arrays import EXTRAS, Own, arrays_of
from gatherbench.datasets.import_kind import MOST_RATIO, identify, opened
from gatherbench.datasets.import_text import KONECT, Role, Table, look
from gatherbench.datasets.npz_stream import StoredArray, explained
from gatherbench.datasets.source import Progress

#: Largest id: nodes are numbered by int32.
LARGEST_ID = 2**31 - 2
#: Kinds of edges: a relational model has matrices for each.
MOST_KINDS = 1000
#: Bytes of memory an edge takes while it is read and sorted; more where each is stored both ways.
EDGE_BYTES = 16
#: What is unpacked, and what is invented, without a question; how many nodes an id may stand for.
_FREE_BYTES, _INVENTED_BYTES, _GAPS = 16 << 20, 1 << 30, 10

_ENDS = (
    *(("source", "target"), ("src", "dst"), ("from", "to"), ("head", "tail"), ("u", "v")),
    *(("start", "end"), ("citing", "cited"), ("follower", "followee")),
)
_FORMS = ("{}", "{}id", "{}node", "{}nodeid", "node{}", "{}vertex", "{}idx", "{}index")
_SOURCES, _TARGETS = ({f.format(pair[end]) for pair in _ENDS for f in _FORMS} for end in (0, 1))
_NUMBER_THEM = "number the nodes from 0 first (numpy.unique(edges, return_inverse=True) does)"
_BOTH_WAYS = r"(?<![-\w])(undirected|symmetric)\b|(?m:^)% *sym\b"
_ONE_WAY = (
    r"(?<![-\w])(directed|asymmetric|unsymmetric)\b|% *asym\b|\b(not|non)[- ]+(undir|sym)"
    r"|(undirected|symmetric)\W+(no|false|0)\b"
)
#: How comments say from which number ids count.
_COUNTED = (
    r"\b({0})[- ](based|indexed)\b"
    r"|\b(start|begin|number|index|count|id)\w* (from|at|with) ({0})\b(?![.,]?\d)"
)


@dataclass(slots=True)
class Graph:
    """Edges ``source -> target`` in the ids of a file, int32 ``[E]``, and how these become nodes.

    Attributes:
        nodes: how many there are; 0 where it is not known.
        from_one: whether ids count from 1, if it is known.
        both_ways: each edge stands for its reverse too.
        took: what was taken for what, in one line.
        table: how a text file is cut.
        extras: what else the file holds, by the names of :data:`EXTRAS`.
        ids: where ids were numbered anew, those of the file in ascending order, else empty.
        kinds: what each edge is, int16 ``[E]``, places in ``relations``.
    """

    source: NDArray[np.int32]
    target: NDArray[np.int32]
    nodes: int = 0
    from_one: bool | None = None
    both_ways: bool = False
    took: str = ""
    table: Table | None = None
    extras: dict[str, Own] = field(default_factory=dict)
    ids: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    kinds: NDArray[np.int16] = field(default_factory=lambda: np.empty(0, np.int16))
    relations: tuple[str, ...] = ()

    @property
    def all_relations(self) -> tuple[str, ...]:
        """With the kinds of reverse edges, where each edge stands for its reverse too."""
        return self.relations + tuple(f"inverse {name}" for name in self.relations * self.both_ways)

    def __len__(self) -> int:
        return len(self.source)

    def number(self, ids: NDArray[Any], where: str) -> NDArray[np.int64]:
        """The nodes that have these ids in the file.

        Raises:
            DatasetError: one is no node; names ``where``.
        """
        if not len(self.ids):
            found = ids.astype(np.int64) - bool(self.from_one)
            bad = (found < 0) | (found >= self.nodes)
        else:
            found = np.minimum(np.searchsorted(self.ids, ids), self.nodes - 1)
            bad = self.ids[found] != ids
        if bad.any():
            raise DatasetError(
                f"{where}: names node {ids[bad][0]}, which the graph does not have; ids are as in "
                "the graph's file"
            )
        return found

    def keys(self) -> NDArray[np.int64]:
        """The sort keys of all edges, with their kinds if they have any; the edges are let go."""
        self.source -= bool(self.from_one)
        self.target -= bool(self.from_one)
        pairs = [(self.source, self.target)]
        keys = edge_keys(pairs, len(self), self.nodes, "edges", self.both_ways)
        self.source = self.target = np.empty(0, np.int32)
        if self.relations:
            kinds = [self.kinds, self.kinds + len(self.relations)][: 1 + self.both_ways]
            count = len(self.all_relations)
            keys = typed_keys(keys, np.concatenate(kinds), self.nodes, count, "edges")
        return keys


def read_edges(asked: Import, progress: Progress) -> Graph:
    """Read a file of any kind; see ``importers.import_graph``.

    Raises:
        DatasetError: with line and column, or array and position, of the first bad entry; there
            are no edges, or more than memory can hold; or what is what cannot be told.
    """
    kind = identify(asked.path)
    if kind == "matrix":
        graph = _matrix_market(asked.path)
    else:
        graph = _edge_list(asked, progress) if kind == "text" else _arrays(asked)
    if not len(graph):
        raise DatasetError(f"{asked.path}: holds no edges")
    if asked.undirected is not None:
        graph.both_ways = asked.undirected
    if asked.relations and not graph.relations:
        raise DatasetError(f"{asked.path}: no edge_type called {asked.relations!r}")
    return graph


def _edge_list(asked: Import, progress: Progress) -> Graph:
    """The columns that are told, that a header or a comment calls so, or the first two."""
    path, table = asked.path, look(asked.path, asked.header)
    if table.doubt:
        raise DatasetError(f"{path}: {table.doubt}")
    both_ways, bipartite, from_one = _heard(asked, table.comments)
    bounds = int(bool(from_one)), LARGEST_ID, _NUMBER_THEM
    ends = (("source", "--source", _SOURCES), ("target", "--target", _TARGETS))
    roles, told = [Role(*end, *bounds) for end in ends], [asked.source, asked.target]
    if asked.relations:
        roles.append(Role("relation", "--relations", words=True))
        told.append(asked.relations)
    places = table.choose(roles, told)
    record_bytes = sum(map(len, table.sample[0] if table.sample else table.header)) + table.width
    edges = path.stat().st_size // (2 * record_bytes)  # at least, as ids grow by some digits
    check_memory(EDGE_BYTES * edges, f"{path}: its edges")
    pieces: list[tuple[Any, ...]] = [(np.empty(0, np.int32),) * 2]
    words: list[Any] = []
    for source, target, *kinds in table.read(roles, places, progress):
        pieces.append((source.astype(np.int32), target.astype(np.int32)))
        words += [cells.dictionary_encode() for cells in kinds]
    source, target = (np.concatenate(end) for end in zip(*pieces, strict=True))
    graph = Graph(source, target, 0, from_one, both_ways, table.took(roles, places), table)
    if len(graph) and not (
        table.header or asked.header is False or re.search(KONECT, table.comments)
    ):
        first = [cell for at, cell in enumerate(table.sample[0]) if at not in places[2:]]
        _refuse_sizes(path, graph, first)
    if bipartite and len(np.intersect1d(source, target)):
        raise DatasetError(
            f"{path}: says that it is bipartite, and numbers both sets of nodes alike: add the size"
            " of the first set to the ids of the second, and take out the line that says so"
        )
    if words:
        import pyarrow as pa

        coded = pa.chunked_array(words).unify_dictionaries().combine_chunks()
        names, ranks = np.unique(coded.dictionary.to_numpy(False), return_inverse=True)
        _set_kinds(path, graph, names, ranks[coded.indices.to_numpy()])
    return graph


def _heard(asked: Import, comments: str) -> tuple[bool, bool, bool | None]:
    """Whether a graph is undirected, bipartite, and counted from 1, as its comments say.

    Raises:
        DatasetError: they say directed and undirected; names the options.
    """
    said = comments.lower()
    both, one_way = (re.search(pattern, said) for pattern in (_BOTH_WAYS, _ONE_WAY))
    if both and one_way and asked.undirected is None:
        raise DatasetError(
            f"{asked.path}: its comments say {one_way[0]!r} and {both[0]!r}; say --directed or "
            "--undirected"
        )
    from_one = asked.one_based
    zero, one = (bool(re.search(_COUNTED.format(base), said)) for base in ("0|zero", "1|one"))
    if from_one is None and (zero != one or re.search(KONECT, said)):
        from_one = not zero
    return bool(both), bool(re.search(r"\bbipartite\b|(?m:^)% *bip\b", said)), from_one


def _refuse_sizes(path: Path, graph: Graph, first: Sequence[str]) -> None:
    """Refuse a first record that may say how many nodes and edges follow.

    Raises:
        DatasetError: its numbers are those of the other records, or lists of neighbours follow.
    """
    said, rest = [int(cell) for cell in first if cell.isdecimal()], len(graph) - 1
    if rest < 1:
        return
    high = max(int(end[1:].max()) for end in (graph.source, graph.target))
    low = min(int(end[1:].min()) for end in (graph.source, graph.target))
    edges = (rest, 2 * rest, rest / 2)
    sizes = any(many in edges and nodes >= high for many, nodes in permutations(said, 2))
    if sizes or (said[:1] == [rest] and low >= 1 and high <= rest):
        raise DatasetError(
            f"{path}: its first record, {' '.join(first)[:40]}, may be the sizes of a graph or of "
            "lists of neighbours (METIS); say --no-header if it is an edge, else remove it"
        )


def _matrix_market(path: Path) -> Graph:
    """A square sparse matrix; values are ignored, symmetric entries count both ways."""
    from scipy.io import mminfo, mmread

    with explained(f"{path}: cannot be read as MatrixMarket", "fetch or write it again"):
        with opened(path) as (stream, raw):
            rows, columns, entries, kind, _, symmetry = mminfo(_Banner(stream))
            most = path.stat().st_size // 4 * (1 if stream is raw else MOST_RATIO)
        if kind != "coordinate":
            raise DatasetError(f"{path}: expected a sparse matrix ('coordinate'), found {kind!r}")
        if rows != columns:
            raise DatasetError(f"{path}: a graph's matrix is square, this is {rows} by {columns}")
        if not (1 <= rows <= LARGEST_ID + 1 and 1 <= entries <= most):
            raise DatasetError(f"{path}: {rows} rows and {entries} entries cannot be in this file")
        check_memory(
            5 * EDGE_BYTES // 2 * entries * (1 + (symmetry != "general")), f"{path}: its edges"
        )
        with opened(path) as (stream, _):
            matrix = mmread(_Banner(stream), spmatrix=False)
    took = f"{path.name}: MatrixMarket, {symmetry}"
    source, target = (end.astype(np.int32) for end in matrix.coords)
    return Graph(source, target, rows, False, took=took)


class _Banner:
    """A MatrixMarket file as SciPy expects it: two per cent signs before its name."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        start = stream.read(16).removeprefix(b"\xef\xbb\xbf")
        self._start = b"%" * (start[:2] != b"%%") + start

    def read(self, size: int = -1) -> bytes:
        """As of any stream."""
        start, self._start = self._start, b""
        return start or self._stream.read(size)


def _arrays(asked: Import) -> Graph:
    """An ``edge_index``, or compressed lists by SciPy's names, also as ``save_npz`` writes them.

    ``--csr``: the list of a node holds the nodes that it has edges to, else its in-neighbours. What
    the file says of itself (``format``) takes precedence.
    """
    path = asked.path
    fields, rest = arrays_of(path)
    for name in ("edge_index", "indptr", "indices"):
        if name in fields:
            _refuse_bomb(fields[name])
    if "" in fields and "indptr" in path.name:
        fellow = path.with_name(path.name.replace("indptr", "indices"))
        fields = {"indptr": fields[""], "indices": arrays_of(fellow)[0][""]}
    pairs = fields.get("edge_index", fields.get(""))
    if pairs is not None:
        shape = pairs.array.shape
        if len(shape) != 2 or 2 not in shape or pairs.array.dtype.kind not in "iu":
            fellow_too = "; or 'indptr' in its name and 'indices' in its fellow's"
            named = "" if pairs.field else fellow_too
            raise pairs.refuse(f"an edge_index, whole numbers of shape [2, E]{named}")
        check_memory(EDGE_BYTES * max(shape), f"{pairs.where}: its edges")
        graph = _collected(pairs, asked.one_based is True)
    elif {"indptr", "indices"} <= fields.keys():
        check_memory(EDGE_BYTES * math.prod(fields["indices"].array.shape), f"{path}: its edges")
        graph = _compressed(fields, "csr" if asked.csr else "csc")
    else:
        held = ", ".join([*fields, *rest][:5]) or "no tensors"
        raise DatasetError(
            f"{path}: holds {held}; expected edge_index, or indptr and indices (of a SciPy matrix, "
            "save matrix.tocsc())"
        )
    if "num_nodes" in fields:
        if math.prod(fields["num_nodes"].array.shape) != 1:
            raise fields["num_nodes"].refuse("one number: that of one graph")
        graph.nodes = int(fields["num_nodes"].read().reshape(()))
    graph.extras = {name: fields[name] for name in EXTRAS if name in fields}
    if asked.relations:
        own = fields.get(asked.relations)
        if own is None or own.array.dtype.kind not in "iu" or own.array.shape != (len(graph),):
            raise DatasetError(
                f"{path}: no edge_type called {asked.relations!r}, one whole number an edge"
            )
        _set_kinds(path, graph, *np.unique(own.read(), return_inverse=True))
    used = {"indptr", "indices", "format", "shape"} if pairs is None else {pairs.field}
    used |= {"num_nodes", asked.relations, *EXTRAS}
    unused = ", ".join(name for name in (*fields, *rest) if name not in used)
    what = "indptr and indices" if pairs is None else "edge_index"
    graph.took = f"{path.name}: {what}{unused and f'; not used: {unused}'}"
    return graph


def _refuse_bomb(own: Own) -> None:
    """Refuse edges that are packed as no graph's can be, before they are read."""
    array = own.array
    if isinstance(array, StoredArray):
        size = math.prod(array.shape) * array.dtype.itemsize
        if size > max(_FREE_BYTES, MOST_RATIO * array.packed):
            raise DatasetError(
                f"{own.where}: {array.packed:,} bytes unpack to {size:,}, which no graph's edges"
                " do; if it is right, save it without compression"
            )


def _compressed(fields: Mapping[str, Own], orientation: str) -> Graph:
    indptr, indices = fields["indptr"], fields["indices"]
    for own in (indptr, indices):
        if len(own.array.shape) != 1 or own.array.dtype.kind not in "iu":
            raise own.refuse("whole numbers in one dimension")
    if "format" in fields and (word := fields["format"]).array.dtype.itemsize < 64:
        orientation = word.read().tobytes().replace(b"\0", b"").decode()
    if orientation not in ("csc", "csr"):
        raise DatasetError(f"{indptr.path}: a matrix in format {orientation!r}: csc or csr, please")
    if "shape" in fields:
        shape = fields["shape"]
        if shape.array.shape != (2,) or len({*shape.read().tolist()}) != 1:
            raise DatasetError(f"{shape.where}: not that of a square matrix, as a graph's is")
    nodes, count = indptr.array.shape[0] - 1, indices.array.shape[0]
    if not 1 <= nodes <= LARGEST_ID + 1:
        raise DatasetError(f"{indptr.where}: has {nodes + 1} entries: {nodes} nodes are no graph")
    ends, others = indptr.read(), indices.read()
    falls = np.flatnonzero(ends[1:] < ends[:-1])
    if ends[0] != 0 or ends[-1] != count or len(falls):
        fault = f"; entry {falls[0] + 1} is smaller than the one before" if len(falls) else ""
        raise DatasetError(
            f"{indptr.where}: runs from {ends[0]} to {ends[-1]}, expected to rise from 0 to the "
            f"{count} of indices{fault}"
        )
    if (bad := (others < 0) | (others >= nodes)).any():
        at = int(bad.argmax())
        where = f"{indices.where}: entry {at} is {others[at]}"
        raise DatasetError(f"{where}, no node of 0..{nodes - 1}")
    lengths = (ends[1:] - ends[:-1]).astype(np.int64)
    listed, others = np.repeat(np.arange(nodes, dtype=np.int32), lengths), others.astype(np.int32)
    source, target = (others, listed) if orientation == "csc" else (listed, others)
    return Graph(source, target, nodes, False)


def _collected(own: Own, one_based: bool) -> Graph:
    """The edges of an ``edge_index`` ``[2, E]``, or ``[E, 2]``."""
    array = own.read()
    source, target = array if len(array) == 2 else array.T
    outside = [(end < one_based) | (end > LARGEST_ID) for end in (source, target)]
    if (bad := outside[0] | outside[1]).any():
        at = int(bad.argmax())
        found = int((source if outside[0][at] else target)[at])
        remedy = _NUMBER_THEM if found else "its ids count from 0: leave out --one-based"
        raise DatasetError(
            f"{own.where}: edge {at} names node {found}, expected {int(one_based)} to {LARGEST_ID};"
            f" {remedy}"
        )
    return Graph(source.astype(np.int32), target.astype(np.int32), from_one=one_based)


def _set_kinds(
    path: Path, graph: Graph, names: NDArray[Any], kinds: NDArray[np.integer[Any]]
) -> None:
    if len(names) > MOST_KINDS:
        raise DatasetError(
            f"{path}: {len(names):,} kinds of edges, and no more than {MOST_KINDS:,} are read: is "
            "it the column of kinds?"
        )
    graph.relations, graph.kinds = tuple(map(str, names.tolist())), kinds.astype(np.int16)


def number_nodes(path: Path, graph: Graph, labelled: NDArray[np.int64]) -> None:
    """Find how many nodes there are and from which number ids count.

    Args:
        graph: ``nodes`` says what files say, if they do.
        labelled: ids of nodes with labels, which need not be in an edge.

    Raises:
        DatasetError: an edge names what is no node, or ids may count from 0 as well as from 1.
    """
    ends = [ids for ids in (graph.source, graph.target, labelled) if len(ids)]
    nodes, low = graph.nodes, min(int(ids.min()) for ids in ends)
    high = max(int(ids.max()) for ids in ends)
    if graph.from_one is None:
        if nodes and low >= 1 and high < nodes:
            raise DatasetError(
                f"{path}: its ids run from {low} to {high}, and there are {nodes} nodes: from which"
                " number do they count? Say --zero-based or --one-based"
            )
        graph.from_one = bool(low == 1 and nodes in (0, high))
    graph.nodes = nodes or high + (not graph.from_one)
    largest = np.maximum(graph.source, graph.target) - graph.from_one
    if (bad := largest >= graph.nodes).any():
        at = int(bad.argmax())
        where = f"line {graph.table.line(at)}: edge {at}" if graph.table else f"edge {at}"
        from_1 = "; where they count from 1, --one-based" if low == 1 and not graph.from_one else ""
        raise DatasetError(
            f"{path}: {where} goes from {graph.source[at]} to {graph.target[at]}, and node id "
            f"{largest[at] + graph.from_one} is too large: there are {nodes} nodes, as features and"
            " labels have one row for each; where ids have gaps, --relabel numbers those that occur"
            f"{from_1}"
        )


def refuse_gaps(path: Path, graph: Graph, row_bytes: int) -> None:
    """Refuse to invent a table most of which would be of nodes that no edge names.

    Raises:
        DatasetError: and how to number the nodes that occur.
    """
    named, table_bytes = 2 * len(graph), graph.nodes * row_bytes
    if table_bytes > _INVENTED_BYTES and graph.nodes > _GAPS * named:
        raise DatasetError(
            f"{path}: by its ids it has {graph.nodes:,} nodes, of which its {len(graph):,} edges"
            f" name {named:,} at most, and features would be invented for all, {table_bytes:,}"
            " bytes; --relabel numbers those that occur, or say by --features how many there are"
        )


def relabel_nodes(graph: Graph, labelled: NDArray[np.int64]) -> None:
    """Replace ids by their ranks among those that occur in an edge or have a label."""
    given = (labelled, graph.source, graph.target)
    occurs = np.zeros(max(int(ids.max(initial=0)) for ids in given) + 1, bool)
    for ids in given:
        occurs[ids] = True
    graph.ids, graph.from_one = np.flatnonzero(occurs), False
    graph.source, graph.target = (
        np.searchsorted(graph.ids, ids).astype(np.int32) for ids in (graph.source, graph.target)
    )
