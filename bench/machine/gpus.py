"""List the GPUs of this machine by NVML, the one that a run uses first.

NVML lists every GPU of the machine, while ``CUDA_VISIBLE_DEVICES`` may hide some. And a container
may have the driver without its management library: its GPU then has a name alone. The module
:mod:`gatherbench.bench.meters.nvml_device` reads the sensors behind NVML.
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
    """One GPU as NVML describes it; ``None``: the driver has no answer.

    ``uuid_hash`` distinguishes two GPUs of one kind without naming them. Link generations are those
    of PCI Express; the current ones drop while the GPU idles. ``numa_node`` is the host's node
    of the link.
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
        SensorUnavailableError: driver, GPU or permission are missing.
    """
    with nvml_errors():
        pynvml.nvmlInit()
    try:
        with nvml_errors():
            count = int(pynvml.nvmlDeviceGetCount())
        if count == 0:
            cause = "NVML answers but lists no GPU"
            raise SensorUnavailableError(
                Reason("no_device", cause, "pass one into this container or VM")
            )
        yield count
    finally:
        pynvml.nvmlShutdown()


def list_gpus() -> list[GpuInfo]:
    """Return every GPU that NVML sees, in NVML's order.

    Raises:
        SensorUnavailableError: see :func:`nvml_session`.
    """
    with nvml_session() as count:
        return [_describe(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(count)]


def hash_of_uuid(uuid: str) -> str:
    """Return the :attr:`GpuInfo.uuid_hash` of the GPU with NVML's ``uuid`` (``GPU-…``)."""
    return hashlib.sha256(uuid.encode()).hexdigest()[:12]


def reason_of(error: Any) -> Reason:
    """Convert an NVML error to a reason with its remedy."""
    cause = f"NVML says '{error}'"
    match error.value:
        case (
            pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
            | pynvml.NVML_ERROR_DRIVER_NOT_LOADED
            | pynvml.NVML_ERROR_NOT_FOUND
        ):
            return Reason("no_device", cause, "install the NVIDIA driver on a machine with a GPU")
        case pynvml.NVML_ERROR_NO_PERMISSION:
            return Reason("no_permission", cause, "give this user access to /dev/nvidia*")
        case pynvml.NVML_ERROR_GPU_IS_LOST | pynvml.NVML_ERROR_RESET_REQUIRED:
            remedy = "look for Xid errors in the kernel's log and reset the GPU"
            return Reason("failed", cause, remedy)
        case pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            return unsupported(cause, "restart after the driver's update")
        case _:
            return unsupported(cause, "check that GPU and driver have this sensor")


def _describe(handle: Any) -> GpuInfo:
    def ask(getter: Callable[..., Any], *args: Any) -> Any:
        """Return the getter's answer, or ``None`` if this GPU or driver has none."""
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
    """Return the description of the GPUs for ``env.json``, ready for JSON.

    ``gpus``: a dictionary of :class:`GpuInfo` for each, the one that a run uses first.
    ``gpu_in_use``: its ``uuid_hash``; ``None`` if CUDA has no answer or another UUID, as an
    instance of a partitioned GPU (MIG) has. ``gpu_source``: the source of the list. ``no_gpu``: why
    it is empty. ``no_nvml``: why NVML is unavailable.
    """
    try:
        gpus, source, nvml_error = list_gpus(), "NVML", None
    except SensorUnavailableError as unavailable:
        device = cuda_device()
        gpus = [device] if device else []
        source, nvml_error = "CUDA driver API", str(unavailable)
    gpus, used = used_first(gpus)
    return {
        "gpus": [dataclasses.asdict(gpu) for gpu in gpus],
        "gpu_in_use": used,
        "gpu_source": source if gpus else None,
        "no_gpu": None if gpus else nvml_error,
        "no_nvml": nvml_error,
    }


def cuda_device() -> GpuInfo | None:
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
    return GpuInfo(name.split(b"\0")[0].decode(), hash_of_uuid(f"GPU-{identity}"))


def used_first(gpus: list[GpuInfo]) -> tuple[list[GpuInfo], str | None]:
    """Return the GPUs, that on which cases run first, and its ``uuid_hash``; ``None``: unknown."""
    used = (device := cuda_device()) and device.uuid_hash
    if used not in [gpu.uuid_hash for gpu in gpus]:
        return gpus, None
    return sorted(gpus, key=lambda gpu: gpu.uuid_hash != used), used
