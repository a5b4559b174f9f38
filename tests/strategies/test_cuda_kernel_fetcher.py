"""The fetcher of our kernel with streams and events that only take notes.

What a GPU does with the notes is tested in ``tests/gpu``. Here: the bytes are right whatever the
order pass, and no wait is missing from what was queued.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from gatherbench.kernels.grid import GridPoint
from gatherbench.kernels.launch import Table
from gatherbench.kernels.order import ORDERS, Order
from gatherbench.kernels.reference import byte_rows, reference_gather, same_bytes
from gatherbench.strategies import (
    cached_zero_copy,
    conformance,
    cuda_fetcher,
    cuda_kernel_fetcher,
    mps,
)
from gatherbench.strategies.base import SetupStep
from gatherbench.strategies.cached_zero_copy import CachedFetcher, CachedZeroCopy
from gatherbench.strategies.cuda_kernel_fetcher import (
    BUDGETS,
    IdBuffer,
    KernelFetcher,
    OverlappedFetcher,
    blocks_of,
)
from gatherbench.strategies.host_fetcher import first_good
from gatherbench.strategies.knowledge import NOTHING
from gatherbench.strategies.registry import build, parameters
from gatherbench.strategies.scores import Placed

HOST = torch.device("cpu")


class Notes:
    """What was queued, in order: (stream, what, event or address)."""

    def __init__(self) -> None:
        self.queue: list[tuple[str, str, object]] = []
        self.current = Stream(self, "training")
        self.sides = 0
        #: Memory that a gather has written rows to, or read ids from, and on which stream.
        self.written, self.read = set[tuple[int, str]](), set[tuple[int, str]]()
        self.marked = set[tuple[int, str]]()

    def of(self, stream: str) -> list[tuple[str, object]]:
        return [(what, which) for name, what, which in self.queue if name == stream]


class Event:
    #: By the handle by which another process finds it.
    shared: ClassVar[dict[bytes, Event]] = {}

    def __init__(self, interprocess: bool = False) -> None:
        self.interprocess = interprocess

    def record(self, stream: Stream) -> None:
        stream.notes.queue.append((stream.name, "record", self))

    def synchronize(self) -> None: ...

    def ipc_handle(self) -> bytes:
        assert self.interprocess
        self.shared[b"%d" % id(self)] = self
        return b"%d" % id(self)

    @classmethod
    def from_ipc_handle(cls, device: torch.device, handle: bytes) -> Event:
        return cls.shared[handle]


class Stream:
    def __init__(self, notes: Notes, name: str) -> None:
        self.notes, self.name = notes, name

    def wait_event(self, event: Event) -> None:
        self.notes.queue.append((self.name, "wait", event))

    def synchronize(self) -> None:
        self.notes.queue.append((self.name, "synchronize", None))


class Memory:
    """Host memory as if a GPU saw it."""

    kind = "Host"
    in_place = True
    copied = 7

    def __init__(self, table: Tensor) -> None:
        self.address, self.size_bytes, self.seconds = table.data_ptr(), table.nbytes, 0.0
        self.closed = False

    def close(self) -> None:
        self.closed = True


def memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    """torch.cuda with streams that take notes and do their work at once, on the host."""
    made = Notes()

    @contextlib.contextmanager
    def entered(stream: Stream) -> Iterator[None]:
        before, made.current = made.current, stream
        yield
        made.current = before

    def side(device: object) -> Stream:
        made.sides += 1
        return Stream(made, f"side{made.sides}")

    def gather(
        out: Tensor,
        table: Table,
        ids: Tensor,
        point: GridPoint,
        out_rows: Tensor | None = None,
        bad_id: Tensor | None = None,
    ) -> None:
        assert ids.element_size() == point.index_bytes
        point.check(table.row_bytes, table.row_stride, table.address, out.data_ptr())
        made.queue.append((made.current.name, "gather", out.data_ptr()))
        made.written.add((memory_of(out), made.current.name))
        made.read.add((memory_of(ids), made.current.name))
        if ids.numel():
            size = table.num_rows * table.row_bytes
            raw = (ctypes.c_uint8 * size).from_address(table.address)
            rows = torch.frombuffer(raw, dtype=torch.uint8).view(table.num_rows, -1)[ids.long()]
            places = slice(None) if out_rows is None else out_rows
            byte_rows(out)[places] = rows

    def lookup(_kernel: object, count: int, given: tuple[Any, ...], _device: object) -> None:
        """kernels/lookup.cu."""
        ids, _, num_rows, slots, first_here, first_there, rows, near, hits, _ = given
        assert count == len(ids) <= len(rows)
        assert ((ids >= 0) & (ids < num_rows)).all()
        found = slots[ids.long()].long()
        near.copy_(found >= 0)
        hits += (found >= 0).sum()
        rows.copy_(torch.where(found >= 0, found + first_here, ids + first_there))

    monkeypatch.setattr(cached_zero_copy, "launch_threads", lookup)
    monkeypatch.setattr(cached_zero_copy, "load_from", lambda *_: None)
    monkeypatch.setattr(cached_zero_copy, "architecture", lambda _: "sm_90")
    empty = torch.empty

    def unpinned(*shape: Any, pin_memory: bool = False, **kinds: Any) -> Tensor:
        return empty(*shape, **kinds)

    monkeypatch.setattr(torch, "empty", unpinned)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: made.current)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    mark = lambda self, stream: made.marked.add((memory_of(self), stream.name))  # noqa: E731
    monkeypatch.setattr(torch.Tensor, "record_stream", mark)
    monkeypatch.setattr(torch.cuda, "Stream", side)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(cuda_kernel_fetcher, "with_index", lambda device: device)
    for module in (cuda_kernel_fetcher, cached_zero_copy, mps):
        monkeypatch.setattr(module, "gather_into", gather)
    monkeypatch.setattr(cuda_kernel_fetcher, "architecture", lambda device: "sm_90")
    monkeypatch.setattr(cuda_kernel_fetcher, "load_gather", lambda point, arch: None)
    return made


def opened(table: Tensor, order: Order = "given", *, overlapped: bool = False) -> KernelFetcher:
    memory = Memory(table)
    return KernelFetcher(table, HOST, memory, [], "aligned", order, overlapped=overlapped)


def brings_what_is_asked_for(fetcher: KernelFetcher, table: Tensor) -> None:
    for name, ids in conformance.id_patterns(conformance.NUM_ROWS).items():
        for kind in (torch.int32, torch.int64):
            rows = fetcher.submit(ids.to(kind)).result()
            assert same_bytes(rows, reference_gather(table, ids)) is None, (name, kind)


@pytest.mark.parametrize(
    ("memory", "kind", "time_metric", "size_metric"),
    [
        ("registered", "Host", "register_time", "registered"),
        ("managed", "Managed", "managed_time", "managed"),
        ("resident", "Device", "device_copy_time", "device_copy"),
    ],
)
def test_what_making_a_table_readable_cost_is_told_and_a_failure_lets_it_go(
    notes, monkeypatch,
    memory, kind, time_metric, size_metric
):  # fmt: skip
    table, made = torch.randn(50, 100), list[Memory]()
    monkeypatch.setattr(cuda_kernel_fetcher, "blocks_of", lambda percent, *_: percent + 16)
    real, *rows = cuda_kernel_fetcher.MEMORIES[memory]
    assert real.kind == kind  # type: ignore[attr-defined]

    def make(tensor: Tensor, _device: int) -> Memory:
        made.append(Memory(tensor))
        made[-1].seconds = 0.5
        return made[-1]

    monkeypatch.setitem(cuda_kernel_fetcher.MEMORIES, memory, (make, *rows))  # type: ignore[arg-type]
    with KernelFetcher.of(table, HOST, memory, "aligned", "unique", overlapped=True) as fetcher:
        told = [(step.metric, step.unit, step.value) for step in fetcher.setup]
        assert {point.shift for point in fetcher.points.values()} == {"circular"}
        assert fetcher.lookahead == 1
        fetcher.limit(10)
        assert {point.max_blocks for point in fetcher.points.values()} == {26}
        fetcher.submit(torch.tensor([7, 7, 3])).result()
    assert told[:-1] == [
        (time_metric, "s", 0.5),
        (size_metric, "B", 50 * 400),
        *([("managed_copy", "B", 7)] if memory == "managed" else []),
    ]
    assert told[-1][0] == "kernel_load_time"
    assert [what for _, what, _ in notes.queue].count("gather") == 2, "distinct rows, then all"

    def broken(*_: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(cuda_kernel_fetcher, "load_gather", broken)
    with pytest.raises(RuntimeError, match="no compiler"):
        KernelFetcher.of(table, HOST, memory, "aligned")
    assert [one.closed for one in made] == [True, True]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("overlapped", [False, True])
def test_the_rows_are_right_in_every_order(notes, order, overlapped):
    table = conformance.random_table(conformance.NUM_ROWS, 37, torch.float16)
    with opened(table, order, overlapped=overlapped) as fetcher:
        brings_what_is_asked_for(fetcher, table)
        assert fetcher.lookahead == overlapped
    streams = {name for name, *_ in notes.queue}
    assert (streams == {"training"}) == (not overlapped and order != "unique")


def test_an_overlapped_fetch_waits_and_is_waited_for(notes):
    with opened(torch.randn(50, 4), overlapped=True) as fetcher:
        assert fetcher.lookahead == 1
        tickets = [fetcher.submit(torch.arange(9)), fetcher.submit(torch.arange(5))]
        recorded = [event for what, event in notes.of("training") if what == "record"]
        side = notes.of("side1")
        gathers = [k for k, (what, _) in enumerate(side) if what == "gather"]
        assert len(gathers) == len(recorded) == 2
        for k, free in zip(gathers, recorded, strict=True):
            assert side.index(("wait", free)) < k, "the buffer's readers were not waited for"
            # Fetches share buffers: that of the one before is ahead on the same stream.
        done = [next(e for what, e in side[k:] if what == "record") for k in gathers]
        for ticket, event in zip(tickets, done, strict=True):
            ticket.result()
            assert notes.of("training")[-1] == ("wait", event), "training did not wait for rows"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("overlapped", [False, True])
def test_memory_that_another_stream_uses_is_marked_for_it(notes, order, overlapped):
    """Without the mark torch hands memory on while it is used: a buffer once it has grown, and
    distinct ids, which were found on a stream of their own, as soon as the fetch is queued."""
    with opened(torch.randn(50, 4), order, overlapped=overlapped) as fetcher:
        fetcher.submit(torch.tensor([3, 3, 7])).result()
    assert len(notes.written) == len(notes.read) == (2 if order == "unique" else 1)
    assert notes.written <= notes.marked
    # Sorted ids come from the stream that reads them.
    assert order == "sorted" or notes.read <= notes.marked


def test_distinct_ids_are_found_beside_the_training_stream(notes):
    with opened(torch.randn(50, 4), "unique") as fetcher:
        rows = fetcher.submit(torch.tensor([7, 7, 3])).result()
        assert torch.equal(rows[0], rows[1])
    found = [event for what, event in notes.of("side1") if what == "record"][-1]
    training = notes.of("training")
    gathers = [k for k, (what, _) in enumerate(training) if what == "gather"]
    assert len(gathers) == 2  # from the table, then the expansion
    assert training.index(("wait", found)) < gathers[0]


def test_the_table_is_let_go_even_if_the_gpu_has_failed(notes, monkeypatch):
    fetcher = opened(torch.randn(50, 4))

    def broken(device: object = None) -> None:
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    with pytest.raises(RuntimeError, match="illegal"):
        fetcher.close()
    assert isinstance(fetcher.memory, Memory)
    assert fetcher.memory.closed


def cached(table: Tensor, kept: Placed, *, overlapped: bool = False) -> CachedFetcher:
    fetcher = CachedFetcher(table, HOST, Memory(table), [], "aligned", overlapped=overlapped)
    fetcher.keep(kept)
    return fetcher


def hot(*ids: int) -> Placed:
    """A table of as many rows as the conformance suite's, of which these are kept."""
    slots = np.full(conformance.NUM_ROWS, -1, np.int32)
    slots[list(ids)] = np.arange(len(ids))
    return Placed(np.array(ids, np.int64), slots)


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("row_bytes", [37, 400])
@pytest.mark.parametrize("kept", [hot(), hot(0, 3, 128, 256), hot(*range(257))])
def test_kept_rows_and_others_are_read_by_one_launch(notes, kept, row_bytes, overlapped):
    table = conformance.random_table(conformance.NUM_ROWS, row_bytes, torch.int8)
    with cached(table, kept, overlapped=overlapped) as fetcher:
        filled = [what for _, what, _ in notes.queue]
        assert filled == ["gather"] * (kept.capacity > 0)
        notes.queue.clear()
        brings_what_is_asked_for(fetcher, table)
        launches = [which for _, what, which in notes.queue if what == "gather"]
        assert len(launches) == 2 * len(conformance.id_patterns(conformance.NUM_ROWS))


def test_kept_rows_are_filled_wherever_they_begin(notes, monkeypatch):
    """Of 40 B, a whole number of rows from the table: at 8 of 16 B for two of five tables."""
    size = conformance.NUM_ROWS * 40
    whole, places = torch.randint(-128, 127, (size + 80,), dtype=torch.int8), set()
    # In memory of our own: what an allocator gives lies anywhere, and both places are to be seen.
    room, empty = torch.empty(4 * 40, dtype=torch.uint8), torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda *size, **of: room if size == (len(room),) else empty(*size, **of)
    )
    for start in range(0, 80, 16):
        table = whole[start : start + size].view(-1, 40)
        with cached(table, hot(0, 3, 256)) as fetcher:
            places.add(fetcher._hot.data_ptr() - room.data_ptr())
            assert torch.equal(fetcher._hot[:3].view(torch.int8), table[[0, 3, 256]])
    assert places == {0, 8, 16, 24, 32}


def test_a_table_is_let_go_where_there_is_no_room_for_the_kept_rows(notes, monkeypatch):
    table = torch.zeros(conformance.NUM_ROWS, 3)
    fetcher = CachedFetcher(table, HOST, Memory(table), [], "aligned")

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(CachedFetcher, "of", lambda *_, **__: fetcher)
    monkeypatch.setattr(CachedFetcher, "keep", full)
    with pytest.raises(torch.OutOfMemoryError):
        CachedZeroCopy("random")._open(table, torch.device("cuda"), NOTHING)
    assert fetcher.memory.closed  # type: ignore[attr-defined]


def test_host_rows_come_first_and_kept_ones_are_not_read_there(notes, monkeypatch):
    read: list[int] = []
    table = conformance.random_table(conformance.NUM_ROWS, 37, torch.int8)
    begin = table.data_ptr()

    def addresses(out: Tensor, where: Table, ids: Tensor, *_: object) -> None:
        read.extend((where.address + ids * where.row_stride).tolist())

    monkeypatch.setattr(cuda_kernel_fetcher, "gather_into", addresses)
    kinds = {begin: "Host"}
    monkeypatch.setattr(cuda_fetcher, "pointer_kind", lambda address: kinds.get(address, "Device"))
    with cached(table, hot(4, 7)) as fetcher:
        found = [(one.part, one.expected, one.found) for one in fetcher.residency()]
        assert found == [("the table", *["Host"] * 2), ("the part that is kept", *["Device"] * 2)]
        fetcher.submit(torch.tensor([7, 9, 4, 7, 200])).result()
        assert fetcher.counts()["rows_on_device"] == 3
        assert read[:2] == [begin + 9 * 37, begin + 200 * 37]
        of_table = range(begin, begin + table.nbytes)
        assert not any(address in of_table for address in read[2:])


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_fetch_that_runs_ahead_is_confined_to_its_share(notes, monkeypatch, ahead):
    table, taken = torch.zeros(conformance.NUM_ROWS, 3), []
    lies: list[tuple[str, str]] = []

    def of(
        made: type[KernelFetcher], rows: Tensor, _: object, memory: str, policy: str,
        order: Order = "given", *, overlapped: bool,
    ) -> Any:  # fmt: skip
        lies.append((memory, order))
        return made(rows, HOST, Memory(rows), [], policy, order, overlapped=overlapped)

    monkeypatch.setattr(KernelFetcher, "of", classmethod(of))
    monkeypatch.setattr(KernelFetcher, "limit", lambda _, percent: taken.append(percent))
    path = CachedZeroCopy("random", ahead="1" if ahead else "0")
    with path._open(table, torch.device("cuda"), NOTHING) as fetcher:
        assert fetcher.lookahead == ahead
        told = [step.value for step in fetcher.setup if step.metric == "budget"]
    assert lies == [("registered", "given")]
    assert taken == [10] * ahead
    assert told == [0.1] * ahead


@pytest.fixture
def both(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> tuple[Tensor, mps.CudaTrainingSide, mps.CudaProducerSide]:
    """A table, and the CUDA halves of the producer's protocol, both in one process."""
    table = torch.arange(200.0).view(50, 4)
    monkeypatch.setattr(KernelFetcher, "of", lambda *_: opened(table))
    monkeypatch.setattr(mps, "IdBuffer", lambda kind, _device: IdBuffer(kind, HOST))
    here = mps.CudaTrainingSide(table, HOST)
    return table, here, mps.CudaProducerSide(table, 0, "aligned", here.handles())


Both = tuple[Tensor, mps.CudaTrainingSide, mps.CudaProducerSide]


def test_no_wait_is_missing_between_two_processes(notes, both):
    table, here, there = both
    for place, ids in ((0, torch.tensor([4, 2])), (1, torch.tensor([7], dtype=torch.int32))) * 2:
        out, buffer = here.rows(place, len(ids))
        if buffer is not None:
            there.attach(place, buffer)
        notes.queue.clear()
        here.free(place)
        there.gather(place, ids)
        here.arrived(place)
        assert torch.equal(out, table[ids.long()])
        (_, free), (_, awaited) = notes.of("training")
        (_, waited), *_, (gathers, _), (_, done) = notes.of("side1")
        assert [what for _, what, _ in notes.queue if what != "gather"] == [
            *("record", "wait", "record", "record", "wait")  # the third: ids were sent
        ]
        assert gathers == "gather"
        assert free is waited, "the readers of the buffer were not waited for"
        assert done is awaited, "the rows were not waited for"
        assert free is not done


def test_a_buffer_is_handed_over_when_it_is_new_and_not_again(notes, both):
    _, here, there = both
    assert here.rows(0, 0)[1] is None, "no rows, no buffer"
    buffers = [here.rows(0, count)[1] for count in (5, 3, 5, 500, 20)]
    assert [one is not None for one in buffers] == [True, False, False, True, False]
    there.attach(0, buffers[3])  # type: ignore[arg-type]
    assert notes.queue[-1][1] == "synchronize", "a gather may still write to the old one"
    assert len(there._out[0]) >= 500, "all the room there is, not this fetch's"


# ---- the share of the GPU ------------------------------------------------------------------------


def test_the_smallest_budget_that_is_good_enough():
    assert first_good({5: 2.0, 10: 1.02, 15: 1.0, 25: 1.01, 50: 1.3}) == 10
    assert first_good({5: 2.0, 10: 1.5, 15: 1.3, 25: 1.1, 50: 1.0}) == 50
    assert first_good({5: 1.0, 10: 1.0, 50: 1.0}) == 5


def test_a_budget_is_a_share_of_the_threads_that_fit(monkeypatch):
    gpu = SimpleNamespace(multi_processor_count=132, max_threads_per_multi_processor=2048)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    device = torch.device("cuda", 0)
    assert blocks_of(10, 256, device) == 132 * 2048 // 10 // 256
    assert blocks_of(5, 1024, device) == 13
    gpu.multi_processor_count = 1
    assert blocks_of(5, 1024, device) == 1


def test_every_budget_that_can_be_asked_for_is_swept():
    words = parameters(type(build("async_zero_copy")))["budget"]
    assert words == ("auto", *map(str, BUDGETS))


class FakeFetcher(OverlappedFetcher):
    """Knows only what tuning needs: how long a step takes with each share."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.setup: list[SetupStep] = []
        self.taken: list[int] = []
        self.seconds = seconds
        self.device = torch.device("cpu")

    def limit(self, percent: int) -> None:
        self.taken.append(percent)

    def step_seconds(self, ids: torch.Tensor, beside: Callable[[], object]) -> float:
        beside()
        return self.seconds[self.taken[-1]]


def test_what_runs_beside_decides(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    beside = dict(zip(BUDGETS, (9.0, 7.0, 4.0, 2.0, 2.0, 3.0, 6.0), strict=True))
    fetcher = FakeFetcher(beside)
    fetcher.take(50, "chosen before")
    steps = []
    found = fetcher.tune(torch.arange(9), lambda: steps.append(1))
    assert fetcher.taken[-1] == 10
    assert steps
    named = {step.metric: step for step in found}
    assert [named[f"budget_{p}_step_time"].value for p in BUDGETS] == [
        *(9.0, 7.0, 4.0, 2.0, 2.0, 3.0, 6.0)
    ]
    assert named["budget_beside_training"].value == 0.1
    assert "capped grid; smallest" in named["budget_beside_training"].source
    assert "train_alone_step_time" in named
    assert named["fetch_alone_step_time"].value == 2.0, "a share that slows it is no excuse"
    everything = [step.metric for step in fetcher.setup]
    assert len(everything) == len(set(everything)), "a row for each, and no row twice"
    assert next(s for s in fetcher.setup if s.metric == "budget").value == 0.5


def test_a_step_time_is_that_of_one_step(monkeypatch):
    """Four steps of 3 s each by a clock of the test's own."""
    now = [100.0]
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(cuda_kernel_fetcher, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    fetcher = FakeFetcher({})

    def step() -> None:
        now[0] += 3.0

    assert fetcher.alone_seconds(step) == 3.0
    assert now == [112.0]
