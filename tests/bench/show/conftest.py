"""Runs that several tests read and none changes."""

from collections.abc import Callable
from typing import Any

import pytest

from gatherbench.bench.read.tables import Run, load_run

from ..written_run import write_run

RunOf = Callable[..., Run]


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> RunOf:
    """A run of these arguments of ``write_run``, written and read once; for reading alone."""
    made: dict[str, tuple[Run, Any]] = {}

    def run(**arguments: Any) -> Run:
        key = repr(arguments)
        if key not in made:
            folder = tmp_path_factory.mktemp("run") / "results" / "machine" / "20261121-quick-abc1"
            # With its arguments: the address of a function that is gone may be another's next.
            made[key] = load_run(write_run(folder, **arguments)), arguments
        return made[key][0]

    return run
