"""Which minibatches an epoch has: seeded draws on the CPU or the GPU, equal bit for bit.

The first minibatches of a workload are kept on disk, its trace. PyG's loaders use the CPU's sampler
by ``pyg.py``.
"""
