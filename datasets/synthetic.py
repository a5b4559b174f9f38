"""Generate graphs of any size by seed: RMAT in the shapes of ``shapes.toml``, and bare rows.

They replace real graphs that are too large to fetch or not free to ship. They keep the properties
that affect a gather: number and width of rows, mean degree, and hubs that many minibatches share.
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

#: ``uniform`` at scale 1: 8 GiB of rows of 400 B, as in ogbn-products; 400 B is no multiple of a
#: cache line, 128 B.
ROWS, WIDTH, CLASSES = (8 << 30) // 400, 100, 47
#: Bytes of a row of the other uniform tables, 4 GiB each.
ROW_BYTES = (4, 64, 512, 8192)
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
    skew: float = 3.0  # of the hashed graph of this shape (hashed.py)
    scalable: bool = True

    def estimate(self, scale: float) -> DatasetSpec:
        """Return the sizes at this scale; generated edges vary by 0.1 % at a million edges."""
        nodes, edges = round(self.nodes * scale), round(self.edges * scale)
        if nodes > np.iinfo(np.int32).max:
            raise DatasetError(f"{self.name} at scale {scale:g}: {nodes:,} nodes, at most 2^31 - 1")
        if nodes < 2 or edges < 1:
            raise DatasetError(f"{self.name} at scale {scale:g}: too small, choose a larger scale")
        Rmat(nodes, self.undirected).draws_for(edges)  # raises if it is too dense
        return DatasetSpec(
            name=self.name,
            scale=scale,
            num_nodes=nodes,
            num_edges=edges,
            feature_dim=self.feature_dim,
            feature_dtype="float32",
            num_classes=self.num_classes,
            source=f"RMAT generator, seed {_SEED}; {self.source}",
            licence="CC0-1.0 (generated)",
            notes=(
                "RMAT with the weights of Graph500: a = 0.57, b = c = 0.19, d = 0.05; restricted "
                "to the first N nodes of the next power of two; node numbers scrambled by seed",
                "undirected, stored both ways" if self.undirected else "directed",
                "self-loops removed, repeated edges merged",
                "features (float32) and labels are random: nothing can be learnt",
                "splits are drawn from nodes that have in-neighbours",
                *([self.unlike] if self.unlike else []),
            ),
        )

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        from gatherbench.datasets.rmat_draw import columns  # loads numba, which is slow

        spec = self.estimate(scale)
        law = Rmat(spec.num_nodes, self.undirected)
        draws = law.draws_for(spec.num_edges)
        with DatasetWriter(folder, spec) as writer:
            degree = writer.write_columns(columns(law, draws, _SEED, progress=progress))
            isolated = int(np.count_nonzero(degree == 0))
            writer.note(
                f"{draws:,} draws gave {int(degree.sum()):,} edges of the {spec.num_edges:,} aimed "
                f"at; {isolated:,} nodes have no in-neighbour, as is usual for RMAT"
            )
            train, val, test = (round(size * scale) for size in self.splits)
            writer.write_splits(*generated.random_splits(degree, (train, val, test), _SEED))
            _write_random(writer, progress)


@functools.cache
def named_shapes() -> tuple[SyntheticSource, ...]:
    """Return the RMAT sources of ``shapes.toml``, in its order."""
    text = Path(__file__).with_name("shapes.toml").read_text()
    return tuple(
        SyntheticSource(name=name, **{**fields, "splits": tuple(fields["splits"])})
        for name, fields in tomllib.loads(text).items()
    )


@dataclass(frozen=True, slots=True)
class UniformSource:
    """Random float32 features ``[scale × rows, width]``, no edges; every row is a training node.

    So a data path's time depends on the path alone: there is no sampler, and no hub.
    """

    name: str = "uniform"
    summary: str = "8 GiB of random rows without edges: the data path alone"
    scalable: bool = True
    rows: int = ROWS
    width: int = WIDTH

    def estimate(self, scale: float) -> DatasetSpec:
        rows = round(self.rows * scale)
        if not 1 <= rows <= np.iinfo(np.int32).max:
            raise DatasetError(f"{self.name} at scale {scale:g}: {rows:,} rows, not 1 to 2^31 - 1")
        return DatasetSpec(
            name=self.name,
            scale=scale,
            num_nodes=rows,
            num_edges=0,
            feature_dim=self.width,
            feature_dtype="float32",
            num_classes=CLASSES,
            source="generated, seed 0",
            licence="CC0-1.0 (generated)",
            notes=("features and labels are random: nothing can be learnt", "no edges"),
        )

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        spec = self.estimate(scale)
        rows, none = spec.num_nodes, np.empty(0, np.int64)
        with DatasetWriter(folder, spec) as writer:
            writer.write_columns([(np.zeros(rows, np.int64), none)])
            writer.write_splits(np.arange(rows), none, none)
            _write_random(writer, progress)


def uniform_sources() -> tuple[UniformSource, ...]:
    """Return ``uniform``, and ``uniform-4`` to ``uniform-8192`` by the bytes of a row."""
    summary = "4 GiB of random rows of {} B, no edges"
    return UniformSource(), *(
        UniformSource(f"uniform-{size}", summary.format(size), True, (4 << 30) // size, size // 4)
        for size in ROW_BYTES
    )


def _write_random(writer: DatasetWriter, progress: Progress) -> None:
    spec = writer.spec
    writer.write_labels(generated.random_labels(spec.num_nodes, spec.num_classes, _SEED))
    sizes = spec.num_nodes, spec.feature_dim, spec.feature_dtype
    writer.write_features(generated.feature_rows(*sizes, _SEED, progress))
