"""The move that a window of managed memory's counters begins with, as CUDA is asked for it."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from gatherbench.bench.meters import known_move
from gatherbench.bench.meters.known_move import SIZE_BYTES, KnownMove


def test_all_of_it_is_touched_here_then_moved_and_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    block = (ctypes.c_uint8 * SIZE_BYTES)()
    start, calls = ctypes.addressof(block), []
    answers = {"cudaMallocManaged": start, "cudaGetDevice": 1}

    def call(name: str, *arguments: Any) -> Any:
        calls.append((name, *arguments))
        return answers.get(name)

    location = SimpleNamespace(type=None, id=None)
    module = SimpleNamespace(
        cudaMemAttachGlobal=1,
        cudaMemLocation=lambda: location,
        cudaMemLocationType=SimpleNamespace(cudaMemLocationTypeDevice="device"),
    )
    monkeypatch.setattr(known_move, "call_runtime", call)
    monkeypatch.setattr(known_move, "runtime", lambda: module)
    move = KnownMove()
    assert set(block) == {1}
    assert (start in move.addresses, start + SIZE_BYTES in move.addresses) == (True, False)
    assert len(move.addresses) == SIZE_BYTES
    move.to_gpu()
    move.close()
    assert (location.type, location.id) == ("device", 1)
    assert calls == [
        ("cudaMallocManaged", SIZE_BYTES, 1),
        ("cudaGetDevice",),
        ("cudaMemPrefetchAsync", start, SIZE_BYTES, location, 0, 0),
        ("cudaDeviceSynchronize",),
        ("cudaFree", start),
    ]
