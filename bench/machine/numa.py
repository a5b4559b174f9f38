"""Bind a case to a NUMA node: by default to the GPU's.

Reads of a table on the other node also cross the link between the sockets, and threads that migrate
make times noisy. So a case's threads are bound to the GPU's node, memory comes from the node of its
first touch, and rows have the node or a reason. This also takes cores away from the CPU's gather.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatherbench.bench.machine import kernel_text
from gatherbench.kernels.cuda_calls import CudaCallError, call_runtime
from gatherbench.reason import Reason, unsupported

if TYPE_CHECKING:
    import torch

#: Where the kernel describes the machine.
SYS = Path("/sys")


def processors_by_node() -> dict[int, set[int]]:
    """Return the processors of each NUMA node; empty if the kernel names no nodes."""
    processors = {}
    for folder in (SYS / "devices/system/node").glob("node[0-9]*"):
        try:
            listed = parse_cpulist((folder / "cpulist").read_text())
            processors[int(folder.name.removeprefix("node"))] = listed
        except (OSError, ValueError):  # an unreadable list must not fail a case
            continue
    return dict(sorted(processors.items()))


def node_of_pci(address: str) -> int | None:
    """Return the node of the device at a PCI address (``0000:65:00.0``); ``None``: unknown."""
    node = kernel_text(SYS / "bus/pci/devices" / address.lower() / "numa_node")
    return int(node) if node.isdecimal() else None  # -1: unknown to the firmware


def parse_cpulist(text: str) -> set[int]:
    """Parse numbers in the kernel's list format, e.g. ``0-3,8``."""
    spans = (part.partition("-") for part in text.strip().split(",") if part)
    return {n for first, _, last in spans for n in range(int(first), int(last or first) + 1)}


def describe_numa(gpu_nodes: Sequence[int | None]) -> dict[str, Any]:
    """Return each node's number of processors, and whether cases are bound to a GPU's node.

    ``gpu_nodes`` has the node of each GPU; ``None``: unknown.
    """
    nodes, why = processors_by_node(), ""
    if len(nodes) < 2:
        why = "one NUMA node"
    elif not gpu_nodes:
        why = "this machine lacks a GPU"
    elif None in gpu_nodes:
        why = "the kernel hides a GPU's node"
    bound = "a case on a GPU is bound to its node, unless the plan says numa = none"
    return {
        "processors_by_node": {str(node): len(cores) for node, cores in nodes.items()},
        "bound": not why,
        "binding": f"not bound: {why}" if why else bound,
    }


def bind_case(
    device: torch.device,
    threads: int,
    numa: str = "gpu",
    part_of: Callable[[int | None], tuple[int, int]] = lambda node: (0, 1),
) -> tuple[int | Reason, str]:
    """Bind this process, and the threads it will start, for a case on ``device``; return the node,
    or why it is bound to none, and by what means.

    Args:
        threads: the number of cores that the case may use (0: all of them).
        numa: ``gpu`` binds to the node of the device, ``none`` to no node.
        part_of: this process's part of a node's cores and the number of parts, if several processes
            train together. With fewer cores than parts, each process gets all cores.
    """
    nodes, allowed = processors_by_node(), os.sched_getaffinity(0)
    node, how = _node_for(device, numa, nodes, allowed), ""
    if isinstance(node, int):
        allowed &= nodes[node]
        how = f"sched_setaffinity to {len(allowed)} processors, memory by first touch"
    cores = sorted(allowed)[: threads or None]
    part, parts = part_of(node if isinstance(node, int) else None)
    if len(cores) >= parts:
        cores = cores[part * len(cores) // parts : (part + 1) * len(cores) // parts]
    os.sched_setaffinity(0, cores)
    return node, how


def _node_for(
    device: torch.device, numa: str, nodes: dict[int, set[int]], allowed: set[int]
) -> int | Reason:
    """Return the node to bind to, or why there is none."""
    if numa == "none" or len(nodes) < 2:
        why = "the plan says numa = none" if numa == "none" else "the machine has one NUMA node"
        return unsupported(f"not bound: {why}")
    if device.type != "cuda":
        return Reason("no_device", "not bound: the case runs on the host")
    try:
        address = call_runtime("cudaDeviceGetPCIBusId", 16, device.index or 0)
    except CudaCallError as error:
        return unsupported(f"not bound: {error}")
    # The bindings return their whole buffer: ignore the padding after the terminator.
    node = node_of_pci(address.split(b"\0")[0].decode())
    if node is None or node not in nodes:
        return unsupported("not bound: the kernel hides the GPU's node")
    if not nodes[node] & allowed:
        cause = f"not bound: no core of node {node} may be used"
        return Reason("no_permission", cause, "let the process use more cores")
    return node
