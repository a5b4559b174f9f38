"""Managed memory that a GPU reads no faster than by small pages, as measured when a path opened."""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES

#: Of the reads a second over 64 MiB of a table, what is left over all of it where pages are large.
#: An H200 makes 0.77 of its reads of 1 GiB over 32 GiB of managed memory, 0.31 of registered
#: (``results/nvidia-h200/20261123-probes``, rows of 64 B).
ENOUGH = 0.5


def slow_pages(run: Run) -> pd.DataFrame:
    """Reads a second (``whole``, ``near``) of series with managed memory that fall below that."""
    setup = run.select(stage="setup", basis="measured")
    rates = setup.pivot_table("value", SERIES, "metric", "median").reindex(
        columns=["managed", "page_visit_rate", "page_visit_rate_near"]
    )
    slow = rates["page_visit_rate"] < ENOUGH * rates["page_visit_rate_near"]
    found = rates[rates["managed"].notna() & slow].reset_index()
    return found.rename(columns={"page_visit_rate": "whole", "page_visit_rate_near": "near"})
