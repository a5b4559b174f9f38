"""What this machine is: its processors and NUMA nodes, its GPUs and their link, its software.

A run keeps the description in ``env.json``; nothing here measures.
"""
