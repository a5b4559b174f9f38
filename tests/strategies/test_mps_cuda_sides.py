"""The CUDA halves of the producer's protocol, both in one process, on streams that take notes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from gatherbench.kernels.launch import Table
from gatherbench.strategies import mps
from gatherbench.strategies.base import SetupStep

HOST = torch.device("cpu")
QUEUE: list[tuple[str, str, object]] = []
SHARED: dict[bytes, Any] = {}


class Event:
    """An event that another process finds by its handle."""

    made = 0

    def __init__(self, interprocess: bool = False) -> None:
        assert interprocess
        Event.made += 1
        self.name = f"event{Event.made}"

    def ipc_handle(self) -> bytes:
        SHARED[self.name.encode()] = self
        return self.name.encode()

    @staticmethod
    def from_ipc_handle(device: torch.device, handle: bytes) -> Event:
        found: Event = SHARED[handle]
        return found

    def record(self, stream: Stream) -> None:
        QUEUE.append((stream.name, "record", self))


class Stream:
    current: Stream

    def __init__(self, name: object) -> None:
        self.name = name if isinstance(name, str) else "producer"

    def wait_event(self, event: Event) -> None:
        QUEUE.append((self.name, "wait", event))

    def synchronize(self) -> None:
        QUEUE.append((self.name, "synchronize", None))


class Fetcher:
    def __init__(self, table: Tensor) -> None:
        self.setup = [SetupStep("register_time", "s", 1.0, "a stand-in")]
        self.table = Table(table.data_ptr(), len(table), 16, 16)
        self.points = dict.fromkeys((torch.int32, torch.int64))
        self.rows, self.closed = table, False

    def close(self) -> None:
        self.closed = True


class Ids:
    def __init__(self, dtype: torch.dtype, device: torch.device) -> None: ...

    def send(self, ids: Tensor, stream: Stream) -> Tensor:
        return ids.clone()


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Tensor:
    QUEUE.clear()
    rows = torch.arange(200.0).view(50, 4)

    @contextlib.contextmanager
    def entered(stream: Stream) -> Iterator[None]:
        before, Stream.current = Stream.current, stream
        yield
        Stream.current = before

    def gather(out: Tensor, source: Table, ids: Tensor, point: None) -> None:
        QUEUE.append((Stream.current.name, "gather", out.data_ptr()))
        out.copy_(rows[ids.long()])

    Stream.current = Stream("training")
    for name, value in (
        ("Event", Event),
        ("Stream", Stream),
        ("device", lambda device: contextlib.nullcontext()),
        ("stream", entered),
        ("set_device", lambda device: None),
        ("synchronize", lambda device: None),
        ("current_stream", lambda device: Stream.current),
    ):
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(mps.KernelFetcher, "registered", lambda *_: Fetcher(rows))
    monkeypatch.setattr(mps, "IdBuffer", Ids)
    monkeypatch.setattr(mps, "gather_into", gather)
    return rows


def both(table: Tensor) -> tuple[mps.CudaTrainingSide, mps.CudaProducerSide]:
    here = mps.CudaTrainingSide(table, HOST)
    return here, mps.CudaProducerSide(table, 0, "aligned", here.handles())


def test_no_wait_is_missing_between_the_two(table: Tensor) -> None:
    here, there = both(table)
    for place, ids in ((0, torch.tensor([4, 2])), (1, torch.tensor([7], dtype=torch.int32))) * 2:
        QUEUE.clear()
        out, buffer = here.rows(place, len(ids))
        if buffer is not None:
            there.attach(place, buffer)
        here.free(place)
        there.gather(place, ids)
        here.arrived(place)
        assert torch.equal(out, table[ids.long()])
        said = [entry for entry in QUEUE if entry[1] != "synchronize"]
        steps = [(stream, what) for stream, what, _ in said]
        assert steps == [
            ("training", "record"),
            ("producer", "wait"),
            ("producer", "gather"),
            ("producer", "record"),
            ("training", "wait"),
        ]
        free, waited, _, done, awaited = (which for *_, which in said)
        assert free is waited, "the readers of the buffer were not waited for"
        assert done is awaited, "the rows were not waited for"
        assert free is not done


def test_a_buffer_is_handed_over_when_it_is_new_and_not_again(table: Tensor) -> None:
    here, there = both(table)
    assert here.rows(0, 0)[1] is None, "no rows, no buffer"
    buffers = [here.rows(0, count)[1] for count in (5, 3, 5, 500, 20)]
    assert [p is not None for p in buffers] == [True, False, False, True, False]
    there.attach(0, buffers[3])  # type: ignore[arg-type]
    assert QUEUE[-1][:2] == ("producer", "synchronize"), "a gather may still write to the old one"
    assert len(there._out[0]) >= 500, "all the room there is, not this fetch's"


def test_an_empty_fetch_needs_no_buffer(table: Tensor) -> None:
    here, there = both(table)
    out, _ = here.rows(1, 0)
    here.free(1)
    there.gather(1, torch.empty(0, dtype=torch.int64))
    here.arrived(1)
    assert out.shape == (0, 4)
    there.close()
    assert there._fetcher.closed  # type: ignore[attr-defined]
