"""What a path needs of GPU and host memory, about, and where it has the table, in words.

A host holds more than the table: the graph that minibatches are drawn from, what the sampler keeps
beside it, and staging buffers. Of either memory a path may take :data:`~gatherbench.strategies.
places.TABLE_SHARE`: the rest is the system's, Python's and torch's.
"""

from __future__ import annotations

from dataclasses import dataclass

from gatherbench.bench.model.advise.question import Graph, Question
from gatherbench.bench.model.advise.sizes import MinibatchSizes
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.datasets.dataset import index_dtype
from gatherbench.strategies.base import Strategy
from gatherbench.strategies.places import TABLE_SHARE

_FLOAT, _INDEX = 4, 8
#: Of a node, by the sampler: its place in the minibatch (``NeighborSampler``).
_POSITION = 4
#: Buffers of a staged path: the CPU fills one while the copy engine reads the other.
_STAGING_BUFFERS = 2


@dataclass(frozen=True, slots=True)
class HostNeed:
    """Bytes of the host memory of a machine, by what lies there."""

    table: float = 0.0  # or what of it lies there, a cache of rows among it
    graph: float = 0.0  # and its labels
    sampler: float = 0.0  # what samplers keep beside the graph
    staging: float = 0.0  # buffers between the CPU and the GPUs

    @property
    def total(self) -> float:
        return self.table + self.graph + self.sampler + self.staging

    @property
    def words(self) -> str:
        """What takes how much: ``the table 53 GiB, the graph 7.68 GiB, …``."""
        parts = (
            ("the table", self.table),
            ("the graph", self.graph),
            ("the sampler", self.sampler),
            ("staging", self.staging),
        )
        return ", ".join(f"{name} {gib(size)}" for name, size in parts if size)


def graph_bytes(graph: Graph) -> float:
    """Of neighbour lists and labels as they are stored: ``indptr``, ``indices``, ``labels``."""
    index = index_dtype(graph.nodes).itemsize
    return float(_INDEX * (graph.nodes + 1) + index * graph.edges + _INDEX * graph.nodes)


#: While a GPU draws: bytes for each edge that a layer could have; minibatches that were begun.
_DRAWING, _BEGUN = 40, 2
#: Neighbour lists below it go without saying where they lie, B.
_SMALL_LISTS = 1 << 30


def lists_placed(question: Question, room: float | None) -> str | None:
    """Where the neighbour lists belong when a GPU draws, in words; ``None``: they are small.

    On the GPU they stand beside their ends and a word for each node (``DeviceSampler``).

    Args:
        room: bytes of GPU memory; ``None``: not known.
    """
    graph = question.graph
    lists = index_dtype(graph.nodes).itemsize * graph.edges
    if lists < _SMALL_LISTS or room is None:
        return None
    said = f"the indices of {graph.name or 'the graph'} take {gib(lists)}"
    if lists + 2 * _INDEX * graph.nodes <= TABLE_SHARE * room:
        return f"{said}: keep them on the GPU, or read them in place, over the rows' link"
    return (
        f"{said}, too much for {gib(room)} of GPU memory: read them in place, those of hot nodes"
        ' on the GPU (sampling = "gpu_cached")'
    )


def beside_table(load: MinibatchLoad, question: Question) -> HostNeed:
    """What a machine's memory holds besides the table, for all of its ranks; one copy of the graph.

    ``load``: of one rank.
    """
    ranks = question.gpus
    if question.gpu_samples:  # it was loaded from a file, and lies on the GPU
        return HostNeed(staging=float(staging_need(load) * ranks))
    return HostNeed(
        graph=graph_bytes(question.graph),
        sampler=float(_POSITION * question.graph.nodes * ranks),
        staging=float(staging_need(load) * ranks),
    )


def table_need(load: MinibatchLoad, question: Question, strategy: Strategy) -> float:
    """Of the host memory of a machine what the table takes, or the parts that its ranks hold there.

    What lies in GPU memory is read from the disk when the path opens and needs none, nor does what
    stays on the disk. Managed memory cannot be shared: each rank has a table of its own.
    """
    sharded = is_sharded(strategy)
    if load.disk_payload_bytes or not _in_host(load, sharded=sharded):
        return 0.0
    return load.table_bytes * (question.gpus if sharded or strategy.managed else 1)


def gpu_need(load: MinibatchLoad, question: Question, sizes: MinibatchSizes) -> float:
    """Bytes of GPU memory, about: what is kept there of the table, rows in flight, and training.

    With :func:`drawing_need` where the GPU draws.
    Rows that other ranks send, and as many that they get, have buffers of their own.
    Training holds the rows as float32 and, as PyG computes it, a message for each edge of the
    widest layer, forward and backward.
    """
    wide = question.graph.dim * _FLOAT
    training = sizes.rows * wide + 2 * sizes.num_edges[-1] * wide
    edges = sum(sizes.num_edges) * 2 * _INDEX
    rows = (load.lookahead + 1) * load.payload_bytes + 2 * load.sent_bytes
    need = training + edges + rows + load.gpu_table_bytes
    return need + drawing_need(question, sizes) if question.gpu_samples else need


def drawing_need(question: Question, sizes: MinibatchSizes) -> float:
    """Bytes of GPU memory, about, where it draws: see ``DeviceSampler``.

    The graph, a word for each node, what a layer takes while it is drawn, and two minibatches that
    were begun.
    """
    graph = question.graph
    layers = zip(sizes.num_nodes, question.fanouts, strict=False)
    most = [min(targets * fanout, graph.edges) for targets, fanout in layers]
    held = graph_bytes(graph) + _INDEX * graph.nodes
    return held + _DRAWING * max(most) + _BEGUN * 2 * _INDEX * sum(most)


def staging_need(load: MinibatchLoad) -> int:
    """Bytes of page-locked staging buffers; torch rounds them up to a power of two."""
    if not load.cpu_write_bytes or load.pageable_bytes:
        return 0
    return _STAGING_BUFFERS * (1 << (int(load.cpu_write_bytes) - 1).bit_length())


def pinned_need(load: MinibatchLoad) -> float:
    """Bytes of page-locked host memory: the table that is read in place, and staging buffers."""
    in_place = load.gpu_link_read_bytes or load.engine_row_bytes
    return (load.table_bytes if in_place else 0.0) + staging_need(load)


def placement(load: MinibatchLoad, question: Question, *, sharded: bool) -> str:
    """Where the table lies, in words."""
    if load.disk_payload_bytes:
        return "on the disk"
    in_host = _in_host(load, sharded=sharded)
    kept = load.gpu_table_bytes - (0.0 if in_host else load.table_bytes)
    hot = ", hot rows in GPU memory" if kept > question.graph.row_bytes else ""
    if sharded:
        where = "host" if in_host else "GPU"
        return f"sharded over {question.world} ranks in {where} memory{hot}"
    return f"replicated host table{hot}" if in_host else "replicated in GPU memory"


def is_sharded(strategy: Strategy) -> bool:
    """Whether each rank holds a part of the table of its own, by what the strategy has to know."""
    return "ranks" in strategy.needs


def _in_host(load: MinibatchLoad, *, sharded: bool) -> bool:
    """Of a table in memory: whether it, or a rank's part of it, is in that of the host."""
    return load.brought_bytes > 0 if sharded else not table_on_gpu(load)


def table_on_gpu(load: MinibatchLoad) -> bool:
    """Whether the whole table, or all of it that this rank holds, lies in GPU memory."""
    return load.gpu_table_bytes >= load.table_bytes


def gib(num_bytes: float) -> str:
    """Bytes as GiB or MiB."""
    if num_bytes < 999.5 * (1 << 20):
        return f"{num_bytes / (1 << 20):.3g} MiB"
    size = num_bytes / (1 << 30)
    return f"{size:,.0f} GiB" if size >= 1e3 else f"{size:.3g} GiB"
