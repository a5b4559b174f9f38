"""Builds the stub of CUPTI and runs scenarios in processes that have it loaded."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
Scenario = Callable[..., Any]


@pytest.fixture(scope="session")
def c_compiler() -> str:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    return compiler


@pytest.fixture(scope="session")
def cupti_folder(c_compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stub, under a version that no torch is built with, and an empty driver."""
    folder = tmp_path_factory.mktemp("cupti")
    (folder / "nothing.c").write_text("int nothing;\n")
    for source, soname in (
        (HERE / "cupti_stub.c", "libcupti.so.77"),
        (folder / "nothing.c", "libcuda.so.1"),
    ):
        subprocess.run(
            [c_compiler, "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-pthread",
             f"-Wl,-soname,{soname}", "-o", str(folder / soname), str(source)],
            check=True,
        )  # fmt: skip
    return folder


@pytest.fixture(scope="session")
def scenario(cupti_folder: Path) -> Scenario:
    """Runs a scenario, once for all who ask for it; what it printed."""

    @functools.cache
    def run(name: str, **environment: str) -> Any:
        done = subprocess.run(
            [sys.executable, str(HERE / "cupti_scenarios.py"), str(cupti_folder), name],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert not done.stderr, done.stderr  # an error in a callback is printed, and lost
        return json.loads(done.stdout)

    return run
