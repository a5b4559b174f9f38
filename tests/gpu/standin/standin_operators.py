"""torch's operators for CUDA tensors, run by the CPU.

The stand-in's GPU memory is this process's, so a CUDA tensor and a CPU tensor can share it. torch's
own kernels cannot run; every operator that has one is replaced: it waits for the current stream,
has the CPU do the work on the same memory, and what is new is copied to new CUDA tensors. That is
one of the orders in which a GPU may do it: as if everything before on this stream were done when
the operator is called, and nothing more of other streams than their events promise.

What needs no kernel stays torch's own: allocation, views, streams, events, copies of contiguous
memory, and the allocator's rules for memory that several streams use.
"""

import ctypes
import functools
import warnings
from types import ModuleType
from typing import Any

import standin_graphs

#: Operators that launch nothing.
_NATIVE = {
    *("_copy_from", "_copy_from_and_resize", "_efficientzerotensor", "_local_scalar_dense"),
    *("_pin_memory", "_reshape_alias", "_to_copy", "alias", "as_strided", "empty.memory_format"),
    *("empty_like", "empty_strided", "is_pinned", "is_set_to", "record_stream", "resize_", "set_"),
    *("set_.source_Storage", "set_.source_Storage_storage_offset", "set_.source_Tensor", "unfold"),
    *("view", "view_as_complex", "view_as_real"),
}
#: Clock ticks a millisecond of the GPU that `torch.cuda._sleep` believes in.
_TICKS_PER_MS = 1.98e6
_libraries: list[Any] = []  # their registrations end with them


def install(torch: ModuleType) -> None:
    """Replace the operators of the module ``torch``."""
    warnings.filterwarnings("ignore", message="Warning only once for all operators")
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    copy = torch.library.get_kernel("aten::copy_", "CUDA")
    for full_name in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
        namespace, _, name = full_name.partition("::")
        if namespace != "aten" or name in _NATIVE:
            continue
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
        if operator is not None and not _makes_views(operator):
            library.impl(name, _OnTheCpu(torch, operator), "CUDA", allow_override=True)
    library.impl("copy_", _Copy(torch, copy), "CUDA", allow_override=True)
    scalar = torch.library.get_kernel("aten::_local_scalar_dense", "CUDA")
    library.impl("_local_scalar_dense", _Scalar(torch, scalar), "CUDA", allow_override=True)
    standin_graphs.install(torch, lambda: _settle(torch))

    def sleep(ticks: int) -> None:
        stream = torch.cuda.current_stream()
        _runtime().standin_sleep(stream.cuda_stream, ticks / _TICKS_PER_MS)

    torch.cuda._sleep = sleep


def _settle(torch: ModuleType) -> None:
    """Let the current stream become empty; the stand-in counts an operator, and no wait."""
    _runtime().standin_operator(torch.cuda.current_stream().cuda_stream)


@functools.cache
def _runtime() -> ctypes.CDLL:
    runtime = ctypes.CDLL("libcudart.so.13")
    runtime.standin_sleep.argtypes = [ctypes.c_void_p, ctypes.c_double]
    runtime.standin_operator.argtypes = [ctypes.c_void_p]
    return runtime


def _makes_views(operator: Any) -> bool:
    aliases = [of.alias_info for of in operator._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def _same_memory(torch: ModuleType, tensor: Any) -> Any:
    """The CPU tensor on the memory of a CUDA tensor."""
    sizes, strides = tensor.shape, tensor.stride()
    if tensor.numel() == 0:
        return torch.empty_strided(sizes, strides, dtype=tensor.dtype)
    span = 1 + sum((n - 1) * stride for n, stride in zip(sizes, strides, strict=True))
    memory = (ctypes.c_char * (span * tensor.element_size())).from_address(tensor.data_ptr())
    flat = torch.frombuffer(memory, dtype=tensor.dtype, count=span)
    return flat.as_strided(sizes, strides, 0)


class _OnTheCpu:
    """An operator; its result lies where a CUDA operator's would."""

    def __init__(self, torch: ModuleType, operator: Any) -> None:
        self._torch, self._operator = torch, operator
        arguments = operator._schema.arguments
        self._names = [of.name for of in arguments]
        self._tensors = {of.name for of in arguments if str(of.type) == "Tensor"}
        self._written = {
            of.name for of in arguments if of.alias_info is not None and of.alias_info.is_write
        }
        self._generators: dict[int, tuple[Any, Any, int]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _settle(self._torch)
        return standin_graphs.recorded(self._torch, self._run, args, kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        written: list[tuple[Any, Any]] = []
        there = [
            self._to_cpu(value, name in self._written, written)
            for name, value in zip(self._names, args, strict=False)
        ]
        named = {
            name: self._to_cpu(value, name in self._written, written)
            for name, value in kwargs.items()
        }
        named.pop("pin_memory", None)
        # The dispatcher hands a number for a tensor that was made of one; the packet takes it.
        numbers = any(
            name in self._tensors and isinstance(value, int | float | complex)
            for name, value in zip(self._names, there, strict=False)
        )
        operator = self._operator.overloadpacket if numbers else self._operator
        result = operator(*there, **named)
        for tensor, twin in written:
            if tensor.shape != twin.shape:  # an `out` that was given without a size
                tensor.resize_(twin.shape)
                _same_memory(self._torch, tensor).copy_(twin)
        return self._map(lambda value: self._to_cuda(value, written), result)

    def _map(self, change: Any, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self._map(change, item) for item in value)
        return change(value)

    def _to_cpu(self, value: Any, is_written: bool, written: list[tuple[Any, Any]]) -> Any:
        torch = self._torch

        def change(item: Any) -> Any:
            if isinstance(item, torch.Tensor) and item.is_cuda:
                twin = _same_memory(torch, item)
                if is_written:
                    written.append((item, twin))
                return twin
            if isinstance(item, torch.device) and item.type == "cuda":
                return torch.device("cpu")
            if isinstance(item, torch.Generator) and item.device.type == "cuda":
                return self._generator(item)
            return item

        return self._map(change, value)

    def _to_cuda(self, value: Any, written: list[tuple[Any, Any]]) -> Any:
        if not isinstance(value, self._torch.Tensor):
            return value
        for tensor, twin in written:
            if value is twin or (value.numel() and value.data_ptr() == twin.data_ptr()):
                return tensor
        made = self._torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device="cuda"
        )
        if value.numel():
            _same_memory(self._torch, made).copy_(value)
        return made

    def _generator(self, generator: Any) -> Any:
        """The CPU's generator for one of the GPU's: begins anew when that is seeded anew."""
        seed = generator.initial_seed()
        _, twin, seeded = self._generators.get(id(generator), (None, None, None))
        if twin is None or seeded != seed:
            twin = self._torch.Generator().manual_seed(seed)
            self._generators[id(generator)] = (generator, twin, seed)
        return twin


class _Copy:
    """``copy_``: torch's own where it is one call of the runtime, else by the CPU."""

    def __init__(self, torch: ModuleType, native: Any) -> None:
        self._torch, self._native = torch, native
        self._keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)

    def __call__(self, to: Any, source: Any, non_blocking: bool = False) -> Any:
        plain = to.dtype == source.dtype and to.shape == source.shape
        if standin_graphs.capturing(self._torch):
            return standin_graphs.recorded(self._torch, self._by_cpu, (to, source), {})
        if plain and to.is_contiguous() and source.is_contiguous():
            return self._native.call_boxed(self._keys, to, source, non_blocking)
        _settle(self._torch)
        return self._by_cpu(to, source)

    def _by_cpu(self, to: Any, source: Any) -> Any:
        ends = [_same_memory(self._torch, end) if end.is_cuda else end for end in (to, source)]
        ends[0].copy_(ends[1])
        return to


class _Scalar:
    """``item()``: a capture cannot wait for a value."""

    def __init__(self, torch: ModuleType, native: Any) -> None:
        self._torch, self._native = torch, native
        self._keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)

    def __call__(self, tensor: Any) -> Any:
        if standin_graphs.capturing(self._torch):
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        return self._native.call_boxed(self._keys, tensor)
