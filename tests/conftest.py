"""What all tests share: imports that are quick, and a garbage collector that does not walk them."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.shim.execute import Shim, build

# The examples are the same each time, and none has a deadline: a test that a busy machine, or an
# example drawn once in a thousand runs, fails says nothing about the change that met it. To look
# for others: pytest --hypothesis-profile=default.
settings.register_profile("few", settings.get_profile("ci"), max_examples=40)
settings.load_profile("few")

# Without bytecode on disk each of some hundred processes compiles all of our modules again, and
# pytest the tests, 20 s long.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection_finish() -> None:
    """Set aside what the imports have left, a million objects that no test's garbage refers to.

    A full collection would visit them each time, half a second long, and many tests ask for one.
    What the tests themselves make is collected as ever.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shim]:
    """Every kernel of the gather, compiled once."""
    with Shim(build(tmp_path_factory.mktemp("shim"))) as running:
        yield running


@pytest.fixture(scope="session")
def wordnet_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with WordNet, prepared once."""
    from gatherbench.datasets.registry import prepare_dataset

    return prepare_dataset("wordnet", root=tmp_path_factory.mktemp("wordnet")).parent
