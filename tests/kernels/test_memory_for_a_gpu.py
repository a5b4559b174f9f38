"""Managed and registered memory against a stand-in for CUDA: calls, room, errors, and their end."""

import ctypes
import gc
import os
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tests.at_line import AtLine

import gatherbench
from gatherbench.kernels import host_memory, managed_memory, mapped_memory
from gatherbench.kernels.cuda_calls import CudaCallError
from gatherbench.kernels.managed_memory import (
    empty,
    managed_bytes,
    managed_refusal,
    managed_room,
    managed_table,
    span_of,
)
from gatherbench.kernels.mapped_memory import HostRegistration, ManagedMemory

from .cuda_runtime import FakeRuntime, Status, fake_runtime

GIB = 1 << 30


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRuntime]:
    yield from fake_runtime(monkeypatch)


def both_advices(size: int, device: int) -> list[tuple[object, ...]]:
    return [
        ("allocate", size),
        ("SetPreferredLocation", size, "Host", 0),
        ("SetAccessedBy", size, "Device", device),
    ]


def test_a_table_is_advised_twice_and_brought_in_before_it_is_written(cuda):
    table = managed_table((1000, 6), torch.float32, device=3)
    assert cuda.done == both_advices(24_000, 3)
    assert table.shape == (1000, 6)
    assert not bool(table.any()), "its pages are there"
    (address,) = cuda.held
    assert table.data_ptr() == address
    assert managed_bytes() == 24_000


def test_each_core_that_the_process_may_use_brings_pages_in(cuda, monkeypatch):
    asked: list[int] = []
    real = host_memory.ThreadPoolExecutor
    monkeypatch.setattr(host_memory.os, "sched_getaffinity", lambda _: set(range(5)))
    monkeypatch.setattr(
        host_memory, "ThreadPoolExecutor", lambda count: asked.append(count) or real(count)
    )
    managed_table((4096, 1), torch.uint8)
    assert asked == [5]


def test_it_lives_as_long_as_any_tensor_over_it(cuda):
    table = managed_table((1000, 6), torch.float32)
    part = table[10:].view(torch.uint8)
    del table
    gc.collect()
    part.fill_(1)
    assert managed_bytes() == 24_000
    del part
    gc.collect()
    assert cuda.done[-1] == ("free",)
    assert managed_bytes() == 0


@pytest.mark.parametrize("rows", [slice(None), slice(10, 20)])
def test_a_table_that_lies_there_is_read_in_place(cuda, rows):
    table = managed_table((100, 4), torch.float32, device=1)
    before = len(cuda.done)
    with ManagedMemory(table[rows], device=1) as memory:
        assert memory.address == table.data_ptr() + 16 * (rows.start or 0)
        assert cuda.done[before:] == [], "neither a second copy nor advice again"
        assert memory.copied == 0
    with ManagedMemory(table, device=0):
        assert cuda.done[before:] == [("SetAccessedBy", 1600, "Device", 0, "late")], "another GPU"
    assert cuda.done[-1] != ("free",), "it is the caller's"


def test_a_table_elsewhere_is_copied_and_the_copy_told(cuda):
    table = torch.randn(10, 6)
    with ManagedMemory(table, device=2) as memory:
        assert torch.equal(memory.tensor, table)
        assert memory.tensor.data_ptr() == memory.address != table.data_ptr()
        assert cuda.done == both_advices(240, 2)
        assert memory.copied == 240
        assert memory.seconds > 0
    assert cuda.done[-1] == ("free",)
    with ManagedMemory(torch.empty(0, 6)) as memory:
        assert (memory.address, memory.copied) == (0, 0), "a table without bytes needs nothing"


def test_a_span_ends_where_it_ends(cuda):
    table = managed_table((4, 4), torch.uint8)
    beyond = torch.frombuffer(bytearray(64), dtype=torch.uint8)
    assert span_of(table) is not None
    assert span_of(beyond) is None
    managed_memory._spans[table.data_ptr()].size_bytes -= 1
    assert span_of(table) is None
    managed_memory._spans[table.data_ptr()].size_bytes += 1


def test_managed_memory_is_not_registered(cuda):
    """CUDA would say that it is registered already, and the path be another than it claims."""
    table = managed_table((10, 6), torch.float32)
    with pytest.raises(ValueError, match="managed memory, which cannot be registered: take memory"):
        HostRegistration(table)
    assert cuda.registered == {}


def test_what_fails_halfway_is_freed(cuda):
    cuda.status["cudaMemAdvise"] = Status.cudaErrorUnknown
    with pytest.raises(CudaCallError, match="cudaMemAdvise") as failed:
        managed_table((4, 4), torch.float32)
    assert cuda.held == {}, "at once, though the traceback holds the buffer"
    assert failed.tb


def test_a_driver_without_memory_is_a_reason_with_its_remedy(cuda):
    cuda.status["cudaMallocManaged"] = Status.cudaErrorMemoryAllocation
    with pytest.raises(MemoryError, match=r'no_memory: .*memory = "registered" reads the table'):
        managed_table((4, 4), torch.float32)
    cuda.status["cudaMallocManaged"] = Status.cudaErrorNotSupported
    with pytest.raises(CudaCallError, match="cudaErrorNotSupported"):
        managed_table((4, 4), torch.float32)
    assert cuda.done == []


def test_room_is_of_the_host_and_not_of_the_gpu(cuda, monkeypatch):
    monkeypatch.setattr(managed_memory, "available_bytes", lambda: 100 * GIB)
    assert managed_room(90 * GIB) is None
    refused = str(managed_room(90 * GIB + 1))
    assert refused.startswith(
        "no_memory: 90.0 GiB of managed memory are more than 90% of the 100.0"
    )
    assert "swap does not help" in refused
    assert managed_room(45 * GIB, processes=2) is None
    assert "in each of 3 processes" in str(managed_room(45 * GIB, processes=3))
    with pytest.raises(MemoryError, match=r"no_memory: 186\.3 GiB"):
        managed_table((200_000_000, 1000), torch.uint8)
    assert cuda.done == [], "refused before anything is allocated"


def test_a_gpu_that_cannot_share_it_with_the_cpu_refuses(cuda):
    assert managed_refusal(0) is None
    cuda.attributes = 0
    assert str(managed_refusal(1)).startswith("unsupported: CPU and cuda:1 cannot use managed")


def test_a_forked_child_frees_nothing(cuda):
    table = managed_table((4, 4), torch.float32)
    managed_memory._free(table.data_ptr(), os.getpid() + 1)
    assert len(cuda.held) == 1


def test_the_two_line_use_allocates_by_word(cuda):
    assert gatherbench.empty is empty
    assert span_of(gatherbench.empty((3, 4), torch.float16)) is not None
    for memory in ("anonymous", "shared"):
        table = gatherbench.empty((3, 4), torch.float16, memory=memory)  # type: ignore[arg-type]
        assert (span_of(table), table.dtype) == (None, torch.float16)
    with pytest.raises(ValueError, match="'pinned' is not one of managed, anonymous, shared"):
        gatherbench.empty((3, 4), memory="pinned")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="extents of 0 or more"):
        gatherbench.empty((-3, 4))


# ---- registration --------------------------------------------------------------------------------


TAKEN = Status.cudaErrorHostMemoryAlreadyRegistered


def test_a_table_is_registered_and_let_go(cuda):
    table = torch.ones(10, 6)
    with HostRegistration(table) as registration:
        assert cuda.registered == {table.data_ptr(): (240, 1 | 2)}
        assert registration.address == table.data_ptr() + (1 << 40)
        assert registration.size_bytes == 240
        assert registration.seconds > 0
    assert cuda.registered == {}
    registration.close()
    assert registration.address == 0
    with HostRegistration(torch.empty(0, 3)) as registration:
        assert registration.address == 0, "a table without bytes needs nothing"


def test_an_exception_and_an_object_that_is_forgotten_let_go(cuda):
    with pytest.raises(KeyError), HostRegistration(torch.ones(3, 3)):
        raise KeyError
    assert cuda.registered == {}
    registration = HostRegistration(torch.ones(3, 3))
    assert len(cuda.registered) == 1
    del registration
    gc.collect()
    assert cuda.registered == {}


def test_memory_outlives_its_registration(cuda):
    table = torch.ones(3, 3)
    registration = HostRegistration(table)
    registration.tensor = table = torch.empty(0)  # nobody but the registration holds the memory
    gc.collect()
    (start,) = cuda.registered
    assert list((ctypes.c_float * 9).from_address(start)) == [1.0] * 9
    registration.close()


def test_two_registrations_of_one_table_are_one(cuda):
    table = torch.ones(4, 4)
    first, second = HostRegistration(table), HostRegistration(table)
    first.close()
    assert len(cuda.registered) == 1
    second.close()
    assert cuda.registered == {}


def test_a_part_of_a_table_holds_the_registration_of_the_whole(cuda):
    """CUDA would say that the part is page-locked already, and unlock it with the whole."""
    table = torch.ones(100, 4)
    whole, part = HostRegistration(table), HostRegistration(table[10:20])
    assert part.address == whole.address + 10 * 16
    whole.close()
    assert list(cuda.registered) == [table.data_ptr()], "unlocked under the part's readers"
    part.close()
    assert cuda.registered == {}


def test_two_locked_ends_do_not_make_a_locked_table(cuda):
    table = torch.ones(100, 4)
    with HostRegistration(table[:10]), HostRegistration(table[90:]):
        cuda.status["cudaHostRegister"] = TAKEN
        with pytest.raises(CudaCallError, match="open a single table on the whole tensor"):
            HostRegistration(table)
        cuda.status.clear()


def test_parts_of_what_somebody_else_locked_are_no_obstacle(cuda):
    """As the rows and then the whole of a tensor in torch's page-locked memory."""
    table = torch.ones(100, 4)
    cuda.status["cudaHostRegister"] = TAKEN
    with HostRegistration(table[:10]), HostRegistration(table) as whole:
        assert whole.address
        assert mapped_memory.registered_bytes() == 0


@pytest.mark.parametrize("at", range(1, 8))
def test_a_collection_meanwhile_may_unregister_others(cuda, at):
    """It may begin between any two lines, in this thread, which holds the lock."""
    others = [HostRegistration(torch.ones(k + 1, 4)) for k in range(3)]
    table = torch.ones(9, 4)
    with AtLine("mapped_memory.py:_acquire", at, lambda: others.pop(1).close()):
        registration = HostRegistration(table)
    assert len(others) == 2
    assert len(cuda.registered) == 3
    for held in (*others, registration):
        held.close()


def test_memory_that_somebody_else_locked_is_used_and_left_alone(cuda):
    cuda.status["cudaHostRegister"] = TAKEN
    with HostRegistration(torch.ones(4, 4)) as registration:
        assert registration.address
    assert cuda.calls.count("cudaGetLastError") == 1
    cuda.kind = "Unregistered"  # only a part of it is: no use
    with pytest.raises(CudaCallError, match="AlreadyRegistered"):
        HostRegistration(torch.ones(4, 4))


def test_errors_say_what_to_do(cuda):
    cuda.status["cudaHostRegister"] = Status.cudaErrorMemoryAllocation
    with pytest.raises(
        CudaCallError, match=r"page-locked; RLIMIT_MEMLOCK is .*ulimit -l"
    ) as caught:
        HostRegistration(torch.ones(4, 4))
    assert caught.value.code == "cudaErrorMemoryAllocation"
    assert "what CUDA says" in str(caught.value)
    with pytest.raises(ValueError, match="contiguous tensor in host memory"):
        HostRegistration(torch.ones(4, 4).t()[:2])


def test_read_only_files_are_registered_read_only(cuda, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((50, 4), np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns once a process that it is read-only
        table = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="r"))
    with HostRegistration(table):
        assert cuda.registered == {table.data_ptr(): (800, 1 | 2 | 8)}
    cuda.attributes = 0
    with pytest.raises(CudaCallError, match="Copy the table into memory first"):
        HostRegistration(table)


def test_a_forked_child_unregisters_nothing(cuda):
    table = torch.ones(4, 4)
    with HostRegistration(table):
        mapped_memory._give_up((table.data_ptr(), 64), os.getpid() + 1, table)
        assert len(cuda.registered) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_driver_the_error_is_clear():
    with pytest.raises(CudaCallError, match=r"cudaHostRegister failed: .*driver.*nvidia-smi"):
        HostRegistration(torch.ones(4, 4))
    with pytest.raises(CudaCallError, match=r"cudaMallocManaged failed: .*driver"):
        gatherbench.empty((3, 4))


def test_nothing_is_unregistered_while_a_gather_may_read_it(cuda):
    registration = HostRegistration(torch.ones(4, 4))
    registration.close()
    assert "cudaDeviceSynchronize" in cuda.calls
    broken = HostRegistration(torch.ones(4, 4))
    # A context that has failed before:
    cuda.status["cudaDeviceSynchronize"] = Status.cudaErrorNotSupported
    with pytest.raises(CudaCallError, match="cudaDeviceSynchronize"):
        broken.close()
    assert cuda.registered == {}


def test_a_table_beyond_what_one_call_takes_is_told_the_limit():
    """The driver's word for it is "out of memory", with any amount of it free."""
    below, beyond = 511 << 30, 512 << 30
    assert "below 512 GiB" in mapped_memory._hints(beyond)["cudaErrorMemoryAllocation"]
    assert "512 GiB" not in mapped_memory._hints(below)["cudaErrorMemoryAllocation"]
