"""A feature table that is indexed like a tensor and fetched by a strategy: two lines in any loop.

    features = gatherbench.unified(x, strategy="async_zero_copy")
    rows = features[n_id]

This brings the best data path for a graph into one's own training code, which knows tensors and no
tickets. A strategy that overlaps needs to hear of the next batch early::

    features.prefetch(next_ids)     # before the training step on this batch
    rows = features[next_ids]       # after it: picks up what is on its way

With ``strategy="auto"`` the training itself shows which path is the fastest.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.kernels.table_file import TableFile
from gatherbench.strategies.base import SetupStep, Strategy, Ticket, copied
from gatherbench.strategies.knowledge import NOTHING, Knowledge, adjacency_of, current_ranks
from gatherbench.strategies.places import free_bytes
from gatherbench.strategies.registry import build

#: What names rows: their ids, or a mask of all rows, or a slice.
Rows = Tensor | NDArray[Any] | list[int] | list[bool] | slice


#: By which argument :func:`unified` is told what a path has to know.
_GIVEN = {
    "graph": "graph=, the edge_index [2, E]",
    "training_ids": "train_ids=, the training nodes [T]",
    "earlier": "minibatches=, the n_id of the minibatches of an epoch or so",
}


def unified(
    x: Tensor | np.memmap[Any, Any],
    strategy: str = "aligned_zero_copy",
    device: torch.device | str | None = None,
    *,
    copy: bool = True,
    graph: Tensor | None = None,
    train_ids: Tensor | None = None,
    minibatches: Sequence[Tensor] | None = None,
    **params: str,
) -> UnifiedTensor:
    """Index ``x`` in host memory and get the rows on ``device``, moved by ``strategy``.

    On a GPU most strategies page-lock ``x``, and from then on a fork copies all of it at once
    (Linux since 5.9). Where a loader forks its workers later, call ``x.share_memory_()`` before:
    shared memory is not copied.

    A strategy that spreads the table over several ranks finds them in ``torch.distributed``, whose
    ``init_process_group`` has to be called before. All ranks then have to make as many fetches.

    Args:
        x: the feature table ``[N, D]``, any dtype, contiguous, in host memory. It is used in
            place where the data path allows it: leave it unchanged until :meth:`close`. For
            ``memory="managed"`` make it with :func:`gatherbench.empty`, or it is copied. For a
            strategy that reads a disk, ``numpy.load(path, mmap_mode="r")``.
        strategy: a name of ``gatherbench list strategies``, or ``auto``: that of them which the
            first minibatches show to be the fastest (:mod:`gatherbench.strategies.auto`).
        device: where the rows shall lie; by default the current GPU, or the host without one.
        copy: see :class:`UnifiedTensor`.
        graph: ``edge_index`` ``[2, E]``, by which ``cached_zero_copy`` chooses the rows to keep.
        train_ids: the training nodes ``[T]``, for ``policy="weighted_reverse_pagerank"``.
        minibatches: the ``n_id`` of the minibatches of an epoch or so, for ``policy="presampled"``.
        params: the strategy's parameters, e.g. ``order="sorted"``.

    Raises:
        ValueError: no such strategy, parameter or word (the nearest is named), or no such device;
            or the strategy cannot run here (its reason is given), or has to know what was not
            given, or ranks that are not known (``knowledge.current_ranks``); or ``x`` is no table,
            or wants a gradient, which does not flow through a fetch.
        TypeError: ``x`` is no tensor and no map of a file.
    """
    file = TableFile.of(x) if isinstance(x, np.memmap) else None
    if isinstance(x, np.memmap):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # read-only: torch warns, and nothing writes to it
            x = torch.from_numpy(x)
    if isinstance(x, Tensor) and x.requires_grad:
        raise ValueError("x requires a gradient, and none flows through a fetch: use x.detach()")
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device = {device!r}: expected e.g. 'cpu', 'cuda' or 'cuda:1'") from error
    path = build(strategy, params)
    if "file" in path.needs and file is None:
        raise ValueError(
            f"{strategy} reads a file: give x as numpy.load('features.npy', mmap_mode='r')"
        )
    known = Knowledge(
        graph=None if graph is None else adjacency_of(graph, len(x)),
        training_ids=None if train_ids is None else train_ids.cpu().long().numpy(),
        earlier=None if minibatches is None else lambda _epoch: minibatches,
        room_bytes=free_bytes(place) if "room_bytes" in path.needs else None,
        ranks=current_ranks() if "ranks" in path.needs else None,
        file=file,
    )
    if path.role == "choice" and file is not None:
        raise ValueError(f"{strategy} takes no path from a disk: name one, or load x into memory")
    missing = [
        _GIVEN.get(need, f"{need}, of which only a run knows") for need in known.missing(path.needs)
    ]
    if missing:
        raise ValueError(f"{strategy} ({path.variant}) needs {' and '.join(missing)}")
    return UnifiedTensor(x, path, place, copy=copy, knowledge=known)


@dataclass(frozen=True, slots=True, eq=False)
class _Ahead:
    """A fetch that was started before its rows were asked for; ``number`` counts fetches."""

    number: int
    ids: Tensor
    ticket: Ticket


class UnifiedTensor(AbstractContextManager["UnifiedTensor"]):
    """A feature table ``[N, D]`` whose rows a strategy brings to ``device``; see :func:`unified`.

    **Who owns the rows.** With ``copy`` (the default) each ``features[ids]`` is a tensor of its
    own; the copy is made on the device, where it costs little beside the link. Without it, the rows
    are in the strategy's own buffer and are overwritten once ``lookahead + 1`` further fetches
    (those of :meth:`prefetch` count) have been started.

    Threads and CUDA streams may take turns; rows that are not copied then have to be used up before
    the next fetch is asked for. A loader's worker processes cannot fetch: wrap the loader in
    :class:`gatherbench.strategies.pyg_features.FeatureLoader`.

    Closed by :meth:`close`, by ``with``, when it is collected, or when the program ends.

    Attributes:
        strategy: what moves the rows, with its parameters.
        shape, dtype: of the table.
        device: where the rows lie.
    """

    def __init__(
        self,
        features: Tensor,
        strategy: Strategy,
        device: torch.device,
        *,
        copy: bool = True,
        knowledge: Knowledge = NOTHING,
    ) -> None:
        self._fetcher = strategy.open(features, device, knowledge)
        # The fetcher reads it in place, but for managed memory, which the fetcher holds itself.
        self._table = None if strategy.managed else features
        self._copy = copy
        self._ahead: deque[_Ahead] = deque()
        self._started = 0
        #: Reentrant: a signal's handler or a collection may close what its own thread is fetching.
        self._turn = threading.RLock()
        self._stream: torch.cuda.Stream | None = None
        self.strategy = strategy
        self.shape = features.shape
        self.dtype = features.dtype
        self.device = self._fetcher.device
        # Registered memory must be let go of even by a program that forgets to close.
        self._close = weakref.finalize(self, self._fetcher.close)

    @property
    def lookahead(self) -> int:
        """How many batches ahead :meth:`prefetch` gets them moving; 0: it does nothing."""
        return self._fetcher.lookahead

    @property
    def setup(self) -> tuple[SetupStep, ...]:
        """What opening cost: seconds, bytes registered or copied; and what ``auto`` has found."""
        return tuple(self._fetcher.setup)

    def expect(self, minibatches: int) -> None:
        """Say how many minibatches an epoch has, before one begins: ``auto`` takes a share of it.

        :class:`gatherbench.strategies.pyg_features.FeatureLoader` does.
        """
        with self._turn:
            self._fetcher.expect(minibatches)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __repr__(self) -> str:
        of = f"{self.strategy.name} ({self.strategy.variant})"
        closed = "" if self._close.alive else ", closed"
        return (
            f"UnifiedTensor({list(self.shape)}, {self.dtype}, {of}, device={self.device}{closed})"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a UnifiedTensor belongs to its process and cannot be pickled or copied: fetch in the "
            "main process and let a loader's workers only sample, or call unified(...) again there"
        )

    def __getitem__(self, ids: Rows) -> Tensor:
        """The rows ``ids`` (``[B]``, int32 or int64, not negative): ``[B, D]`` on the device.

        A list or an array of ids, a mask ``[N]`` or a slice is turned into ids first.

        Rows that were prefetched are picked up, in whatever order they are asked for. Ids on
        a GPU are brought to the host first, to be checked there, for which the host waits.

        Raises:
            TypeError, ValueError, IndexError: ids that are no ids of rows, see
                :meth:`gatherbench.strategies.base.Fetcher.submit`.
            RuntimeError: closed, or opened before a fork.
        """
        self._check_usable()
        with self._turn:
            ids = self._placed(ids)
            for ahead in self._ahead:
                if ids.dtype == ahead.ids.dtype and torch.equal(ids, ahead.ids):
                    self._ahead.remove(ahead)
                    ticket = ahead.ticket
                    break
            else:
                ticket = self._start(ids)
            rows = ticket.result()
            if self._stream is not None:
                rows.record_stream(self._stream)  # they may have been allocated on another
            return rows.clone() if self._copy else rows

    def prefetch(self, ids: Rows) -> None:
        """Start fetching ``ids``, which ``features[ids]`` will ask for soon.

        Does nothing where the strategy blocks (``lookahead`` 0), so that one loop serves all
        strategies. The ids may be changed afterwards; what counts are their values now. Rows
        that nobody asks for are dropped when their buffer's turn comes, ``lookahead + 1``
        fetches later.

        Raises:
            As ``features[ids]``.
        """
        self._check_usable()
        if self.lookahead:
            with self._turn:
                ids = self._placed(ids)
                ticket = self._start(ids)
                self._ahead.append(_Ahead(self._started, copied(ids), ticket))

    def close(self) -> None:
        """Free buffers, join threads, undo registrations. Safe to call twice.

        A fetch that another thread has begun is waited for.
        """
        with self._turn:
            self._ahead.clear()
            self._close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_usable(self) -> None:
        if not self._close.alive:
            raise RuntimeError("the features are closed: call unified(...) again")
        self._fetcher.check_usable()

    def _placed(self, rows: Rows) -> Tensor:
        """The ids of ``rows`` where the fetcher wants them.

        Fetches share buffers, whose earlier readers are on the stream that was current then: a
        call on another stream waits for that one.
        """
        if self.device.type == "cuda":
            current = torch.cuda.current_stream(self.device)
            if self._stream is not None and self._stream != current:
                current.wait_stream(self._stream)
            self._stream = current
        return _ids_of(rows, len(self)).cpu()

    def _start(self, ids: Tensor) -> Ticket:
        # The fetcher refuses to overwrite rows whose ticket was never taken: take it, in vain.
        while self._ahead and self._ahead[0].number + self.lookahead <= self._started:
            self._ahead.popleft().ticket.result()
        ticket = self._fetcher.submit(ids)
        self._started += 1
        return ticket


def _ids_of(rows: Rows, num_rows: int) -> Tensor:
    """What an index of a tensor's rows says, as ids; ids themselves are left for the fetcher."""
    if isinstance(rows, slice):
        return torch.from_numpy(np.arange(*rows.indices(num_rows)))
    if isinstance(rows, list | np.ndarray):
        array = np.array(rows, order="C")  # never read-only or reversed
        rows = torch.from_numpy(array if array.size else array.astype(np.int64))
    if not isinstance(rows, Tensor):
        raise TypeError(
            f"rows are named by ids, a list of ids, a mask or a slice, not by {rows!r}: write "
            "features[[3]] for row 3, and features[ids][:, k] for columns"
        )
    if rows.dtype != torch.bool:
        return rows
    if rows.shape != (num_rows,):
        raise IndexError(f"mask: expected shape ({num_rows},), got {tuple(rows.shape)}")
    return rows.nonzero().view(-1)
