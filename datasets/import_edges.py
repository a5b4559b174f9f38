"""The edges of a graph of one's own, from a file of any kind, with nodes numbered from 0.

Text is read by ``import_text.py``. MatrixMarket, the exchange format of the SuiteSparse collection,
is text too: the entry in row ``i`` and column ``j`` is the edge ``i -> j``. SciPy reads the header
only, because its ``mmread`` would hold a value for each entry. NumPy files hold PyG's
``edge_index`` or compressed sparse columns or rows. What ``torch.save`` writes is read by
``import_torch.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.columns import edge_keys
from gatherbench.datasets.dataset import SPLITS, DatasetError
from gatherbench.datasets.import_text import Column, text_stream
from gatherbench.datasets.import_torch import TORCH_FILES, load_tensors
from gatherbench.datasets.npz_stream import CHUNK, StoredArray, members, stored_array
from gatherbench.datasets.source import Progress

Orientation = Literal["csc", "csr"]

#: Largest id: nodes are numbered by int32.
LARGEST_ID = 2**31 - 2
#: The splits by their names in PyG's ``Data``, and all that is taken of one beside the edges.
MASKS = tuple(f"{split}_mask" for split in SPLITS)
EXTRAS = ("x", "y", *MASKS)

_SOURCES, _TARGETS = ("source", "src", "from", "head", "u"), ("target", "dst", "to", "tail", "v")
#: Entries of indptr looked at at a time: their lists may be long.
_POINTERS = 1 << 18


@dataclass(slots=True)
class Edges:
    """What a file says: edges ``source -> target``, in the ids of the file.

    Attributes:
        chunks: pairs of int32 arrays, in the order of the file.
        low, high: the smallest and the largest id; -1 where there are no edges.
        num_nodes: as declared by the file, if it does.
        one_based: whether ids count from 1, if the format says.
        both_ways: each edge stands for its reverse too (a symmetric matrix).
        extras: what else the file holds, by the names of :data:`EXTRAS`.
    """

    chunks: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = field(default_factory=list)
    low: int = -1
    high: int = -1
    num_nodes: int | None = None
    one_based: bool | None = None
    both_ways: bool = False
    extras: dict[str, Any] = field(default_factory=dict)

    def add(self, source: NDArray[Any], target: NDArray[Any]) -> None:
        """Append a piece of the list; the arrays are int32 ``[n]`` or will be."""
        if len(source) == 0:
            return
        low = int(min(source.min(), target.min()))
        self.low = low if self.low < 0 else min(self.low, low)
        self.high = max(self.high, int(source.max()), int(target.max()))
        self.chunks.append((source.astype(np.int32), target.astype(np.int32)))

    def some(self, where: object) -> Edges:
        """These edges, if there are any.

        Raises:
            DatasetError: there are none in the file ``where``.
        """
        if not self.chunks:
            raise DatasetError(f"{where}: holds no edges")
        return self

    def __len__(self) -> int:
        return sum(len(source) for source, _ in self.chunks)


def read_edges(
    path: Path,
    one_based: bool | None,
    num_nodes: int | None,
    header: bool | None,
    orientation: Orientation,
    progress: Progress,
) -> Edges:
    """Read a file of any kind; see ``importers.import_graph``.

    Args:
        num_nodes: what other files say, if they do.

    Raises:
        DatasetError: with line and column, or array and position, of the first bad entry.
    """
    if ".mtx" in path.suffixes[-2:]:
        return _matrix_market(path, progress)
    if path.suffix == ".npz":
        return _npz(path, one_based is True, orientation)
    if path.suffix == ".npy":
        if "indptr" not in path.name:
            return _edge_index(stored_array(path), one_based is True)
        fellow = path.with_name(path.name.replace("indptr", "indices"))
        return _compressed(stored_array(path), stored_array(fellow), orientation)
    if path.suffix in TORCH_FILES:
        return _torch(path, one_based is True)
    return _edge_list(path, one_based, num_nodes, header, progress)


def _edge_list(
    path: Path,
    one_based: bool | None,
    num_nodes: int | None,
    header: bool | None,
    progress: Progress,
) -> Edges:
    """The separator is a comma or a semicolon if the first record has one, else blanks.

    The columns ``source`` and ``target`` (or ``src``/``dst``, ``from``/``to``) are taken where a
    header has both, else the first two. Further columns are ignored.
    """
    edges = Edges(one_based=one_based)
    lowest = 1 if one_based else 0
    highest = LARGEST_ID if num_nodes is None else num_nodes - 1 + (one_based is not False)
    with text_stream(path, progress) as stream:
        separator, places = stream.layout(header, (_SOURCES, _TARGETS))
        remedy = _too_large_remedy(num_nodes)
        columns = [Column(at, "node id", lowest, highest, remedy) for at in places]
        for run in stream.numbers(separator, columns):
            edges.add(run[:, 0], run[:, 1])
    return edges.some(path)


def _matrix_market(path: Path, progress: Progress) -> Edges:
    """A square sparse matrix; values are ignored, symmetric entries count both ways."""
    from scipy.io import mminfo

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
    edges = Edges(num_nodes=rows, one_based=True, both_ways=symmetry != "general")
    with text_stream(path, progress) as stream:
        stream.first_record()
        stream.skip_record()  # the sizes
        for run in stream.numbers(None, [Column(at, "node id", 1, rows) for at in (0, 1)]):
            edges.add(run[:, 0], run[:, 1])
        if len(edges) != entries:
            raise stream.error(f"the file ends after {len(edges)} entries of {entries} announced")
    return edges


def _npz(path: Path, one_based: bool, orientation: Orientation) -> Edges:
    """A graph by the names of its arrays, also as SciPy's ``save_npz`` writes it.

    Args:
        orientation: of compressed arrays. ``csc``: the list of a node holds its in-neighbours;
            ``csr``: the nodes that it has edges to. What the file says of itself (``format``)
            takes precedence.
    """
    names = members(path)
    if "edge_index" in names:
        edges = _edge_index(stored_array(path, "edge_index"), one_based)
    elif {"indptr", "indices"} <= {*names}:
        said: str = orientation
        if "format" in names and (word := stored_array(path, "format")).dtype.itemsize < 64:
            said = word.whole().tobytes().replace(b"\0", b"").decode()
        if said not in ("csc", "csr"):
            raise DatasetError(f"{path}: a matrix in format {said!r}, expected csc or csr")
        if "shape" in names:
            shape = stored_array(path, "shape")
            shape.expect("iu", 2)
            if len({*shape.whole().tolist()}) != 1:
                raise DatasetError(f"{path}: a graph's matrix is square, this is {shape.whole()}")
        arrays = stored_array(path, "indptr"), stored_array(path, "indices")
        edges = _compressed(*arrays, "csc" if said == "csc" else "csr")
    else:
        raise DatasetError(
            f"{path}: holds {', '.join(names[:5])}; expected edge_index, or indptr and indices (of "
            "a SciPy matrix, save matrix.tocsc())"
        )
    edges.extras = {name: stored_array(path, name) for name in EXTRAS if name in names}
    return edges


def _edge_index(array: StoredArray, one_based: bool) -> Edges:
    if len(array.shape) != 2 or 2 not in array.shape or array.dtype.kind not in "iu":
        pair = "; or name it with 'indptr' in its name and its fellow with 'indices'"
        raise DatasetError(
            f"{array.where}: holds {array.dtype} {array.shape}, expected an edge_index, whole "
            f"numbers of shape [2, E]{'' if array.member else pair}"
        )
    return _collected(array.where, array.pairs(), one_based)


def _compressed(indptr: StoredArray, indices: StoredArray, orientation: Orientation) -> Edges:
    for array in (indptr, indices):
        array.expect("iu", None)
    nodes = indptr.shape[0] - 1
    if not 1 <= nodes <= LARGEST_ID + 1:
        raise DatasetError(f"{indptr.where}: has {nodes + 1} entries: {nodes} nodes are no graph")
    edges = Edges(num_nodes=nodes, one_based=False)
    for own, others in _lists(indptr, indices, nodes):
        edges.add(*((others, own) if orientation == "csc" else (own, others)))
    return edges.some(indices.where)


def _lists(
    indptr: StoredArray, indices: StoredArray, nodes: int
) -> Iterator[tuple[NDArray[np.int32], NDArray[Any]]]:
    """Runs of nodes and the entries of their lists, both files read side by side."""
    count = indices.shape[0]
    with indices.reader() as read:
        begin, first = 0, -1  # where the next list begins, and whose it is
        for pointers in indptr.flat(step=_POINTERS):
            ends = pointers.astype(np.int64)
            lengths = np.diff(ends, prepend=begin)
            falls = np.flatnonzero(lengths < 0)
            if first < 0 and ends[0] != 0:
                raise DatasetError(f"{indptr.where}: begins with {ends[0]}, expected 0")
            if len(falls) or ends[-1] > count:
                at = int(falls[0]) if len(falls) else int(np.argmax(ends > count))
                raise DatasetError(
                    f"{indptr.where}: entry {first + 1 + at} is {ends[at]}, expected no less than "
                    f"the one before, and no more than the {count} of indices"
                )
            own = np.repeat(np.arange(first, first + len(ends), dtype=np.int32), lengths)
            for start in range(0, len(own), CHUNK):
                others = read(min(CHUNK, len(own) - start))
                if (bad := (others < 0) | (others >= nodes)).any():
                    at = int(bad.argmax())
                    raise DatasetError(
                        f"{indices.where}: entry {begin + start + at} is {others[at]}, no node of "
                        f"0..{nodes - 1}"
                    )
                yield own[start : start + CHUNK], others
            begin, first = int(ends[-1]), first + len(ends)
    if begin != count:
        raise DatasetError(f"{indptr.where}: ends with {begin}, expected the {count} of indices")


def _torch(path: Path, one_based: bool) -> Edges:
    """A ``Data``, a ``dict`` with its fields, or an ``edge_index`` alone."""
    fields = load_tensors(path)
    pairs = fields.get("edge_index", fields.get(""))
    if pairs is None:
        raise DatasetError(f"{path}: has no edge_index; it has {', '.join(fields) or 'no tensors'}")
    if pairs.ndim != 2 or len(pairs) != 2 or pairs.dtype.kind not in "iu":
        raise DatasetError(
            f"{path}: edge_index is {pairs.dtype} {pairs.shape}, expected whole numbers [2, E]"
        )
    starts = range(0, pairs.shape[1], CHUNK)
    runs = ((pairs[0, at : at + CHUNK], pairs[1, at : at + CHUNK]) for at in starts)
    edges = _collected(f"{path}, edge_index", runs, one_based)
    if "num_nodes" in fields:
        edges.num_nodes = int(fields["num_nodes"])
    edges.extras = {name: fields[name] for name in EXTRAS if name in fields}
    return edges


def _collected(
    where: str, pairs: Iterable[tuple[NDArray[Any], NDArray[Any]]], one_based: bool
) -> Edges:
    """Edges from runs of sources and targets."""
    edges, lowest, start = Edges(one_based=one_based), int(one_based), 0
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
        edges.add(source, target)
        start += len(source)
    return edges.some(where)


def _too_large_remedy(num_nodes: int | None) -> str:
    """What to do about an id that is no node; ``num_nodes`` is what other files say, if they do."""
    if num_nodes is None:
        return "number the nodes from 0 first (numpy.unique(edges, return_inverse=True) does)"
    return (
        f"there are {num_nodes} nodes, as features and labels have one row for each; where ids have"
        " gaps, --relabel numbers those that occur"
    )


@dataclass(slots=True)
class Graph:
    """A file that was read and understood; ids are still those of the file, from ``base``.

    Attributes:
        ids: where ids were numbered anew, those of the file in ascending order; ``edges`` and
            ``base`` are of the new numbers then.
    """

    edges: Edges
    nodes: int
    base: int
    both_ways: bool
    ids: NDArray[np.int64] | None = None

    def number(self, ids: NDArray[Any], where: str) -> NDArray[np.int64]:
        """The nodes that have these ids in the file.

        Raises:
            DatasetError: one is no node; names ``where``.
        """
        if self.ids is None:
            found = ids.astype(np.int64) - self.base
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
        """The sort keys of all edges; each chunk is let go once its keys are made."""
        chunks, count = self.edges.chunks, len(self.edges)
        runs = (chunks.pop() for _ in range(len(chunks)))
        pairs = ((source - self.base, target - self.base) for source, target in runs)
        return edge_keys(pairs, count, self.nodes, "edges", self.both_ways)


def numbered(
    path: Path,
    edges: Edges,
    known_nodes: int | None,
    labelled: NDArray[np.int64] | None,
    header: bool | None,
    progress: Progress,
) -> Graph:
    """Find from which number ids count.

    Args:
        known_nodes: what other files say, if they do.
        labelled: ids of nodes with labels, which need not be in an edge.
    """
    if labelled is not None and len(labelled):
        edges.low = min(edges.low, int(labelled.min()))
        edges.high = max(edges.high, int(labelled.max()))
    nodes = agreed_nodes({str(path): edges.num_nodes, "the other files": known_nodes})
    from_one = edges.one_based
    if from_one is None:
        from_one = edges.low == 1 if nodes is None else edges.low >= 1 and edges.high == nodes
    if nodes is None:
        nodes = edges.high + (not from_one)
    elif edges.high - from_one >= nodes:
        if path.suffix in (".npy", ".npz", *TORCH_FILES):
            raise _no_node(path, edges, nodes, from_one)
        # Only now is it known that the largest id was one too many: find the record.
        _edge_list(path, from_one, nodes, header, progress)
    return Graph(edges, nodes, int(from_one), edges.both_ways)


def _no_node(path: Path, edges: Edges, nodes: int, from_one: bool) -> DatasetError:
    """The error of the first edge that names a node beyond the last."""
    start = 0
    for source, target in edges.chunks:
        bad = np.maximum(source, target) - from_one >= nodes
        if bad.any():
            at = int(bad.argmax())
            break
        start += len(source)
    from_1 = "; where they count from 1, --one-based" if edges.low == 1 and not from_one else ""
    return DatasetError(
        f"{path}: edge {start + at} goes from {source[at]} to {target[at]}, and node id "
        f"{max(source[at], target[at])} is too large: {_too_large_remedy(nodes)}{from_1}"
    )


def relabelled(
    path: Path, edges: Edges, known_nodes: int | None, labelled: NDArray[np.int64] | None
) -> Graph:
    """The edges with their ids replaced by their ranks among those that occur."""
    extra = np.empty(0, np.int64) if labelled is None else labelled
    occurs = np.zeros(max(edges.high, int(extra.max(initial=0))) + 1, bool)
    occurs[extra] = True
    for source, target in edges.chunks:
        occurs[source] = occurs[target] = True
    ids = np.flatnonzero(occurs)
    claims = {f"{path} (ids that occur)": len(ids), "features or labels": known_nodes}
    nodes = agreed_nodes({**claims, str(path): edges.num_nodes}) or len(ids)
    edges.chunks = [
        (np.searchsorted(ids, u).astype(np.int32), np.searchsorted(ids, v).astype(np.int32))
        for u, v in edges.chunks
    ]
    return Graph(edges, nodes, 0, edges.both_ways, ids)


def agreed_nodes(claims: Mapping[str, int | None]) -> int | None:
    """The one number of nodes that all claims name; ``None`` if there is no claim."""
    made = {who: nodes for who, nodes in claims.items() if nodes is not None}
    if len(set(made.values())) > 1:
        said = ", ".join(f"{who} says {nodes}" for who, nodes in made.items())
        raise DatasetError(f"how many nodes? {said}")
    return next(iter(made.values()), None)
