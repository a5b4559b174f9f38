"""Sampling on the device the model is on: the same minibatches, whatever draws them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gatherbench.bench.run import epoch_minibatches as epochs
from gatherbench.bench.run import measure as measure_module
from gatherbench.bench.run.rows import Row
from gatherbench.bench.sampling import device_sampler
from gatherbench.bench.sampling import epoch as epoch_module
from gatherbench.bench.sampling.device_sampler import DeviceSampler
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.datasets.store import open_dataset
from gatherbench.reason import unsupported

from ..run.fakes import measured, skipped
from .minibatches import same

HOST = torch.device("cpu")


def losses(rows: list[Row]) -> list[float | None]:
    return [r.value for r in rows if (r.stage, r.metric) == ("train", "loss")]


def test_where_it_is_drawn_changes_nothing_that_is_trained(make_job):
    expected = losses(measured(make_job(sampling="replay")))
    assert expected
    assert losses(measured(make_job(sampling="gpu"))) == expected


@pytest.mark.parametrize(
    ("plan", "device", "asked"),
    [
        ({"sampling": "gpu"}, "cuda:0", [{"in_place": False}]),
        ({"sampling": "uva"}, "cuda:0", [{"in_place": True}]),
        ({"sampling": "uva"}, "cpu", []),
        ({"sampling": "live"}, "cuda:0", []),
    ],
)
def test_what_draws_the_minibatches(make_job, monkeypatch, plan, device, asked):
    found: list[Any] = []

    def drawing(*given: Any, **how: Any) -> Any:
        found.append(how)
        assert given[3] == torch.device(device)
        return SimpleNamespace(begin=None)

    monkeypatch.setattr(epochs, "DeviceSampler", drawing)
    job = replace(make_job(**plan), device=device)
    epochs.Epochs(job, open_dataset(job.dataset))
    assert found == asked


def test_surroundings_are_there_before_anything_asks_for_the_device(make_job, monkeypatch):
    events: list[str] = []
    strategy = measure_module.build("cpu_gather", {})
    kind = type(strategy)

    class Around:
        def __enter__(self) -> None:
            events.append("enter")

        def __exit__(self, *_: object) -> None:
            events.append("exit")

    monkeypatch.setattr(kind, "surroundings", lambda self, device: Around())
    monkeypatch.setattr(kind, "skip", lambda *_: events.append("skip") or unsupported("enough"))
    assert skipped(make_job()) == "unsupported: enough"
    assert events == ["enter", "skip", "exit"]


@pytest.mark.usefixtures("kernels_on_host")
def test_the_thread_that_trains_begins_two_minibatches_ahead(make_job, monkeypatch):
    """And asks each for its result when its turn comes; no other thread takes part."""
    done: list[tuple[str, int]] = []

    class Sampler:
        def __init__(self, *graph: Any, in_place: bool) -> None:
            self.drawing = NeighborSampler(*graph[:3])

        def begin(self, seeds: Tensor, seed: int) -> Any:
            number = sum(what == "begun" for what, _ in done)
            done.append(("begun", number))
            assert threading.current_thread() is threading.main_thread()

            def result() -> Any:
                done.append(("taken", number))
                return self.drawing.sample(seeds, seed)

            return result

    monkeypatch.setattr(epochs, "DeviceSampler", Sampler)
    job = make_job(sampling="gpu")
    plain = epochs.Epochs(job, open_dataset(job.dataset))
    ahead = replace(job, device="cuda")
    drawn = epochs.Epochs(ahead, open_dataset(job.dataset))
    for one, other in zip(plain.measured(0), drawn.measured(0), strict=True):
        assert torch.equal(one.input_ids, other.input_ids)
        assert all(map(torch.equal, one.edges, other.edges))
    count = plain.batches
    assert count > 3
    wanted = [("begun", 0), ("begun", 1)]
    for number in range(count):
        wanted.append(("taken", number))
        wanted += [("begun", number + 2)] if number + 2 < count else []
    assert done == wanted


@pytest.mark.parametrize("sampling", ["live", "gpu"])
def test_the_order_of_an_epoch_is_drawn_before_its_first_minibatch_is_asked_for(
    make_job, monkeypatch, sampling
):
    job = make_job(sampling=sampling)
    made = epochs.Epochs(job, open_dataset(job.dataset))
    batches = made.measured(0)

    def late(*_: object, **__: object) -> None:
        raise AssertionError("within the clock")

    monkeypatch.setattr(epoch_module, "epoch_seeds", late)
    assert len(list(batches)) == made.batches


@pytest.mark.usefixtures("kernels_on_host")
def test_on_a_gpu_nothing_is_waited_for_but_what_was_begun(monkeypatch):
    """With streams and events that take notes; the training keeps all of it from reuse."""
    notes: list[tuple[str, str]] = []

    class Event:
        def __init__(self) -> None:
            self.name = f"event {sum(what == 'made' for _, what in notes)}"
            notes.append((self.name, "made"))

        def record(self) -> None:
            notes.append((self.name, "recorded"))

        def synchronize(self) -> None:
            notes.append((self.name, "waited for"))

    class Stream(str):
        cuda_stream = 7

    @contextmanager
    def entered(stream: str) -> Iterator[None]:
        notes.append((stream, "entered"))
        yield
        notes.append((stream, "left"))

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "training")
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda self, stream: notes.append((stream, "keeps"))
    )
    slot = device_sampler._Slot

    def on_gpu(device: torch.device, layers: int) -> Any:
        made = slot(device, layers)
        made.there = Event()  # type: ignore[assignment]
        return made

    monkeypatch.setattr(device_sampler, "_Slot", on_gpu)
    graph = np.arange(0, 33, 4), np.arange(32) % 8
    sampler = DeviceSampler(*graph, (4, 3), HOST)
    sampler._stream = Stream("sampling")  # type: ignore[assignment]
    streams: list[int] = []
    launch = device_sampler.launch_threads

    def launched(*given: Any) -> None:
        streams.append(given[4])
        launch(*given)

    monkeypatch.setattr(device_sampler, "launch_threads", launched)
    one, other = (sampler.begin(torch.arange(5), seed) for seed in (1, 2))
    within = [("sampling", "entered"), ("sampling", "left")]

    def begun(event: int, made: bool) -> list[tuple[str, str]]:
        new = [(f"event {event}", "made")] * made
        return [within[0], *new, (f"event {event}", "recorded"), within[1]]

    assert notes == [*begun(0, made=True), *begun(1, made=True)]
    assert streams == [7] * 16, "every launch is on the sampler's own stream"
    notes.clear()
    assert other().input_ids.device == HOST
    assert notes == [("event 1", "waited for"), *[("training", "keeps")] * 3]
    notes.clear()
    sampler.begin(torch.arange(3), 3)
    assert notes == begun(1, made=False), "the room of the one that is there is used again"
    assert one().num_nodes[0] == 5


@pytest.mark.usefixtures("kernels_on_host")
def test_minibatches_that_are_drawn_at_once_are_those_of_one_after_another():
    """Twice: the second time in the room of those that are there, which is given back last."""
    graph = np.arange(0, 33, 4), np.arange(32) % 8
    right, sampler = NeighborSampler(*graph, (4, 3)), DeviceSampler(*graph, (4, 3), HOST)

    class Slots(list[Any]):
        def append(self, slot: Any) -> None:
            slot.sizes.fill_(-1)
            super().append(slot)

    sampler._slots = Slots()
    for _ in range(2):
        tasks = [(torch.arange(size), 7 * size) for size in (5, 2, 8, 1)]
        begun = [sampler.begin(*task) for task in tasks]
        for task, one in reversed([*zip(tasks, begun, strict=True)]):
            assert same(right.sample(*task), one())
    assert len(sampler._slots) == 4


@pytest.mark.usefixtures("kernels_on_host")
def test_sizes_are_copied_without_a_wait_before_they_are_said_to_be_there(monkeypatch):
    graph = np.arange(0, 33, 4), np.arange(32) % 8
    sampler = DeviceSampler(*graph, (4, 3), HOST)
    sampler.sample(torch.arange(5), 1)
    (slot,) = sampler._slots
    notes: list[object] = []
    copy, to = Tensor.copy_, Tensor.to

    def noted(into: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        if into is slot.sizes:
            notes.append(("sizes", non_blocking))
        return copy(into, source)

    def sent(one: Tensor, *where: Any, **how: bool) -> Tensor:
        notes.append(("seeds", how.get("non_blocking")))
        return to(one, *where, **how)

    monkeypatch.setattr(Tensor, "copy_", noted)
    monkeypatch.setattr(Tensor, "to", sent)
    slot.there = SimpleNamespace(record=lambda: notes.append("recorded"))  # type: ignore[assignment]
    sampler.begin(torch.arange(5), 2)
    assert notes == [("seeds", True), ("sizes", True), "recorded"]


@pytest.mark.usefixtures("kernels_on_host")
def test_there_is_room_for_no_more_than_the_graph_has():
    """8 nodes and 32 edges, of fan-outs of 1000."""
    graph = np.arange(0, 33, 4), np.arange(32) % 8
    drawn: Any = DeviceSampler(*graph, (1000, 1000), HOST).begin(torch.arange(5), 1)
    *_, nodes, edges = drawn.args
    assert nodes.numel() <= 8
    assert all(one.numel() <= 64 for one in edges)


@pytest.mark.parametrize(("device", "locked"), [("cuda", True), ("cpu", False)])
def test_what_travels_to_and_from_a_gpu_is_page_locked(monkeypatch, device, locked):
    asked: list[bool] = []
    monkeypatch.setattr(torch, "empty", lambda *_, **how: asked.append(how["pin_memory"]))
    monkeypatch.setattr(torch.cuda, "Event", object)
    device_sampler._Slot(torch.device(device), 3)
    assert asked == [locked, locked]
