"""Check the arguments of both samplers, with the same error messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def check_fanouts(fanouts: Sequence[int]) -> tuple[int, ...]:
    """Return the fan-outs as a tuple; ``ValueError`` when there is none, a 0, or one below -1."""
    out = tuple(int(fanout) for fanout in fanouts)
    if not out:
        raise ValueError("fanouts: expected one number for each layer, got none")
    for layer, fanout in enumerate(out):
        if fanout < -1 or fanout == 0:
            raise ValueError(
                f"fanouts[{layer}] = {fanout}: expected a positive number, or -1 (all)"
            )
    return out


def check_graph(indptr: NDArray[Any], indices: NDArray[Any]) -> int:
    """Return the number of nodes of a graph in compressed sparse columns.

    The lists are not read: a sampler checks what it reads.

    Raises:
        TypeError: a dtype is wrong.
        ValueError: the shapes do not fit, or the graph has no node.
    """
    for name, array, allowed in (
        ("indptr", indptr, ("int64",)),
        ("indices", indices, ("int32", "int64")),
    ):
        if array.dtype not in allowed:
            raise TypeError(f"{name}: expected {' or '.join(allowed)}, got {array.dtype}")
        if array.ndim != 1:
            raise ValueError(f"{name}: expected one dimension, got shape {array.shape}")
    if len(indptr) < 2:
        raise ValueError("indptr: a graph without nodes cannot be sampled")
    first, last = int(indptr[0]), int(indptr[-1])
    if first != 0 or last != len(indices):
        raise ValueError(
            f"indptr: runs from {first} to {last}, expected from 0 to the {len(indices)} edges"
            " of indices"
        )
    return len(indptr) - 1


def check_seeds(seeds: Tensor) -> Tensor:
    """Return the seeds, contiguous; the sampler checks their range and repetition.

    Raises:
        TypeError: the seeds are no int64 tensor.
        ValueError: the seeds are empty, not one-dimensional, or not on the CPU.
    """
    if not isinstance(seeds, Tensor):
        raise TypeError(f"seeds: expected a torch tensor, got {type(seeds).__name__}")
    if seeds.dtype != torch.int64:
        raise TypeError(f"seeds: expected int64, got {seeds.dtype}; use .long()")
    if seeds.dim() != 1:
        raise ValueError(f"seeds: expected shape [S], got {tuple(seeds.shape)}")
    if seeds.numel() == 0:
        raise ValueError("seeds: a minibatch needs at least one seed node, got none")
    if seeds.device.type != "cpu":
        raise ValueError(f"seeds: expected on cpu, got {seeds.device}; move them first")
    return seeds.contiguous()
