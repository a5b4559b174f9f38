"""Read one GPU's sensors by its UUID, never by an index.

CUDA numbers the devices that ``CUDA_VISIBLE_DEVICES`` leaves, by default the fastest first; NVML
numbers all of them, by PCI address. Only the UUID means the same GPU to both. Every getter raises
:class:`SensorUnavailableError` with a reason if the driver has no answer.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gatherbench.bench.machine import nvml as pynvml
from gatherbench.bench.machine.gpus import nvml_errors, nvml_session, reason_of
from gatherbench.bench.machine.pcie import fastest_rate, raw_rate
from gatherbench.reason import Reason, ReasonError, SensorUnavailableError, unsupported

T = TypeVar("T")

#: The prefix of MIG instances in ``CUDA_VISIBLE_DEVICES``.
MIG = "MIG-"
NO_MIG_SENSORS = unsupported(
    "an instance of a partitioned GPU (MIG) has no link, energy or power sensor of its own",
    "measure on a whole GPU",
)
_UNKNOWN_GPU = Reason(
    "no_device",
    "NVML knows no GPU by the UUID that CUDA reports",
    "pass the same GPUs to CUDA and to the driver's tools in this container",
)
NO_GPU_IN_RUN = Reason("no_device", "this run moves nothing to a GPU", "run with device cuda")
#: Union members of ``nvmlValue_t`` by ``nvmlValueType_t`` (nvml.h).
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
#: Names of those bits of the clocks' event reasons that slow the GPU down (nvml.h). Idle clocks,
#: and clocks that an application or a user has set, are left out.
_SLOWED_BY = {
    "nvmlClocksEventReasonSwPowerCap": "power cap",
    "nvmlClocksEventReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonSwThermalSlowdown": "thermal (driver)",
    "nvmlClocksEventReasonHwThermalSlowdown": "thermal (hardware)",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "power brake",
}


@dataclass(frozen=True, slots=True)
class FieldValue:
    """One field: its value or why there is none, and the time of the driver's reading."""

    value: int | float | Reason
    taken_s: float | None  # since 1970; ``None``: unknown to the driver


def no_gpu_reason() -> Reason:
    """Return the reason for missing sensors in a run without a GPU."""
    try:
        with nvml_session():
            return NO_GPU_IN_RUN
    except SensorUnavailableError as unavailable:
        return unavailable.reason


def answer_or_reason(sensor: Callable[[], T]) -> T | Reason:
    """Return the sensor's answer, or the reason why it has none."""
    try:
        return sensor()
    except ReasonError as unavailable:
        return unavailable.reason


def uuids_of(torch_index: int, uuid: str) -> tuple[str, ...]:
    """Return the names under which NVML may know a CUDA device, the likeliest first.

    ``torch_index`` counts the visible devices; ``uuid`` is that of torch's device properties.
    """
    uuid = uuid.removeprefix("GPU-")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    named = visible[torch_index].strip() if torch_index < len(visible) else ""
    if named.startswith(MIG):  # CUDA may report the UUID of the instance's whole GPU
        return (named, MIG + uuid)
    return ("GPU-" + uuid, MIG + uuid)


class NvmlDevice:
    """The sensors of one GPU. NVML stays open until the process ends.

    Args:
        uuids: names of the GPU; the first that NVML knows is used.

    Raises:
        SensorUnavailableError: there is no driver or no such GPU, or it is a MIG instance.
    """

    def __init__(self, uuids: Sequence[str]) -> None:
        with nvml_errors():
            pynvml.nvmlInit()
        self._handle = self._find(uuids)

    def _find(self, uuids: Sequence[str]) -> Any:
        for uuid in uuids:
            try:
                handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_NOT_FOUND:
                    raise SensorUnavailableError(reason_of(error)) from error
                continue
            if uuid.startswith(MIG) or _is_partitioned(handle):
                raise SensorUnavailableError(NO_MIG_SENSORS)
            return handle
        raise SensorUnavailableError(_UNKNOWN_GPU)

    def _ask(self, getter: str, *arguments: Any) -> Any:
        with nvml_errors():
            return getattr(pynvml, getter)(self._handle, *arguments)

    def fields(self, *ids: int) -> list[FieldValue]:
        """Return values of fields (``NVML_FI_DEV_*``), all read in one call."""
        return [field_value(answer) for answer in self.answers(*ids)]

    def answers(self, *ids: int) -> Sequence[ctypes.Structure]:
        """Return the driver's unparsed answers, which :func:`field_value` parses later.

        So a polling thread, which wakes with cold caches, executes little Python.
        """
        fields: Sequence[ctypes.Structure] = self._ask("nvmlDeviceGetFieldValues", ids)
        return fields

    def energy_j(self) -> float:
        """Return the energy since the driver was loaded; refreshed about every 100 ms. Units: J."""
        return float(self._ask("nvmlDeviceGetTotalEnergyConsumption")) / 1e3

    def temperature_k(self) -> float:
        """Return the temperature of the GPU's chip. Units: K."""
        kind = pynvml.NVML_TEMPERATURE_GPU
        with nvml_errors():
            try:
                celsius = pynvml.nvmlDeviceGetTemperatureV(self._handle, kind)
            # Drivers before 565, and nvidia-ml-py of their time, have only the older call.
            except (pynvml.NVMLError_FunctionNotFound, AttributeError):
                celsius = pynvml.nvmlDeviceGetTemperature(self._handle, kind)
        return float(celsius) + 273.15

    def clock_hz(self) -> float:
        """Return the clock of the multiprocessors. Units: Hz."""
        return 1e6 * float(self._ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM))

    def slowed_by(self) -> tuple[str, ...]:
        """Return the causes that lower the clocks now; empty: there is none."""
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        return tuple(text for bit, text in _SLOWED_BY.items() if bits & getattr(pynvml, bit))

    def link_rate(self) -> float:
        """Return the rate of the link in one direction, at the generation and width that it can
        train up to; of an unknown link that of the fastest one. Units: B/s.

        Raises:
            UnknownLinkError: the rate of such links is unknown.
        """
        try:
            generation = int(self._ask("nvmlDeviceGetMaxPcieLinkGeneration"))
            width = int(self._ask("nvmlDeviceGetMaxPcieLinkWidth"))
        except SensorUnavailableError:
            return fastest_rate()
        return raw_rate(generation, width)


def field_value(answer: ctypes.Structure) -> FieldValue:
    """Parse one of :meth:`NvmlDevice.answers`."""
    taken_s = answer.timestamp / 1e6 if answer.timestamp > 0 else None
    if answer.nvmlReturn != pynvml.NVML_SUCCESS:
        return FieldValue(reason_of(pynvml.NVMLError(answer.nvmlReturn)), taken_s)
    if answer.valueType >= len(_MEMBERS):
        cause = f"a field of value type {answer.valueType}"
        return FieldValue(unsupported(cause, "update nvidia-ml-py"), taken_s)
    # Other members of the union have bytes that the driver has left unwritten.
    return FieldValue(getattr(answer.value, _MEMBERS[answer.valueType]), taken_s)


def _is_partitioned(handle: Any) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError:  # a GPU that cannot be partitioned
        return False


#: The source of the link's traffic, as ``sensors.json`` and rows name it.
COUNTERS = "counters"
NOT_CALIBRATED = unsupported("no source was calibrated in this run", "run with device cuda")


@dataclass(frozen=True, slots=True)
class SensorChoice:
    """The result of a run's sensor check, which every case receives."""

    pcie: str | None = None  # :data:`COUNTERS` if they are trusted
    pcie_reason: Reason | None = NOT_CALIBRATED  # why there is none


@dataclass(frozen=True, slots=True)
class GpuUnderTest:
    """The GPU of this process, by the names under which NVML may know it, and the choice."""

    uuids: tuple[str, ...]
    choice: SensorChoice
