"""How a plan is measured: the runner, a process for each block of cases, the one training loop.

``runner.py`` decides what comes next, ``engine.py`` starts the process of a block, ``measure.py``
has the case: it opens a data path, proves it right, trains and records. Rows are appended to files
and become tables when the run ends.
"""
