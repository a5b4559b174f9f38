"""Read a run's folder as data frames, and derive ratios, intervals and verdicts.

``tables.py`` has the frames with derived columns; ``compare.py`` judges two runs; ``stopping.py``
says whether a series needs more repeats.
"""
