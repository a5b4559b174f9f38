"""Contexts that recompute, or move off the device, what a step saves for its backward pass.

:class:`ToHost` copies it to buffers in host memory (as ``torch.autograd.graph.save_on_cpu`` does,
into buffers that are reused), :class:`ToDisk` from there to a file, as SSDTrain does (arXiv
2408.10013): threads store it while the forward pass goes on, a tensor still on its way is handed
back if needed, and the backward pass prefetches the next ones. Parameters, a step's inputs and
small tensors stay. Storages are moved: views of one are stored once, and keep their layout.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from gatherbench.bench.plan.doors import AroundStep
from gatherbench.bench.run.models import NOTHING_AROUND, StepContext

BLOCK = 4096  #: Direct writes are of whole blocks, from memory that begins at a page.
AHEAD, THREADS = 2, 2  #: Tensors fetched ahead of the backward pass; and threads each way.


class LostActivationsError(RuntimeError):
    """A saved tensor could not be stored or brought back: the case cannot continue."""


@dataclass(frozen=True)
class Recompute(AroundStep):
    """Has each layer (the model's children, and those in lists of them) save only its input, and
    computes it again for the backward pass."""

    def open(self, model: nn.Module, device: torch.device, folder: Path) -> StepContext:
        for child in model.children():
            for layer in child if isinstance(child, nn.ModuleList | nn.Sequential) else [child]:
                layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
        return NOTHING_AROUND


@dataclass(frozen=True)
class ToHost(AroundStep):
    """Moves saved tensors to host memory; storages below ``smallest`` bytes stay."""

    smallest: int = 65536
    on_disk: ClassVar[bool] = False

    def open(self, model: nn.Module, device: torch.device, folder: Path) -> StepContext:
        return Offload(device, self.smallest, folder if self.on_disk else None)


@dataclass(frozen=True)
class ToDisk(ToHost):
    """Moves saved tensors to a file in the data folder, past the page cache."""

    on_disk: ClassVar[bool] = True


class Pool:
    """Pieces of a power of two of blocks (buffers, or places in a file), reused once given back;
    ``make(begin, size)`` makes one of ``size`` bytes, after pieces of ``begin`` bytes in all."""

    def __init__(self, make: Callable[[int, int], Any]) -> None:
        self._make, self._lock, self.made_bytes = make, threading.Lock(), 0
        self._free: dict[int, list[Any]] = defaultdict(list)

    def take(self, nbytes: int) -> Any:
        """Return a free piece of at least ``nbytes``, or make one."""
        size = piece_bytes(nbytes)
        with self._lock:
            if self._free[size]:
                return self._free[size].pop()
            self.made_bytes += size
            return self._make(self.made_bytes - size, size)

    def give(self, nbytes: int, piece: Any) -> None:
        with self._lock:
            self._free[piece_bytes(nbytes)].append(piece)


def piece_bytes(nbytes: int) -> int:
    return max(BLOCK, 1 << (nbytes - 1).bit_length())


def host_piece(_begin: int, size: int, *, pinned: bool) -> Tensor:
    """Make a buffer, uint8 ``[size]``, that begins at a page."""
    if pinned:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)


def unnamed_file(folder: Path) -> FileIO:
    """Open a file past the page cache; the system frees it however the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(prefix="activations-", dir=folder) as file:
        try:
            return FileIO(os.open(file.name, os.O_RDWR | os.O_DIRECT), "r+b")
        except OSError as error:
            text = f"{folder} takes no direct writes (O_DIRECT), so its disk cannot be measured"
            raise LostActivationsError(f"{text}: {error.strerror}") from None


def move(call: Callable[..., int], file: FileIO, piece: Tensor, nbytes: int, place: int) -> None:
    """Move whole blocks of a buffer to or from the file, in as many calls as it takes."""
    wanted, moved = -(-nbytes // BLOCK) * BLOCK, 0
    while moved < wanted:
        count = call(file.fileno(), [piece.numpy().data[moved:wanted]], place + moved)
        if count <= 0:
            raise OSError(0, f"{moved} of {wanted} B were moved and no more")
        moved += count


@dataclass(eq=False)
class _Saved:
    """A storage for the backward pass, the ``number``-th: in ``memory`` (uint8), or ``place``."""

    memory: Any
    nbytes: int
    number: int
    source: Any  # the first saved tensor, which shows whether it has changed since
    version: int
    ready: Any  # on a GPU the event after which its memory may be read, or written
    place: Any = None
    stored: Future[None] | None = None
    loading: Future[None] | None = None
    wanted: bool = False  # the backward pass will need it soon: stays in memory if it is there


class Offload(StepContext):
    """Moves saved tensors out of the device's memory, and back.

    On a GPU the host may be far ahead of it, and would then be handed back every tensor before it
    is stored. So it waits there, when the backward pass needs its first tensor, until at most
    :data:`AHEAD` storages are on their way out; that wait counts as stall, too. Storages below
    ``smallest_bytes`` stay; ``folder`` is for the file (``None``: host memory).
    """

    columns = {  # noqa: RUF012 - a ClassVar of the base
        "out": ("B", "storages handed to the threads that store them"),
        "in": ("B", "storages brought back"),
        "forwarded": ("B", "storages wanted while still on their way, and handed back"),
        "stall": ("s", "time.perf_counter, the training thread's waits for storages"),
        "buffers": ("B", "buffers in host memory, used again from step to step"),
    }

    def __init__(
        self, device: torch.device, smallest_bytes: int, folder: Path | None = None
    ) -> None:
        self._device, self._smallest = device, max(1, smallest_bytes)
        self._on_gpu, self._forward = device.type == "cuda", False
        self._staying: set[int] = set()
        self._file = None if folder is None else unnamed_file(folder)
        if self._file is not None:
            weakref.finalize(self, self._file.close)
        self._places = Pool(lambda begin, _size: begin)
        self._buffers = Pool(partial(host_piece, pinned=self._on_gpu))
        self._out, self._back = (
            ThreadPoolExecutor(THREADS, f"gatherbench-{way}") for way in ("store", "load")
        )
        self._streams, self._lock, self._failed = threading.local(), threading.Lock(), ""
        self._tally = dict.fromkeys(self.columns, 0.0)
        #: By storage and version; the weak reference protects its address from reuse.
        self._known: weakref.WeakValueDictionary[Any, _Saved] = weakref.WeakValueDictionary()
        self._order: list[weakref.ref[_Saved]] = []
        #: Stored, and freed by the thread that trains: torch's profiler sees only that thread's.
        self._leaving: list[Tensor | None] = []

    @contextmanager
    def step(self, *inputs: Tensor) -> Iterator[None]:
        self._staying = {_ident(tensor) for tensor in inputs}
        self._order.clear()
        self._known.clear()
        self._forward = True
        with saved_tensors_hooks(self._pack, self._unpack):
            yield
        self._refuse_lost()

    def counts(self) -> dict[str, float]:
        counts, self._tally = self._tally, dict.fromkeys(self.columns, 0.0)
        return counts | {"buffers": float(self._buffers.made_bytes)}

    def close(self) -> None:
        for pool in (self._out, self._back):
            pool.shutdown(cancel_futures=True)
        if self._file is not None:
            self._file.close()

    def _pack(self, tensor: Tensor) -> Any:
        self._refuse_lost()
        if tensor.layout != torch.strided or tensor.device.type != self._device.type:
            return tensor
        storage = tensor.untyped_storage()
        if storage.nbytes() < self._smallest or _ident(tensor) in self._staying:
            return tensor
        key = StorageWeakRef(storage), tensor._version  # type: ignore[no-untyped-call]
        if (saved := self._known.get(key)) is None:
            memory = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            number, nbytes = len(self._order), storage.nbytes()
            saved = _Saved(memory, nbytes, number, tensor.detach(), key[1], self._event())
            self._known[key] = saved
            self._order.append(weakref.ref(saved))
            self._tally["out"] += nbytes
            # A queue entry must not keep it in memory after the step has released it.
            saved.stored = self._out.submit(self._store, self._order[-1])
        return saved, tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride()

    def _store(self, reference: weakref.ref[_Saved]) -> None:
        """Copy it to a buffer, and from there to the file; then release the memory."""
        saved = reference()
        if saved is None or saved.wanted or self._failed:
            return
        nbytes, give = saved.nbytes, self._buffers.give
        with self._noting(f"storing {nbytes:,} B"):
            place = piece = self._buffers.take(nbytes)
            with self._stream(saved.ready):
                piece[:nbytes].copy_(saved.memory, non_blocking=True)
            if saved.source._version != saved.version:
                raise LostActivationsError("a tensor was changed in place after it was saved")
            if self._file is not None:
                place, give = self._places.take(nbytes), self._places.give
                move(os.pwritev, self._file, piece, nbytes, place)
                self._buffers.give(nbytes, piece)
            weakref.finalize(saved, give, nbytes, place).atexit = False
            with self._lock:
                saved.place = place
                if not saved.wanted:
                    self._leaving += [saved.memory, saved.source]
                    saved.memory = saved.source = None

    def _load(self, saved: _Saved, memory: Tensor) -> None:
        """Bring it back to ``memory`` from the buffer, or from the file."""
        piece, nbytes = saved.place, saved.nbytes
        with self._noting(f"bringing back {nbytes:,} B"):
            if self._file is not None:
                piece = self._buffers.take(nbytes)
                move(os.preadv, self._file, piece, nbytes, saved.place)
            with self._stream(saved.ready):
                memory.copy_(piece[:nbytes], non_blocking=True)
            if self._file is not None:
                self._buffers.give(nbytes, piece)
            with self._lock:
                saved.memory = memory

    def _event(self) -> Any:
        """Return an event after the GPU's queued work; ``None`` on a host."""
        return torch.cuda.current_stream(self._device).record_event() if self._on_gpu else None

    @contextmanager
    def _stream(self, ready: Any) -> Iterator[None]:
        """Use a thread's own stream after ``ready``, and await its work; on a host do nothing."""
        if not self._on_gpu:
            yield
            return
        if not hasattr(self._streams, "own"):
            self._streams.own = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._streams.own):
            self._streams.own.wait_event(ready)
            yield
            self._streams.own.synchronize()

    def _unpack(self, packed: Any) -> Tensor:
        if self._forward:
            self._begin_backward()
        if isinstance(packed, Tensor):
            return packed
        saved, dtype, offset, size, stride = packed
        self._want(saved)
        for reference in reversed(self._order[max(0, saved.number - AHEAD) : saved.number]):
            if (before := reference()) is not None:
                self._want(before)
        self._await(saved.loading)
        self._refuse_lost()
        back = torch.empty(0, dtype=dtype, device=self._device)
        return back.set_(saved.memory.untyped_storage(), offset, size, stride)

    def _begin_backward(self) -> None:
        """Wait on a GPU until the tensors saved first have been stored."""
        self._forward = False
        for reference in self._order[:-AHEAD] if self._on_gpu else ():
            if (saved := reference()) is not None:
                self._await(saved.stored)

    def _await(self, moved: Future[None] | None) -> None:
        begin = time.perf_counter()
        if moved is not None:
            moved.result()
        self._tally["stall"] += time.perf_counter() - begin

    def _want(self, saved: _Saved) -> None:
        """Bring it to memory, or keep it there."""
        with self._lock:
            there, first = saved.memory is not None, not saved.wanted
            saved.wanted = True
            if first and there:
                self._tally["forwarded"] += saved.nbytes
            elif first:
                self._tally["in"] += saved.nbytes
                memory = torch.empty(saved.nbytes, dtype=torch.uint8, device=self._device)
                saved.ready = self._event()
                saved.loading = self._back.submit(self._load, saved, memory)

    @contextmanager
    def _noting(self, doing: str) -> Iterator[None]:
        """Note an error in a thread's block, for the thread that trains to raise."""
        try:
            yield
        except (OSError, RuntimeError) as error:
            known = isinstance(error, OSError) and error.strerror
            self._failed = self._failed or f"{doing} of activations: {known or error}"

    def _refuse_lost(self) -> None:
        self._leaving.clear()
        if self._failed:
            raise LostActivationsError(self._failed)


def _ident(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
