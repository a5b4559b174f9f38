"""Where to put the table when several ranks train: a copy a machine, or its rows over the ranks.

    python -m gatherbench.bench.model.placement

A *replicated* host table lies in the memory of every machine, and each GPU reads it over its own
link: ranks send each other gradients alone. A *sharded* one lies once in the memory of all GPUs
together: of a minibatch's rows a rank holds one in W, and the others come from its peers and over
the network. Which is faster depends on the network above all, and it has a rate at which the two
are even. The command prints the tables of ``docs/several-machines.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from scipy.optimize import brentq

from gatherbench.bench.model.advise.question import GBIT, GIB, Question, graph_sizes, source_graph
from gatherbench.bench.model.advise.rank import Advice, average_load, drawn, gpu_need
from gatherbench.bench.model.epoch import epoch_seconds
from gatherbench.bench.model.estimate import Estimate
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.bench.model.physics import ID_BYTES
from gatherbench.bench.model.profile import SPECS, LinkProfile, load_profile
from gatherbench.bench.read.units import quantity, span
from gatherbench.strategies.aligned_zero_copy import AlignedZeroCopy
from gatherbench.strategies.places import TABLE_SHARE

#: How near an even rate is found.
_NEAR = 1e-3
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


@dataclass(frozen=True, slots=True)
class Even:
    """The rate at which a table sharded over GPU memory is as fast as a replicated host table."""

    key: str  # of the constant: ``network.rate`` of several machines, else ``peer.rate``
    #: B/s at each corner of the profile: above it the sharded table is faster; 0 where it always
    #: is, infinite where it never is.
    rates: tuple[Estimate, ...]
    ends: tuple[str, ...] = ("",)  # the corners in words, see :meth:`LinkProfile.corner_names`


def even_rate(
    load: MinibatchLoad, profile: LinkProfile, batches: int, *, gpus: int, nodes: int
) -> Even:
    """Where both are level, fetching ahead or not as ``load`` does, by bisection on their epochs.

    Args:
        load: of a replicated host table that GPUs read in place.
        batches: of an epoch, of all ranks together.

    Raises:
        ValueError: one rank has nothing to share.
    """
    if gpus * nodes < 2:
        raise ValueError("one rank has the whole table: there is nothing to shard")
    key = "network.rate" if nodes > 1 else "peer.rate"
    varied = profile.with_constant(key, SPECS[key].low, "varied here")
    run = (batches, gpus, nodes)
    rates = tuple(_even(load, corner, key, *run) for corner in varied.corners())
    return Even(key, rates, varied.corner_names())


def _even(
    load: MinibatchLoad, profile: LinkProfile, key: str, batches: int, gpus: int, nodes: int
) -> Estimate:
    other = sharded(load, gpus, nodes)

    def lost(rate: float) -> Estimate:
        """Seconds by which the sharded table is behind."""
        there = profile.with_constant(key, rate, "varied here")
        one, two = (epoch_seconds(each, there, batches, gpus, nodes) for each in (other, load))
        if one.value is None or two.value is None:
            return Estimate(None, (*one.unknown, *two.unknown))
        return Estimate(one.value - two.value)

    low, high = SPECS[key].low, SPECS[key].high
    ends = lost(low), lost(high)
    if ends[0].value is None or ends[1].value is None:
        return Estimate(None, tuple(dict.fromkeys((*ends[0].unknown, *ends[1].unknown))))
    if ends[0].value <= 0:
        return Estimate(0.0)
    if ends[1].value > 0:
        return Estimate(math.inf)

    def at(exponent: float) -> float:
        return lost(min(max(math.exp(exponent), low), high)).value or 0.0

    return Estimate(math.exp(brentq(at, math.log(low), math.log(high), xtol=_NEAR)))


def even_of(advice: Advice) -> Even:
    """The even rate of what was asked, for its largest minibatches; nothing is fetched ahead.

    Raises:
        ValueError: one rank was asked for.
    """
    question = advice.question
    sizes = max(advice.sizes, key=lambda one: one.rows)
    load = drawn(average_load(AlignedZeroCopy(), question, sizes), advice.profile)
    ranks = {"gpus": question.gpus, "nodes": question.machines}
    even = even_rate(load, advice.profile, question.batches, **ranks)
    room = advice.profile["gpu.memory"].value
    need = gpu_need(sharded(load, **ranks), question, sizes)
    if room is None or need <= TABLE_SHARE * room:
        return even
    why = f"a rank's part and its minibatches need {need / GIB:.3g} GiB of GPU memory, and"
    unknown = Estimate(None, (f"{why} {room / GIB:.3g} GiB are there",))
    return replace(even, rates=(unknown,) * len(even.rates))


def crosses(load: MinibatchLoad, gpus: int, nodes: int) -> tuple[float, float]:
    """Bytes that a machine gets over the network in a step: of rows if sharded, of gradients.

    Rows come with the ids that were sent for them by others; the ring of gradients enters a machine
    once.
    """
    world, ids = gpus * nodes, load.payload_bytes / load.row_bytes * ID_BYTES
    rows = gpus * (load.payload_bytes + ids) * (world - gpus) / world
    return rows, 2 * (world - 1) / world * (load.gradient_bytes or 0.0)


def tables() -> str:
    """What ``docs/several-machines.md`` holds as Markdown: what crosses, epochs, even rates."""
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
        f"| machines of 8 GPUs | replicated | {' | '.join(heads)} | sharded is faster above |",
        "|" + "---|" * (len(NETWORKS) + 3),
        *(f"| {' | '.join(cells)} |" for cells in several),
        "",
        f"On one machine: replicated {one[1]}, sharded {one[2]} an epoch; sharded is faster where a"
        f" GPU gets more than {one[-1]} from its peers.",
    ]
    return "\n".join(lines) + "\n"


def _cells(machines: int, profile: LinkProfile) -> list[str]:
    """How many machines, epochs of both placements by network, and the even rate."""
    question, load = _asked(machines, profile)
    ranks = {"gpus": question.gpus, "nodes": machines}

    def epoch(one: MinibatchLoad, rate: float) -> str:
        there = profile.with_constant("network.rate", rate * GBIT, "varied here")
        run = (question.batches, question.gpus, machines)
        found = [epoch_seconds(one, corner, *run).value for corner in there.corners()]
        values = [seconds for seconds in found if seconds is not None]
        return span(min(values), max(values), "s")

    by_network = (epoch(sharded(load, **ranks), rate) for rate in NETWORKS)
    even = even_words(even_rate(load, profile, question.batches, **ranks))
    return [str(machines), epoch(load, NETWORKS[-1]), *by_network, even]


def _asked(machines: int, profile: LinkProfile) -> tuple[Question, MinibatchLoad]:
    """The question behind the tables, and its replicated minibatch."""
    question = Question(replace(source_graph(GRAPH), dim=DIM), gpus=8, machines=machines)
    (sizes,) = graph_sizes(question)
    return question, drawn(average_load(AlignedZeroCopy(), question, sizes), profile)


def even_words(even: Even) -> str:
    """The rate from end to end, of a network in Gb/s too; why it is not known; or that none is."""
    unknown = dict.fromkeys(text for rate in even.rates for text in rate.unknown)
    if unknown:
        return f"not known: {'; '.join(unknown)}"
    rates = [rate.value or 0.0 for rate in even.rates]
    if max(rates) == 0:
        return "any rate"
    if min(rates) == math.inf:
        return "no rate"
    known = [rate for rate in rates if math.isfinite(rate)]
    low, high = min(known), max(known)
    said = span(low, high, "B/s")
    if even.key == "network.rate":
        said += f" ({span(low / GBIT, high / GBIT, 'Gb/s')})"
    return said if len(known) == len(rates) else f"{said}, or no rate"


if __name__ == "__main__":
    print(tables())
