"""An empty folder of a run."""

from pathlib import Path

import pytest

from gatherbench.bench.run.store import RunStore


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path, "box", {"name": "mine", "cases": []}, {})
