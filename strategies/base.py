"""The contract between a data path and the loop that drives it.

A :class:`Strategy` is a name and its parameters: it can be hashed, printed and put in a plan,
and holds nothing live. ``open`` turns it into a :class:`Fetcher`, which owns buffers, threads
and streams until it is closed. The loop knows only this file, so every strategy is measured by
the same code.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class DataPath:
    """How the bytes of one minibatch travel from the feature table to the model.

    All fields are bytes except ``page_faults``. ``gpu_requests`` maps the size of a read request
    on the link (bytes) to its count; it is ``None`` where no request accounting exists for the
    path, which is different from an empty mapping (no requests at all).
    """

    payload_bytes: int
    cpu_read_bytes: int = 0
    cpu_write_bytes: int = 0
    copy_engine_bytes: int = 0
    gpu_link_read_bytes: int = 0
    gpu_requests: Mapping[int, int] | None = None
    page_faults: int = 0


class Ticket(Protocol):
    """A fetch in flight."""

    def result(self) -> Tensor:
        """The rows, ``[len(ids), D]`` on the fetcher's device, in the order of the ids.

        Ordered after the work already queued on the current stream. Calling it again returns the
        same tensor. The tensor may be overwritten once ``lookahead + 1`` further fetches have
        been submitted: clone it to keep it longer.
        """
        ...


class Fetcher(ABC):
    """A data path that is open: it owns its buffers and threads until :meth:`close`.

    Args:
        features: the feature table ``[N, D]`` in host memory, contiguous, any dtype.
        device: where the fetched rows shall lie.
    """

    #: How many minibatches the loop may submit ahead of the one it trains on. 0 for a blocking
    #: strategy: its ``submit`` does the work.
    lookahead: int = 0

    def __init__(self, features: Tensor, device: torch.device) -> None:
        check_features(features)
        self.num_rows, self.row_width = int(features.shape[0]), int(features.shape[1])
        self.dtype = features.dtype
        self.device = device
        self._closed = False
        #: The device on which ``submit`` wants its ids. The host, unless a strategy says otherwise.
        self.ids_device = torch.device("cpu")

    def submit(self, ids: Tensor) -> Ticket:
        """Start fetching the rows ``ids`` (``[B]``, int32 or int64, contiguous).

        Raises:
            TypeError: ids are no tensor of int32 or int64.
            ValueError: ids are not one-dimensional or lie on the wrong device.
            IndexError: an id is negative or not below ``num_rows``.
            RuntimeError: the fetcher is closed.
        """
        if self._closed:
            raise RuntimeError(f"{type(self).__name__} is closed: open the strategy again")
        check_ids(ids, self.num_rows, self.ids_device)
        return self._submit(ids)

    @abstractmethod
    def _submit(self, ids: Tensor) -> Ticket:
        """Start the fetch; ``ids`` have been checked."""

    def close(self) -> None:
        """Free buffers, join threads, undo registrations. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._close()

    def _close(self) -> None:  # noqa: B027 - nothing to free is a legitimate answer
        """Free what the subclass owns; called once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True)
class Strategy(ABC):
    """A data path and its parameters (the fields of the subclass)."""

    #: The strategy's name in plans, rows and plots.
    name: ClassVar[str]
    #: One line for ``gatherbench list strategies`` and the README's table.
    summary: ClassVar[str]

    @property
    def variant(self) -> str:
        """The parameters as one word, e.g. ``pinned`` or ``registered,sorted``.

        ``default`` for a strategy without parameters. Part of the key of every row.
        """
        values = [str(getattr(self, f.name)) for f in dataclasses.fields(self)]
        return ",".join(values) or "default"

    @abstractmethod
    def skip(self, device: torch.device) -> str | None:
        """Why this strategy cannot run on ``device``, or ``None`` when it can."""

    @abstractmethod
    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        """How one minibatch travels: ``ids`` ``[B]``, rows of ``row_bytes`` bytes."""

    @abstractmethod
    def open(self, features: Tensor, device: torch.device) -> Fetcher:
        """Make the path ready for ``features`` ``[N, D]`` (host memory) towards ``device``."""


def check_features(features: Tensor) -> None:
    """Refuse a table that no data path could read row by row.

    Raises:
        TypeError: not a tensor.
        ValueError: not two-dimensional, not contiguous, not in host memory, or rows of 0 bytes.
    """
    if not isinstance(features, Tensor):
        raise TypeError(f"features: expected a torch tensor, got {type(features).__name__}")
    if features.dim() != 2:
        raise ValueError(f"features: expected shape [N, D], got {tuple(features.shape)}")
    if features.device.type != "cpu":
        raise ValueError(f"features: the table must lie in host memory, got {features.device}")
    if features.shape[1] == 0:
        raise ValueError("features: rows of width 0 have nothing to fetch")
    if not features.is_contiguous():
        raise ValueError("features: the table must be contiguous; call .contiguous() first")


def check_ids(ids: Tensor, num_rows: int, device: torch.device) -> None:
    """Refuse ids that would read outside the table; see :meth:`Fetcher.submit`."""
    if not isinstance(ids, Tensor):
        raise TypeError(f"ids: expected a torch tensor, got {type(ids).__name__}")
    if ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"ids: expected int32 or int64, got {ids.dtype}")
    if ids.dim() != 1:
        raise ValueError(f"ids: expected shape [B], got {tuple(ids.shape)}")
    if ids.device.type != device.type:
        raise ValueError(f"ids: expected on {device}, got {ids.device}; move them first")
    if ids.numel() == 0:
        return
    low, high = (int(x) for x in torch.aminmax(ids))
    if low < 0 or high >= num_rows:
        bad = low if low < 0 else high
        where = int((ids == bad).nonzero()[0])
        raise IndexError(f"ids[{where}] = {bad} is outside the table's rows 0..{num_rows - 1}")
