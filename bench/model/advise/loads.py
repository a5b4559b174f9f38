"""What each strategy asks of a machine for one question: bytes, requests, operations, memory.

All of it follows from what the strategies declare, so a new one is known as soon as it is
registered.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace

from gatherbench.bench.model.advise.question import Question
from gatherbench.bench.model.advise.sizes import MinibatchSizes
from gatherbench.bench.model.minibatch_load import MinibatchLoad
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.run.training_cost import training_cost, widths_of
from gatherbench.strategies.base import Strategy
from gatherbench.strategies.registry import STRATEGIES, variants

#: Heads of GAT's hidden layers; ``bench/run/models.py`` has the same, but loads PyG.
GAT_HEADS = 4
_FLOAT, _INDEX = 4, 8
#: Buffers of a staged path: the CPU fills one while the copy engine reads the other.
_STAGING_BUFFERS = 2


def distinct_paths(
    question: Question,
    sizes: MinibatchSizes,
    profile: LinkProfile,
    wanted: Container[tuple[str, str]] = (),
) -> Iterator[tuple[Strategy, MinibatchLoad]]:
    """Every registered variant that declares something of its own, with what it asks of a machine.

    Shares of the GPU do not count: they are found when the path is opened; nor do page visits on a
    machine of which nobody knows what they cost. Variants that are ``wanted`` (strategy, variant)
    are there in any case.
    """
    told = profile.read.page_visits.value is not None
    for kind in STRATEGIES:
        seen: list[MinibatchLoad] = []
        for strategy in variants(kind):
            load = load_of(strategy, question, sizes)
            alike = replace(load, gpu_share=0.0)
            alike = alike if told else replace(alike, gpu_page_visits=None)
            if alike not in seen or (strategy.name, strategy.variant) in wanted:
                seen.append(alike)
                yield strategy, load


def load_of(strategy: Strategy, question: Question, sizes: MinibatchSizes) -> MinibatchLoad:
    """The average minibatch of a strategy, from its data path over the sizes' ids."""
    graph = question.graph
    paths = list(strategy.data_paths(sizes.ids, graph.row_bytes, graph.nodes, sizes.seen))
    each = sizes.rows / sum(ids.numel() for ids in sizes.ids)

    def mean(name: str) -> float:
        return each * float(sum(getattr(path, name) for path in paths))

    requests: dict[int, float] | None = {}
    for path in paths:
        if path.gpu_requests is None or requests is None:
            requests = None
            continue
        for size, count in path.gpu_requests.items():
            requests[size] = requests.get(size, 0.0) + each * count
    visits = [path.gpu_page_visits for path in paths]
    layers = len(question.fanouts)
    widths = widths_of(question.model, graph.dim, question.hidden, layers, graph.classes, GAT_HEADS)
    cost = training_cost(question.model, widths, sizes.num_nodes, sizes.num_edges, GAT_HEADS)
    return MinibatchLoad(
        payload_bytes=mean("payload_bytes"),
        cpu_read_bytes=mean("cpu_read_bytes"),
        cpu_write_bytes=mean("cpu_write_bytes"),
        copy_engine_bytes=mean("copy_engine_bytes"),
        pageable_bytes=mean("pageable_bytes"),
        gpu_link_read_bytes=mean("gpu_link_read_bytes"),
        gpu_requests=requests,
        gpu_page_visits=None if None in visits else each * sum(v or 0 for v in visits),
        table_bytes=graph.table_bytes,
        gpu_table_bytes=strategy.gpu_table_bytes(graph.table_bytes),
        row_bytes=graph.row_bytes,
        lookahead=strategy.lookahead,
        gpu_share=strategy.gpu_share,
        sampled_edges=sum(sizes.num_edges),
        train_operations=cost.operations,
        train_bytes=cost.memory_bytes,
        train_launches=cost.launches,
        structure_bytes=cost.structure_bytes,
    )


def gpu_need(load: MinibatchLoad, question: Question, sizes: MinibatchSizes) -> float:
    """Bytes of GPU memory, about: what is kept there of the table, rows in flight, and training.

    Training holds the rows as float32 and, as PyG computes it, a message for each edge of the
    widest layer, forward and backward.
    """
    wide = question.graph.dim * _FLOAT
    training = sizes.rows * wide + 2 * sizes.num_edges[-1] * wide
    edges = sum(sizes.num_edges) * 2 * _INDEX
    rows = (load.lookahead + 1) * load.payload_bytes
    return training + edges + rows + load.gpu_table_bytes


def table_on_gpu(load: MinibatchLoad) -> bool:
    """Whether the whole table lies in GPU memory."""
    return load.gpu_table_bytes >= load.table_bytes


def keeps_some(load: MinibatchLoad) -> bool:
    """Whether a part of the table lies in GPU memory: then it matters which rows are asked for."""
    return 0 < load.gpu_table_bytes < load.table_bytes


def pinned_need(load: MinibatchLoad) -> float:
    """Bytes of page-locked host memory: the table that is read in place, and staging buffers.

    torch rounds page-locked allocations up to a power of two.
    """
    table = load.table_bytes if load.gpu_link_read_bytes else 0.0
    if not load.cpu_write_bytes or load.pageable_bytes:
        return table
    return table + _STAGING_BUFFERS * (1 << (int(load.cpu_write_bytes) - 1).bit_length())
