"""The GPU's own sensors through NVML: whether they are there, and which GPUs there are.

This version asks NVML what the machine has and reads no byte or energy counters: those need a
calibration against a known copy before anyone may trust them (drivers have been off by 1.67× and
by 1000×), and a number that is not trusted is not written down.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pynvml

from gatherbench.bench.meters.base import Reading


class SensorUnavailableError(Exception):
    """A sensor cannot be read; the message is a reason as :meth:`Meter.probe` words it."""


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One GPU as NVML describes it. ``None`` where the driver does not say.

    ``uuid_hash`` tells two GPUs of one kind apart without naming them. Link generations are those
    of PCI Express; the current ones drop while the GPU idles. ``numa_node`` is the host's node
    that the link is attached to. Units: ``memory_bytes`` B, ``power_limit_w`` W.
    """

    name: str
    uuid_hash: str | None
    driver: str | None
    cuda_driver: str | None
    compute_capability: str | None
    memory_bytes: int | None
    power_limit_w: float | None
    link_gen_current: int | None
    link_gen_max: int | None
    link_width_current: int | None
    link_width_max: int | None
    numa_node: int | None


@contextmanager
def nvml_session() -> Iterator[int]:
    """Open NVML and yield the number of GPUs (at least 1).

    Raises:
        SensorUnavailableError: no driver, no GPU or no permission.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise SensorUnavailableError(_reason(error)) from error
    try:
        try:
            count = int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            raise SensorUnavailableError(_reason(error)) from error
        if count == 0:
            raise SensorUnavailableError(
                "no_device: NVML answers but lists no GPU; pass one into this container or VM"
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


class _NvmlCounters:
    """What the meters of NVML share: a probe that asks NVML, and no readings yet."""

    #: Metric, unit and NVML field of each reading.
    _readings: ClassVar[tuple[tuple[str, str, str], ...]]
    _what: ClassVar[str]

    def __init__(self) -> None:
        self._reason = ""

    def probe(self) -> str | None:
        try:
            with nvml_session():
                pass
        except SensorUnavailableError as unavailable:
            return str(unavailable)
        return f"unsupported: a GPU is there; reading its {self._what} comes with a later version"

    def start(self) -> None:
        # Asked once: whether there is a driver does not change from window to window.
        self._reason = self._reason or self.probe() or ""

    def stop(self) -> list[Reading]:
        return [
            Reading(metric, unit, None, source, reason=self._reason)
            for metric, unit, source in self._readings
        ]


class PcieMeter(_NvmlCounters):
    """Bytes over the GPU's PCI Express link, by direction. Units: B."""

    name: ClassVar[str] = "pcie"
    summary: ClassVar[str] = "bytes over the GPU's PCI Express link (NVML)"
    _what = "PCIe byte counters"
    # NVML takes the GPU's view: what it receives travels from host to device.
    _readings = (
        ("pcie_host_to_device", "B", "NVML_FI_DEV_PCIE_COUNT_RX_BYTES"),
        ("pcie_device_to_host", "B", "NVML_FI_DEV_PCIE_COUNT_TX_BYTES"),
    )


class GpuPowerMeter(_NvmlCounters):
    """Energy that the GPU drew. Units: J."""

    name: ClassVar[str] = "gpu_power"
    summary: ClassVar[str] = "energy drawn by the GPU (NVML)"
    _what = "energy counter"
    _readings = (("gpu_energy", "J", "nvmlDeviceGetTotalEnergyConsumption"),)


def _reason(error: pynvml.NVMLError) -> str:
    """An NVML error as a reason with its remedy."""
    absent = (
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_NOT_FOUND,
    )
    if error.value in absent:
        return f"no_device: NVML says '{error}'; install the NVIDIA driver on a machine with a GPU"
    if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
        return f"no_permission: NVML says '{error}'; give this user access to /dev/nvidia*"
    return f"unsupported: NVML says '{error}'; check that driver and NVML library match"


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
    cuda = ask(pynvml.nvmlSystemGetCudaDriverVersion)
    pci = ask(pynvml.nvmlDeviceGetPciInfo, handle)
    return GpuInfo(
        name=str(ask(pynvml.nvmlDeviceGetName, handle) or "unnamed GPU"),
        uuid_hash=hashlib.sha256(str(uuid).encode()).hexdigest()[:12] if uuid else None,
        driver=ask(pynvml.nvmlSystemGetDriverVersion),
        cuda_driver=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
        memory_bytes=int(memory.total) if memory else None,
        power_limit_w=limit_mw / 1000 if limit_mw else None,
        link_gen_current=ask(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        link_gen_max=ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        link_width_current=ask(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        link_width_max=ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        numa_node=_numa_node(pci),
    )


def _numa_node(pci: Any) -> int | None:
    if pci is None:
        return None
    folder = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
    try:
        node = int((Path("/sys/bus/pci/devices") / folder / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None  # -1: the firmware does not say
