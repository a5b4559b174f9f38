"""A C compiler, for the stub of CUPTI and for NVIDIA's headers."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture(scope="session")
def c_compiler() -> str:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    return compiler
