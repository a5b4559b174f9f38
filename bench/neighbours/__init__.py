"""Parts of four other systems, which a plan names as classes, to be compared with data paths.

SSDTrain (activations off the GPU), PIGEON (kinds of edges), GraphSnapShot (sampling that remembers)
and MariusGNN (partitions). The rest of the harness does not know them.
"""
