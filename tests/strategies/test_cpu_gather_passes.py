"""What each mode of the baseline does to memory: its passes one by one, and memory it takes anew.

Everything is compared with these paths, and no rate shows whether one copies too little or too
much. The passes are counted where they are made: torch's operators, and our compiled loops.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gatherbench.kernels import host_gather
from gatherbench.strategies.base import Fetcher
from gatherbench.strategies.cpu_gather import CpuGather

HOST = torch.device("cpu")
TABLE = torch.arange(3000.0).view(300, 10)
IDS = torch.tensor([7, 3, 299, 7])
PAYLOAD = 4 * 10 * 4


@dataclass(frozen=True)
class Pass:
    """Bytes that were read at one address and written to another."""

    what: str
    source: int
    target: int
    size: int


def memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Operators(TorchDispatchMode):
    """Notes the operators that write: into memory of their own, or into an argument."""

    def __init__(self, passes: list[Pass]) -> None:
        super().__init__()
        self.passes = passes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if isinstance(out, torch.Tensor) and out.dtype == TABLE.dtype:  # rows, not ids
            given = [a for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
            if func._schema.is_mutable or memory(out) not in {memory(a) for a in given}:
                source = given[-1 if func is torch.ops.aten.copy_.default else 0 :][:1]
                self.passes.append(Pass(name, sum(map(memory, source)), memory(out), out.nbytes))
        return out


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[Pass]:
    """The passes of our loops, in whatever thread; a batch this small is one call each."""
    noted: list[Pass] = []
    gather_rows, copy_bytes = host_gather.gather_rows, host_gather.copy_bytes

    def gather(*a: Any) -> Any:
        noted.append(Pass("gather_rows", a[0], a[6], a[2] * len(a[3])))
        return gather_rows(*a)

    def copy(*a: Any) -> Any:
        noted.append(Pass("copy_bytes", a[0], a[1], a[2]))
        return copy_bytes(*a)

    monkeypatch.setattr(host_gather, "gather_rows", gather)
    monkeypatch.setattr(host_gather, "copy_bytes", copy)
    return noted


@contextmanager
def opened(mode: str, table: torch.Tensor = TABLE) -> Iterator[Fetcher]:
    with CpuGather(mode=mode).open(table, HOST) as fetcher:  # type: ignore[arg-type]
        yield fetcher


def fetched(fetcher: Fetcher, passes: list[Pass]) -> torch.Tensor:
    passes.clear()
    with Operators(passes):
        return fetcher.submit(IDS).result()


def test_naive_gathers_into_fresh_memory_and_copies_that_into_fresh_memory(
    passes: list[Pass],
) -> None:
    with opened("naive") as fetcher:
        rows = fetched(fetcher, passes)
        gather, copy = passes
        assert gather == Pass("index", memory(TABLE), gather.target, PAYLOAD)
        assert copy == Pass("_to_copy", gather.target, memory(rows), PAYLOAD)
        assert len({memory(TABLE), gather.target, copy.target}) == 3


@pytest.mark.parametrize(("mode", "buffers"), [("pinned", 1), ("prefetch", 2)])
def test_the_others_gather_into_staging_and_copy_that_once_into_buffers_that_stay(
    passes: list[Pass], mode: str, buffers: int
) -> None:
    staging, results = set(), []
    with opened(mode) as fetcher:
        for _ in range(buffers):  # which the first fetches make
            fetcher.submit(IDS).result()
        for _ in range(2 * buffers):
            rows = fetched(fetcher, passes)
            gather, copy = passes
            assert gather == Pass("gather_rows", memory(TABLE), gather.target, PAYLOAD)
            assert copy == Pass("copy_bytes", gather.target, memory(rows), PAYLOAD)
            staging.add(gather.target)
            results.append(memory(rows))
    assert len(staging) == 1
    assert len(set(results)) == buffers
    assert results[buffers:] == results[:buffers]
    assert not staging & {*results, memory(TABLE)}


#: More than the C library ever keeps of what is freed: each allocation is fresh memory.
LARGE = torch.zeros(1024, 4096)
MANY = torch.arange(4096) % 1024
LARGE_PAYLOAD = 64 << 20


def faults(work: Any) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.parametrize(("mode", "payloads"), [("naive", 2), ("pinned", 0), ("prefetch", 0)])
def test_fresh_memory_of_a_fetch_is_counted_by_its_page_faults(mode: str, payloads: int) -> None:
    once = faults(lambda: torch.empty(LARGE_PAYLOAD, dtype=torch.uint8).fill_(1))
    with opened(mode, LARGE) as fetcher:
        for _ in range(3):  # what stays is taken by the first fetches
            fetcher.submit(MANY).result()
        taken = faults(lambda: fetcher.submit(MANY).result()) / once
    assert taken == pytest.approx(payloads, abs=0.4)
