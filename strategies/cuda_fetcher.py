"""The data path to a GPU by plain torch calls: a copy from a staging buffer.

The hazard is to reuse a buffer while a copy that is only *queued* still reads or writes it. A
staging buffer is filled again only after the event behind its last copy has passed: the host waits.
A device buffer is written again only after an event that ``submit`` records on the caller's stream,
where all work on the buffer's earlier rows has been queued by then (``Ticket``): the copy stream
waits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from gatherbench.kernels.cuda_calls import pointer_kind
from gatherbench.kernels.mapped_memory import is_registered
from gatherbench.strategies.base import Residency, Ticket
from gatherbench.strategies.base import copied as copied_ids
from gatherbench.strategies.buffers import RowBuffer
from gatherbench.strategies.host_fetcher import HostFetcher, HostPath, PathFetcher
from gatherbench.strategies.places import with_index

#: While the copy engine reads one staging buffer, the CPU fills the other.
_STAGING_BUFFERS = 2
#: A blocking fetch is copied in pieces, of at least PIECE_BYTES and at most _PIECES in number: the
#: copy of one piece overlaps the gather of the next.
PIECE_BYTES, _PIECES = 4 << 20, 16
_ALL = slice(None)


class Staging:
    """A reusable pinned staging buffer and the event behind the last copy that read it."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._buffer = RowBuffer(
            lambda count: torch.empty((count, *shape), dtype=dtype, device="cpu", pin_memory=True)
        )
        self._read = event()

    def rows(self, count: int) -> Tensor:
        """Return room for ``count`` rows; wait until the last copy has read the earlier ones."""
        self._read.synchronize()  # returns at once when nothing was recorded
        return self._buffer.rows(count)

    def copy_to(self, out: Tensor, stream: torch.cuda.Stream, part: slice = _ALL) -> None:
        """Queue the copy of ``part`` to ``out`` on ``stream``; the last part records the event."""
        with torch.cuda.stream(stream):
            out[part].copy_(self._buffer.rows(out.shape[0])[part], non_blocking=True)
        if part.stop in (None, out.shape[0]):
            self._read.record(stream)


class CudaStagedFetcher(PathFetcher):
    """Runs a host path into a pinned staging buffer, then copies the rows to the GPU on a separate
    stream: with ``lookahead`` 0 in the calling thread, else in another, while the caller trains on
    the previous batch."""

    def __init__(
        self, path: HostPath, features: Tensor, device: torch.device, lookahead: int
    ) -> None:
        super().__init__(path, features, with_index(device), lookahead)
        self._table = features
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._staging = [Staging((self.row_width,), self.dtype) for _ in range(_STAGING_BUFFERS)]
        shape, places = (self.row_width,), range(lookahead + 1)
        self._rows = [device_rows(shape, self.dtype, self.device) for _ in places]
        self._copied, self._free = ([event() for _ in places] for _ in range(2))
        self._submitted = 0

    def residency(self) -> tuple[Residency, ...]:
        """Return the path's own answer, or host memory, which another path may have registered."""
        places = super().residency()
        if places or self._table.numel() == 0:
            return places
        address = self._table.data_ptr()
        return (found_at(address, "Host" if is_registered(address) else "Unregistered"),)

    def _submit(self, ids: Tensor) -> Ticket:
        place = self._claimed()
        out = self._rows[place].rows(ids.numel())
        # Fresh memory of `out` belongs to the caller's stream: without this mark the allocator
        # could reuse it, once freed, while the copy stream still writes it.
        out.record_stream(self._stream)
        free = self._free[place]
        free.record(torch.cuda.current_stream(self.device))
        staging = self._staging[self._submitted % _STAGING_BUFFERS]
        copied = self._copied[place]
        self._submitted += 1

        def copy() -> None:
            with torch.cuda.device(self.device):  # a thread starts on device 0
                self._stream.wait_event(free)
                staging.copy_to(out, self._stream)
                copied.record(self._stream)

        def fetch(ids: Tensor) -> None:
            self._path.fetch(ids, staging.rows(ids.numel()))
            copy()

        def rows() -> Tensor:
            return after(copied, out)

        if self.lookahead:
            room = functools.partial(staging.rows, ids.numel())
            if (wait_all := self._path.begin_and(copied_ids(ids), room, copy)) is not None:
                return self._issue_begun(place, wait_all, rows)
        elif (parts := self._begun_by_parts(ids, staging)) is not None:
            self._stream.wait_event(free)
            for part, wait in parts:
                wait()
                staging.copy_to(out, self._stream, part)
            copied.record(self._stream)
            return self._ring.issue(rows)
        return self._issue(ids, fetch, rows)

    def _begun_by_parts(
        self, ids: Tensor, staging: Staging
    ) -> list[tuple[slice, Callable[[], object]]] | None:
        """Begin gathers of parts of ``ids`` into the staging buffer; return a wait call for each,
        or ``None`` where there would be only one part, or the path gathers in Python."""
        count, row_bytes = ids.numel(), self.row_width * self.dtype.itemsize
        size = max(1, -(-count // _PIECES), PIECE_BYTES // max(1, row_bytes))
        if size >= count:
            return None
        rows, begun = staging.rows(count), []
        for start in range(0, count, size):
            part = slice(start, min(start + size, count))
            if (wait := self._path.begin(ids[part], rows[part])) is None:
                return None
            begun.append((part, wait))
        return begun

    def _settle(self) -> None:
        torch.cuda.synchronize(self.device)

    def _close(self) -> None:
        super()._close()
        # Queued copies need no wait: torch reuses neither buffer before they have run.
        self._staging.clear()
        self._rows.clear()


def open_staged(
    path: HostPath, features: Tensor, device: torch.device, lookahead: int
) -> PathFetcher:
    """Open a fetcher that brings the rows of ``path`` through a staging buffer to host or GPU."""
    if device.type == "cuda":
        return CudaStagedFetcher(path, features, device, lookahead)
    return HostFetcher(path, features, lookahead, staged=True)


def found_at(address: int, expected: str, part: str = "the table") -> Residency:
    """Return where CUDA finds the part of the table that the path reads at ``address``."""
    source = "cudaPointerGetAttributes on the table that the path reads"
    return Residency(expected, pointer_kind(address), source, part)


def device_rows(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> RowBuffer:
    """Make a reusable buffer in the memory of ``device`` for rows of ``shape``."""
    return RowBuffer(lambda count: torch.empty((count, *shape), dtype=dtype, device=device))


def event() -> torch.cuda.Event:
    """Make an event that orders streams; callers reuse it, because making one takes time."""
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


def after(done: torch.cuda.Event, rows: Tensor) -> Tensor:
    """Return ``rows`` after making the caller's stream, which may differ from that of ``submit``,
    wait for ``done``, the end of the fetch."""
    torch.cuda.current_stream(rows.device).wait_event(done)
    return rows
