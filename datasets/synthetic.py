"""Generate graphs of any size by seed, in the shapes of ``shapes.toml``: RMAT, or by hash.

They replace real graphs that are too large to fetch or not free to ship. They keep the properties
that affect a gather: number and width of rows, mean degree, and hubs that many minibatches share.
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets import generated
from gatherbench.datasets.dataset import DatasetError, DatasetSpec
from gatherbench.datasets.generated import ALPHA, MOST, PRIME
from gatherbench.datasets.rmat import Rmat
from gatherbench.datasets.source import Progress
from gatherbench.datasets.writer import DatasetWriter

_SEED = 0


@dataclass(frozen=True, slots=True)
class SyntheticSource:
    """An RMAT graph of one shape, with the fields of ``shapes.toml``.

    A scale multiplies nodes, edges and splits alike, and may be above 1.
    """

    name: str
    summary: str
    nodes: int
    edges: int
    undirected: bool
    feature_dim: int
    num_classes: int
    splits: tuple[int, int, int]
    source: str
    unlike: str = ""  # known differences from the real graph, with their source
    skew: float = 3.0  # of the hashed graph of this shape
    scalable: bool = True

    def estimate(self, scale: float) -> DatasetSpec:
        """Return the sizes at this scale; generated edges vary by 0.1 % at a million edges."""
        nodes, edges = round(self.nodes * scale), round(self.edges * scale)
        if nodes > np.iinfo(np.int32).max:
            raise DatasetError(f"{self.name} at scale {scale:g}: {nodes:,} nodes, at most 2^31 - 1")
        if nodes < 2 or edges < 1:
            raise DatasetError(f"{self.name} at scale {scale:g}: too small, choose a larger scale")
        Rmat(nodes, self.undirected).draws_for(edges)  # raises if it is too dense
        notes = (
            "RMAT with the weights of Graph500: a = 0.57, b = c = 0.19, d = 0.05; restricted "
            "to the first N nodes of the next power of two; node numbers scrambled by seed",
            "undirected, stored both ways" if self.undirected else "directed",
            "self-loops removed, repeated edges merged",
            "features (float32) and labels are random: nothing can be learnt",
            "splits are drawn from nodes that have in-neighbours",
            *([self.unlike] if self.unlike else []),
        )
        return self.spec(self.name, scale, f"RMAT generator, seed {_SEED}; {self.source}", notes)

    def spec(
        self, name: str, scale: float, source: str, notes: tuple[str, ...], hashed: bool = False
    ) -> DatasetSpec:
        """Return the description of a graph of this shape and ``source``."""
        return DatasetSpec(
            name=name,
            scale=scale,
            num_nodes=round(self.nodes * scale),
            num_edges=round(self.edges * scale),
            feature_dim=self.feature_dim,
            feature_dtype="float32",
            num_classes=self.num_classes,
            source=source,
            licence="CC0-1.0 (generated)",
            notes=notes,
            hashed=hashed,
        )

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        from gatherbench.datasets.draw import rmat_columns  # loads numba, which is slow

        spec = self.estimate(scale)
        law = Rmat(spec.num_nodes, self.undirected)
        draws = law.draws_for(spec.num_edges)
        with DatasetWriter(folder, spec) as writer:
            degree = writer.write_columns(rmat_columns(law, draws, _SEED, progress=progress))
            edges = f"{int(degree.sum()):,} edges of the {spec.num_edges:,} aimed at"
            lone = f"{np.count_nonzero(degree == 0):,} nodes have no in-neighbour"
            writer.note(f"{draws:,} draws gave {edges}; {lone}, as is usual for RMAT")
            self.write_drawn(writer, degree, scale)
            sizes = spec.num_nodes, spec.feature_dim, spec.feature_dtype
            writer.write_features(generated.feature_rows(*sizes, _SEED, progress))

    def write_drawn(
        self, writer: DatasetWriter, degree: NDArray[np.int64], scale: float, least: int = 0
    ) -> None:
        """Write random splits, each of ``least`` nodes or more, and random labels."""
        sizes = [max(least, round(size * scale)) for size in self.splits]
        writer.write_splits(*generated.random_splits(degree, sizes, _SEED))
        writer.write_labels(generated.random_labels(len(degree), self.num_classes, _SEED))


@dataclass(frozen=True, slots=True)
class HashedSource:
    """A graph with row width, mean in-degree and splits of a shape, and each number from a hash.

    A row follows from its number alone, so all cores make a table of 48 GiB in memory in about the
    time that reading it from a disk takes. In-degrees follow Pareto's law, and each in-neighbour is
    one draw by its place: a small rank is drawn more often than a large one (``skew``), so some
    nodes recur in many minibatches. If the number of rows in a minibatch of the real graph is
    published, this graph's minibatches have as many.
    """

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
        nodes = round(self.shape.nodes * scale)
        if not 100 <= nodes < PRIME:
            raise DatasetError(f"{self.name} at scale {scale:g}: {nodes:,} nodes, not 100 to 2^31")
        notes = (
            f"in-degrees are Pareto's with exponent {ALPHA:g}, at most {MOST:,}",
            f"of in-neighbours that of rank k is drawn as often as k to the power of"
            f" {1 / self.shape.skew - 1:.2g}; one may stand twice",
            "features (float32) follow from the row's number, labels are random: nothing can "
            "be learnt",
        )
        source = f"hash; row width, mean degree and splits: {self.shape.source}"
        return self.shape.spec(self.name, scale, source, notes, hashed=True)

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        from gatherbench.datasets.draw import hashed_columns  # loads numba, which is slow

        spec = self.estimate(scale)
        law = spec.num_nodes, self.least, self.shape.skew
        with DatasetWriter(folder, spec) as writer:
            degrees = writer.write_columns(hashed_columns(*law, progress))
            self.shape.write_drawn(writer, degrees, scale, least=1)
            writer.write_hashed()


@functools.cache
def named_shapes() -> tuple[SyntheticSource, ...]:
    """Return the RMAT sources of ``shapes.toml``, in its order."""
    text = Path(__file__).with_name("shapes.toml").read_text()
    return tuple(
        SyntheticSource(name=name, **{**fields, "splits": tuple(fields["splits"])})
        for name, fields in tomllib.loads(text).items()
    )
