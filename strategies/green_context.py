"""A part of the GPU's multiprocessors for the gather: a stream in a CUDA green context.

A grid cap spreads a few blocks over every multiprocessor and so slows each of them a little; a
green context keeps the gather on multiprocessors of its own. It binds the gather only: training on
ordinary streams may still use every multiprocessor, those of the gather included, so the partition
is one-sided. Through the driver, because torch's own green contexts have changed with every
release since 2.10 and a stream is all that is needed: the kernel is loaded as a library and a
launch takes the context of its stream.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from gatherbench.kernels.cuda_calls import CudaCallError, call_driver, driver


@dataclass(frozen=True, slots=True)
class GreenStream:
    """A stream whose kernels run on ``multiprocessors`` of the GPU's only."""

    stream: torch.cuda.Stream
    multiprocessors: int


def green_skip(device: torch.device) -> str | None:
    """Why the CUDA ``device`` has no green contexts, or ``None``."""
    try:
        _partition(device.index or 0, 1)
    except CudaCallError as error:
        return f"unsupported: no green context ({error})"
    return None


@functools.cache
def green_stream(device: torch.device, percent: int) -> GreenStream:
    """A stream on at least ``percent`` of the multiprocessors of ``device`` (with its index).

    The driver rounds up: from compute capability 9.0 on to multiples of 8 (CUDA Driver API, "Green
    Contexts"). Context and stream live until the process ends and are handed out again: a tensor
    that was last used on the stream may be freed long after the fetcher is closed, and torch then
    records an event on it.

    Raises:
        CudaCallError: no driver, or one without green contexts (before CUDA 12.4).
    """
    module = driver()
    total = torch.cuda.get_device_properties(device).multi_processor_count
    part = _partition(device.index, max(1, total * percent // 100))
    description = call_driver("cuDevResourceGenerateDesc", [part], 1)
    context = call_driver(
        "cuGreenCtxCreate",
        description,
        call_driver("cuDeviceGet", device.index),
        module.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM.value,
    )
    flags = module.CUstream_flags.CU_STREAM_NON_BLOCKING.value  # the only kind there is
    handle = int(call_driver("cuGreenCtxStreamCreate", context, flags, 0))
    return GreenStream(_external(handle, device), int(part.sm.smCount))


def _partition(ordinal: int, multiprocessors: int) -> Any:
    """The resource of at least so many multiprocessors of a device."""
    call_driver("cuInit", 0)
    kind = driver().CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    whole = call_driver("cuDeviceGetDevResource", call_driver("cuDeviceGet", ordinal), kind)
    (part, *_), *_ = call_driver("cuDevSmResourceSplitByCount", 1, whole, 0, multiprocessors)
    return part


def _external(handle: int, device: torch.device) -> torch.cuda.Stream:
    stream: torch.cuda.Stream = torch.cuda.ExternalStream(handle, device)  # type: ignore[no-untyped-call]
    return stream
