"""Make tables without a disk, and graphs within a minute: every number comes from a hash.

A row follows from its number alone, so all cores make a table of 48 GiB in memory in about the time
that reading it from a disk takes. In-degrees follow Pareto's law, and each in-neighbour is one draw
by its place: a small rank is drawn more often than a large one (``skew`` of ``shapes.toml``), so
some nodes recur in many minibatches. If the number of rows in a minibatch of the real graph is
published, this graph's minibatches have as many.
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
    """A hashed graph with row width, mean in-degree and splits of a shape of ``shapes.toml``."""

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
        """The smallest in-degree, chosen so that Pareto's law has the shape's mean."""
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
        from gatherbench.datasets.hash_draw import columns  # loads numba, which is slow

        spec = self.estimate(scale)
        law = spec.num_nodes, self.least, self.shape.skew
        with DatasetWriter(folder, spec) as writer:
            degrees = writer.write_columns(columns(*law, progress))
            train, val, test = (max(1, round(size * scale)) for size in self.shape.splits)
            writer.write_splits(*generated.random_splits(degrees, (train, val, test), 0))
            writer.write_labels(generated.random_labels(spec.num_nodes, spec.num_classes, 0))
            writer.write_hashed()


def hashed_shapes() -> tuple[HashedSource, ...]:
    """Return the hashed sources of ``shapes.toml``, in its order."""
    return tuple(map(HashedSource, named_shapes()))
