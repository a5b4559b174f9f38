"""The GPU tests need torch, NVRTC and cuda-bindings; a machine may have nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # for gpu_variants
