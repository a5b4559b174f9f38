"""Published figures: rows of papers, issue threads and vendors about other machines.

Each row's ``source`` names its origin; ``results/reference/README.md`` describes each table.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

import gatherbench
from gatherbench.bench.run.rows import table_of
from gatherbench.bench.run.store import read_observations

#: ``results/reference/``, as it travels with the package.
REFERENCE = Path(gatherbench.__file__).with_name("reference")


def load_reference(folder: Path = REFERENCE) -> pd.DataFrame:
    """Read every published row of the tables in ``folder``.

    Columns: :data:`gatherbench.bench.run.rows.HEADER`, and ``table``: the file's name without its
    ending. Without any file the frame is empty.

    Raises:
        StoreError: a file is not a table of rows.
    """
    paths = sorted(folder.glob("*.csv"))
    tables = [read_observations(path).assign(table=path.stem) for path in paths]
    return pd.concat(tables or [table_of(()).assign(table="")], ignore_index=True)
