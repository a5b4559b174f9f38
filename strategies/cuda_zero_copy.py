"""Opens the paths on which our kernel gathers: brings the table into the GPU's sight first."""

from __future__ import annotations

import torch
from torch import Tensor

from gatherbench.kernels.mapped_memory import HostRegistration, ManagedCopy
from gatherbench.kernels.order import Order
from gatherbench.strategies.base import SetupStep
from gatherbench.strategies.cuda_fetcher import with_index
from gatherbench.strategies.cuda_kernel_fetcher import DeviceCopy, KernelFetcher


def open_registered(
    features: Tensor,
    device: torch.device,
    policy: str,
    order: Order = "given",
    *,
    fetcher: type[KernelFetcher] = KernelFetcher,
    overlapped: bool = False,
) -> KernelFetcher:
    """The table registered where it lies."""
    device = with_index(device)
    memory = HostRegistration(features, device.index)
    setup = [
        SetupStep("register_time", "s", memory.seconds, "time.perf_counter, cudaHostRegister"),
        SetupStep("registered", "B", memory.size_bytes, "bytes given to cudaHostRegister"),
    ]
    try:
        return fetcher(features, device, memory, setup, policy, order, overlapped=overlapped)
    except BaseException:
        memory.close()
        raise


def open_managed(features: Tensor, device: torch.device, policy: str) -> KernelFetcher:
    """A copy of the table in managed memory that stays on the CPU."""
    device = with_index(device)
    memory = ManagedCopy(features, device.index)
    setup = [
        SetupStep("managed_time", "s", memory.seconds, "time.perf_counter, allocation and copy"),
        SetupStep("managed", "B", memory.size_bytes, "bytes given to cudaMallocManaged"),
    ]
    try:
        return KernelFetcher(features, device, memory, setup, policy)
    except BaseException:
        memory.close()
        raise


def open_resident(features: Tensor, device: torch.device, policy: str) -> KernelFetcher:
    """A copy of the table in GPU memory."""
    memory = DeviceCopy(features, with_index(device))
    setup = [
        SetupStep("device_copy_time", "s", memory.seconds, "time.perf_counter, copy to the GPU"),
        SetupStep("device_copy", "B", memory.size_bytes, "tensor.nbytes"),
    ]
    return KernelFetcher(features, device, memory, setup, policy)
