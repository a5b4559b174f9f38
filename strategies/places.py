"""Devices of data paths, and the reasons for ``skip`` that several strategies share."""

from __future__ import annotations

import torch

from gatherbench.kernels.compiler import CompilerError, compiler_version
from gatherbench.kernels.host_memory import available_bytes
from gatherbench.kernels.managed_memory import managed_refusal
from gatherbench.reason import Reason, unsupported

#: Share of the free memory that a table may take: the model and the batches need some too.
TABLE_SHARE = 0.9


def with_index(device: torch.device) -> torch.device:
    """Add the current index to ``cuda``: another thread's current device may differ."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


def path_skip(device: torch.device) -> Reason | None:
    """Return why no data path leads to ``device`` here; ``None`` if one does."""
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        return unsupported(f"there are data paths to cpu and cuda, none to {device.type}")
    if not torch.cuda.is_available():
        return Reason("no_device", f"torch {torch.__version__} sees no CUDA GPU")
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        known = "GPU is cuda:0" if count == 1 else f"GPUs are cuda:0 to cuda:{count - 1}"
        return Reason("no_device", f"this machine's {known}")
    return None


def reads_managed(strategy: object) -> bool:
    """Tell whether a GPU reads the rows in managed memory, to which other tables are copied."""
    return getattr(strategy, "memory", "") == "managed"


def kernel_skip(device: torch.device, on_gpu_only: str | None = None) -> Reason | None:
    """Return why a path with the project's kernel cannot run on ``device``; ``None`` if it can.
    ``on_gpu_only`` names a parameter that has no meaning in host memory, where it would only repeat
    another variant under a false name."""
    reason = path_skip(device)
    if reason is None and device.type == "cpu" and on_gpu_only is not None:
        return unsupported(f"{on_gpu_only} is a property of a GPU and means nothing on the host")
    if reason is None and device.type == "cuda":
        try:
            compiler_version()
        except CompilerError as error:
            return unsupported(str(error))
    return reason


def mapped_skip(device: torch.device, memory: str, on_gpu_only: str | None = None) -> Reason | None:
    """Like :func:`kernel_skip`, and check that the GPU can read the table in ``memory``."""
    if memory != "managed":
        return kernel_skip(device, on_gpu_only)
    reason = kernel_skip(device, on_gpu_only or f"memory = {memory}")
    return reason or managed_refusal(with_index(device).index)


def free_bytes(device: torch.device) -> int:
    """Return the free bytes of a device's memory; for the host those that are available."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()


def no_room(device: torch.device, num_bytes: int, what: str = "the table") -> Reason | None:
    """Return why ``num_bytes`` of a table do not fit in ``device``'s free memory, or ``None``."""
    free = free_bytes(device)
    if num_bytes <= TABLE_SHARE * free:
        return None
    unit, size = ("GiB", 2**30) if num_bytes >= 2**30 else ("MiB", 2**20)
    return Reason(
        "no_memory",
        f"{what} takes {num_bytes / size:.1f} {unit} and {device} has "
        f"{free / size:.1f} {unit} free, of which it may take {TABLE_SHARE:.0%}",
    )
