"""The edges of a graph of one's own, from a file of any kind, with nodes numbered from 0.

MatrixMarket, the exchange format of the SuiteSparse collection, is text: the entry in row ``i`` and
column ``j`` is the edge ``i -> j``. SciPy reads the header only: its ``mmread`` would hold a value
for each entry. Files of arrays hold PyG's ``edge_index``, or compressed sparse columns or rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.columns import edge_keys, typed_keys
from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.import_arrays import ARRAY_FILES, EXTRAS, Own, arrays_of
from gatherbench.datasets.import_text import (
    MOST_RATIO,
    Column,
    first_record,
    numbers,
    opened,
    text_column,
)
from gatherbench.datasets.npz_stream import StoredArray, members
from gatherbench.datasets.source import Progress

Orientation = Literal["csc", "csr"]

#: Largest id: nodes are numbered by int32.
LARGEST_ID = 2**31 - 2

#: Kinds of edges: a relational model has matrices for each.
MOST_KINDS = 1000

#: What is unpacked, and what is invented, without a question; how many nodes an id may stand for.
_FREE_BYTES, _INVENTED_BYTES, _GAPS = 16 << 20, 1 << 30, 10

_SOURCES, _TARGETS = ("source", "src", "from", "head", "u"), ("target", "dst", "to", "tail", "v")


@dataclass(slots=True)
class Graph:
    """Edges ``source -> target`` in the ids of a file, and how these become nodes.

    Attributes:
        chunks: pairs of int32 arrays, in the order of the file.
        low, high: the smallest and the largest id; -1 where there are no edges.
        nodes: how many there are; 0 where it is not known.
        from_one: whether ids count from 1, if it is known.
        both_ways: each edge stands for its reverse too (a symmetric matrix).
        extras: what else the file holds, by the names of :data:`EXTRAS`.
        ids: where ids were numbered anew, those of the file in ascending order, else empty;
            ``chunks`` hold the new numbers then.
        kinds: what each edge is, int16 ``[E]`` in the order of the file, places in ``relations``.
        relations: the kinds of the file.
    """

    chunks: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = field(default_factory=list)
    low: int = -1
    high: int = -1
    nodes: int = 0
    from_one: bool | None = None
    both_ways: bool = False
    extras: dict[str, Own] = field(default_factory=dict)
    ids: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    kinds: NDArray[np.int16] = field(default_factory=lambda: np.empty(0, np.int16))
    relations: tuple[str, ...] = ()

    @property
    def all_relations(self) -> tuple[str, ...]:
        """With the kinds of reverse edges, where each edge stands for its reverse too."""
        return self.relations + tuple(f"inverse {name}" for name in self.relations * self.both_ways)

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
        """The sort keys of all edges, of a relational graph with their kinds.

        Each chunk is let go once its keys are made.
        """
        base, count = int(bool(self.from_one)), len(self)
        lengths = [len(source) for source, _ in self.chunks]
        runs = (self.chunks.pop() for _ in range(len(self.chunks)))
        pairs = ((source - base, target - base) for source, target in runs)
        keys = edge_keys(pairs, count, self.nodes, "edges", self.both_ways)
        if not self.relations:
            return keys
        parts = np.split(self.kinds, np.cumsum(lengths)[:-1])[::-1]  # as chunks are let go
        if self.both_ways:
            parts = [way for part in parts for way in (part, part + len(self.relations))]
        kinds = np.concatenate(parts)
        return typed_keys(keys, kinds, self.nodes, len(self.all_relations), "edges")


def read_edges(
    path: Path,
    one_based: bool | None,
    nodes: int | None,
    orientation: Orientation,
    progress: Progress,
) -> Graph:
    """Read a file of any kind; see ``importers.import_graph``.

    Args:
        nodes: how many other files say there are, if they do.

    Raises:
        DatasetError: with line and column, or array and position, of the first bad entry; or there
            are no edges.
    """
    if ".mtx" in path.suffixes[-2:]:
        graph = _matrix_market(path, progress)
    elif path.suffix in ARRAY_FILES:
        graph = _arrays(path, one_based is True, orientation)
    else:
        graph = _edge_list(path, one_based, nodes, progress)
    if not graph.chunks:
        raise DatasetError(f"{path}: holds no edges")
    return graph


def _edge_list(path: Path, one_based: bool | None, nodes: int | None, progress: Progress) -> Graph:
    """The first two columns, or those that a header calls source and target."""
    graph = Graph(from_one=one_based)
    lowest = 1 if one_based else 0
    highest = LARGEST_ID if nodes is None else nodes - 1 + (one_based is not False)
    remedy = _too_large_remedy(nodes)
    columns = [Column("node id", lowest, highest, n, remedy) for n in (_SOURCES, _TARGETS)]
    for run in numbers(path, columns, progress):
        graph.add(run[:, 0], run[:, 1])
    return graph


def _matrix_market(path: Path, progress: Progress) -> Graph:
    """A square sparse matrix; values are ignored, symmetric entries count both ways."""
    from scipy.io import mminfo

    with opened(path) as (stream, _):
        first_record(stream)  # whose compression is looked at, which SciPy does not
    try:
        rows, columns, entries, kind, _, symmetry = mminfo(path)
    except (OSError, ValueError, OverflowError) as error:
        raise DatasetError(f"{path}: no MatrixMarket header ({error})") from error
    if kind != "coordinate":
        raise DatasetError(f"{path}: expected a sparse matrix ('coordinate'), found {kind!r}")
    if rows != columns:
        raise DatasetError(f"{path}: a graph's matrix is square, this one is {rows} by {columns}")
    if not 1 <= rows <= LARGEST_ID + 1 or entries < 1:
        raise DatasetError(f"{path}: {rows} rows and {entries} entries cannot be a graph")
    graph = Graph(nodes=rows, from_one=True, both_ways=symmetry != "general")
    for run in numbers(path, [Column("node id", 1, rows)] * 2, progress, skip_first=True):
        graph.add(run[:, 0], run[:, 1])
    if len(graph) != entries:
        raise DatasetError(f"{path}: ends after {len(graph)} entries of {entries} announced")
    return graph


def _arrays(path: Path, one_based: bool, orientation: Orientation) -> Graph:
    """An ``edge_index``, or compressed lists by SciPy's names, also as ``save_npz`` writes them.

    Args:
        orientation: of compressed lists. ``csc``: the list of a node holds its in-neighbours;
            ``csr``: the nodes that it has edges to. What the file says of itself (``format``)
            takes precedence.
    """
    fields = arrays_of(path)
    for name in ("edge_index", "indptr", "indices"):
        if name in fields:
            _refuse_bomb(fields[name])
    if path.suffix == ".npy" and "indptr" in path.name:
        fellow = path.with_name(path.name.replace("indptr", "indices"))
        fields = {"indptr": fields[""], "indices": arrays_of(fellow)[""]}
    pairs = fields.get("edge_index", fields.get(""))
    if pairs is not None:
        shape = pairs.array.shape
        if len(shape) != 2 or 2 not in shape or pairs.array.dtype.kind not in "iu":
            fellow_too = "; or 'indptr' in its name and 'indices' in its fellow's"
            named = "" if pairs.field else fellow_too
            raise pairs.refuse(f"an edge_index, whole numbers of shape [2, E]{named}")
        graph = _collected(pairs.where, pairs.pairs(), one_based)
    elif {"indptr", "indices"} <= fields.keys():
        graph = _compressed(fields, orientation)
    else:
        held = members(path) if path.suffix == ".npz" else [*fields]
        raise DatasetError(
            f"{path}: holds {', '.join(held[:5]) or 'no tensors'}; expected edge_index, or indptr "
            "and indices (of a SciPy matrix, save matrix.tocsc())"
        )
    if "num_nodes" in fields:
        graph.nodes = int(fields["num_nodes"].read())
    graph.extras = {name: fields[name] for name in EXTRAS if name in fields}
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


def _compressed(fields: Mapping[str, Own], orientation: Orientation) -> Graph:
    indptr, indices = fields["indptr"], fields["indices"]
    for own in (indptr, indices):
        if len(own.array.shape) != 1 or own.array.dtype.kind not in "iu":
            raise own.refuse("whole numbers in one dimension")
    said: str = orientation
    if "format" in fields and (word := fields["format"]).array.dtype.itemsize < 64:
        said = word.read().tobytes().replace(b"\0", b"").decode()
    if said not in ("csc", "csr"):
        raise DatasetError(f"{indptr.path}: a matrix in format {said!r}, expected csc or csr")
    if "shape" in fields:
        shape = fields["shape"]
        if shape.array.shape != (2,) or len({*shape.read().tolist()}) != 1:
            raise DatasetError(f"{shape.where}: not that of a square matrix, as a graph's is")
    nodes, count = indptr.array.shape[0] - 1, indices.array.shape[0]
    if not 1 <= nodes <= LARGEST_ID + 1:
        raise DatasetError(f"{indptr.where}: has {nodes + 1} entries: {nodes} nodes are no graph")
    ends = indptr.read()
    falls = np.flatnonzero(ends[1:] < ends[:-1])
    if ends[0] != 0 or ends[-1] != count or len(falls):
        fault = f"; entry {falls[0] + 1} is smaller than the one before" if len(falls) else ""
        raise DatasetError(
            f"{indptr.where}: runs from {ends[0]} to {ends[-1]}, expected to rise from 0 to the "
            f"{count} of indices{fault}"
        )
    lengths = (ends[1:] - ends[:-1]).astype(np.int64)
    own_ends = np.repeat(np.arange(nodes, dtype=np.int32), lengths)
    graph, start = Graph(nodes=nodes, from_one=False), 0
    for others in indices.runs():
        listed = own_ends[start : start + len(others)]
        if (bad := (others < 0) | (others >= nodes)).any():
            at = int(bad.argmax())
            raise DatasetError(
                f"{indices.where}: entry {start + at} is {others[at]}, no node of 0..{nodes - 1}"
            )
        graph.add(*((others, listed) if said == "csc" else (listed, others)))
        start += len(others)
    return graph


def _collected(
    where: str, pairs: Iterable[tuple[NDArray[Any], NDArray[Any]]], one_based: bool
) -> Graph:
    """Edges from runs of sources and targets."""
    graph, lowest, start = Graph(from_one=one_based), int(one_based), 0
    for source, target in pairs:
        outside = [(end < lowest) | (end > LARGEST_ID) for end in (source, target)]
        if (bad := outside[0] | outside[1]).any():
            at = int(bad.argmax())
            found = int((source if outside[0][at] else target)[at])
            from_0 = "its ids count from 0: leave out --one-based"
            raise DatasetError(
                f"{where}: edge {start + at} names node {found}, expected {lowest} to {LARGEST_ID};"
                f" {_too_large_remedy(None) if found else from_0}"
            )
        graph.add(source, target)
        start += len(source)
    return graph


def _too_large_remedy(nodes: int | None) -> str:
    """What to do about an id that is no node; ``nodes`` is what other files say, if they do."""
    if nodes is None:
        return "number the nodes from 0 first (numpy.unique(edges, return_inverse=True) does)"
    return (
        f"there are {nodes} nodes, as features and labels have one row for each; where ids have"
        " gaps, --relabel numbers those that occur"
    )


def number_nodes(
    path: Path, graph: Graph, labelled: NDArray[np.int64] | None, progress: Progress
) -> None:
    """Find how many nodes there are and from which number ids count; refuse what is no node.

    Args:
        graph: ``nodes`` says what files say, if they do.
        labelled: ids of nodes with labels, which need not be in an edge.
    """
    if labelled is not None and len(labelled):
        graph.low = min(graph.low, int(labelled.min()))
        graph.high = max(graph.high, int(labelled.max()))
    nodes, one_based = graph.nodes, graph.from_one
    if one_based is None:
        one_based = graph.low >= 1 and graph.high == nodes if nodes else graph.low == 1
    graph.from_one, graph.nodes = one_based, graph.high + (not one_based)
    if not nodes or graph.nodes <= nodes:
        graph.nodes = nodes or graph.nodes
        return
    if path.suffix not in ARRAY_FILES:
        # Only now is it known that the largest id was one too many: find the record.
        _edge_list(path, one_based, nodes, progress)
    source, target = (np.concatenate(ends) for ends in zip(*graph.chunks, strict=True))
    at = int(np.argmax(np.maximum(source, target) - one_based >= nodes))
    from_1 = "; where they count from 1, --one-based" if graph.low == 1 and not one_based else ""
    raise DatasetError(
        f"{path}: edge {at} goes from {source[at]} to {target[at]}, and node id "
        f"{max(source[at], target[at])} is too large: {_too_large_remedy(nodes)}{from_1}"
    )


def read_kinds(path: Path, graph: Graph, column: str) -> None:
    """Read the kind of each edge: a column of a text file, or ``edge_type`` beside an edge_index.

    Args:
        column: its name in the header, or its number, from 1; of other files ``edge_type``. Empty:
            the edges have no kinds.

    Raises:
        DatasetError: there is no such column, it has no kind for each edge, or too many kinds.
    """
    if not column:
        return
    if path.suffix in ARRAY_FILES:
        own = arrays_of(path).get(column)
        if own is None or own.array.dtype.kind not in "iu" or len(own.array.shape) != 1:
            raise DatasetError(f"{path}: no edge_type called {column!r}, one whole number an edge")
        words: Any = own.read()
    else:
        words = text_column(path, column)
    if len(words) != len(graph):
        raise DatasetError(f"{path}: {len(words):,} kinds for {len(graph):,} edges")
    names, kinds = np.unique(words, return_inverse=True)
    if len(names) > MOST_KINDS:
        raise DatasetError(
            f"{path}: {len(names):,} kinds of edges, of which {MOST_KINDS:,} can be told apart; is"
            f" {column} the column of kinds?"
        )
    graph.relations, graph.kinds = tuple(map(str, names.tolist())), kinds.astype(np.int16)


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
            " bytes; --relabel numbers those that occur, or say by --labels or --features how many"
            " there are"
        )


def relabel_nodes(graph: Graph, labelled: NDArray[np.int64] | None) -> None:
    """Replace ids by their ranks among those that occur in an edge or have a label."""
    extra = np.empty(0, np.int64) if labelled is None else labelled
    occurs = np.zeros(max(graph.high, int(extra.max(initial=0))) + 1, bool)
    occurs[extra] = True
    for source, target in graph.chunks:
        occurs[source] = occurs[target] = True
    graph.ids, graph.from_one = np.flatnonzero(occurs), False
    ids = graph.ids
    graph.chunks = [
        (np.searchsorted(ids, u).astype(np.int32), np.searchsorted(ids, v).astype(np.int32))
        for u, v in graph.chunks
    ]
