"""A GPU sampler on the host."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from .host_kernels import HostKernels, built, on_host


@pytest.fixture(scope="session")
def sample_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels of ``sample.cu`` for the host."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    return built(tmp_path_factory.mktemp("sample"))


@pytest.fixture(scope="module")
def kernels_on_host(sample_program: Path) -> Iterator[HostKernels]:
    """``DeviceSampler`` runs on the host, in place of a GPU."""
    with on_host(sample_program) as kernels:
        yield kernels
