"""Index a feature table like a tensor, and let a strategy fetch the rows: two lines in any loop.

    features = gatherbench.unified(x, strategy="async_zero_copy")
    rows = features[n_id]

This brings the best data path for a graph into your own training code, which uses tensors and no
tickets. A strategy that overlaps needs the ids of the next batch early::

    features.prefetch(next_ids)     # before the training step on this batch
    rows = features[next_ids]       # after it: returns the prefetched rows

With ``strategy="auto"`` the fastest path is found during training.
"""

from __future__ import annotations

import os
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.checks import edges_of, ids_of
from gatherbench.kernels.host_memory import tensor_of
from gatherbench.kernels.modes import is_traced, plain_torch
from gatherbench.kernels.table_file import TableFile
from gatherbench.strategies.base import TRAINED, SetupStep, Strategy, Ticket, check_features, copied
from gatherbench.strategies.knowledge import NOTHING, Knowledge, adjacency_of, current_ranks
from gatherbench.strategies.places import reads_managed
from gatherbench.strategies.registry import build

#: An index of rows: ids, a mask of all rows, or a slice.
Rows = Tensor | NDArray[Any] | list[int] | list[bool] | slice
#: The argument of :func:`unified` that supplies each need of a path.
_GIVEN = {
    "graph": "graph=, the edge_index [2, E]",
    "training_ids": "train_ids=, the training nodes [T]",
    "earlier": "minibatches=, the n_id of the minibatches of an epoch or so",
}


def unified(
    x: Tensor | NDArray[Any],
    strategy: str = "aligned_zero_copy",
    device: torch.device | str | None = None,
    *,
    copy: bool = True,
    graph: Any = None,
    train_ids: Any = None,
    minibatches: Iterable[Any] | None = None,
    **params: str,
) -> UnifiedTensor:
    """Index ``x`` in host memory and get the rows on ``device``, moved by ``strategy``.

    On a GPU most strategies page-lock ``x``, and from then on a fork copies all of it at once
    (Linux since 5.9). If a loader forks its workers later, call ``x.share_memory_()`` first: shared
    memory is not copied. A strategy that spreads the table over ranks finds them in
    ``torch.distributed``: call ``init_process_group`` first, and fetch equally often on all ranks.

    Args:
        x: the feature table ``[N, D]``, any dtype, contiguous, in host memory, a tensor or an
            array. It is used in place where the data path allows it, and has to stay at its
            address. For ``memory="managed"`` make it with :func:`gatherbench.empty`, or it is
            copied. For a strategy that reads a disk, use ``numpy.load(path, mmap_mode="r")``.
        strategy: a name of ``gatherbench list strategies``, or ``auto``: the one that is fastest in
            the first minibatches (:mod:`gatherbench.strategies.auto`).
        device: the device of the rows; by default the current GPU, or the host without one.
        copy: see :class:`UnifiedTensor`.
        graph: an ``edge_index`` ``[2, E]`` or a PyG ``Data``, by which ``cached_zero_copy`` chooses
            the rows to keep.
        train_ids: the training nodes, ids ``[T]`` or a mask ``[N]``, for
            ``policy="weighted_reverse_pagerank"``.
        minibatches: the ``n_id`` of about an epoch's minibatches, or a loader whose batches have an
            ``n_id``, for ``policy="presampled"``.
        params: the strategy's parameters, e.g. ``order="sorted"``.

    Raises:
        ValueError: no such strategy, parameter or value (the nearest is named), or no such device;
            or the strategy cannot run here, or needs knowledge that was not given; or ``x`` is not
            a table, or requires a gradient, which does not flow through a fetch; or a file differs
            from its map; or graph, nodes or minibatches do not fit ``x``.
        TypeError: ``x`` is neither a tensor nor an array.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device = {device!r}: expected e.g. 'cpu', 'cuda' or 'cuda:1'") from error
    path, file = build(strategy, params), None
    if path.role == "no_fetch":
        text = "fetches nothing, as the limit of a benchmark; take e.g. aligned_zero_copy"
        raise ValueError(f"{strategy} {text}")
    if path.role == "choice" and isinstance(x, np.memmap) and x.filename is not None:
        raise ValueError(f"{strategy} takes no path from a disk: name one, or load x into memory")
    if "file" in path.needs:
        if not isinstance(x, np.memmap):
            remedy = "give x as numpy.load('features.npy', mmap_mode='r')"
            raise ValueError(f"{strategy} reads a file: {remedy}")
        file = TableFile.of(x)
    writable = isinstance(x, np.memmap) and x.flags.writeable
    with plain_torch():
        table = _table_of(x)
        rows, training = len(table), None
        if train_ids is not None:
            training = ids_of(train_ids, rows, "train_ids").numpy()
            if not len(training):
                raise ValueError("train_ids: names no row")
        known = Knowledge(
            graph=None if graph is None else adjacency_of(edges_of(graph, rows), rows),
            training_ids=training,
            earlier=None if minibatches is None else _epoch_of(minibatches, rows),
            ranks=current_ranks() if "ranks" in path.needs else None,
            file=file,
        )
        if missing := known.missing(path.needs):
            names = (_GIVEN.get(need, f"{need}, of which only a run knows") for need in missing)
            raise ValueError(f"{strategy} ({path.variant}) needs {' and '.join(names)}")
        features = UnifiedTensor(table, path, place, copy=copy, knowledge=known)
    if file is not None and writable and not features.live:
        features.close()
        raise ValueError(
            f"{strategy} keeps rows of the file, and would not see what is written to this map of "
            "it later: open it with mmap_mode='r'"
        )
    return features


def _table_of(x: Any) -> Tensor:
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError("x is a masked array, whose mask no path sees: use x.filled(value)")
    table: Tensor = tensor_of(x) if isinstance(x, np.ndarray) else x
    check_features(table)
    if table.requires_grad:
        raise ValueError(f"x requires a gradient: {TRAINED}")
    return table


def _epoch_of(minibatches: Any, num_rows: int) -> Callable[[int], list[Tensor]]:
    """Return a call for the ids of an epoch's minibatches, given lists of ids or a loader."""
    try:
        given = [getattr(batch, "n_id", batch) for batch in minibatches]
    except TypeError as error:
        raise ValueError(f"minibatches: expected a list of n_id ({error})") from error
    batches = [ids_of(ids, num_rows, f"minibatches[{k}]") for k, ids in enumerate(given)]
    if not any(map(len, batches)):
        raise ValueError("minibatches: names no row; an iterator that was used up gives none")
    return lambda _epoch: batches


class _Ahead(NamedTuple):
    """A fetch that ``prefetch`` began: the ``number``-th, after ``version`` writes to the table."""

    number: int
    version: int
    ids: Tensor
    ticket: Ticket


class UnifiedTensor(AbstractContextManager["UnifiedTensor"]):
    """A feature table ``[N, D]`` whose rows a strategy brings to ``device``; see :func:`unified`.

    **Ownership of the rows.** With ``copy`` (the default) each ``features[ids]`` is a separate
    tensor, copied on the device. Without it, the rows are in the strategy's own buffer and are
    overwritten once ``lookahead + 1`` further fetches (those of :meth:`prefetch` count) have been
    started; a backward pass that still needs them raises.

    **Later changes of x.** If :attr:`live` is true, ``features[ids]`` returns the values that ``x``
    has at that moment. If it is false, the path has copied rows, and the first fetch after a write
    raises. Torch does not see writes by NumPy, through ``x.data`` or by other processes. If ``x``
    has left its address, the next fetch raises.

    Torch's modes (``inference_mode``, ``autocast``, a default device …) do not affect fetches, and
    rows are plain tensors that require no gradient. Threads and CUDA streams may take turns; rows
    that are not copied must then be used up before the next fetch. A fork waits for a fetch that
    another thread has begun. A loader's worker processes cannot fetch: wrap the loader in
    :class:`gatherbench.strategies.pyg_features.FeatureLoader`.

    It is closed by :meth:`close`, by ``with``, by garbage collection, or at the program's end.
    Attributes: ``strategy``; ``shape`` and ``dtype`` of the table; ``device`` of the rows.
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
        # The fetcher reads it in place, except managed memory, which the fetcher holds itself.
        self._table = None if reads_managed(strategy) else features
        self._copy = copy
        self._ahead: deque[_Ahead] = deque()
        self._started = 0
        #: Reentrant: a signal handler or garbage collection may close during its thread's fetch.
        self._turn, self._torn = threading.RLock(), False
        self._stream: torch.cuda.Stream | None = None
        self.strategy, self.device = strategy, self._fetcher.device
        self.shape, self.dtype = features.shape, features.dtype
        # Registered memory must be released even if a program forgets to close.
        self._close = weakref.finalize(self, self._fetcher.close)
        _in_use.add(self)

    @property
    def lookahead(self) -> int:
        """The number of batches that :meth:`prefetch` may start ahead; with 0 it does nothing."""
        return self._fetcher.lookahead

    @property
    def live(self) -> bool:
        """Whether later writes to the table show."""
        return self._fetcher.live

    @property
    def setup(self) -> tuple[SetupStep, ...]:
        """The costs of opening (seconds, bytes registered or copied), and ``auto``'s finding."""
        return tuple(self._fetcher.setup)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __repr__(self) -> str:
        table = f"{list(self.shape)}, {self.dtype}, {self.strategy.name} ({self.strategy.variant})"
        closed = "" if self._close.alive else ", closed"
        return f"UnifiedTensor({table}, device={self.device}{closed})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a UnifiedTensor belongs to its process and cannot be pickled or copied: fetch in the "
            "main process and let a loader's workers only sample, or call unified(...) again there"
        )

    def __getitem__(self, ids: Rows) -> Tensor:
        """Return rows ``ids`` (``[B]``, int32 or int64, not negative), ``[B, D]`` on the device.

        A list or an array of ids, a mask ``[N]`` or a slice is turned into ids first. Prefetched
        rows are returned in whatever order they are indexed. Ids on a GPU are copied to the host
        first, to be checked there, for which the host waits.

        Raises:
            TypeError, ValueError, IndexError: ids that are not ids of rows, see
                :meth:`gatherbench.strategies.base.Fetcher.submit`.
            RuntimeError: closed, or opened before a fork.
        """
        try:
            return self._rows(ids)
        except BaseException as error:
            _let_go_of_tickets(error)
            raise

    def _rows(self, rows: Rows) -> Tensor:
        self._check_usable()
        direct = self._copy and self.device.type == "cpu"
        with self._turn:
            if direct and not self._ahead and type(rows) is Tensor and rows.dtype != torch.bool:
                return self._fetcher.fetch(rows if rows.is_cpu else rows.cpu())
        with self._turn, plain_torch():
            ids = self._placed(rows)
            for ahead in self._ahead:
                if ids.dtype == ahead.ids.dtype and torch.equal(ids, ahead.ids):
                    self._ahead.remove(ahead)
                    if ahead.version == self._fetcher.table_version:
                        return self._handed_out(ahead.ticket.result())
                    ahead.ticket.result()  # discarded: a write may have changed them
                    break
            if self._copy and self._stream is None and not self._ahead:
                return self._fetcher.fetch(ids)
            return self._handed_out(self._start(ids).result())

    def _handed_out(self, rows: Tensor) -> Tensor:
        if self._stream is not None:
            rows.record_stream(self._stream)  # another stream may have allocated them
        return self._fetcher.hand_over(rows) if self._copy else rows

    def prefetch(self, ids: Rows) -> None:
        """Start fetching ``ids``, which ``features[ids]`` will return soon; raises as that does.

        It does nothing where the strategy blocks (``lookahead`` 0): one loop serves all strategies.
        The ids may be changed afterwards. Unused rows are dropped when their buffer is filled
        again, ``lookahead + 1`` fetches later.
        """
        try:
            self._begin(ids)
        except BaseException as error:
            _let_go_of_tickets(error)
            raise

    def _begin(self, ids: Rows) -> None:
        self._check_usable()
        if not self.lookahead:
            return
        with self._turn, plain_torch():
            ids, version = self._placed(ids), self._fetcher.table_version
            # Only this entry holds the ticket: if an interrupt loses it, the buffer is free.
            self._ahead.append(_Ahead(self._started + 1, version, copied(ids), self._start(ids)))

    def close(self) -> None:
        """Free buffers, join threads, undo registrations; wait for another thread's fetch."""
        with self._turn:
            self._ahead.clear()
            self._close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_usable(self) -> None:
        if not self._close.alive:
            raise RuntimeError("the features are closed: call unified(...) again")
        if self._torn:
            raise RuntimeError(
                "forked in the middle of a fetch: call unified(...) again here, or fetch in the "
                "parent and let a loader's workers only sample"
            )
        if is_traced():
            raise RuntimeError(
                "rows would become constants of what is traced (torch.jit.trace, torch.export, "
                "make_fx): fetch outside, and give the model the rows"
            )
        self._fetcher.check_usable()

    def _placed(self, rows: Rows) -> Tensor:
        """Return the ids of ``rows`` on the host, where the fetcher checks them. A call on another
        stream waits for that of the call before, where the earlier readers of the buffers are."""
        if self.device.type == "cuda":
            current = torch.cuda.current_stream(self.device)
            if self._stream is not None and self._stream != current:
                current.wait_stream(self._stream)
            self._stream = current
        ids = _ids_of(rows, self.shape[0])
        return ids if ids.is_cpu else ids.cpu()

    def _start(self, ids: Tensor) -> Ticket:
        # The fetcher refuses to overwrite rows whose ticket is unread: read it and discard them.
        while self._ahead and self._ahead[0].number + self.lookahead <= self._started:
            self._ahead.popleft().ticket.result()
        self._started += 1
        return self._fetcher.submit(ids)


def _let_go_of_tickets(error: BaseException | None) -> None:
    """Free what the frames of this module's calls hold after ending with ``error``: a program that
    keeps an interrupt's traceback, as Jupyter does, would keep a ticket, and with it a buffer."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


#: Seconds that a fork waits for another thread's fetch: in the child it would stay half done.
FORK_PATIENCE_S = 10.0
_in_use: weakref.WeakSet[UnifiedTensor] = weakref.WeakSet()
_forking = threading.local()


def _before_fork() -> None:
    _forking.held = [x for x in tuple(_in_use) if x._turn.acquire(timeout=FORK_PATIENCE_S)]


def _after_fork() -> None:
    for features in _forking.held:
        features._turn.release()
    _forking.held = []


def _after_fork_in_child() -> None:
    for features in tuple(_in_use):
        if features not in _forking.held:
            features._turn, features._torn = threading.RLock(), True
    _after_fork()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
)


def _ids_of(rows: Rows, num_rows: int) -> Tensor:
    if type(rows) is Tensor and rows.dtype != torch.bool:
        return rows
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
