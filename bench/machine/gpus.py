"""Which GPUs this machine has: what NVML says, and where it says nothing what CUDA's driver does.

A container may have the driver without its management library. A run there uses the GPU, and must
not go by the name of a machine without one. And NVML lists every GPU of the machine, whichever of
them ``CUDA_VISIBLE_DEVICES`` leaves to a run: a run must not go by the name of its neighbour. The
sensors behind NVML are read by :mod:`gatherbench.bench.meters.nvml_device`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gatherbench.bench.machine import nvml as pynvml
from gatherbench.bench.machine.numa import Topology
from gatherbench.kernels.cuda_calls import CudaCallError, call_driver
from gatherbench.reason import Reason, SensorUnavailableError, unsupported


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One GPU as NVML describes it. ``None`` where the driver does not say.

    ``uuid_hash`` tells two GPUs of one kind apart without naming them. Link generations are those
    of PCI Express; the current ones drop while the GPU idles. ``numa_node`` is the host's node
    that the link is attached to.
    """

    name: str
    uuid_hash: str | None = None
    driver: str | None = None
    cuda_driver: str | None = None
    compute_capability: str | None = None
    memory_bytes: int | None = None
    power_limit_w: float | None = None
    link_gen_current: int | None = None
    link_gen_max: int | None = None
    link_width_current: int | None = None
    link_width_max: int | None = None
    numa_node: int | None = None
    sm_clock_max_hz: float | None = None


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
        SensorUnavailableError: no driver, no GPU or no permission.
    """
    with nvml_errors():
        pynvml.nvmlInit()
    try:
        with nvml_errors():
            count = int(pynvml.nvmlDeviceGetCount())
        if count == 0:
            what = "NVML answers but lists no GPU"
            raise SensorUnavailableError(
                Reason("no_device", what, "pass one into this container or VM")
            )
        yield count
    finally:
        pynvml.nvmlShutdown()


def list_gpus() -> list[GpuInfo]:
    """Every GPU that NVML sees, in NVML's order.

    Raises:
        SensorUnavailableError: see :func:`nvml_session`.
    """
    with nvml_session() as count:
        return [_describe(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(count)]


def hash_of_uuid(uuid: str) -> str:
    """The :attr:`GpuInfo.uuid_hash` of the GPU that NVML calls ``uuid`` (``GPU-…``)."""
    return hashlib.sha256(uuid.encode()).hexdigest()[:12]


def reason_of(error: Any) -> Reason:
    """An NVML error as a reason with its remedy."""
    said = f"NVML says '{error}'"
    match error.value:
        case (
            pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
            | pynvml.NVML_ERROR_DRIVER_NOT_LOADED
            | pynvml.NVML_ERROR_NOT_FOUND
        ):
            return Reason("no_device", said, "install the NVIDIA driver on a machine with a GPU")
        case pynvml.NVML_ERROR_NO_PERMISSION:
            return Reason("no_permission", said, "give this user access to /dev/nvidia*")
        case pynvml.NVML_ERROR_GPU_IS_LOST | pynvml.NVML_ERROR_RESET_REQUIRED:
            remedy = "look for Xid errors in the kernel's log and reset the GPU"
            return Reason("failed", said, remedy)
        case pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            return unsupported(said, "restart after the driver's update")
        case _:
            return unsupported(said, "check that GPU and driver have this sensor")


def _describe(handle: Any) -> GpuInfo:
    def ask(getter: Callable[..., Any], *args: Any) -> Any:
        """The getter's answer, or ``None`` where this GPU or driver has none."""
        try:
            return getter(*args)
        except pynvml.NVMLError:
            return None

    uuid = ask(pynvml.nvmlDeviceGetUUID, handle)
    capability = ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    limit_mw = ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    clock_mhz = ask(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM)
    cuda = ask(pynvml.nvmlSystemGetCudaDriverVersion)
    pci = ask(pynvml.nvmlDeviceGetPciInfo, handle)
    address = pci and f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
    return GpuInfo(
        name=str(ask(pynvml.nvmlDeviceGetName, handle) or "unnamed GPU"),
        uuid_hash=hash_of_uuid(str(uuid)) if uuid else None,
        driver=ask(pynvml.nvmlSystemGetDriverVersion),
        cuda_driver=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
        memory_bytes=int(memory.total) if memory else None,
        power_limit_w=limit_mw / 1000 if limit_mw else None,
        link_gen_current=ask(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        link_gen_max=ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        link_width_current=ask(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        link_width_max=ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        numa_node=Topology().node_of_pci(address) if address else None,
        sm_clock_max_hz=None if clock_mhz is None else 1e6 * clock_mhz,
    )


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
        return [_described_by_driver(call_driver("cuDeviceGet", number)) for number in range(count)]
    except CudaCallError:
        return []


def _described_by_driver(device: Any) -> GpuInfo:
    def ask(name: str, *arguments: Any) -> Any:
        try:
            return call_driver(name, *arguments)
        except CudaCallError:
            return None

    identity, bus = ask("cuDeviceGetUuid", device), ask("cuDeviceGetPCIBusId", 16, device)
    return GpuInfo(
        name=_text(ask("cuDeviceGetName", 256, device)) or "unnamed GPU",
        uuid_hash=_hash(identity) if identity else None,
        memory_bytes=ask("cuDeviceTotalMem", device),
        numa_node=Topology().node_of_pci(_text(bus)) if bus else None,
    )


def _text(answer: bytes | None) -> str:
    """The bindings return their whole buffer: what follows the terminator is padding."""
    return (answer or b"").split(b"\0")[0].decode()
