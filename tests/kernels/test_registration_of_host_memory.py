"""Registration against a stand-in for CUDA: flags, errors, and that nothing stays registered."""

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
from gatherbench.kernels import mapped_memory
from gatherbench.kernels.cuda_calls import CudaCallError
from gatherbench.kernels.mapped_memory import HostRegistration

from .cuda_runtime import FakeRuntime, Status, fake_runtime

TAKEN = Status.cudaErrorHostMemoryAlreadyRegistered


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRuntime]:
    yield from fake_runtime(monkeypatch)


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
