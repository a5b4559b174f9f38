"""A table that needs no disk, and a graph that is made in a minute: every number from a hash.

A row follows from its number alone, so a table of 48 GiB is made in memory by all cores in about
the time that reading it back would take, and any row of it again at any time. Degrees and
in-neighbours follow from the numbers of their node and entry. RMAT draws every edge anew for each
block of columns, which is minutes for a graph of this size; here an edge is one draw.

The law is simple, and said: in-degrees are Pareto's, and of in-neighbours the one of rank ``k`` is
drawn as often as ``k`` to the power of -2/3, so that some nodes are asked for again and again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gatherbench.datasets import generated
from gatherbench.datasets.dataset import DatasetError, DatasetSpec
from gatherbench.datasets.source import Progress
from gatherbench.datasets.writer import DatasetWriter

#: Of in-degrees: the least, Pareto's exponent (the mean is 3 times the least), and the most.
LEAST, ALPHA, MOST = 5.33, 1.5, 10_000
#: Larger than any number of nodes.
PRIME = 2_147_483_647


@dataclass(frozen=True, slots=True)
class HashedSource:
    """Row width, mean in-degree and shares of the splits are those of ogbn-papers100M."""

    name: str = "hashed-papers"
    summary: str = "papers100M's shape by hash: 48 GiB of rows that need no disk, made in a minute"
    scalable: bool = True
    #: 48 GiB of rows of 512 B.
    nodes: ClassVar[int] = (48 << 30) // 512
    #: Of ogbn-papers100M: in-neighbours of a node, and the shares of its splits.
    degree: ClassVar[float] = 1_615_685_872 / 111_059_956
    splits: ClassVar[tuple[float, ...]] = tuple(
        size / 111_059_956 for size in (1_207_179, 125_265, 214_338)
    )

    def estimate(self, scale: float) -> DatasetSpec:
        nodes = round(self.nodes * scale)
        if not 100 <= nodes < PRIME:
            raise DatasetError(f"{self.name} at scale {scale:g}: {nodes:,} nodes, not 100 to 2^31")
        return DatasetSpec(
            name=self.name,
            scale=scale,
            num_nodes=nodes,
            num_edges=round(nodes * self.degree),
            feature_dim=128,
            feature_dtype="float32",
            num_classes=172,
            source="hash; row width, mean degree and splits of ogbn-papers100M (Hu et al., 2020)",
            licence="CC0-1.0 (generated)",
            notes=(
                f"in-degrees are Pareto's with exponent {ALPHA:g}, from {int(LEAST)} to {MOST:,}",
                "of in-neighbours that of rank k is drawn as often as k to the power of -2/3; one "
                "may stand twice",
                "features (float32) follow from the row's number, labels are random: nothing can "
                "be learnt",
            ),
            hashed=True,
        )

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        from gatherbench.datasets.hash_draw import columns  # numba, which takes its time to load

        spec = self.estimate(scale)
        with DatasetWriter(folder, spec, progress) as writer:
            degrees = writer.write_columns(columns(spec.num_nodes, progress))
            train, val, test = (max(1, round(spec.num_nodes * share)) for share in self.splits)
            writer.write_splits(*generated.random_splits(degrees, (train, val, test), 0))
            writer.write_labels(generated.random_labels(spec.num_nodes, spec.num_classes, 0))
            writer.write_hashed()
