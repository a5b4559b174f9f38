"""Tables that need no disk, and graphs that are made in a minute: every number from a hash.

A row follows from its number alone, so a table of 48 GiB is made in memory by all cores in about
the time that reading it back would take, and any row of it again at any time. Degrees and
in-neighbours follow from the numbers of their node and entry. RMAT draws every edge anew for each
block of columns, which is minutes for a graph of this size; here an edge is one draw.

The law is simple, and said: in-degrees are Pareto's, and of in-neighbours a small rank is drawn
more often than a large one (``skew`` of ``shapes.toml``), so that some nodes are asked for again
and again. Where it is published how many rows a minibatch of the graph asks for, this one asks for
as many.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gatherbench.datasets import generated
from gatherbench.datasets.dataset import DatasetError, DatasetSpec
from gatherbench.datasets.generated import ALPHA, MOST, PRIME
from gatherbench.datasets.source import Progress
from gatherbench.datasets.synthetic import SyntheticSource, named_shapes
from gatherbench.datasets.writer import DatasetWriter


@dataclass(frozen=True, slots=True)
class HashedSource:
    """Row width, mean in-degree and splits are those of a shape of ``shapes.toml``."""

    shape: SyntheticSource
    scalable: bool = True

    @property
    def name(self) -> str:
        return f"hashed-{self.shape.name.removesuffix('-like')}"

    @property
    def summary(self) -> str:
        gib = self.estimate(1.0).table_bytes / 2**30
        return f"{self.shape.name}'s shape by hash: {gib:.2g} GiB of rows that need no disk"

    @property
    def least(self) -> float:
        """In-degree, for which Pareto's law has the shape's mean."""
        return (1 - 1 / ALPHA) * self.shape.edges / self.shape.nodes

    def estimate(self, scale: float) -> DatasetSpec:
        shape, nodes = self.shape, round(self.shape.nodes * scale)
        if not 100 <= nodes < PRIME:
            raise DatasetError(f"{self.name} at scale {scale:g}: {nodes:,} nodes, not 100 to 2^31")
        return DatasetSpec(
            name=self.name,
            scale=scale,
            num_nodes=nodes,
            num_edges=round(shape.edges * scale),
            feature_dim=shape.feature_dim,
            feature_dtype="float32",
            num_classes=shape.num_classes,
            source=f"hash; row width, mean degree and splits: {shape.source}",
            licence="CC0-1.0 (generated)",
            notes=(
                f"in-degrees are Pareto's with exponent {ALPHA:g}, at most {MOST:,}",
                f"of in-neighbours that of rank k is drawn as often as k to the power of"
                f" {1 / shape.skew - 1:.2g}; one may stand twice",
                "features (float32) follow from the row's number, labels are random: nothing can "
                "be learnt",
            ),
            hashed=True,
        )

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        from gatherbench.datasets.hash_draw import columns  # numba, which takes its time to load

        spec = self.estimate(scale)
        law = spec.num_nodes, self.least, self.shape.skew
        with DatasetWriter(folder, spec, progress) as writer:
            degrees = writer.write_columns(columns(*law, progress))
            train, val, test = (max(1, round(size * scale)) for size in self.shape.splits)
            writer.write_splits(*generated.random_splits(degrees, (train, val, test), 0))
            writer.write_labels(generated.random_labels(spec.num_nodes, spec.num_classes, 0))
            writer.write_hashed()


def hashed_shapes() -> tuple[HashedSource, ...]:
    """The shapes of ``shapes.toml``, in its order."""
    return tuple(map(HashedSource, named_shapes()))
