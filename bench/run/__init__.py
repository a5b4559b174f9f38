"""Measure a plan: the runner, a process for each group of cases, the one training loop.

``runner.py`` decides what comes next, ``engine.py`` starts the process of a group, ``measure.py``
has the case: it opens a data path, proves it right, trains and records. Measurements
are appended to files, from which the tables are made when the run ends.
"""
