"""Which minibatches an epoch has: seeded draws on the CPU or the GPU, equal bit for bit.

The first epoch of a workload is kept on disk as its trace. PyG's loaders use the CPU's sampler by
``pyg.py``.
"""
