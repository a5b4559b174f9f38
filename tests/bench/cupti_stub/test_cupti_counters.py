"""Managed memory's counters against a CUPTI that plays every trick: right sums, or a reason."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gatherbench.bench.machine.reason import Reason
from gatherbench.bench.meters import cupti, uvm
from gatherbench.bench.meters.cupti import (
    CPU_PAGE_FAULT,
    DEVICE_TO_HOST,
    GPU_PAGE_FAULT,
    HOST_TO_DEVICE,
    KIND,
    CuptiError,
    Tally,
    UnifiedMemoryCounters,
)
from gatherbench.bench.meters.uvm import SIZE_BYTES, UvmMeter
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.untimed import TRACED, uvm_rows
from gatherbench.kernels import managed_memory
from gatherbench.kernels.cuda_calls import CudaCallError

VERSION, CONFIGURE, ENABLE, FLUSH, DISABLE = range(5)
INLINE, ON_A_THREAD, LATE, NEVER = range(4)
OTHER_COUNTER, OTHER_KIND, NO_KIND = 9, 10, 77


class Stub:
    """A CUPTI of a test's own, and its controls."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._library = ctypes.CDLL(self.path)

    def __getattr__(self, name: str) -> Callable[..., int]:
        return getattr(self._library, f"stub_{name}")

    def emit(self, counter: int, value: int, kind: int = KIND) -> None:
        self._library.stub_emit(kind, counter, ctypes.c_uint64(value))

    def address(self, value: int) -> None:
        self._library.stub_address(ctypes.c_uint64(value))

    def version(self, value: int, record_bytes: int) -> None:
        self._library.stub_version(value, ctypes.c_size_t(record_bytes))

    def some_of_all(self) -> None:
        for value in (65536, 2 << 20, 4096):
            self.emit(HOST_TO_DEVICE, value)
        self.emit(DEVICE_TO_HOST, 1 << 33)
        self.emit(CPU_PAGE_FAULT, 0x7F00DEADBEEF)  # a program counter, which nobody must add up
        self.emit(GPU_PAGE_FAULT, 3)
        self.emit(GPU_PAGE_FAULT, 1)

    def moved(self, size: int = 4096) -> Callable[[], None]:
        return lambda: self.emit(HOST_TO_DEVICE, size)

    def counted(self, driver: Callable[[], object] = lambda: None) -> Tally:
        """What the counters say of a window in which the ``driver`` works."""
        counters = UnifiedMemoryCounters(self.path)
        counters.start()
        driver()
        return counters.stop()

    def refused(self, driver: Callable[[], object] = lambda: None) -> Reason:
        with pytest.raises(CuptiError) as refused:
            self.counted(driver)
        return refused.value.reason


@pytest.fixture
def stub(shared_library: Callable[[Path], Path], tmp_path: Path) -> Stub:
    own = tmp_path / "libcupti.so.77"  # a library of another name has variables of its own
    shutil.copy(shared_library(Path(__file__).with_name("cupti_stub.c")), own)
    cupti.record_buffers.cache_clear()
    return Stub(own)


#: By counter: moved to the GPU, to the host, faults of the CPU and of the GPU.
RECORDS = {HOST_TO_DEVICE: 3, DEVICE_TO_HOST: 1, CPU_PAGE_FAULT: 1, GPU_PAGE_FAULT: 2}
MOVED = {HOST_TO_DEVICE: 65536 + (2 << 20) + 4096, DEVICE_TO_HOST: 1 << 33, GPU_PAGE_FAULT: 4}


@pytest.mark.parametrize("delivery", [INLINE, ON_A_THREAD, LATE])
@pytest.mark.parametrize(("version", "record_bytes"), [(130001, 104), (22, 64)])
def test_records_are_added_up_however_they_are_handed_over(
    stub: Stub, delivery: int, version: int, record_bytes: int
) -> None:
    stub.version(version, record_bytes)
    stub.records_a_buffer(ctypes.c_size_t(2 if delivery != LATE else 1000))
    stub.delivery(delivery)
    tally = stub.counted(stub.some_of_all)
    assert tally.records == RECORDS
    assert {k: v for k, v in tally.values.items() if k != CPU_PAGE_FAULT} == MOVED
    assert tally.version == version


def test_a_thread_of_the_driver_may_ask_while_python_works(stub: Stub) -> None:
    def work() -> None:
        stub.records_a_buffer(ctypes.c_size_t(500))
        stub.emit_beside(ctypes.c_size_t(20_000))
        for i in range(300_000):
            _ = i * i

    tally = stub.counted(work)
    assert tally.records == {HOST_TO_DEVICE: 20_000}
    assert tally.values == {HOST_TO_DEVICE: 20_000 * 4096}


def test_records_of_other_kinds_are_stepped_over_or_leave_no_sum(stub: Stub) -> None:
    def driver() -> None:
        stub.emit(OTHER_COUNTER, 5)
        stub.emit(0, 7, kind=OTHER_KIND)
        stub.emit(HOST_TO_DEVICE, 4096)

    assert stub.counted(driver).values[HOST_TO_DEVICE] == 4096
    reason = stub.refused(lambda: [stub.emit(HOST_TO_DEVICE, 4096), stub.emit(0, 7, kind=NO_KIND)])
    assert str(reason).startswith("failed: cuptiActivityGetNextRecord")


def test_dropped_records_leave_no_sum_and_the_next_window_its_own(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cupti, "MOST_BUFFERS", 2)
    stub.records_a_buffer(ctypes.c_size_t(1))
    reason = stub.refused(lambda: [stub.emit(HOST_TO_DEVICE, 4096) for _ in range(5)])
    # Of five, two fitted.
    assert str(reason) == "failed: CUPTI dropped 3 records; count a shorter epoch"
    assert stub.counted(stub.moved()).values == {HOST_TO_DEVICE: 4096}
    stub.drop(ctypes.c_size_t(7))  # of another user of CUPTI: nobody can tell whose they were
    assert "dropped 7 records" in str(stub.refused(stub.moved()))
    assert stub.counted(stub.moved()).values == {HOST_TO_DEVICE: 4096}


def test_records_held_back_leave_no_sum_now_or_later(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cupti, "_GRACE_S", 0.01)
    stub.delivery(NEVER)
    assert stub.refused(stub.moved()).kind == "failed"
    stub.delivery(INLINE)  # from now on, with the record of the window before
    assert stub.refused(stub.moved()).kind == "failed"


def test_an_empty_buffer_that_is_held_back_loses_nothing(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cupti, "_GRACE_S", 0.01)
    stub.counted(stub.moved())  # the buffer that is kept has been used before
    stub.delivery(NEVER)
    assert not stub.counted(stub.ask).records
    stub.delivery(INLINE)
    assert stub.counted(stub.moved()).values == {HOST_TO_DEVICE: 4096}


def test_each_window_has_its_own_records(stub: Stub) -> None:
    assert stub.counted(stub.moved(4096)).values == {HOST_TO_DEVICE: 4096}
    stub.emit(HOST_TO_DEVICE, 1)  # what happens between two windows belongs to none
    assert stub.counted(stub.moved(8192)).values == {HOST_TO_DEVICE: 8192}
    assert not stub.counted().records
    assert not stub.enabled()
    assert len(cupti.record_buffers()._idle) == 1, "the same buffer each time"


NO_TOOLS = "unsupported" if Path("/dev/nvidia-uvm-tools").exists() else "no_permission"


@pytest.mark.parametrize(
    ("call", "code", "kind"),
    [
        (VERSION, 999, "failed"),
        (CONFIGURE, 28, NO_TOOLS),
        (CONFIGURE, 35, "no_permission"),
        (CONFIGURE, 31, "unsupported"),
        (ENABLE, 39, "busy"),
        (FLUSH, 8, "failed"),
        (DISABLE, 999, "failed"),
    ],
)
def test_whatever_cupti_refuses_is_a_reason_and_counting_stops(
    stub: Stub, call: int, code: int, kind: str
) -> None:
    stub.answer(call, code)
    reason = stub.refused()
    assert reason.kind == kind
    assert reason.remedy
    assert not stub.enabled()
    stub.answer(call, 0)
    assert stub.counted(stub.moved(1)).records
    assert not stub.enabled()


@pytest.mark.parametrize("version", [9, 25, 140000])
def test_a_library_that_is_not_understood_is_not_read(stub: Stub, version: int) -> None:
    stub.version(version, 104)
    assert str(stub.refused()).startswith(f"unsupported: CUPTI's API {version} is none")


def test_a_library_that_is_not_there_is_told() -> None:
    with pytest.raises(CuptiError, match=r"libcupti\.so\.nowhere"):
        UnifiedMemoryCounters("libcupti.so.nowhere")


# The whole meter and its epoch, with a driver and a torch that have initialised CUDA.


class Move:
    """A known move, in as many records of half its size as the case says."""

    def __init__(self, case: Case) -> None:
        self.case, self.closed, self.records = case, 0, case.records[len(case.moves)]
        self.counting = bool(case.stub.enabled())  # when it was allocated
        start = (1 << 46) + 2 * SIZE_BYTES * len(case.moves)
        self.addresses = range(start, start + SIZE_BYTES)
        case.moves.append(self)

    def to_gpu(self) -> None:
        if self.case.refused:
            raise CudaCallError("cudaMemPrefetchAsync", "cudaErrorNotSupported", "no")
        stub = self.case.stub
        stub.address(self.addresses.start)
        stub.emit(CPU_PAGE_FAULT, 4711)
        for _ in range(self.records):
            stub.emit(HOST_TO_DEVICE, SIZE_BYTES // 2)
        stub.address(self.addresses.stop)  # the first address that is not the move's

    def close(self) -> None:
        self.closed += 1


class Case:
    """A case with managed memory: how many epochs it ran, and the rows of the last."""

    def __init__(self, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stub, self.epochs, self.moves = stub, 0, list[Move]()
        self.records, self.refused = (2, 2), False
        monkeypatch.setitem(managed_memory._spans, 64, managed_memory.Span(64, 4096))
        monkeypatch.setattr(uvm, "ctypes", SimpleNamespace(CDLL=lambda _: None))
        monkeypatch.setattr(
            uvm, "UnifiedMemoryCounters", lambda _: UnifiedMemoryCounters(stub.path)
        )
        monkeypatch.setattr(uvm, "KnownMove", lambda: Move(self))
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        for name in uvm._PROFILERS:
            monkeypatch.delenv(name, raising=False)

    def epoch(self) -> None:
        self.epochs += 1
        self.stub.some_of_all()

    def rows(
        self, *, traced: bool = False, epoch: Callable[[], object] | None = None
    ) -> dict[str, Row]:
        self.moves.clear()
        make = RowMaker("run", "abc", "box", "cuda", "w", "d", "s", "v", 0)
        rows = list(uvm_rows(epoch or self.epoch, make, TRACED if traced else None))
        assert {row.stage for row in rows} <= {"uvm"}
        assert not self.stub.enabled()
        assert {move.closed for move in self.moves} <= {1}
        return {row.metric: row for row in rows}


@pytest.fixture
def case(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(stub, monkeypatch)


def test_a_case_with_managed_memory_gets_an_epoch_of_its_own(case: Case) -> None:
    rows = case.rows()
    assert case.epochs == 1
    assert [move.counting for move in case.moves] == [False, True]
    assert (rows.pop("window_time").value or 0) > 0
    assert {metric: (row.unit, row.value) for metric, row in rows.items()} == {
        "epochs": ("1", 1),
        "gpu_page_fault_records": ("1", 2),
        "gpu_page_faults": ("1", 4),
        "cpu_page_faults": ("1", 1),
        "migrated_host_to_device": ("B", MOVED[HOST_TO_DEVICE]),
        "migrated_device_to_host": ("B", MOVED[DEVICE_TO_HOST]),
    }
    source = rows["migrated_host_to_device"].source
    assert source == "cupti BYTES_TRANSFER_HTOD values, API 130001 [samples=3]"
    managed_memory._spans.clear()
    assert case.rows() == {}, "without managed memory there is nothing to count"
    assert case.epochs == 1


MISSED = "failed: of 2097152 B moved to the GPU as a test CUPTI counted {}, and {} of as much that"


@pytest.mark.parametrize(
    ("records", "refused", "said"),
    [
        ((1, 2), False, MISSED.format(1 << 20, 2 << 20)),
        ((0, 2), False, MISSED.format(0, 2 << 20)),  # then the table's moves are not seen, either
        ((2, 3), False, MISSED.format(2 << 20, 3 << 20)),
        ((2, 2), True, "unsupported: cudaMemPrefetchAsync"),
    ],
)
def test_counters_that_miss_a_known_move_are_not_believed(
    case: Case, records: tuple[int, int], refused: bool, said: str
) -> None:
    case.records, case.refused = records, refused
    counted = [row for row in case.rows().values() if row.source.startswith("cupti ")]
    assert len(counted) == 5
    for row in counted:
        assert row.value is None
        assert str(row.reason).startswith(said)
    assert len(case.moves) == 2


@pytest.mark.parametrize("traced", [True, False])
def test_where_cupti_is_not_free_no_epoch_is_spent(
    case: Case, monkeypatch: pytest.MonkeyPatch, traced: bool
) -> None:
    if not traced:
        monkeypatch.setenv("CUDA_INJECTION64_PATH", "libprofiler.so")
    rows = case.rows(traced=traced)
    assert case.epochs == 0
    assert len(rows) == 5
    said = "busy: --trace " if traced else "busy: a profiler runs this process"
    assert all(str(row.reason).startswith(said) for row in rows.values())


def test_what_fails_costs_the_case_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.stub.answer(CONFIGURE, 35)
    assert str(case.rows()["gpu_page_faults"].reason).startswith("no_permission: ")
    case.stub.answer(CONFIGURE, 0)
    broken = case.rows(epoch=lambda: 1 // 0)
    assert list(broken) == ["epochs"]
    assert broken["epochs"].status == "failed"
    assert "ZeroDivisionError" in str(broken["epochs"].reason)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    idle = UvmMeter()
    idle.start()
    assert all(r.reason and r.reason.kind == "unsupported" for r in idle.stop())
