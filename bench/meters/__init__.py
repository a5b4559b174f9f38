"""Sensors around an epoch: processor time, link traffic, power and energy, memory, disk.

A meter is a window, ``begin`` and ``end``, over its metrics. A missing sensor gives a reason, never
a 0.
"""
