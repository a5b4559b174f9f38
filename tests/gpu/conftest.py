"""The GPU tests need torch, NVRTC and cuda-bindings; a machine may have nothing else."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parent))  # for gpu_variants

if torch.cuda.is_available():
    # The usual folder for compiled kernels is asked of a package that may be missing here.
    os.environ.setdefault(
        "GATHERBENCH_KERNEL_CACHE", str(Path(tempfile.gettempdir()) / "gatherbench-kernels")
    )
