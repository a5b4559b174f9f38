"""What of a machine need not be timed, as far as the packages at hand can tell."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PCI_DEVICES = Path("/sys/bus/pci/devices")
#: Of PCI's configuration space (PCI Local Bus Specification 3.0, section 6.7; PCI Express Base
#: Specification, "PCI Express Capability Structure"): where the list of capabilities begins, the
#: id of the PCI Express one, and its Device Control register with Max_Payload_Size in bits 7:5.
_CAPABILITIES, _PCI_EXPRESS, _DEVICE_CONTROL = 0x34, 0x10, 0x08
_LEAST_PAYLOAD = 128


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """A machine as far as it can be asked; ``None`` where it does not say.

    Attributes:
        slug: its short name, see :func:`gatherbench.bench.machine.env.machine_slug`.
        description: processor and GPU in words.
        cores: that this process may use.
        gpus: that CUDA sees; 0 without any.
        gpu_memory_bytes: of the GPU that is calibrated.
        link_generation, link_lanes: of PCI Express, as trained when asked.
        max_payload: bytes of the largest completion that the link carries.
        no_disk: why no disk was measured, where none was.
    """

    slug: str
    description: str
    cores: int
    gpus: int = 0
    gpu_memory_bytes: int | None = None
    link_generation: int | None = None
    link_lanes: int | None = None
    max_payload: int | None = None
    no_disk: str = "not asked for"


def ask_host() -> MachineFacts:
    """The machine without its GPU."""
    from gatherbench.bench.machine.env import describe_cpu, machine_slug

    cpu = describe_cpu()
    cores = int(cpu["usable_cores"])
    slug = machine_slug({"gpus": [], "cpu": cpu})
    return MachineFacts(slug, f"{cpu['model']}, {cores} cores", cores)


def ask_gpu(device: Any) -> MachineFacts:
    """The machine with its CUDA ``device`` (torch's); ask when the link has just been used.

    An idle GPU lets its link fall back to a slower generation.
    """
    import torch

    from gatherbench.bench.machine.env import machine_slug
    from gatherbench.bench.machine.gpus import describe_gpus
    from gatherbench.kernels.cuda_calls import CudaCallError, call_runtime

    host = ask_host()
    gpu = torch.cuda.get_device_properties(device)
    payload = None
    with contextlib.suppress(CudaCallError):
        bus = bytes(call_runtime("cudaDeviceGetPCIBusId", 32, device.index)).split(b"\0")[0]
        payload = max_payload(PCI_DEVICES / bus.decode().lower() / "config")
    told = describe_gpus()
    # Of several GPUs only the one in use has its link awake.
    link = told["gpus"][0] if told["gpu_in_use"] or len(told["gpus"]) == 1 else {}
    slug = machine_slug({"gpus": [{"name": gpu.name}], "cpu": {}})
    return dataclasses.replace(
        host,
        slug=slug,
        description=f"{gpu.name}; {host.description}",
        gpus=torch.cuda.device_count(),
        gpu_memory_bytes=gpu.total_memory,
        link_generation=link.get("link_gen_current"),
        link_lanes=link.get("link_width_current"),
        max_payload=payload,
    )


def max_payload(config: Path) -> int | None:
    """Max_Payload_Size in bytes from a device's configuration space; ``None`` if not readable.

    Without privileges the system shows its first 64 bytes only.
    """
    try:
        space = config.read_bytes()
    except OSError:
        return None
    at, seen = (space[_CAPABILITIES] if len(space) > _CAPABILITIES else 0), set[int]()
    while at and at not in seen and at + _DEVICE_CONTROL + 1 < len(space):
        if space[at] == _PCI_EXPRESS:
            return _LEAST_PAYLOAD << (space[at + _DEVICE_CONTROL] >> 5 & 7)
        seen.add(at)
        at = space[at + 1]
    return None


def no_gpu() -> str | None:
    """Why there is nothing to measure here, or ``None``."""
    import torch

    return None if torch.cuda.is_available() else f"torch {torch.__version__} sees no CUDA GPU"


def describe() -> dict[str, Any]:
    """What bears on the numbers: code, driver, link and clocks where the packages that know them
    are installed, and what torch can tell."""
    import torch

    try:
        from gatherbench.bench.machine.env import commit_id
        from gatherbench.bench.machine.gpus import describe_gpus

        told = {"commit": commit_id(), **describe_gpus()}
    except ImportError as missing:
        commit = os.environ.get("GATHERBENCH_COMMIT")
        told = {"commit": commit, "gpus": [], "no_gpu": str(missing)}
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    return told | {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": gpu.name,
        "multiprocessors": gpu.multi_processor_count,
        "l2_bytes": gpu.L2_cache_size,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "host_memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "cores": os.cpu_count(),
    }
