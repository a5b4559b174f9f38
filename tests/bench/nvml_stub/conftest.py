"""Builds the stub of NVML and runs scenarios in processes that load it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
#: A GPU in good order, on a link so slow that 32 bits of counter last for more than a second: a
#: machine busy with other tests does not miss a wrap.
HEALTHY = {
    "devices": 1,
    "driver": "590.10",
    "gpu0.uuid": "GPU-first",
    "gpu0.name": "Stub 1",
    "gpu0.gen": 1,
    "gpu0.gen_max": 1,
    "gpu0.width": 16,
    "gpu0.width_max": 16,
    "gpu0.rx": 4_000_000_000,
    "gpu0.power_mw": 250_000,
    "gpu0.temperature": 57,
    "gpu0.clock_mhz": 1830,
    "gpu0.reasons": 0,
    "gpu0.gpm": 1,
    "gpu1.uuid": "GPU-second",
    "gpu1.name": "Stub 2",
    "gpu1.gen": 1,
    "gpu1.gen_max": 1,
    "gpu1.width": 16,
    "gpu1.width_max": 16,
    "gpu1.rx": 77,
}

Play = Callable[..., Any]
Begin = Callable[..., "Future[Any]"]


@pytest.fixture(scope="session")
def stub_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the stub as ``libnvidia-ml.so.1``."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here: the stub of NVML cannot be built")
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run(
        [compiler, "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC",
         "-o", str(folder / "libnvidia-ml.so.1"), str(HERE / "nvml_stub.c")],
        check=True,
    )  # fmt: skip
    return folder


def play_in(
    folder: Path,
    stub_folder: Path,
    scenario: str,
    words: dict[str, Any] | None = None,
    **environment: str,
) -> Any:
    """Play a scenario against a driver that says :data:`HEALTHY` but for the words given."""
    script = folder / "driver.txt"
    lines = HEALTHY | (words or {})
    script.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
    # Not the caller's devices: a scenario says itself which are visible.
    inherited = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run(
        [sys.executable, str(HERE / "scenarios.py"), scenario],
        env=inherited
        | {"LD_LIBRARY_PATH": str(stub_folder), "NVML_STUB_SCRIPT": str(script)}
        | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def play(stub_folder: Path, tmp_path: Path) -> Play:
    """:func:`play_in`, in the test's own folder."""
    return partial(play_in, tmp_path, stub_folder)


@pytest.fixture(scope="module")
def begin(stub_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begin]:
    """Begins a scenario, with two at a time, since they sleep nearly all the while."""
    with ThreadPoolExecutor(2) as pool:
        yield lambda *said: pool.submit(
            play_in, tmp_path_factory.mktemp("scenario"), stub_folder, *said
        )
