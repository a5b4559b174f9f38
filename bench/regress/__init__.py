"""Tell whether a commit made the host's part slower: benchmarks of two trees in turns.

The ``bench_*.py`` are pytest-benchmark files, too.
"""
