"""NVML, the door to the GPU's own sensors: whether it opens, and which GPUs stand behind it.

The sensors themselves are read by :mod:`gatherbench.bench.meters.nvml_device`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pynvml

from gatherbench.bench.machine.numa import Topology
from gatherbench.bench.machine.reason import Reason, SensorUnavailableError


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One GPU as NVML describes it. ``None`` where the driver does not say.

    ``uuid_hash`` tells two GPUs of one kind apart without naming them. Link generations are those
    of PCI Express; the current ones drop while the GPU idles. ``numa_node`` is the host's node
    that the link is attached to. ``sm_clock_hz`` is the clock at the moment of asking, and
    ``persistence`` says whether the driver stays loaded between programs. Units: ``memory_bytes``
    B, ``power_limit*_w`` W, ``*clock*_hz`` Hz.
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
    power_limit_max_w: float | None = None
    sm_clock_hz: float | None = None
    sm_clock_max_hz: float | None = None
    memory_clock_max_hz: float | None = None
    persistence: bool | None = None


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


def reason_of(error: pynvml.NVMLError) -> Reason:
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
            return Reason("unsupported", said, "restart after the driver's update")
        case _:
            return Reason("unsupported", said, "check that GPU and driver have this sensor")


def _describe(handle: Any) -> GpuInfo:
    def ask(getter: Callable[..., Any], *args: Any) -> Any:
        """The getter's answer, or ``None`` where this GPU or driver has none."""
        try:
            return getter(*args)
        except pynvml.NVMLError:
            return None

    def clock(getter: Callable[..., Any], kind: int) -> float | None:
        megahertz = ask(getter, handle, kind)
        return None if megahertz is None else 1e6 * megahertz

    uuid = ask(pynvml.nvmlDeviceGetUUID, handle)
    capability = ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    limit_mw = ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    limits_mw = ask(pynvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
    persistence = ask(pynvml.nvmlDeviceGetPersistenceMode, handle)
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
        power_limit_max_w=limits_mw[1] / 1000 if limits_mw else None,
        sm_clock_hz=clock(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
        sm_clock_max_hz=clock(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM),
        memory_clock_max_hz=clock(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_MEM),
        persistence=None if persistence is None else bool(persistence),
    )
