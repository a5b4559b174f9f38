"""A stand-in for ``cuda.bindings.runtime`` that knows what is registered, and what is managed."""

import ctypes
import gc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from cuda.bindings import runtime as real

from gatherbench.kernels import cuda_calls, managed_memory, mapped_memory

Status = real.cudaError_t


class FakeRuntime:
    """Knows which memory is registered or managed; else it is ``cuda.bindings.runtime``."""

    def __init__(self) -> None:
        self.registered: dict[int, tuple[int, int]] = {}
        self.held: dict[int, Any] = {}
        self.attributes = 1
        self.kind = "Host"
        #: What a call answers where that is no success.
        self.status: dict[str, real.cudaError_t] = {}
        self.calls: list[str] = []
        #: Of managed memory: what was done to it, in order, with its sizes, advice and places.
        self.done: list[tuple[Any, ...]] = []

        self.answers: dict[str, Callable[..., Any]] = {
            "cudaHostRegister": lambda ptr, size, flags: self.registered.update(
                {ptr: (size, flags)}
            ),
            "cudaHostUnregister": self.registered.pop,
            "cudaDeviceSynchronize": lambda: None,
            "cudaGetLastError": lambda: None,
            "cudaHostGetDevicePointer": lambda ptr, flags: ptr + (1 << 40) + flags,
            "cudaDeviceGetAttribute": lambda _attribute, _device: self.attributes,
            "cudaPointerGetAttributes": lambda _ptr: SimpleNamespace(
                type=SimpleNamespace(name=f"cudaMemoryType{self.kind}")
            ),
            "cudaGetErrorString": lambda _status: b"what CUDA says",
            "cudaMallocManaged": self._allocate,
            "cudaMemAdvise": self._advise,
            "cudaFree": self._free,
        }

    def __getattr__(self, name: str) -> Any:
        if name not in self.answers:
            return getattr(real, name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            status = self.status.get(name, Status.cudaSuccess)
            return status, *([] if status else [self.answers[name](*arguments)])

        return call

    def _allocate(self, size: int, flags: int) -> int:
        assert flags == real.cudaMemAttachGlobal
        room = (ctypes.c_uint8 * size)()
        for page in range(0, size, 4096):
            room[page] = 255  # until it is brought in
        self.held[ctypes.addressof(room)] = room
        self.done.append(("allocate", size))
        return ctypes.addressof(room)

    def _advise(self, ptr: int, size: int, advice: Any, place: Any) -> None:
        assert ptr in self.held, "advice is for the whole of it"
        said = advice.name.removeprefix("cudaMemAdvise")
        late = any(page != 255 for page in self.held.get(ptr, b"")[::4096])
        where = place.type.name.removeprefix("cudaMemLocationType")
        self.done.append((said, size, where, place.id, *["late"] * late))

    def _free(self, ptr: int) -> None:
        self.done.append(("free",))
        del self.held[ptr]


def fake_runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRuntime]:
    """Calls go to the fake; afterwards nothing is held."""
    fake = FakeRuntime()
    for module in (cuda_calls, mapped_memory, managed_memory):
        monkeypatch.setattr(module, "runtime", lambda: fake)
    yield fake
    gc.collect()
    assert fake.registered == fake.held == mapped_memory._held == {}
    assert mapped_memory._foreign == set()
    assert managed_memory.managed_bytes() == 0
