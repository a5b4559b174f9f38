"""What four other systems do, behind the doors of a plan, to be compared with data paths.

SSDTrain (activations off the GPU), PIGEON (kinds of edges), GraphSnapShot (sampling that remembers)
and MariusGNN (partitions). The rest of the harness does not know them.
"""
