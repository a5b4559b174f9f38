"""Which minibatches an epoch has: seeded draws on the CPU or the GPU, equal bit for bit.

PyG's loaders use the CPU's sampler by ``pyg.py``.
"""
