"""gatherbench: benchmark and profile the ways of moving GNN node features to a GPU.

The four rooms of the house are ``gatherbench.datasets``, ``gatherbench.kernels``,
``gatherbench.strategies`` and ``gatherbench.bench``. Importing this package loads none of
them, so that ``gatherbench --help`` answers without torch or pandas.
"""

__version__ = "0.1.0"
