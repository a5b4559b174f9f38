"""The GPU tests need torch, NVRTC and cuda-bindings; a machine may have nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # for gpu_variants


def pytest_runtest_setup(item: pytest.Item) -> None:
    """In a rehearsal (see standin/), leave out what only a real GPU can show."""
    marker = item.get_closest_marker("real_gpu")
    if marker is not None and os.environ.get("STANDIN_KERNELS"):
        pytest.skip(f"under a stand-in for CUDA: {marker.args[0]}")
