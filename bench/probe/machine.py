"""Describe the facts of a machine that need no timing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psutil
import torch

from gatherbench.bench.machine.env import commit_id, describe_cpu, machine_slug
from gatherbench.bench.machine.gpus import describe_gpus


@dataclass(frozen=True, slots=True)
class Facts:
    """A description of a machine; each field is a column of ``probe.csv``.

    ``None`` where the machine does not report it. ``cores`` are those that this process may use.
    The link is as trained when queried: an idle GPU may fall back to a slower generation.
    """

    machine: str
    cpu: str
    cores: int
    host_memory_bytes: int
    gpus: int = 0
    gpu: str = ""
    gpu_memory_bytes: int | None = None
    driver: str | None = None
    link_generation: int | None = None
    link_lanes: int | None = None
    torch: str = torch.__version__
    commit: str = ""
    date: str = ""

    @property
    def description(self) -> str:
        """The machine in words, for people."""
        link = f", PCIe {self.link_generation}.0 x{self.link_lanes}" if self.link_lanes else ""
        gpu = f"{self.gpu}{link}; " if self.gpu else ""
        return f"{gpu}{self.cpu}, {self.cores} cores"


def ask(device: torch.device | None) -> Facts:
    """Describe this machine, with its CUDA ``device`` if there is one."""
    cpu = describe_cpu()
    host: dict[str, Any] = {
        "machine": machine_slug({"gpus": [], "cpu": cpu}),
        "cpu": cpu["model"],
        "cores": int(cpu["usable_cores"]),
        "host_memory_bytes": psutil.virtual_memory().total,
        "commit": commit_id(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    if device is None:
        return Facts(**host)
    gpu, described = torch.cuda.get_device_properties(device), describe_gpus()
    # With several GPUs only the link of the one in use is awake.
    in_use = described["gpus"][0] if described["gpu_in_use"] or len(described["gpus"]) == 1 else {}
    host["machine"] = machine_slug({"gpus": [{"name": gpu.name}], "cpu": {}})
    return Facts(
        **host,
        gpus=torch.cuda.device_count(),
        gpu=gpu.name,
        gpu_memory_bytes=gpu.total_memory,
        driver=in_use.get("driver"),
        link_generation=in_use.get("link_gen_current"),
        link_lanes=in_use.get("link_width_current"),
    )
