"""What an epoch would take on another machine: a closed form over declared bytes and requests.

A profile holds a machine's constants with their sources. Nothing here measures.
"""
