"""Describe the machine and the code for ``env.json``: enough to judge a result, nothing private.

Host name, user name, addresses and paths of the machine are left out, because result folders are
meant to be published. A hash of its UUID identifies a GPU.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import platform
import re
import subprocess
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

import gatherbench
from gatherbench.bench.machine.gpus import describe_gpus
from gatherbench.bench.machine.numa import Topology

#: The files that affect a measurement; changes of results, docs and notebooks are ignored.
_CODE = ("bench", "strategies", "kernels", "datasets", "src", "pyproject.toml")


def describe_machine() -> dict[str, Any]:
    """Return the machine, its software and the code's version, ready for JSON.

    Unknown values and absent limits are ``None``. Sizes are in B, a cache's as the kernel says.
    """
    import torch  # takes seconds, and only this function needs it

    gpus = describe_gpus()
    flags = re.search(r"^flags\s*:.*\bhypervisor\b", _read("/proc/cpuinfo") or "", re.MULTILINE)
    maker = _read("/sys/class/dmi/id/sys_vendor") or "unnamed"
    return {
        "commit": commit_id(),
        "cpu": describe_cpu(),
        "numa": describe_numa([gpu["numa_node"] for gpu in gpus["gpus"]]),
        "memory": describe_memory(),
        **gpus,
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "virtual_machine": maker if flags else None,  # None: bare metal
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "libraries": library_versions(),
        "torch": {
            "cuda_build": torch.version.cuda,
            "cuda_available": torch.cuda.is_available(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
        },
        "thread_limits": {
            name: os.environ.get(name)
            for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
        },
    }


def machine_slug(env: Mapping[str, Any]) -> str:
    """Return a short name of the machine for folders and rows, from :func:`describe_machine`.

    It is ``nvidia-h200`` with a GPU, otherwise the processor and the number of usable cores:
    ``cpu-amd-epyc-2c``; ``2x-nvidia-h200`` if several machines train together.
    """
    machines = int(env.get("machines", 1))
    prefix = "" if machines == 1 else f"{machines}x-"
    if env["gpus"]:
        return prefix + _slug(env["gpus"][0]["name"])
    model = re.sub(r"\(R\)|\(TM\)|@.*|\bCPU\b|\bProcessor\b|\b\d+-Core\b", " ", env["cpu"]["model"])
    return f"{prefix}cpu-{_slug(model)}-{env['cpu']['usable_cores']}c"


def commit_id() -> str:
    """Return the commit of the running code, with ``+dirty`` if its files differ from the commit.

    ``$GATHERBENCH_COMMIT`` takes precedence, for files copied without their history or onto a
    checkout of another commit. Outside of a checkout it is the package's version, as ``v0.1.0``.
    """
    if named_commit := os.environ.get("GATHERBENCH_COMMIT"):
        return named_commit
    checkout = _checkout()
    if (checkout / ".git").exists():
        commit = _git(checkout, "rev-parse", "--short=12", "HEAD")
        changes = _git(checkout, "status", "--porcelain", "--", *_CODE)
        if commit and changes is not None:
            return f"{commit}+dirty" if changes else commit
    return f"v{gatherbench.__version__}"


def library_versions(plugins: Collection[str] = ()) -> dict[str, str | None]:
    """Return the installed version of each required distribution; ``None``: not installed.

    Development tools are left out. ``plugins``: further distributions that take part; they are
    listed with their requirements.
    """
    requirements = [*plugins]
    for name in plugins:
        requirements += importlib.metadata.requires(name) or []
    try:
        ours = importlib.metadata.requires("gatherbench") or []
        requirements += [r for r in ours if not re.search(r"extra == .dev", r)]
    except importlib.metadata.PackageNotFoundError:
        if (file := _checkout() / "pyproject.toml").is_file():
            project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
            extras = project.get("optional-dependencies", {}) | {"dev": []}
            requirements += [*project["dependencies"], *itertools.chain(*extras.values())]
    versions: dict[str, str | None] = {}
    for name in sorted({re.split(r"[^\w.-]", r, maxsplit=1)[0] for r in requirements}):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def describe_cpu() -> dict[str, Any]:
    """Return model, cores, cache, NUMA nodes and clock policy of the processor.

    ``usable_cores`` is the number of cores on which this process may run; ``quota_cores`` is the
    number that a container's limit grants (``None``: no limit).
    """
    model = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo") or "", re.MULTILINE)
    quota = re.fullmatch(r"(\d+) (\d+)", _read("/sys/fs/cgroup/cpu.max") or "")
    system = Path("/sys/devices/system")
    return {
        "model": model[1].strip() if model else platform.processor() or platform.machine(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": len(psutil.Process().cpu_affinity()),
        "quota_cores": int(quota[1]) / int(quota[2]) if quota else None,
        "numa_nodes": len(list((system / "node").glob("node[0-9]*"))) or None,
        "last_level_cache": _read(system / "cpu/cpu0/cache/index3/size"),
        "scaling_governor": _read(system / "cpu/cpu0/cpufreq/scaling_governor"),
    }


def describe_numa(gpu_nodes: Sequence[int | None], topology: Topology | None = None) -> Any:
    """Return each NUMA node's number of processors, and whether cases are bound to a GPU's node.

    Args:
        gpu_nodes: the node of each GPU; ``None``: unknown.
    """
    nodes, bound = (topology or Topology()).nodes(), False
    if len(nodes) < 2:
        binding = "not bound: one NUMA node"
    elif not gpu_nodes:
        binding = "not bound: this machine lacks a GPU"
    elif None in gpu_nodes:
        binding = "not bound: the kernel hides a GPU's node"
    else:
        bound = True
        binding = "a case on a GPU is bound to its node, unless the plan says numa = none"
    return {
        "processors_by_node": {str(node): len(cores) for node, cores in nodes.items()},
        "bound": bound,
        "binding": binding,
    }


def describe_memory() -> dict[str, Any]:
    """Return the size of the memory, the container's limit (B), and the huge pages' state."""
    thp = re.search(r"\[(\w+)\]", _read("/sys/kernel/mm/transparent_hugepage/enabled") or "")
    limit = _read("/sys/fs/cgroup/memory.max") or ""
    return {
        "total": psutil.virtual_memory().total,
        "container_limit": int(limit) if limit.isdigit() else None,
        "transparent_huge_pages": thp[1] if thp else None,
    }


def _checkout() -> Path:
    return Path(__file__).resolve().parents[2]


def _read(path: str | Path) -> str | None:
    """Read a small kernel file, stripped; ``None`` if it is absent or unreadable."""
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:60].strip("-")


def _git(checkout: Path, *arguments: str) -> str | None:
    """Return the output of a git command on the checkout; ``None`` if git is missing or fails."""
    # In a container the checkout often has another owner, and git would refuse to read it.
    command = ["git", "-c", f"safe.directory={checkout}", "-C", str(checkout), *arguments]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()
