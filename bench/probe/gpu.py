"""Cases of the link and the GPU alone: copies, contiguous reads, passes, launches."""

from __future__ import annotations

import ctypes
import functools
from collections import deque
from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gatherbench.bench.probe.case import GPU, KERNEL, MINUTE, PROFILE, Scope, case
from gatherbench.bench.probe.gathers import gathering, ours
from gatherbench.bench.probe.host import USUAL_ROW_BYTES
from gatherbench.bench.probe.points import Point
from gatherbench.bench.probe.rig import GIB, Observation, Rig
from gatherbench.kernels.launch import architecture, launch_kernel, load_from

if TYPE_CHECKING:
    from gatherbench.bench.sampling.device_sampler import DeviceSampler

ROOF_BYTES = GIB
#: Blocks per hundred multiprocessors that the read roof tries: from as few in flight as in the
#: smallest gathers (too many can slow reads down) to more than fit at once.
ROOF_BLOCKS, _ROOF_THREADS = (10, 25, 50, 100, 200, 400, 800), 512
#: Rows of the gather into fresh memory (an ordinary minibatch), and of the gather that is launched.
PAGEABLE_ROWS, SUBMITTED_ROWS = 100_000, 1000
MATMUL_SIZE = 8192
#: Layers of the small chain that is launched; training steps in an observation.
CHAIN, STEPS = 100, 5


@case("B", "bytes of page-locked memory, copied by the copy engine", GPU, MINUTE)
def copy_to_device(rig: Rig, point: Point) -> Observation:
    table = rig.registered.bytes
    size = min(ROOF_BYTES, table.numel())
    source, target = rig.piece(table, size), rig.out[:size]
    return rig.timed(size, lambda: target.copy_(source, non_blocking=True))


@case("B", "bytes of rows gathered into fresh memory and copied", GPU, PROFILE)
def copy_pageable(rig: Rig, point: Point) -> Observation:
    """Time the paper's baseline: a gather by the processor into fresh memory, and its copy."""
    table = rig.table.view(torch.float32).view(-1, USUAL_ROW_BYTES // 4)
    ids = torch.randint(0, len(table), (PAGEABLE_ROWS,), generator=rig.random)
    return rig.clocked(len(ids) * USUAL_ROW_BYTES, lambda: table[ids].to(rig.device))


def _roofs(name: str, rig: Rig, scope: Scope) -> list[Point]:
    spans = rig.spans if scope > MINUTE else rig.spans[-1:]
    return [Point(name, 0, s, grid_percent=b) for s, b in product(spans, ROOF_BLOCKS)]


@case("B", "contiguous bytes of registered memory, read by the GPU", KERNEL, MINUTE, _roofs)
def sm_read(rig: Rig, point: Point) -> Observation:
    size, device = min(ROOF_BYTES, point.span_bytes), rig.device
    assert device is not None
    chip = torch.cuda.get_device_properties(device)
    blocks = max(1, point.grid_percent * chip.multi_processor_count // 100)
    begin = rig.piece(rig.registered.bytes[: point.span_bytes], size).storage_offset()
    begin -= rig.registered.bytes.storage_offset()
    kinds = ctypes.c_void_p, ctypes.c_longlong, ctypes.c_void_p  # begin, 16-byte words, sink
    values = rig.registered.address + begin, size // 16, 0
    kernel = load_from("read_roof.cu", "read_kernel", architecture(device))
    block = _ROOF_THREADS, 1
    return rig.timed(size, lambda: launch_kernel(kernel, blocks, block, values, kinds, device))


@case("B", "bytes copied within GPU memory: each is read and written", GPU, PROFILE)
def gpu_copy(rig: Rig, point: Point) -> Observation:
    source, target = rig.out.chunk(2)
    return rig.timed(len(target), lambda: target.copy_(source))


@case("1", "float32 operations of a product of matrices", GPU, PROFILE)
def gpu_matmul(rig: Rig, point: Point) -> Observation:
    a, b, product = rig.once(_matrices, rig)
    return rig.timed(2 * len(a) ** 3, lambda: torch.mm(a, b, out=product))


def _matrices(rig: Rig) -> list[Tensor]:
    return [torch.rand(MATMUL_SIZE, MATMUL_SIZE, device=rig.device) for _ in range(3)]


# ---- launching ---------------------------------------------------------------------------------


@case("1", "operations of a small chain, issued to the GPU", GPU, PROFILE)
def gpu_launch(rig: Rig, point: Point) -> Observation:
    x = torch.ones(64, device=rig.device, requires_grad=True)

    def step() -> None:
        y = x
        for _ in range(CHAIN):
            y = torch.relu(y)
        y.backward(torch.ones_like(y))  # type: ignore[no-untyped-call]

    return rig.clocked(2 * CHAIN, step)


@case("1", "operations of a training step, issued", GPU, PROFILE)
def gpu_issue(rig: Rig, point: Point) -> Observation:
    step, launches = rig.once(_training, rig)
    return rig.clocked(STEPS * launches, lambda: [step() for _ in range(STEPS)])


def _training(rig: Rig) -> tuple[Callable[[], Tensor], float]:
    """Return a step of GraphSAGE on a minibatch so small that it is host-bound, and the number of
    its launches."""
    from gatherbench.bench.plan.workload import Workload
    from gatherbench.bench.run.models import Trainer, build_model
    from gatherbench.bench.run.training_cost import training_cost
    from gatherbench.bench.sampling.minibatch import MiniBatch

    assert rig.device is not None
    nodes, width, hidden, classes = (16, 32, 64, 128), 32, 16, 8
    workload = Workload("few", fanouts=(2, 2, 2), hidden=hidden)
    ids = torch.arange(nodes[-1], device=rig.device)
    edges = tuple(
        torch.stack((ids[:count].repeat(2) * 2, ids[:count].repeat(2))) for count in nodes[:-1]
    )
    trainer = Trainer(build_model(workload, width, classes), ids % classes, rig.device)
    x, batch = torch.rand(nodes[-1], width, device=rig.device), MiniBatch(ids, edges, nodes)
    cost = training_cost("sage", width, hidden, classes, nodes, [2 * n for n in nodes[:-1]])
    return functools.partial(trainer.step, x, batch), cost.launches


@case("1", "layers of small minibatches, drawn by the GPU", GPU, PROFILE)
def gpu_draw(rig: Rig, point: Point) -> Observation:
    sampler, seeds = rig.once(_sampler, rig)
    begun = deque(sampler.begin(seeds, seed) for seed in range(2))  # as the training loop does

    def draws() -> None:
        for seed in range(STEPS):
            begun.append(sampler.begin(seeds, seed))
            begun.popleft()()

    return rig.clocked(STEPS * len(sampler.fanouts), draws)


def _sampler(rig: Rig) -> tuple[DeviceSampler, Tensor]:
    """Return a sampler of a graph so small that a draw is host-bound, and its seed nodes."""
    from gatherbench.bench.sampling.device_sampler import DeviceSampler

    assert rig.device is not None
    nodes = 128
    indptr, indices = np.arange(0, 2 * nodes + 1, 2), np.arange(2 * nodes) % nodes
    return DeviceSampler(indptr, indices, (2, 2, 2), rig.device), torch.arange(16)


@case("1", "minibatches of ids handed to the GPU and launched", KERNEL, PROFILE)
def gpu_submit(rig: Rig, point: Point) -> Observation:
    size = rig.table.numel()
    gather = ours("gpu_gather", USUAL_ROW_BYTES, size)
    ids = torch.randint(0, size // USUAL_ROW_BYTES, (SUBMITTED_ROWS,), generator=rig.random)
    address = rig.registered.address

    def submit() -> None:
        gathering(rig, address, gather, ids.to(rig.device))()

    return rig.clocked(1, submit, wait=False)
