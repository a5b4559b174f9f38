"""``cuda.bindings.runtime`` over the stand-in.

The real module carries a runtime of its own that only NVIDIA's driver can serve. So the functions
that the project calls go to the stand-in's runtime, with the arguments checked as the real ones
do; types, enums and everything else are the real module's. The driver's bindings need no such
help: they load the stand-in as ``libcuda.so.1``.
"""

import ctypes
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

_INT, _SIZE, _UNSIGNED, _POINTER = (ctypes.c_int, ctypes.c_size_t, ctypes.c_uint, ctypes.c_void_p)
#: Functions that give nothing but a status.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "cudaDeviceSynchronize": (),
    "cudaFree": (_POINTER,),
    "cudaGetLastError": (),
    "cudaHostRegister": (_POINTER, _SIZE, _UNSIGNED),
    "cudaHostUnregister": (_POINTER,),
    "cudaSetDevice": (_INT,),
}
#: Functions that give one value, with its type first.
_GIVING: dict[str, tuple[Any, ...]] = {
    "cudaDeviceGetAttribute": (_INT, _INT, _INT),
    "cudaGetDevice": (_INT,),
    "cudaHostGetDevicePointer": (_POINTER, _POINTER, _UNSIGNED),
    "cudaMallocManaged": (_POINTER, _SIZE, _UNSIGNED),
}


class _Location(ctypes.Structure):
    _fields_ = [("type", _INT), ("id", _INT)]


class _Attributes(ctypes.Structure):
    _fields_ = [
        ("type", _INT),
        ("device", _INT),
        ("device_pointer", _POINTER),
        ("host_pointer", _POINTER),
        ("reserved", ctypes.c_long * 8),
    ]


class _Runtime(ModuleType):
    """What is not set on it comes from the real module."""

    def __init__(self, real: ModuleType) -> None:
        super().__init__(real.__name__)
        self.__spec__, self._real = real.__spec__, real
        self._library = ctypes.CDLL("libcudart.so.13")
        for name, kinds in _PLAIN.items():
            setattr(self, name, self._plain(name, kinds))
        for name, kinds in _GIVING.items():
            setattr(self, name, self._giving(name, kinds))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def _status(self, code: int) -> Any:
        return self._real.cudaError_t(code)

    def _plain(self, name: str, kinds: tuple[Any, ...]) -> Any:
        function = getattr(self._library, name)

        def call(*given: Any) -> tuple[Any]:
            return (self._status(function(*_converted(given, kinds))),)

        return call

    def _giving(self, name: str, kinds: tuple[Any, ...]) -> Any:
        function = getattr(self._library, name)

        def call(*given: Any) -> tuple[Any, int]:
            value = kinds[0]()
            code = function(ctypes.byref(value), *_converted(given, kinds[1:]))
            return self._status(code), value.value or 0

        return call

    def cudaDeviceGetPCIBusId(self, room: int, device: int) -> tuple[Any, bytes]:  # noqa: N802
        text = ctypes.create_string_buffer(room)
        code = self._library.cudaDeviceGetPCIBusId(text, room, device)
        return self._status(code), text.value

    def cudaGetErrorString(self, error: Any) -> tuple[Any, bytes]:  # noqa: N802
        return self._status(0), self._real.cudaError_t(int(error)).name.encode()

    def cudaMemAdvise(self, start: int, size: int, advice: Any, place: Any) -> tuple[Any]:  # noqa: N802
        advice = self._real.cudaMemoryAdvise(advice)
        arguments = (_POINTER(start), _SIZE(size), _INT(advice.value), self._location(place))
        return (self._status(self._library.cudaMemAdvise(*arguments)),)

    def cudaPointerGetAttributes(self, address: int) -> tuple[Any, Any]:  # noqa: N802
        found = _Attributes()
        code = self._library.cudaPointerGetAttributes(ctypes.byref(found), _POINTER(address))
        kind = self._real.cudaMemoryType(found.type)
        return self._status(code), SimpleNamespace(type=kind, device=found.device)

    def _location(self, place: Any) -> _Location:
        if not isinstance(place, self._real.cudaMemLocation):
            raise TypeError(f"expected cudaMemLocation, got {place!r}")
        return _Location(int(place.type), int(place.id))


def _converted(given: tuple[Any, ...], kinds: tuple[Any, ...]) -> list[Any]:
    if len(given) != len(kinds):
        raise TypeError(f"takes {len(kinds)} arguments ({len(given)} given)")
    return [kind(int(value)) for value, kind in zip(given, kinds, strict=True)]


def install(real: ModuleType) -> None:
    """Stand in for the module ``cuda.bindings.runtime``."""
    import cuda.bindings

    cuda.bindings.runtime = sys.modules[real.__name__] = _Runtime(real)
