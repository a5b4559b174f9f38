"""List the GPUs of this machine by NVML, the one that a run uses first.

NVML lists every GPU of the machine, while ``CUDA_VISIBLE_DEVICES`` may hide some. And a container
may have the driver without its management library: its GPU then has a name alone. The module
:mod:`gatherbench.bench.meters.nvml_device` reads the sensors behind NVML.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gatherbench.bench.machine import nvml as pynvml
from gatherbench.bench.machine.numa import node_of_pci
from gatherbench.kernels.cuda_calls import CudaCallError, call_driver
from gatherbench.reason import Kind, Reason, SensorUnavailableError


def hash_of_uuid(identity: str) -> str:
    """Return a hash of a GPU's UUID (``GPU-…``), which tells two of one kind without naming one."""
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def _cuda_version(number: int) -> str | None:
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def _numa_node(handle: Any) -> int | None:
    pci = pynvml.nvmlDeviceGetPciInfo(handle)
    return node_of_pci(f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0")


#: The keys of a GPU in ``env.json``, and what NVML says of it. Link generations are those of PCI
#: Express; the current ones drop while the GPU idles. ``numa_node`` is the host's node of the link.
_FACTS: dict[str, Callable[[Any], Any]] = {
    "name": lambda gpu: pynvml.nvmlDeviceGetName(gpu) or "unnamed GPU",
    "uuid_hash": lambda gpu: hash_of_uuid(pynvml.nvmlDeviceGetUUID(gpu)),
    "driver": lambda _: pynvml.nvmlSystemGetDriverVersion(),
    "cuda_driver": lambda _: _cuda_version(pynvml.nvmlSystemGetCudaDriverVersion()),
    "compute_capability": lambda gpu: "{}.{}".format(
        *pynvml.nvmlDeviceGetCudaComputeCapability(gpu)
    ),
    "memory_bytes": lambda gpu: int(pynvml.nvmlDeviceGetMemoryInfo(gpu).total),
    "power_limit_w": lambda gpu: pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000 or None,
    "link_gen_current": lambda gpu: int(pynvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu)),
    "link_gen_max": lambda gpu: int(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu)),
    "link_width_current": lambda gpu: int(pynvml.nvmlDeviceGetCurrPcieLinkWidth(gpu)),
    "link_width_max": lambda gpu: int(pynvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)),
    "numa_node": _numa_node,
    "sm_clock_max_hz": lambda gpu: (
        1e6 * pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM)
    ),
}


_NO_DRIVER: tuple[Kind, str] = "no_device", "install the NVIDIA driver on a machine with a GPU"
_BROKEN: tuple[Kind, str] = "failed", "look for Xid errors in the kernel's log and reset the GPU"
#: Kind and remedy of NVML's errors; with any other, GPU or driver lack the sensor.
_ERRORS: dict[str, tuple[Kind, str]] = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": _NO_DRIVER,
    "NVML_ERROR_DRIVER_NOT_LOADED": _NO_DRIVER,
    "NVML_ERROR_NOT_FOUND": _NO_DRIVER,
    "NVML_ERROR_NO_PERMISSION": ("no_permission", "give this user access to /dev/nvidia*"),
    "NVML_ERROR_GPU_IS_LOST": _BROKEN,
    "NVML_ERROR_RESET_REQUIRED": _BROKEN,
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": ("unsupported", "restart after the driver's update"),
}


def gpu_facts(**known: Any) -> dict[str, Any]:
    """Return the facts of a GPU, ready for JSON; ``None``: the driver has no answer."""
    return {**dict.fromkeys(_FACTS), "name": "unnamed GPU", **known}


@contextmanager
def nvml_errors() -> Iterator[None]:
    """Turn NVML's errors into :class:`SensorUnavailableError`."""
    try:
        yield
    except pynvml.NVMLError as error:
        raise SensorUnavailableError(reason_of(error)) from error


@contextmanager
def nvml_session() -> Iterator[int]:
    """Open NVML and yield the number of GPUs (at least 1).

    Raises:
        SensorUnavailableError: driver, GPU or permission are missing.
    """
    with nvml_errors():
        pynvml.nvmlInit()
        try:
            if not (count := int(pynvml.nvmlDeviceGetCount())):
                cause = "NVML answers but lists no GPU"
                remedy = "pass one into this container or VM"
                raise SensorUnavailableError(Reason("no_device", cause, remedy))
            yield count
        finally:
            pynvml.nvmlShutdown()


def list_gpus() -> list[dict[str, Any]]:
    """Return :func:`gpu_facts` of every GPU that NVML sees, in its order; raise as
    :func:`nvml_session`."""

    def facts(handle: Any) -> dict[str, Any]:
        known = {}
        for key, ask in _FACTS.items():
            with suppress(pynvml.NVMLError):
                known[key] = ask(handle)
        return gpu_facts(**known)

    with nvml_session() as count:
        return [facts(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(count)]


def reason_of(error: Any) -> Reason:
    """Convert an NVML error to a reason with its remedy."""
    name = next((name for name in _ERRORS if getattr(pynvml, name) == error.value), "")
    kind, remedy = _ERRORS.get(name, ("unsupported", "check that GPU and driver have this sensor"))
    return Reason(kind, f"NVML says '{error}'", remedy)


def describe_gpus() -> dict[str, Any]:
    """Return the description of the GPUs for ``env.json``, ready for JSON.

    ``gpus``: the facts of each, the one that a run uses first. ``gpu_in_use``: its ``uuid_hash``;
    ``None`` if CUDA has no answer or another UUID, as an instance of a partitioned GPU (MIG) has.
    ``gpu_source``: the source of the list. ``no_gpu``: why it is empty. ``no_nvml``: why NVML is
    unavailable.
    """
    try:
        gpus, source, nvml_error = list_gpus(), "NVML", None
    except SensorUnavailableError as unavailable:
        device = cuda_device()
        gpus = [device] if device else []
        source, nvml_error = "CUDA driver API", str(unavailable)
    gpus, used = used_first(gpus)
    return {
        "gpus": gpus,
        "gpu_in_use": used,
        "gpu_source": source if gpus else None,
        "no_gpu": None if gpus else nvml_error,
        "no_nvml": nvml_error,
    }


def cuda_device() -> dict[str, Any] | None:
    """Return name and identity of CUDA's device 0, on which cases run; ``None``: there is none.

    This opens no context: one in the process that starts the cases would hold GPU memory.
    """
    try:
        call_driver("cuInit", 0)
        device = call_driver("cuDeviceGet", 0)
        name = call_driver("cuDeviceGetName", 256, device)
        identity = uuid.UUID(bytes=call_driver("cuDeviceGetUuid", device).bytes)
    except CudaCallError:
        return None
    # The bindings return their whole buffer: ignore the padding after the terminator.
    plain_name, unique = name.split(b"\0")[0].decode(), hash_of_uuid(f"GPU-{identity}")
    return gpu_facts(name=plain_name, uuid_hash=unique)


def used_first(gpus: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str | None]:
    """Return the GPUs, that on which cases run first, and its ``uuid_hash``; ``None``: unknown."""
    device = cuda_device()
    used = device["uuid_hash"] if device else None
    if used not in [gpu["uuid_hash"] for gpu in gpus]:
        return gpus, None
    return sorted(gpus, key=lambda gpu: gpu["uuid_hash"] != used), used
