"""Where to put the table when several ranks train: a copy a machine, or its rows over the ranks.

    python -m tools.placement

A *replicated* host table lies in the memory of every machine, and each GPU reads it over its own
link: ranks send each other gradients alone. A *sharded* one lies once in the memory of all GPUs
together: of a minibatch's rows a rank holds one in W, and the others come from its peers and over
the network. Which is faster depends on the network above all, and it has a rate at which the two
are even. The command prints the tables of ``docs/several-machines.md``.
"""

from __future__ import annotations

from dataclasses import replace

from gatherbench.bench.model.advise.option import average_load, drawn
from gatherbench.bench.model.advise.question import GBIT, Question, graph_sizes, source_graph
from gatherbench.bench.model.epoch import epoch_seconds
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.bench.model.physics import ID_BYTES
from gatherbench.bench.model.profile import LinkProfile, load_profile
from gatherbench.bench.read.units import quantity, span
from gatherbench.strategies.aligned_zero_copy import AlignedZeroCopy

#: The machines, networks (Gb/s a machine) and graph of the tables.
MACHINES, NETWORKS = (2, 4, 8), (100, 400, 1600, 3200)
PROFILE, GRAPH, DIM = "h200-sxm-pcie5", "papers100M-like", 1024


def sharded(load: MinibatchLoad, gpus: int, nodes: int) -> MinibatchLoad:
    """The minibatch of ``load`` from a table whose rows lie evenly in the GPU memory of all ranks.

    ``load`` asks for each row once, of a whole table. Of its rows each rank has 1 / W, the other
    ranks of its machine (gpus - 1) / W, and those of other machines the rest.
    """
    world, rows = gpus * nodes, load.payload_bytes
    return replace(
        load,
        cpu_read_bytes=0.0,
        cpu_write_bytes=0.0,
        copy_engine_bytes=0.0,
        pageable_bytes=0.0,
        gpu_link_read_bytes=0.0,
        gpu_requests={},
        gpu_page_visits=None,
        gather_s=None,
        peer_bytes=rows * (gpus - 1) / world,
        network_bytes=rows * (world - gpus) / world,
        table_bytes=load.table_bytes / world,
        gpu_table_bytes=load.table_bytes / world,
    )


def crosses(load: MinibatchLoad, gpus: int, nodes: int) -> tuple[float, float]:
    """Bytes that a machine gets over the network in a step: of rows if sharded, of gradients.

    Rows come with the ids that were sent for them by others; the ring of gradients enters a machine
    once.
    """
    world, ids = gpus * nodes, load.payload_bytes / load.row_bytes * ID_BYTES
    rows = gpus * (load.payload_bytes + ids) * (world - gpus) / world
    return rows, 2 * (world - 1) / world * (load.gradient_bytes or 0.0)


def tables() -> str:
    """What ``docs/several-machines.md`` holds as Markdown: what crosses, and epochs."""
    profile = load_profile(PROFILE)
    heads = (f"sharded, {rate} Gb/s" for rate in NETWORKS)
    one, *several = (_cells(machines, profile) for machines in (1, *MACHINES))
    question, load = _asked(2, profile)
    rows, gradients = crosses(load, question.gpus, question.machines)
    count = load.payload_bytes / load.row_bytes
    lines = [
        f"Of minibatches of {count:,.0f} rows of {load.row_bytes:,} B, each of two machines of 8"
        f" GPUs gets {quantity(rows, 'B')} a step where the table is sharded, and"
        f" {quantity(gradients, 'B')} where it is replicated.",
        "",
        f"| machines of 8 GPUs | replicated | {' | '.join(heads)} |",
        "|" + "---|" * (len(NETWORKS) + 2),
        *(f"| {' | '.join(cells)} |" for cells in several),
        "",
        f"On one machine: replicated {one[1]}, sharded {one[2]} an epoch.",
    ]
    return "\n".join(lines) + "\n"


def _cells(machines: int, profile: LinkProfile) -> list[str]:
    """How many machines, and epochs of both placements by network."""
    question, load = _asked(machines, profile)
    ranks = {"gpus": question.gpus, "nodes": machines}

    def epoch(one: MinibatchLoad, rate: float) -> str:
        there = profile.with_constant("network.rate", rate * GBIT, "varied here")
        run = (question.batches, question.gpus, machines)
        found = [epoch_seconds(one, corner, *run).value for corner in there.corners()]
        values = [seconds for seconds in found if seconds is not None]
        return span(min(values), max(values), "s")

    by_network = (epoch(sharded(load, **ranks), rate) for rate in NETWORKS)
    return [str(machines), epoch(load, NETWORKS[-1]), *by_network]


def _asked(machines: int, profile: LinkProfile) -> tuple[Question, MinibatchLoad]:
    """The question behind the tables, and its replicated minibatch."""
    question = Question(replace(source_graph(GRAPH), dim=DIM), gpus=8, machines=machines)
    (sizes,) = graph_sizes(question)
    load = average_load(AlignedZeroCopy(), question, sizes)
    return question, drawn(load, profile, len(question.fanouts))


if __name__ == "__main__":
    print(tables())
