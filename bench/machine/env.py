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
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

import gatherbench
from gatherbench.bench.machine import kernel_text
from gatherbench.bench.machine.gpus import describe_gpus
from gatherbench.bench.machine.numa import describe_numa

#: The files that affect a measurement; changes of results, docs and notebooks are ignored.
_CODE = ("bench", "strategies", "kernels", "datasets", "src", "pyproject.toml")
_THREAD_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def describe_machine() -> dict[str, Any]:
    """Return the machine, its software and the code's version, ready for JSON.

    Unknown values and absent limits are ``None``, as is ``virtual_machine`` on bare metal. Sizes
    are in B, a cache's as the kernel says.
    """
    import torch  # takes seconds, and only this function needs it

    gpus = describe_gpus()
    maker = kernel_text("/sys/class/dmi/id/sys_vendor") or "unnamed"
    return {
        "commit": commit_id(),
        "cpu": describe_cpu(),
        "numa": describe_numa([gpu["numa_node"] for gpu in gpus["gpus"]]),
        "memory": describe_memory(),
        **gpus,
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "virtual_machine": maker if "hypervisor" in _cpuinfo("flags").split() else None,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "libraries": library_versions(),
        "torch": {
            "cuda_build": torch.version.cuda,
            "cuda_available": torch.cuda.is_available(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
        },
        "thread_limits": {name: os.environ.get(name) for name in _THREAD_LIMITS},
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
    if (_checkout() / ".git").exists():
        commit = _git("rev-parse", "--short=12", "HEAD")
        changes = _git("status", "--porcelain", "--", *_CODE)
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
    names = {re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in requirements}
    versions: dict[str, str | None] = dict.fromkeys(sorted(names))
    for name in versions:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def describe_cpu() -> dict[str, Any]:
    """Return model, cores, cache, NUMA nodes and clock policy of the processor.

    ``usable_cores`` is the number of cores on which this process may run; ``quota_cores`` is the
    number that a container's limit grants (``None``: no limit).
    """
    quota = re.fullmatch(r"(\d+) (\d+)", kernel_text("/sys/fs/cgroup/cpu.max"))
    system = Path("/sys/devices/system")
    return {
        "model": _cpuinfo("model name") or platform.processor() or platform.machine(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": len(psutil.Process().cpu_affinity()),
        "quota_cores": int(quota[1]) / int(quota[2]) if quota else None,
        "numa_nodes": len(list((system / "node").glob("node[0-9]*"))) or None,
        "last_level_cache": kernel_text(system / "cpu/cpu0/cache/index3/size") or None,
        "scaling_governor": kernel_text(system / "cpu/cpu0/cpufreq/scaling_governor") or None,
    }


def describe_memory() -> dict[str, Any]:
    """Return the size of the memory, the container's limit (B), and the huge pages' state."""
    thp = re.search(r"\[(\w+)\]", kernel_text("/sys/kernel/mm/transparent_hugepage/enabled"))
    limit = kernel_text("/sys/fs/cgroup/memory.max")
    return {
        "total": psutil.virtual_memory().total,
        "container_limit": int(limit) if limit.isdigit() else None,
        "transparent_huge_pages": thp[1] if thp else None,
    }


def _checkout() -> Path:
    return Path(__file__).resolve().parents[2]


def _cpuinfo(field: str) -> str:
    """Return a field of the first processor; empty if the kernel has none of that name."""
    found = re.search(rf"^{field}\s*:\s*(.+)$", kernel_text("/proc/cpuinfo"), re.MULTILINE)
    return found[1].strip() if found else ""


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:60].strip("-")


def _git(*arguments: str) -> str | None:
    """Return the output of a git command on the checkout; ``None`` if git is missing or fails."""
    # In a container the checkout often has another owner, and git would refuse to read it.
    checkout = str(_checkout())
    command = ["git", "-c", f"safe.directory={checkout}", "-C", checkout, *arguments]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=30, check=True
        ).stdout.strip()
    return None
