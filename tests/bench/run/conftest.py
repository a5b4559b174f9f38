"""An empty folder of a run; two machines."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gatherbench.bench.run.store import RunStore

from .networks import Place, two_places


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path, "box", {"name": "mine", "cases": []}, {})


@pytest.fixture
def places() -> Iterator[tuple[Place, Place]]:
    with two_places() as found:
        yield found
