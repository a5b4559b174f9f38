"""What goes with PyTorch Geometric: its sampler's semantics at our speed, and loaders with rows."""

from gatherbench.bench.sampling.pyg import PygNeighborSampler as NeighborSampler
from gatherbench.strategies.pyg_features import FeatureLoader

__all__ = ["FeatureLoader", "NeighborSampler"]
