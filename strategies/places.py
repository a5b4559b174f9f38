"""Where the data paths lead, and the reasons that several strategies share for leading nowhere."""

from __future__ import annotations

import torch


def no_path_to(device: torch.device) -> str | None:
    """Why no data path leads to a ``device`` that is no GPU, or ``None`` for the host."""
    if device.type == "cpu":
        return None
    return f"unsupported: there are data paths to cpu and cuda, none to {device.type}"


def zero_copy_skip(device: torch.device, on_gpu_only: str | None) -> str | None:
    """Why a zero-copy path cannot run.

    ``on_gpu_only`` names a parameter that means nothing in host memory: running it there would
    only repeat another variant under a false name.
    """
    if device.type == "cuda":
        return "unsupported: the CUDA kernels of the zero-copy paths are not in this version"
    if device.type == "cpu" and on_gpu_only is not None:
        return f"unsupported: {on_gpu_only} is a property of a GPU and means nothing on the host"
    return no_path_to(device)
