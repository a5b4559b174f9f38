"""Published figures: rows like any others, read from ``results/reference/`` and drawn apart.

They are what papers, issue threads and vendors say of other people's machines. Each row's
``source`` names its origin; ``results/reference/README.md`` says what each table holds.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pandas as pd

from gatherbench.bench.run.rows import HEADER, Row
from gatherbench.bench.run.store import StoreError, read_rows


def load_reference(folder: Path) -> pd.DataFrame:
    """Every published row of the tables in ``folder``.

    Columns: :data:`gatherbench.bench.run.rows.HEADER`, and ``table``: the name of the file without
    its ending. Without any file the frame is empty.

    Raises:
        StoreError: a file is no table of rows, or a row does not say that it was published.
    """
    found = [
        {**asdict(_published(row, path)), "table": path.stem}
        for path in sorted(folder.glob("*.csv"))
        for row in read_rows(path)
    ]
    frame = pd.DataFrame(found, columns=[*HEADER, "table"])
    frame["value"] = frame["value"].astype(float)
    return frame


def _published(row: Row, path: Path) -> Row:
    if row.basis != "published" or not row.source:
        raise StoreError(
            f"{path}: {row.strategy} {row.metric}: a published row has a source and the basis"
            " 'published'"
        )
    return row
