"""Published figures: rows like any others, read from ``results/reference/`` and drawn separately.

They are published by papers, issue threads and vendors about other machines. Each row's
``source`` names its origin; ``results/reference/README.md`` describes each table.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

import gatherbench
from gatherbench.bench.run.part import StoreError
from gatherbench.bench.run.rows import Row, table_of
from gatherbench.bench.run.store import read_rows

#: ``results/reference/``, as it travels with the package.
REFERENCE = Path(gatherbench.__file__).with_name("reference")


def load_reference(folder: Path = REFERENCE) -> pd.DataFrame:
    """Read every published row of the tables in ``folder``.

    Columns: :data:`gatherbench.bench.run.rows.HEADER`, and ``table``: the name of the file without
    its ending. Without any file the frame is empty.

    Raises:
        StoreError: a file is not a table of rows, or a row lacks the mark that it is published.
    """
    paths = sorted(folder.glob("*.csv"))
    tables = [table_of(_published(row, path) for row in read_rows(path)) for path in paths]
    named = [table.assign(table=path.stem) for path, table in zip(paths, tables, strict=True)]
    return pd.concat(named, ignore_index=True) if named else table_of(()).assign(table="")


def _published(row: Row, path: Path) -> Row:
    if row.basis != "published" or not row.source:
        raise StoreError(
            f"{path}: {row.strategy} {row.metric}: a published row has a source and the basis"
            " 'published'"
        )
    return row
