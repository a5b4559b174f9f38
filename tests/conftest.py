"""What all tests share: imports that are quick, and a garbage collector that does not walk them."""

import gc
import os
import sys

from hypothesis import settings

# The examples are the same each time, and none has a deadline: a test that a busy machine, or an
# example drawn once in a thousand runs, fails says nothing about the change that met it. To look
# for others: pytest --hypothesis-profile=default.
settings.load_profile("ci")

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
