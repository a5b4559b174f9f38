"""Where the data paths lead, and the reasons that several strategies share for leading nowhere."""

from __future__ import annotations

import torch

from gatherbench.kernels.compiler import CompilerError, compiler_version
from gatherbench.strategies.cuda_fetcher import cuda_skip


def no_path_to(device: torch.device) -> str | None:
    """Why no data path leads to a ``device`` that is no GPU, or ``None`` for the host."""
    if device.type == "cpu":
        return None
    return f"unsupported: there are data paths to cpu and cuda, none to {device.type}"


def kernel_skip(device: torch.device) -> str | None:
    """Why our gather kernel cannot run on the CUDA ``device`` here, or ``None``."""
    reason = cuda_skip(device)
    if reason is not None:
        return reason
    try:
        compiler_version()
    except CompilerError as error:
        return f"unsupported: {error}"
    return None


def zero_copy_skip(device: torch.device, on_gpu_only: str | None) -> str | None:
    """Why a zero-copy path cannot run.

    ``on_gpu_only`` names a parameter that means nothing in host memory: running it there would
    only repeat another variant under a false name.
    """
    if device.type == "cuda":
        return kernel_skip(device)
    if device.type == "cpu" and on_gpu_only is not None:
        return f"unsupported: {on_gpu_only} is a property of a GPU and means nothing on the host"
    return no_path_to(device)
