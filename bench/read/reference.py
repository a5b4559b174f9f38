"""Published figures: rows of papers, issue threads and vendors about other machines.

Each row's ``source`` names its origin; ``results/reference/README.md`` describes each table.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

import gatherbench
from gatherbench.bench.run.part import StoreError
from gatherbench.bench.run.rows import table_of
from gatherbench.bench.run.store import read_observations

#: ``results/reference/``, as it travels with the package.
REFERENCE = Path(gatherbench.__file__).with_name("reference")


def load_reference(folder: Path = REFERENCE) -> pd.DataFrame:
    """Read every published row of the tables in ``folder``.

    Columns: :data:`gatherbench.bench.run.rows.HEADER`, and ``table``: the file's name without its
    ending. Without any file the frame is empty.

    Raises:
        StoreError: a file is not a table of rows, or a row lacks the mark that it is published.
    """
    tables = [table_of(()).assign(table="")]
    for path in sorted(folder.glob("*.csv")):
        table = read_observations(path)
        marked = (table["basis"] == "published") & (table["source"] != "")
        for strategy, metric in table.loc[~marked, ["strategy", "metric"]].to_numpy():
            why = "a published row has a source and the basis 'published'"
            raise StoreError(f"{path}: {strategy} {metric}: {why}")
        tables.append(table.assign(table=path.stem))
    return pd.concat(tables[1:] or tables, ignore_index=True)
