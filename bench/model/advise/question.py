"""What is asked of ``advise``: a graph, a workload and GPUs, from a dataset or from numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gatherbench.bench.model.advise.sizes import LAWS, MinibatchSizes, drawn_sizes, expected_sizes
from gatherbench.bench.model.profile import SPECS, LinkProfile, Range, load_profile
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.read.units import ITEM_BYTES
from gatherbench.datasets.dataset import DatasetError, DatasetSpec
from gatherbench.datasets.registry import get_source
from gatherbench.datasets.store import dataset_folder, open_dataset
from gatherbench.datasets.synthetic import SyntheticSource
from gatherbench.plugins import nearest

#: Of a graph that does not say: about as many as the graphs of this field have.
USUAL_CLASSES = 50


_NUMBER = r"(\d+(?:\.\d+)?)"
_DISK = re.compile(rf"(?:{_NUMBER}([kM]?)(?:,{_NUMBER}([MG])B/s)?)?")
_FACTORS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}
#: A disk as it is written.
DISK = "250k,3GB/s for 250 thousand reads of 4 KiB a second and 3 GB/s"
#: What bounds random reads of a large table, and the profile of the GPU that it was measured on.
_VISITS, _SEEN_ON = "read.page_visits", "nvidia-h200"
GIB = 1 << 30
#: Bytes a second.
GBIT = 1e9 / 8
#: What may be said of a machine: option, constant, field, in which unit, and how it is written.
_SAID = (
    ("--gpu-memory", "gpu.memory", "gpu_memory_bytes", GIB, "GiB", "24 for 24 GiB"),
    ("--host-memory", "host.memory", "host_memory_bytes", GIB, "GiB", "512 for 512 GiB"),
    ("--network", "network.rate", "network_rate", GBIT, "Gb/s", "400 for 400 Gb/s"),
    ("--disk", "disk.iops", "disk_iops", 1e3, "thousand reads a second", DISK),
    ("--disk", "disk.bandwidth", "disk_bandwidth", 1e9, "GB/s", DISK),
)


class AdviceError(ValueError):
    """Something was asked that has no answer; the message names it and the remedy."""


@dataclass(frozen=True, slots=True)
class Graph:
    """As much of a graph as its minibatches depend on."""

    name: str  # of the dataset; empty for numbers alone
    nodes: int
    edges: int  # as they are stored, both directions counted where both are
    dim: int  # of the feature table, as ``dtype``
    dtype: str
    classes: int  # of the labels
    train_nodes: int  # seeds of an epoch
    assumed: tuple[str, ...] = ()  # what was not said, in words
    laws: tuple[str, ...] = tuple(LAWS)  # that it may follow; none where it is there to be sampled
    scale: float = 1.0  # of the dataset's full size
    unlike: str = ""  # in what it differs from the graph that it stands for

    @property
    def row_bytes(self) -> int:
        return self.dim * ITEM_BYTES[self.dtype]

    @property
    def table_bytes(self) -> int:
        return self.nodes * self.row_bytes


@dataclass(frozen=True, slots=True)
class Question:
    """What to advise on. What is ``None`` is as the profile says."""

    graph: Graph  # whose features are moved
    fanouts: tuple[int, ...] = (25, 10)  # from the seed nodes outwards
    batch_size: int = 1000
    model: str = "sage"
    hidden: int = 16
    gpus: int = 1  # of a machine, that train, each with its share of the minibatches
    gpu_memory_bytes: float | None = None  # of each
    machines: int = 1  # alike; what follows is of each
    host_memory_bytes: float | None = None
    network_rate: float | None = None  # B/s in each direction
    disk_iops: float | None = None  # random reads a second, many at a time
    disk_bandwidth: float | None = None  # B/s of long reads
    gpu_samples: bool = False  # minibatches are drawn on the GPU, which then holds the graph

    def __post_init__(self) -> None:
        if not self.fanouts or any(f < 1 for f in self.fanouts):
            raise AdviceError("--fanouts: one number above 0 a layer, e.g. 25,10")
        if self.model not in ("sage", "gat"):
            raise AdviceError(f"--model {self.model!r}: sage or gat")
        for name in ("batch_size", "hidden", "gpus", "machines"):
            if (value := getattr(self, name)) < 1:
                raise AdviceError(f"--{name.replace('_', '-')} {value}: must be at least 1")
        for option, key, said, factor, unit, example in _SAID:
            spec, value = SPECS[key], getattr(self, said)
            if value is not None and not spec.low <= value <= spec.high:
                raise AdviceError(
                    f"{option}: {value / factor:g} {unit}; expected {spec.low / factor:.2g} to"
                    f" {spec.high / factor:.0f}; write {example}"
                )

    @property
    def world(self) -> int:
        """Ranks that train together, one a GPU."""
        return self.gpus * self.machines

    def told(self, profile: LinkProfile) -> LinkProfile:
        """The machine with what was said of it in the question.

        Of page visits that nobody knows it has a range, for a table of a span that slows them down.
        """
        for _, key, said, *_ in _SAID:
            if (value := getattr(self, said)) is not None:
                profile = profile.with_constant(key, float(value), "given with the question")
        visits = profile[_VISITS]
        if visits.values:
            return profile
        (seen,) = load_profile(_SEEN_ON)[_VISITS].values
        assert isinstance(seen, tuple)
        if self.graph.table_bytes <= seen[0][0]:
            return profile
        said = (
            f"not known for this GPU: from what an H200 was measured at, profile {_SEEN_ON}, to no"
            " limit; a published gather over PCIe 4.0 implies less, 25 M/s over 19 GB"
        )
        return profile.with_constant(_VISITS, Range(seen, SPECS[_VISITS].high), said)

    @property
    def batches(self) -> int:
        """Minibatches of an epoch, over all GPUs of all machines."""
        return -(-self.graph.train_nodes // self.batch_size)

    def workload(self) -> Workload:
        """The same as a plan names it."""
        return Workload(
            self.graph.name,
            scale=self.graph.scale,
            model=self.model,
            hidden=self.hidden,
            fanouts=self.fanouts,
            batch_size=self.batch_size,
            gpus=self.gpus,
            nodes=self.machines,
            scaling="weak" if self.world > 1 else "strong",
        )


def graph_of(
    nodes: int,
    edges: int,
    dim: int,
    dtype: str = "float32",
    *,
    classes: int = 0,
    train_nodes: int = 0,
    name: str = "",
    scale: float = 1.0,
    laws: tuple[str, ...] = tuple(LAWS),
) -> Graph:
    """A graph from numbers; 0 classes or training nodes: not said.

    Raises:
        AdviceError: a number that no graph has.
    """
    for option, value, least in (("--nodes", nodes, 2), ("--edges", edges, 1), ("--dim", dim, 1)):
        if value < least:
            raise AdviceError(f"{option} {value}: must be at least {least}")
    if dtype not in ITEM_BYTES:
        raise AdviceError(
            f"--dtype {dtype!r}: one of {', '.join(ITEM_BYTES)}{nearest(dtype, ITEM_BYTES)}"
        )
    if not 0 <= train_nodes <= nodes:
        raise AdviceError(f"--train-nodes {train_nodes}: at most the {nodes:,} nodes there are")
    if classes < 0:
        raise AdviceError(f"--classes {classes}: must be at least 1")
    assumed = []
    if not train_nodes:
        assumed.append(f"an epoch trains on all {nodes:,} nodes (say --train-nodes)")
    if not classes:
        assumed.append(f"{USUAL_CLASSES} classes (say --classes)")
    return Graph(
        name,
        nodes,
        edges,
        dim,
        dtype,
        classes or USUAL_CLASSES,
        train_nodes or nodes,
        tuple(assumed),
        laws,
        scale,
    )


def disk_of(text: str) -> tuple[float | None, float | None]:
    """``250k,3GB/s`` as reads a second and B/s; ``None`` for what is not said.

    Raises:
        AdviceError: it is no disk.
    """
    match = _DISK.fullmatch(text.replace(" ", ""))
    if not match:
        raise AdviceError(f"--disk {text!r}: write {DISK}")
    reads, many, rate, much = match.groups()
    iops = float(reads) * _FACTORS[many or ""] if reads else None
    return iops, float(rate) * _FACTORS[much] if rate else None


def laws_of(law: str) -> tuple[str, ...]:
    """The law that is asked for; every one where none is.

    Raises:
        AdviceError: no such law.
    """
    if law and law not in LAWS:
        raise AdviceError(f"--law {law!r}: one of {', '.join(LAWS)}{nearest(law, LAWS)}")
    return (law,) if law else tuple(LAWS)


def dataset_graph(name: str, train_nodes: int = 0, law: str = "", scale: float = 1.0) -> Graph:
    """A dataset as a graph: sampled if it is prepared, else known by its sizes.

    Raises:
        DatasetError: no such dataset, or one whose size is not known before it is prepared.
        AdviceError: no such law, a law for one that is there, or one that trains on nothing.
    """
    folder = dataset_folder(name, scale)
    if not folder.exists():
        return source_graph(name, train_nodes, law, scale)
    data = open_dataset(folder)
    if law:
        raise AdviceError(
            f"--law needs a graph that is not prepared; {name} is prepared, and is sampled"
        )
    if not len(data.train_ids):
        raise AdviceError(
            f"{name} has no node to train on, so it has no minibatches: import it again with"
            " labels that are not all -1"
        )
    return _of_spec(name, data.spec, train_nodes or len(data.train_ids), ())


def source_graph(name: str, train_nodes: int = 0, law: str = "", scale: float = 1.0) -> Graph:
    """A dataset by its sizes alone, whether or not it is prepared.

    What would be generated follows the generator's law, unless another is asked for.

    Raises:
        DatasetError: no such dataset, or one whose size is not known before it is prepared.
        AdviceError: no such law.
    """
    source = get_source(name)
    if scale != 1 and not source.scalable:
        raise AdviceError(f"--scale {scale:g}: {name} has one size, as it is not generated")
    spec = source.estimate(scale)
    if isinstance(source, SyntheticSource):
        train_nodes = train_nodes or round(source.splits[0] * scale)
        graph = _of_spec(name, spec, train_nodes, laws_of(law or "rmat"))
        return replace(graph, unlike=source.unlike)
    return _of_spec(name, spec, train_nodes, laws_of(law))


def _of_spec(name: str, spec: DatasetSpec, train_nodes: int, laws: tuple[str, ...]) -> Graph:
    return graph_of(
        spec.num_nodes,
        spec.num_edges,
        spec.table.width,
        spec.feature_dtype,
        classes=spec.num_classes,
        train_nodes=train_nodes,
        name=name,
        scale=spec.scale,
        laws=laws,
    )


def graph_sizes(question: Question) -> tuple[MinibatchSizes, ...]:
    """The minibatches of a graph: sampled if it is prepared, else one for each of its laws.

    Of several laws those are left out that have no graph of so many edges.

    Raises:
        AdviceError: no law has one.
    """
    graph = question.graph
    if not graph.laws:
        data = open_dataset(dataset_folder(graph.name, graph.scale))
        size = min(question.batch_size, graph.train_nodes)
        return (drawn_sizes(data, question.fanouts, size),)
    most = graph.nodes * (graph.nodes - 1)
    if graph.edges > most:
        raise AdviceError(
            f"--edges {graph.edges}: too dense, {graph.nodes:,} nodes have at most {most:,}"
        )
    shape = (graph.nodes, graph.edges, question.fanouts)
    seeds = graph.train_nodes / question.batches  # on average: the last minibatch may be smaller
    found = []
    for law in graph.laws:
        try:
            found.append(expected_sizes(law, *shape, seeds, graph.train_nodes))
        except DatasetError as error:
            if len(graph.laws) == 1:
                raise AdviceError(f"minibatches cannot be computed: {error}") from error
    return tuple(found)
