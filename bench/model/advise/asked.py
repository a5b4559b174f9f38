"""What ``gatherbench advise`` is asked on the command line: a field an option.

Nothing here loads torch: the command line reads it for its help.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from typer import Argument, Option

from gatherbench.bench.read.units import gibibytes, whole

_COUNT: Any = {"parser": whole, "metavar": "<int>"}
_GIBIBYTES: Any = {"parser": gibibytes, "metavar": "<GiB>"}


@dataclass(frozen=True, slots=True)
class Asked:
    """A graph, a training and a machine, in the units of the options; 0 and "": not said."""

    dataset: Annotated[
        str, Argument(help="A dataset, prepared or not (or give --nodes, --edges and --dim).")
    ] = ""
    scale: Annotated[float, Option(help="Share of a generated graph's full size.")] = 1.0
    nodes: Annotated[
        int, Option(help="Number of nodes, where no dataset is named, e.g. 2.4M.", **_COUNT)
    ] = 0
    edges: Annotated[
        int, Option(help="Number of edges; count both directions where both are stored.", **_COUNT)
    ] = 0
    dim: Annotated[int, Option(help="Elements of a feature row.")] = 0
    dtype: Annotated[str, Option(help="Type of a feature.")] = "float32"
    classes: Annotated[int, Option(help="Number of classes (0: a usual number).")] = 0
    train_nodes: Annotated[
        int, Option(help="Training nodes, each a seed once an epoch (0: every node).", **_COUNT)
    ] = 0
    law: Annotated[
        str,
        Option(
            help="Degree distribution to assume when the graph is not prepared: rmat, uniform or"
            " powerlaw (default: all)."
        ),
    ] = ""
    fanouts: Annotated[
        str, Option(help="Neighbours drawn of a node, from the seed nodes outwards.")
    ] = "25,10"
    batch_size: Annotated[int, Option(help="Seed nodes of a minibatch.")] = 1000
    model: Annotated[str, Option(help="sage or gat.")] = "sage"
    hidden: Annotated[int, Option(help="Width of the hidden layers.")] = 16
    gpus: Annotated[int, Option(help="Number of GPUs in each machine.")] = 1
    machines: Annotated[int, Option(help="Number of machines, all alike.")] = 1
    gpu_memory: Annotated[
        float, Option(help="Memory of each GPU in GiB (0: as the profile says).", **_GIBIBYTES)
    ] = 0
    host_memory: Annotated[
        float, Option(help="Memory of each machine in GiB (0: as the profile says).", **_GIBIBYTES)
    ] = 0
    network: Annotated[
        float,
        Option(
            help="Network of each machine in Gb/s, one direction (0: as the profile says).",
            metavar="<Gb/s>",
        ),
    ] = 0
    disk: Annotated[
        str,
        Option(
            help="Disk of each machine: random reads of 4 KiB a second, many at a time, and bytes a"
            " second of long ones, e.g. 250k,3GB/s (default: as the profile says).",
            metavar="<IOPS,BANDWIDTH>",
        ),
    ] = ""
    profile: Annotated[
        str,
        Option(
            help="The machine: a profile's name or a .toml file (default: this machine's"
            " calibration, or rtx3090-pcie4)."
        ),
    ] = ""
    sampler: Annotated[
        str,
        Option(
            help="gpu: the GPU draws minibatches. Otherwise edges that a CPU's sampler draws a"
            " second, e.g. 20M, or pytorch-direct for its rate (default: the profile's own on the"
            " CPU; set it to compare two profiles)."
        ),
    ] = ""
