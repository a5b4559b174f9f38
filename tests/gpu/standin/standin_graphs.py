"""CUDA graphs of torch's operators: they are written down while a stream captures, and replayed.

As on a GPU a capture computes nothing that anybody may use: what an operator writes into memory
that was there before is put back. A replay has each operator run again on the same memory; it is
one call of the host.
"""

import itertools
import os
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

#: Operators that are written down: what runs one, its arguments, its result.
Tape = list[tuple[Callable[..., Any], Any, Any, Any]]
#: By the stream that captures.
_captures: dict[int, Tape] = {}
#: Graphs that somebody holds.
_alive: weakref.WeakSet[Any] = weakref.WeakSet()
_numbers = itertools.count()
#: From which capture of a process on each fails; 0: none does.
_FAILS_FROM = int(os.environ.get("STANDIN_CAPTURE_FAILS", "0"))
_begun = itertools.count(1)


def install(torch: ModuleType, settle: Callable[[], None]) -> None:
    """Replace the graphs of the module ``torch``; ``settle`` lets the current stream get empty."""

    class Graph:
        def __init__(self) -> None:
            self.tape: Tape = []
            self._pool = (0, next(_numbers))

        def pool(self) -> tuple[int, int]:
            return self._pool

        def replay(self) -> None:
            settle()
            with torch.no_grad():
                for run, args, kwargs, result in self.tape:
                    _put(torch, result, run(*args, **kwargs))

    class Capture:
        def __init__(self, graph: Graph, pool: Any = None, *, capture_error_mode: str) -> None:
            assert capture_error_mode in ("global", "thread_local", "relaxed")
            self._graph, self._pool = graph, pool

        def __enter__(self) -> None:
            torch.cuda.synchronize()
            stream = torch.cuda.Stream()
            self._on = torch.cuda.stream(stream)
            self._on.__enter__()
            if self._pool is not None:
                # torch says so where anything of it, such as a workspace of cuBLAS, is in use; and
                # as there, nothing puts the stream back.
                if not any(one.pool() == self._pool for one in _alive):
                    raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED: the pool is dead")
                self._graph._pool = self._pool
                if 0 < _FAILS_FROM <= next(_begun):
                    raise RuntimeError("CUDA error: operation not permitted when stream captures")
            _alive.add(self._graph)
            _captures[stream.cuda_stream] = self._graph.tape

        def __exit__(self, *error: Any) -> None:
            _captures.clear()
            self._on.__exit__(*error)

    torch.cuda.CUDAGraph, torch.cuda.graph = Graph, Capture
    torch.cuda.is_current_stream_capturing = lambda: capturing(torch)  # optimisers ask


def capturing(torch: ModuleType) -> bool:
    """Whether the current stream captures."""
    return bool(_captures) and torch.cuda.current_stream().cuda_stream in _captures


def recorded(torch: ModuleType, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What ``run`` gives; within a capture it is written down, and nothing old is changed."""
    if not capturing(torch):
        return run(*args, **kwargs)
    # What is expanded cannot be written to.
    given = [one for one in _tensors(torch, [args, kwargs]) if 0 not in one.stride()]
    old = {one.data_ptr(): (one, _on_the_host(torch, one).clone()) for one in given}
    result = run(*args, **kwargs)
    for one, before in old.values():
        _on_the_host(torch, one).copy_(before)
    _captures[torch.cuda.current_stream().cuda_stream].append((run, args, kwargs, result))
    return result


def _tensors(torch: ModuleType, value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value] if value.is_cuda else []
    parts = value.values() if isinstance(value, dict) else value
    inside = isinstance(value, list | tuple | dict)
    return [one for part in parts for one in _tensors(torch, part)] if inside else []


def _put(torch: ModuleType, to: Any, value: Any) -> None:
    """Copy the numbers of ``value`` to where ``to`` lies, all of both."""
    if isinstance(to, list | tuple):
        for one, other in zip(to, value, strict=True):
            _put(torch, one, other)
    elif isinstance(to, torch.Tensor) and to.numel() and to.data_ptr() != value.data_ptr():
        assert to.shape == value.shape, "a captured operator gave another shape"
        _on_the_host(torch, to).copy_(_on_the_host(torch, value))


def _on_the_host(torch: ModuleType, tensor: Any) -> Any:
    from standin_operators import _same_memory  # which imports this

    return _same_memory(torch, tensor)
