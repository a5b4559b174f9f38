"""Graphs of any size by seed: RMAT in the named shapes of ``shapes.toml``.

They stand in where the real graph is too large to fetch or not free to ship. What a gather feels
is kept: the number of rows and their width, the mean degree, and hubs that many minibatches share.
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gatherbench.datasets import generated
from gatherbench.datasets.dataset import DatasetError, DatasetSpec
from gatherbench.datasets.rmat import Rmat
from gatherbench.datasets.source import Progress
from gatherbench.datasets.writer import DatasetWriter


@dataclass(frozen=True, slots=True)
class SyntheticSource:
    """An RMAT graph of one shape; the fields are those of ``shapes.toml``.

    A scale multiplies nodes, edges and splits alike, so mean degree, row width and the share of
    training nodes stay. Scales above 1 make larger graphs.
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
    feature_dtype: str = "float32"
    seed: int = 0
    threads: int | None = None
    scalable: bool = True

    def estimate(self, scale: float) -> DatasetSpec:
        """The sizes at this scale. The edges made scatter about theirs: 0.1 % at a million edges.

        Raises:
            DatasetError: the scale leaves too few nodes for the mean degree, or more nodes than
                an int32 can number.
        """
        nodes, edges = round(self.nodes * scale), round(self.edges * scale)
        if nodes > np.iinfo(np.int32).max:
            raise DatasetError(f"{self.name} at scale {scale:g}: {nodes:,} nodes, at most 2^31 - 1")
        if nodes < 2 or edges < 1:
            raise DatasetError(f"{self.name} at scale {scale:g}: too small, choose a larger scale")
        self._law(nodes).draws_for(edges)  # refuses what is too dense
        return DatasetSpec(
            name=self.name,
            scale=scale,
            num_nodes=nodes,
            num_edges=edges,
            feature_dim=self.feature_dim,
            feature_dtype=self.feature_dtype,
            num_classes=self.num_classes,
            source=f"RMAT generator, seed {self.seed}; {self.source}",
            licence="CC0-1.0 (generated)",
            notes=(
                "RMAT with the weights of Graph500: a = 0.57, b = c = 0.19, d = 0.05; restricted "
                "to the first N nodes of the next power of two; node numbers scrambled by seed",
                "undirected, stored both ways" if self.undirected else "directed",
                "self-loops removed, repeated edges merged",
                f"features ({self.feature_dtype}) and labels are random: nothing can be learnt",
                "splits are drawn from nodes that have in-neighbours",
            ),
        )

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        """Generate the graph, then its features chunk by chunk; see ``GraphSource.prepare``."""
        from gatherbench.datasets.rmat_draw import columns  # numba, which takes its time to load

        spec = self.estimate(scale)
        law = self._law(spec.num_nodes)
        draws = law.draws_for(spec.num_edges)
        with DatasetWriter(folder, spec, progress) as writer:
            degree = writer.write_columns(columns(law, draws, self.seed, self.threads, progress))
            isolated = int(np.count_nonzero(degree == 0))
            writer.note(
                f"{draws:,} draws gave {int(degree.sum()):,} edges of the {spec.num_edges:,} aimed "
                f"at; {isolated:,} nodes have no in-neighbour, as is usual for RMAT"
            )
            writer.write_labels(generated.random_labels(len(degree), self.num_classes, self.seed))
            train, val, test = (round(size * scale) for size in self.splits)
            writer.write_splits(*generated.random_splits(degree, (train, val, test), self.seed))
            writer.write_features(
                generated.feature_rows(
                    spec.num_nodes,
                    self.feature_dim,
                    self.feature_dtype,
                    self.seed,
                    self.threads,
                    progress,
                )
            )

    def _law(self, nodes: int) -> Rmat:
        return Rmat(nodes, self.undirected)


@functools.cache
def named_shapes() -> tuple[SyntheticSource, ...]:
    """The sources of ``shapes.toml``, in its order."""
    text = Path(__file__).with_name("shapes.toml").read_text()
    return tuple(
        SyntheticSource(name=name, **{**fields, "splits": tuple(fields["splits"])})
        for name, fields in tomllib.loads(text).items()
    )
