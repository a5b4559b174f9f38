"""Registration against a stand-in for CUDA: flags, errors, and that nothing stays registered."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import sys
import warnings
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gatherbench.kernels import cuda_calls, mapped_memory
from gatherbench.kernels.cuda_calls import CudaCallError, call_runtime
from gatherbench.kernels.mapped_memory import (
    HostRegistration,
    ManagedCopy,
    managed_refusal,
    writable,
)


class Status(IntEnum):
    cudaSuccess = 0  # noqa: N815
    cudaErrorMemoryAllocation = 2  # noqa: N815
    cudaErrorNotSupported = 801  # noqa: N815
    cudaErrorHostMemoryAlreadyRegistered = 712  # noqa: N815


class FakeRuntime:
    """Knows which memory is registered and answers like ``cuda.bindings.runtime``."""

    cudaError_t = Status  # noqa: N815
    cudaHostRegisterPortable, cudaHostRegisterMapped, cudaHostRegisterReadOnly = 1, 2, 8  # noqa: N815
    cudaDeviceAttr = SimpleNamespace(  # noqa: N815
        cudaDevAttrHostRegisterReadOnlySupported="read_only",
        cudaDevAttrConcurrentManagedAccess="managed",
    )

    def __init__(self) -> None:
        self.registered: dict[int, tuple[int, int]] = {}
        self.attributes = {"read_only": 1, "managed": 1}
        self.next_status = Status.cudaSuccess
        self.kind = "Host"
        self.reset_errors = self.waited = 0
        self.sync_status = Status.cudaSuccess

    def cudaHostRegister(self, ptr: int, size: int, flags: int) -> tuple[Any, ...]:  # noqa: N802
        if self.next_status == Status.cudaSuccess:
            self.registered[ptr] = (size, flags)
        return (self.next_status,)

    def cudaDeviceSynchronize(self) -> tuple[Any, ...]:  # noqa: N802
        self.waited += 1
        return (self.sync_status,)

    def cudaHostUnregister(self, ptr: int) -> tuple[Any, ...]:  # noqa: N802
        del self.registered[ptr]
        return (Status.cudaSuccess,)

    def cudaHostGetDevicePointer(self, ptr: int, flags: int) -> tuple[Any, ...]:  # noqa: N802
        assert flags == 0
        return (Status.cudaSuccess, ptr + (1 << 40))

    def cudaDeviceGetAttribute(self, name: str, device: int) -> tuple[Any, ...]:  # noqa: N802
        return (Status.cudaSuccess, self.attributes[name])

    def cudaPointerGetAttributes(self, ptr: int) -> tuple[Any, ...]:  # noqa: N802
        kind = SimpleNamespace(name=f"cudaMemoryType{self.kind}")
        return (Status.cudaSuccess, SimpleNamespace(type=kind))

    def cudaGetErrorString(self, status: Status) -> tuple[Any, ...]:  # noqa: N802
        return (Status.cudaSuccess, b"what CUDA says")

    def cudaGetLastError(self) -> tuple[Any, ...]:  # noqa: N802
        self.reset_errors += 1
        return (Status.cudaSuccess,)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRuntime]:
    fake = FakeRuntime()
    monkeypatch.setattr(cuda_calls, "runtime", lambda: fake)
    monkeypatch.setattr(mapped_memory, "runtime", lambda: fake)
    yield fake
    gc.collect()
    assert fake.registered == {}
    assert mapped_memory._held == {}
    assert mapped_memory._foreign == set()


def test_a_table_is_registered_and_let_go(cuda: FakeRuntime) -> None:
    table = torch.ones(10, 6)
    with HostRegistration(table) as registration:
        assert cuda.registered == {table.data_ptr(): (240, 1 | 2)}
        assert registration.address == table.data_ptr() + (1 << 40)
        assert (registration.size_bytes, registration.read_only) == (240, False)
        assert registration.seconds > 0
    assert cuda.registered == {}
    registration.close()
    assert registration.address == 0
    with HostRegistration(torch.empty(0, 3)) as registration:
        assert registration.address == 0, "a table without bytes needs nothing"


def test_an_exception_and_an_object_that_is_forgotten_let_go(cuda: FakeRuntime) -> None:
    with pytest.raises(KeyError), HostRegistration(torch.ones(3, 3)):
        raise KeyError
    assert cuda.registered == {}
    registration = HostRegistration(torch.ones(3, 3))
    assert len(cuda.registered) == 1
    del registration
    gc.collect()
    assert cuda.registered == {}


def test_memory_outlives_its_registration(cuda: FakeRuntime) -> None:
    table = torch.ones(3, 3)
    registration = HostRegistration(table)
    registration.tensor = table = torch.empty(0)  # nobody but the registration holds the memory
    gc.collect()
    (start,) = cuda.registered
    assert list((ctypes.c_float * 9).from_address(start)) == [1.0] * 9
    registration.close()


def test_two_registrations_of_one_table_are_one(cuda: FakeRuntime) -> None:
    table = torch.ones(4, 4)
    first, second = HostRegistration(table), HostRegistration(table)
    first.close()
    assert len(cuda.registered) == 1
    second.close()
    assert cuda.registered == {}


def test_a_part_of_a_table_holds_the_registration_of_the_whole(cuda: FakeRuntime) -> None:
    """CUDA would say that the part is page-locked already, and unlock it with the whole."""
    table = torch.ones(100, 4)
    whole, part = HostRegistration(table), HostRegistration(table[10:20])
    assert part.address == whole.address + 10 * 16
    whole.close()
    assert list(cuda.registered) == [table.data_ptr()], "unlocked under the part's readers"
    part.close()
    assert cuda.registered == {}


def test_two_locked_ends_do_not_make_a_locked_table(cuda: FakeRuntime) -> None:
    table = torch.ones(100, 4)
    with HostRegistration(table[:10]), HostRegistration(table[90:]):
        cuda.next_status = Status.cudaErrorHostMemoryAlreadyRegistered
        with pytest.raises(CudaCallError, match="open a single table on the whole tensor"):
            HostRegistration(table)
        cuda.next_status = Status.cudaSuccess


def test_parts_of_what_somebody_else_locked_are_no_obstacle(cuda: FakeRuntime) -> None:
    """As the rows and then the whole of a tensor in torch's page-locked memory."""
    table = torch.ones(100, 4)
    cuda.next_status = Status.cudaErrorHostMemoryAlreadyRegistered
    with HostRegistration(table[:10]), HostRegistration(table) as whole:
        assert whole.address
        assert mapped_memory.registered_bytes() == 0


@pytest.mark.parametrize("at", range(1, 8))
def test_a_collection_meanwhile_may_unregister_others(cuda: FakeRuntime, at: int) -> None:
    """It may begin between any two lines, in this thread, which holds the lock."""
    others = [HostRegistration(torch.ones(k + 1, 4)) for k in range(3)]
    table = torch.ones(9, 4)
    lines = 0

    def collect(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        if lines == at:
            lines += 1
            others.pop(1).close()
        return collect

    def enter(frame: FrameType, event: str, _argument: object) -> Any:
        return collect if frame.f_code is mapped_memory._acquire.__code__ else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        registration = HostRegistration(table)
    finally:
        sys.settrace(before)
    assert len(others) == 2
    assert len(cuda.registered) == 3
    for held in (*others, registration):
        held.close()


def test_memory_that_somebody_else_locked_is_used_and_left_alone(cuda: FakeRuntime) -> None:
    cuda.next_status = Status.cudaErrorHostMemoryAlreadyRegistered
    with HostRegistration(torch.ones(4, 4)) as registration:
        assert registration.address
    assert cuda.reset_errors == 1
    cuda.kind = "Unregistered"  # only a part of it is: no use
    with pytest.raises(CudaCallError, match="AlreadyRegistered"):
        HostRegistration(torch.ones(4, 4))


def test_errors_say_what_to_do(cuda: FakeRuntime) -> None:
    cuda.next_status = Status.cudaErrorMemoryAllocation
    with pytest.raises(
        CudaCallError, match=r"page-locked; RLIMIT_MEMLOCK is .*ulimit -l"
    ) as caught:
        HostRegistration(torch.ones(4, 4))
    assert caught.value.code == "cudaErrorMemoryAllocation"
    assert "what CUDA says" in str(caught.value)
    with pytest.raises(ValueError, match="contiguous tensor in host memory"):
        HostRegistration(torch.ones(4, 4).t()[:2])


def test_read_only_files_are_registered_read_only(cuda: FakeRuntime, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((50, 4), np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns once a process that it is read-only
        table = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="r"))
    with HostRegistration(table) as registration:
        assert registration.read_only
        assert cuda.registered == {table.data_ptr(): (800, 1 | 2 | 8)}
    cuda.attributes["read_only"] = 0
    with pytest.raises(CudaCallError, match="Copy the table into memory first"):
        HostRegistration(table)


def test_writable_reads_the_kernels_list(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "1000-2000 r--s 00000000 00:01 5   /table.npy\n2000-3000 rw-p 00000000 00:00 0\n"
    )
    assert not writable(0x1000, maps)
    assert not writable(0x1FFF, maps)
    assert writable(0x2000, maps)
    assert writable(0x9000, maps)
    assert writable(0x1000, tmp_path / "missing")
    with mmap.mmap(-1, 4096) as memory:
        assert writable(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])


def test_a_forked_child_unregisters_nothing(cuda: FakeRuntime) -> None:
    table = torch.ones(4, 4)
    with HostRegistration(table):
        mapped_memory._give_up((table.data_ptr(), 64), os.getpid() + 1, table)
        assert len(cuda.registered) == 1


def test_managed_memory_stays_well_below_the_gpus(
    cuda: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10 << 30, 20 << 30))
    assert managed_refusal(5 << 30, 0) is None
    assert str(managed_refusal((5 << 30) + 1, 0)).startswith("no_memory: managed memory of 5.0 GiB")
    cuda.attributes["managed"] = 0
    assert str(managed_refusal(1, 0)).startswith("unsupported")


def test_a_call_without_a_result_gives_none(cuda: FakeRuntime) -> None:
    assert call_runtime("cudaGetLastError") is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_driver_the_error_is_clear() -> None:
    with pytest.raises(CudaCallError, match=r"cudaHostRegister failed: .*driver.*nvidia-smi"):
        HostRegistration(torch.ones(4, 4))


def test_nothing_is_unregistered_while_a_gather_may_read_it(cuda: FakeRuntime) -> None:
    registration = HostRegistration(torch.ones(4, 4))
    registration.close()
    assert cuda.waited == 1
    broken = HostRegistration(torch.ones(4, 4))
    cuda.sync_status = Status.cudaErrorNotSupported  # a context that has failed before
    with pytest.raises(CudaCallError, match="cudaDeviceSynchronize"):
        broken.close()
    assert cuda.registered == {}


class ManagedRuntime(FakeRuntime):
    """Managed memory from the host's heap; takes note of the advice, in CUDA's own types."""

    cudaMemAttachGlobal = 1  # noqa: N815

    def __init__(self) -> None:
        super().__init__()
        real = pytest.importorskip("cuda.bindings.runtime")
        self.cudaMemLocation = real.cudaMemLocation
        self.cudaMemLocationType = real.cudaMemLocationType
        self.cudaMemoryAdvise = real.cudaMemoryAdvise
        self.held: dict[int, Any] = {}
        self.advice: list[tuple[int, int, str, str, int]] = []
        self.advise_status = Status.cudaSuccess

    def cudaMallocManaged(self, size: int, flags: int) -> tuple[Any, ...]:  # noqa: N802
        assert flags == self.cudaMemAttachGlobal
        room = (ctypes.c_uint8 * size)()
        self.held[ctypes.addressof(room)] = room
        return (Status.cudaSuccess, ctypes.addressof(room))

    def cudaMemAdvise(self, ptr: int, size: int, advice: Any, place: Any) -> tuple[Any, ...]:  # noqa: N802
        self.advice.append((ptr, size, advice.name, place.type.name, place.id))
        return (self.advise_status,)

    def cudaFree(self, ptr: int) -> tuple[Any, ...]:  # noqa: N802
        del self.held[ptr]
        return (Status.cudaSuccess,)


@pytest.fixture
def managed(monkeypatch: pytest.MonkeyPatch) -> ManagedRuntime:
    fake = ManagedRuntime()
    monkeypatch.setattr(cuda_calls, "runtime", lambda: fake)
    monkeypatch.setattr(mapped_memory, "runtime", lambda: fake)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 2 << 30))
    return fake


def test_a_managed_copy_prefers_the_host_and_is_mapped_for_the_gpu(managed: ManagedRuntime) -> None:
    table = torch.randn(10, 6)
    with ManagedCopy(table, device=3) as copy:
        assert torch.equal(copy.tensor, table)
        assert copy.tensor.data_ptr() == copy.address != table.data_ptr()
        assert managed.advice == [
            (copy.address, 240, f"cudaMemAdvise{advice}", f"cudaMemLocationType{place}", number)
            for advice, place, number in (
                ("SetPreferredLocation", "Host", 0),
                ("SetAccessedBy", "Device", 3),
            )
        ]
        assert mapped_memory.managed_bytes() == 240
    assert managed.held == {}
    assert mapped_memory.managed_bytes() == 0


def test_a_managed_copy_that_cannot_be_advised_is_freed(managed: ManagedRuntime) -> None:
    managed.advise_status = Status.cudaErrorNotSupported
    with pytest.raises(CudaCallError, match="cudaMemAdvise failed"):
        ManagedCopy(torch.ones(4, 4))
    assert managed.held == {}


def test_a_table_beyond_what_one_call_takes_is_told_the_limit() -> None:
    """The driver's word for it is "out of memory", with any amount of it free."""
    below, beyond = 511 << 30, 512 << 30
    assert "below 512 GiB" in mapped_memory._hints(beyond)["cudaErrorMemoryAllocation"]
    assert "512 GiB" not in mapped_memory._hints(below)["cudaErrorMemoryAllocation"]
