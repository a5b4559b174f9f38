"""Which GPUs this machine has: what NVML says, and where it says nothing what CUDA's driver does.

A container may have the driver without its management library. A run there uses the GPU, and must
not go by the name of a machine without one. And NVML lists every GPU of the machine, whichever of
them ``CUDA_VISIBLE_DEVICES`` leaves to a run: a run must not go by the name of its neighbour.
"""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

from gatherbench.bench.machine.numa import Topology
from gatherbench.bench.machine.nvml import GpuInfo, hash_of_uuid, list_gpus
from gatherbench.bench.machine.reason import SensorUnavailableError
from gatherbench.kernels.cuda_calls import CudaCallError, call_driver, driver


def describe_gpus() -> dict[str, Any]:
    """What ``env.json`` says of the GPUs, ready for JSON.

    ``gpus``: one dictionary of :class:`GpuInfo` each, first the one that a run uses.
    ``gpu_in_use``: its ``uuid_hash``; ``None`` where CUDA does not say, or names none of them: an
    instance of a partitioned GPU (MIG) has a UUID of its own. ``gpu_source``: who told of them.
    ``no_gpu``: why there are none. ``no_nvml``: why NVML tells nothing; what it alone knows is
    ``None`` for that reason.
    """
    try:
        found, source, silent = list_gpus(), "NVML", None
    except SensorUnavailableError as unavailable:
        found, source, silent = _of_driver(), "CUDA driver API", str(unavailable)
    used = gpu_in_use(found)
    return {
        "gpus": [dataclasses.asdict(gpu) for gpu in used_first(found, used)],
        "gpu_in_use": used,
        "gpu_source": source if found else None,
        "no_gpu": None if found else silent,
        "no_nvml": silent,
    }


def gpu_in_use(gpus: list[GpuInfo]) -> str | None:
    """``uuid_hash`` of the one among them that CUDA calls 0, on which cases run; ``None``: unknown.

    Opens no context: one in the process that starts the cases would hold memory of the GPU.
    """
    try:
        call_driver("cuInit", 0)
        used = _hash(call_driver("cuDeviceGetUuid", call_driver("cuDeviceGet", 0)))
    except CudaCallError:
        return None
    return used if used in [gpu.uuid_hash for gpu in gpus] else None


def used_first(gpus: list[GpuInfo], used: str | None) -> list[GpuInfo]:
    """The GPUs with the one in use before all others."""
    return sorted(gpus, key=lambda gpu: used is not None and gpu.uuid_hash != used)


def _hash(identity: Any) -> str:
    return hash_of_uuid(f"GPU-{uuid.UUID(bytes=identity.bytes)}")


def _of_driver() -> list[GpuInfo]:
    """The GPUs that CUDA may use, in its order; none where there is no driver that answers.

    Only calls that open no context: a runner that held one would take memory and power from the GPU
    that its cases measure. torch's own description of a device initialises CUDA first.
    """
    try:
        call_driver("cuInit", 0)
        count = int(call_driver("cuDeviceGetCount"))
        return [_describe(call_driver("cuDeviceGet", number)) for number in range(count)]
    except CudaCallError:
        return []


def _describe(device: Any) -> GpuInfo:
    def ask(name: str, *arguments: Any) -> Any:
        try:
            return call_driver(name, *arguments)
        except CudaCallError:
            return None

    kinds, capability = driver().CUdevice_attribute, "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_"
    major, minor = (
        ask("cuDeviceGetAttribute", getattr(kinds, capability + part), device)
        for part in ("MAJOR", "MINOR")
    )
    identity, version = ask("cuDeviceGetUuid", device), ask("cuDriverGetVersion")
    bus = _text(ask("cuDeviceGetPCIBusId", 16, device))
    return GpuInfo(
        name=_text(ask("cuDeviceGetName", 256, device)) or "unnamed GPU",
        uuid_hash=_hash(identity) if identity else None,
        cuda_driver=f"{version // 1000}.{version % 1000 // 10}" if version else None,
        compute_capability=None if None in (major, minor) else f"{major}.{minor}",
        memory_bytes=ask("cuDeviceTotalMem", device),
        numa_node=Topology().node_of_pci(bus) if bus else None,
    )


def _text(answer: bytes | None) -> str:
    """The bindings return their whole buffer: what follows the terminator is padding."""
    return (answer or b"").split(b"\0")[0].decode()
