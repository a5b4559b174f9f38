"""For PyTorch Geometric: a fast sampler with PyG's semantics, and loaders that fetch rows."""

from gatherbench.bench.sampling.pyg import PygNeighborSampler as NeighborSampler
from gatherbench.strategies.pyg_features import FeatureLoader

__all__ = ["FeatureLoader", "NeighborSampler"]
