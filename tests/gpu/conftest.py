"""The GPU tests need torch, NVRTC and cuda-bindings; a machine may have nothing else."""

import os
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
# For gpu_variants, and for captured_steps.
sys.path += [str(HERE), str(HERE.parent / "bench" / "run")]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder needs a GPU."""
    needs = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)
            item.add_marker(needs)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """In a rehearsal (see standin/), leave out what only a real GPU can show."""
    marker = item.get_closest_marker("real_gpu")
    if marker is not None and os.environ.get("STANDIN_KERNELS"):
        pytest.skip(f"under a stand-in for CUDA: {marker.args[0]}")
