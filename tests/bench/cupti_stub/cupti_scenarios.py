"""Scenarios for the stub of CUPTI: ``python cupti_scenarios.py FOLDER NAME``; JSON on stdout.

Each runs in a process of its own, because CUPTI's state and callbacks are the process's. The stub
is loaded beforehand, as torch has CUPTI loaded before the meter looks for it.
"""

from __future__ import annotations

import ctypes
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gatherbench.bench.meters import cupti
from gatherbench.bench.meters.cupti import (
    CPU_PAGE_FAULT,
    DEVICE_TO_HOST,
    GPU_PAGE_FAULT,
    HOST_TO_DEVICE,
    KIND,
    CuptiError,
    UnifiedMemoryCounters,
)

VERSION, CONFIGURE, ENABLE, FLUSH, DISABLE = range(5)
INLINE, ON_A_THREAD, LATE, NEVER = range(4)
OTHER_COUNTER, OTHER_KIND, NO_KIND = 9, 10, 77


class Stub:
    """The stub's controls."""

    def __init__(self, folder: Path) -> None:
        self._library = ctypes.CDLL(str(folder / "libcupti.so.77"))

    def __getattr__(self, name: str) -> Callable[..., int]:
        return getattr(self._library, f"stub_{name}")

    def emit(self, counter: int, value: int, kind: int = KIND) -> None:
        self._library.stub_emit(kind, counter, ctypes.c_uint64(value))

    def address(self, value: int) -> None:
        self._library.stub_address(ctypes.c_uint64(value))

    def version(self, value: int, record_bytes: int) -> None:
        self._library.stub_version(value, ctypes.c_size_t(record_bytes))


def told(driver: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """What the counters say of a window in which the ``driver`` works, or the reason."""
    try:
        counters = UnifiedMemoryCounters("libcupti.so.77")
        counters.start()
        driver()
        tally = counters.stop()
    except CuptiError as error:
        return {"reason": str(error)}
    return {"records": dict(tally.records), "values": dict(tally.values), "api": tally.version}


def some_of_all(stub: Stub) -> None:
    for value in (65536, 2 << 20, 4096):
        stub.emit(HOST_TO_DEVICE, value)
    stub.emit(DEVICE_TO_HOST, 1 << 33)
    stub.emit(CPU_PAGE_FAULT, 0x7F00DEADBEEF)  # a program counter, which nobody must add up
    stub.emit(GPU_PAGE_FAULT, 3)
    stub.emit(GPU_PAGE_FAULT, 1)


def sums(stub: Stub) -> Any:
    stub.records_a_buffer(ctypes.c_size_t(2))
    return told(lambda: some_of_all(stub))


def smaller_records(stub: Stub) -> Any:
    stub.version(22, 64)
    return sums(stub)


def on_a_thread(stub: Stub) -> Any:
    stub.delivery(ON_A_THREAD)
    return sums(stub)


def late(stub: Stub) -> Any:
    stub.delivery(LATE)
    return told(lambda: some_of_all(stub))


def beside(stub: Stub) -> Any:
    """A thread of the driver asks for buffers while this one is at work in Python."""

    def work() -> None:
        stub.records_a_buffer(ctypes.c_size_t(500))
        stub.emit_beside(ctypes.c_size_t(20_000))
        for i in range(300_000):
            _ = i * i

    return told(work)


def unknown_records(stub: Stub) -> Any:
    def driver() -> None:
        stub.emit(OTHER_COUNTER, 5)
        stub.emit(0, 7, kind=OTHER_KIND)
        stub.emit(HOST_TO_DEVICE, 4096)

    return told(driver)


def broken_records(stub: Stub) -> Any:
    return told(lambda: [stub.emit(HOST_TO_DEVICE, 4096), stub.emit(0, 7, kind=NO_KIND)])


def too_many(stub: Stub) -> Any:
    cupti.MOST_BUFFERS = 2
    stub.records_a_buffer(ctypes.c_size_t(1))
    full = told(lambda: [stub.emit(HOST_TO_DEVICE, 4096) for _ in range(5)])
    return {"full": full, "next": told(lambda: stub.emit(HOST_TO_DEVICE, 4096))}


def kept_with_records(stub: Stub) -> Any:
    stub.delivery(NEVER)
    first = told(lambda: stub.emit(HOST_TO_DEVICE, 4096))
    stub.delivery(INLINE)  # from now on, with the record of the window before
    return {"first": first, "next": told(lambda: stub.emit(HOST_TO_DEVICE, 4096))}


def kept_empty(stub: Stub) -> Any:
    told(lambda: stub.emit(HOST_TO_DEVICE, 4096))  # the buffer that is kept has been used before
    stub.delivery(NEVER)
    first = told(stub.ask)
    stub.delivery(INLINE)
    return {"first": first, "next": told(lambda: stub.emit(HOST_TO_DEVICE, 4096))}


def buffers() -> int:
    """How many there are when all have come back."""
    return len(cupti.record_buffers()._idle)


def windows(stub: Stub) -> Any:
    """Each window has its own; what happens between two of them belongs to none."""
    first = told(lambda: stub.emit(HOST_TO_DEVICE, 4096))
    stub.emit(HOST_TO_DEVICE, 1)
    stub.drop(ctypes.c_size_t(7))
    return [first, told(lambda: stub.emit(HOST_TO_DEVICE, 8192)), told(), stub.enabled(), buffers()]


def refusals(stub: Stub) -> Any:
    found = {}
    for name, call, code in (
        ("version", VERSION, 999),
        ("configure", CONFIGURE, 28),
        ("privileges", CONFIGURE, 35),
        ("mps", CONFIGURE, 31),
        ("enable", ENABLE, 39),
        ("flush", FLUSH, 8),
        ("disable", DISABLE, 999),
    ):
        stub.answer(call, code)
        found[name] = told()["reason"], stub.enabled()
        stub.answer(call, 0)
    found["after"] = told(lambda: stub.emit(HOST_TO_DEVICE, 1)).get("reason"), stub.enabled()
    return found


def libraries(stub: Stub) -> Any:
    found = {}
    for name, version, record_bytes in (
        ("newer", 140000, 104),
        ("older", 9, 64),
        ("larger", 130500, 128),
        ("smaller", 28, 64),
    ):
        stub.version(version, record_bytes)
        found[name] = told()
    try:
        UnifiedMemoryCounters("libcupti.so.nowhere")
    except CuptiError as error:
        found["none"] = str(error)
    return found


def meter(stub: Stub) -> Any:
    """The whole meter and its block, with a driver and a torch that have initialised CUDA."""
    from gatherbench.bench.meters import uvm
    from gatherbench.bench.meters.uvm import UvmMeter
    from gatherbench.bench.run.rows import RowMaker
    from gatherbench.bench.run.untimed import uvm_rows
    from gatherbench.kernels import managed_memory
    from gatherbench.kernels.cuda_calls import CudaCallError

    ctypes.CDLL(str(Path(sys.argv[1]) / "libcuda.so.1"))
    torch = types.SimpleNamespace(
        cuda=types.SimpleNamespace(is_initialized=lambda: True),
        version=types.SimpleNamespace(cuda="77.0"),
    )
    sys.modules["torch"] = torch  # type: ignore[assignment]

    class Move:
        """Of the known size, in two records; or of none, or refused."""

        addresses = range(1 << 46, (1 << 46) + uvm.SIZE_BYTES)
        records, closed, refused = 2, 0, False

        def to_gpu(self) -> None:
            if Move.refused:
                raise CudaCallError("cudaMemPrefetchAsync", "cudaErrorNotSupported", "no")
            stub.address(self.addresses.start)
            stub.emit(CPU_PAGE_FAULT, 4711)
            for _ in range(Move.records):
                stub.emit(HOST_TO_DEVICE, uvm.SIZE_BYTES // 2)
            stub.address(self.addresses.stop)  # the first address that is not the move's

        def close(self) -> None:
            Move.closed += 1

    uvm.KnownMove = Move  # type: ignore[assignment, misc]
    make = RowMaker("run", "abc", "box", "cuda", "w", "d", "s", "v", 0)
    ran: list[int] = []

    def epoch() -> None:
        ran.append(1)
        some_of_all(stub)

    def block(traced: bool = False, run: Callable[[], object] = epoch) -> Any:
        return [
            (r.metric, r.unit, r.value, r.source, r.status, r.reason, r.stage)
            for r in uvm_rows(run, make, traced)
        ]

    found: dict[str, Any] = {"unmanaged": block(), "epochs": len(ran)}
    managed_memory._managed[64] = 4096
    found |= {"counted": block(), "epochs_counted": len(ran)}
    found |= {"traced": block(traced=True), "epochs_traced": len(ran)}
    stub.answer(CONFIGURE, 35)
    found["refused"] = block()
    stub.answer(CONFIGURE, 0)
    Move.records = 1
    found["half_known"] = block()
    Move.records, Move.refused = 2, True
    found["no_move"] = block(run=list)
    Move.refused = False
    found["breaks"] = block(run=lambda: 1 // 0)
    found["enabled"], found["closed"] = stub.enabled(), Move.closed
    torch.cuda.is_initialized = lambda: False
    idle = UvmMeter()
    idle.start()
    found["idle"] = str(idle.stop()[0].reason)
    return found


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[2]](Stub(Path(sys.argv[1])))))
