"""What all tests share: a garbage collector that does not walk through the imported libraries."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """Set aside what the imports have left, a million objects that no test's garbage refers to.

    A full collection would visit them each time, half a second long, and many tests ask for one.
    What the tests themselves make is collected as ever.
    """
    gc.collect()
    gc.freeze()
