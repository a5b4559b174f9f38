"""A graph laid out anew, so that rows which are asked for together or often lie beside each other.

``wordnet+degree`` is WordNet with its nodes numbered in another order. A GPU that reads rows in
host memory translates an address for every page that a minibatch touches; rows that lie close
share pages, lines of a page table, and blocks of a disk. The graph, its labels and its splits are
numbered alike, so nothing has to be translated while training: whoever opens the folder sees a
graph like any other. ``order.npy`` beside it says which node of the first graph each row is.

The layout is a copy: it takes the disk space of the table once more. Its minibatches have the same
seed nodes as those of the graph as given. Their neighbours are drawn anew, for a draw depends on
the numbers of nodes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.dataset import (
    ORDER_FILE,
    SPEC_FILE,
    DatasetError,
    DatasetSpec,
    GraphDataset,
    read_spec,
)
from gatherbench.datasets.source import GraphSource, Progress
from gatherbench.datasets.store import dataset_folder, open_dataset
from gatherbench.datasets.writer import DatasetWriter

#: Between the name of a graph and that of an order.
MARK = "+"
#: Values of the graph or the table that are moved at a time.
_CHUNK = 1 << 22

Order = NDArray[np.int64]


def by_degree(data: GraphDataset) -> Order:
    """The nodes by how many others list them as a neighbour, most first: int64 ``[N]``.

    So often a row is asked for when every node is expanded once (PaGraph's score of hot rows).
    """
    count = np.zeros(data.spec.num_nodes, np.int64)
    for first in range(0, len(data.indices), _CHUNK):
        count += np.bincount(data.indices[first : first + _CHUNK], minlength=len(count))
    return np.argsort(-count, kind="stable")


def by_rcm(data: GraphDataset) -> Order:
    """Reverse Cuthill-McKee: neighbours get numbers that are close (SciPy's); int64 ``[N]``.

    Raises:
        DatasetError: SciPy numbers edges with 32 bits, and there are more.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    nodes, edges = data.spec.num_nodes, len(data.indices)
    if max(nodes, edges) > np.iinfo(np.int32).max:
        raise DatasetError(
            f"{data.name}{MARK}rcm: {edges:,} edges are too many for SciPy's reverse Cuthill-McKee;"
            f" take {data.name}{MARK}degree"
        )
    pattern = np.ones(edges, np.int8)
    graph = csr_array((pattern, data.indices, data.indptr.astype(np.int32)), (nodes, nodes))
    return reverse_cuthill_mckee(graph, symmetric_mode=False).astype(np.int64)


#: Orders by name: each says which node comes first, second, …
ORDERS: MappingProxyType[str, Callable[[GraphDataset], Order]] = MappingProxyType(
    {"degree": by_degree, "rcm": by_rcm}
)


def ranks(order: Order) -> Order:
    """The new number of each node: the inverse of the permutation ``order``; int64 ``[N]``.

    Raises:
        ValueError: it is no permutation.
    """
    found = np.full(len(order), -1, np.int64)
    if len(order) and (order.min() < 0 or order.max() >= len(order)):
        raise ValueError("order: names what is no node")
    found[order] = np.arange(len(order))
    if (found < 0).any():
        raise ValueError("order: names a node twice")
    return found


@dataclass(frozen=True, slots=True)
class OrderedSource:
    """The graph ``base``, made by ``source`` or imported (``None``), in an order of :data:`ORDERS`.

    Raises:
        DatasetError: there is no such order.
    """

    base: str
    order: str
    source: GraphSource | None

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise DatasetError(
                f"{self.name}: {self.order!r} is no order of nodes; there are {', '.join(ORDERS)}"
            )

    @property
    def name(self) -> str:
        return f"{self.base}{MARK}{self.order}"

    @property
    def summary(self) -> str:
        return f"{self.base}, its nodes numbered by {self.order}"

    @property
    def scalable(self) -> bool:
        return self.source is not None and self.source.scalable

    def estimate(self, scale: float) -> DatasetSpec:
        if self.source is None:
            spec = read_spec(dataset_folder(self.base))[0]
        else:
            spec = self.source.estimate(scale)
        return dataclasses.replace(spec, name=self.name)

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        from gatherbench.datasets.registry import prepare_dataset  # which builds on this module

        given = open_dataset(prepare_dataset(self.base, scale, folder.parent, progress))
        progress(f"order by {self.order}", 0.0)
        order = ORDERS[self.order](given)
        write_ordered(given, order, folder, self.name, progress)


def write_ordered(
    given: GraphDataset, order: Order, folder: Path, name: str, progress: Progress
) -> None:
    """Write ``given`` with its nodes in ``order`` as the dataset ``name``.

    Raises:
        DatasetError: see ``DatasetWriter``.
        ValueError: ``order`` is no permutation of its nodes.
    """
    if given.spec.hashed:
        raise DatasetError(f"{given.name}: its rows follow from their numbers, in no other order")
    table = given.features
    place = ranks(order)
    if len(place) != given.spec.num_nodes:
        raise ValueError(f"order: {len(place)} nodes, and the graph has {given.spec.num_nodes}")
    how = f"nodes numbered by {name.rpartition(MARK)[2]}: {ORDER_FILE} has the number of each in"
    notes = (*given.spec.notes, f"{how} {given.name}", _laid_out_from(given.folder))
    spec = dataclasses.replace(given.spec, name=name, notes=notes, relations=(), node_types=())
    with DatasetWriter(folder, spec, progress) as writer:
        writer.write_columns(_columns(given, order, place, progress))
        rows = max(1, _CHUNK // spec.feature_dim)
        writer.write_features(table[part] for part in _parts(order, rows))
        writer.write_labels(given.labels[order])
        # In the order in which they were, so that an epoch has the same seed nodes.
        writer.write_splits(
            *(place[ids] for ids in (given.train_ids, given.val_ids, given.test_ids))
        )
        writer.keep(ORDER_FILE, order)
    for notice in given.folder.glob("LICENSE.*"):
        shutil.copy(notice, folder)


def is_stale(folder: Path) -> bool:
    """Whether a graph that was laid out anew is of one that has been made again since."""
    base, _, rest = folder.name.partition(MARK)
    _, scaled, scale = rest.partition("@")
    given = folder.with_name(f"{base}{scaled}{scale}")
    if not (folder / SPEC_FILE).is_file() or not (given / SPEC_FILE).is_file():
        return False
    return _laid_out_from(given) not in read_spec(folder)[0].notes


def _laid_out_from(given: Path) -> str:
    """Tells a graph from others of its name."""
    return f"laid out from {hashlib.sha256((given / SPEC_FILE).read_bytes()).hexdigest()[:16]}"


def _columns(
    given: GraphDataset, order: Order, place: Order, progress: Progress
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Runs of columns in the new order: in-degrees, and in-neighbours by their new numbers."""
    mean = max(1, given.spec.num_edges // max(1, given.spec.num_nodes))
    done = 0
    for nodes in _parts(order, max(1, _CHUNK // mean)):
        begins = given.indptr[nodes]
        degrees = given.indptr[nodes + 1] - begins
        starts = np.cumsum(degrees) - degrees
        where = np.repeat(begins - starts, degrees) + np.arange(int(degrees.sum()))
        yield degrees, place[given.indices[where]]
        done += len(nodes)
        progress("number the graph anew", done / len(order))


def _parts(order: Order, size: int) -> Iterator[Order]:
    return (order[first : first + size] for first in range(0, len(order), size))
