"""The contract between a data path and the loop that drives it.

A :class:`Strategy` is a name and its parameters: it can be hashed, printed and put in a plan. Its
``open`` makes a :class:`Fetcher`, which owns buffers, threads and streams until it is closed. The
loop knows only this file, so every strategy is measured by the same code.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, Self, get_args, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.kernels.modes import plain_torch
from gatherbench.reason import Reason
from gatherbench.strategies.buffers import RowBuffer
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.declared import check_parameters
from gatherbench.strategies.knowledge import NOTHING, Knowledge, Need
from gatherbench.strategies.places import path_skip


@dataclass(frozen=True, slots=True)
class SetupStep:
    """One cost of opening a path, in ``s``, ``B`` or ``1``: registering a table can take as long as
    copying it (DGL #3616). ``source`` names the clock, call or formula of the value; without one,
    ``reason`` is the text of a :class:`Reason`."""

    metric: str
    unit: str
    value: float | None
    source: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Residency:
    """The place where a path expects its table, or a part of it, and where its runtime finds it.

    A "host" table that was silently copied to the device gives right values and wrong times
    (cugraph-gnn #255).
    """

    expected: str
    found: str
    source: str
    part: str = "the table"


#: The part that a path plays in results. ``baseline``: the path that the paper's authors compare
#: with; ``conventional``: the CPU gathers, at its best; ``zero_copy``: a GPU reads rows in host
#: memory; ``upper_bound``: all rows lie where they are used; ``no_fetch``: nothing is fetched
#: (limit); ``control``: hot rows are chosen as no training would choose them; ``choice``: training
#: picks one of the others; ``other``: the rest (rows on a disk, over ranks, of other packages).
Role = Literal[
    "baseline", "conventional", "zero_copy", "upper_bound", "no_fetch", "control", "choice", "other"
]
#: Roles of paths that nobody would train with: they are measured and plotted, but never ranked.
UNRANKED: frozenset[Role] = frozenset({"no_fetch", "control"})

#: The dtypes that ids may have.
ID_DTYPES = (torch.int32, torch.int64)
#: The counts that :meth:`Fetcher.counts` may return: the unit of each, and what it counts.
COUNTS: Mapping[str, tuple[str, str]] = {
    "rows_on_device": ("1", "rows that the path found in device memory, by its own count"),
    "rows_in_memory": ("1", "rows that the path had kept in host memory, by its own count"),
    "disk_read": ("B", "bytes that the path asked the disk for, by its own count"),
    "disk_requests": ("1", "reads that the path sent to the disk, by its own count"),
    "gather_time": ("s", "time.perf_counter around each gather, in the thread that asks for it"),
    "swaps": ("1", "partitions that took the place of others in memory, by the path's count"),
}


class Ticket(Protocol):
    """A fetch in flight."""

    def result(self) -> Tensor:
        """Return the rows, ``[len(ids), D]`` on the fetcher's device, in the order of the ids.

        Work that is queued next on the current stream (which may differ from that of ``submit``)
        sees the rows. Reads on other streams must end before later fetches are submitted. Each call
        returns the same tensor, which may be overwritten after ``lookahead + 1`` later fetches.

        Raises:
            RuntimeError: so many fetches have been submitted since, or the fetcher is closed.
            Exception: any error of the fetch itself.
        """


class Observed:
    """The notifications that an open path gets from the loop, and the facts that it reports."""

    announced: int = 0  #: How many minibatches ahead of submission to announce.

    def announce(self, ids: Tensor) -> None:
        """Announce the rows of a coming minibatch; uses no buffer. The submitting thread announces
        each once, in the order of submission and ``announced`` ahead, maybe during a fetch."""

    def drop_caches(self) -> None:
        """Drop what earlier epochs brought into memory, before an epoch that begins cold, outside
        any clock."""

    def begin_epoch(self) -> None:
        """Begin an epoch while nothing is in flight; timed as part of the first fetch."""

    def counts(self) -> Mapping[str, float]:
        """Return counts of :data:`COUNTS` since the path was opened; wait for the device."""
        return {}

    def latencies(self) -> NDArray[np.int64] | None:
        """Return a histogram of the latencies of disk reads since the path was opened, if any:
        ``[table_file.LATENCY_BINS]``. Bin ``k`` counts reads of at least 2^((k-1)/4) and less than
        2^(k/4) µs; bin 0 also holds all faster reads, the last all slower ones."""
        return None

    def residency(self) -> tuple[Residency, ...]:
        """Return where the parts of the table lie that are read; empty if that is unknown."""
        return ()


class Fetcher(Observed, ABC):
    """A data path that is open, from a table ``[N, D]`` in host memory to ``device``: it owns its
    buffers and threads until :meth:`close`."""

    #: How many minibatches the loop may submit ahead of the one it trains on; 0: ``submit`` does
    #: the work. It may change while ``auto`` still searches.
    lookahead: int = 0
    tunable: bool = False  #: Whether :meth:`tune` has something to choose.
    #: Whether each fetch reads the table as it is then. If not, the path has copied rows: after a
    #: write to the table that torch sees, :meth:`submit` raises.
    live: bool = True
    #: What tuning depends on, apart from the workload and the machine: processes for which it is
    #: equal may :meth:`recall` one result. Empty: each process tunes for itself.
    tuning: str = ""

    def __init__(self, features: Tensor, device: torch.device) -> None:
        check_features(features)
        self._opened = _OpenedTable(features)
        self.num_rows, self.row_width = int(features.shape[0]), int(features.shape[1])
        self.dtype, self.device = features.dtype, device
        self._closed, self._pid = False, os.getpid()
        #: The device, other than the host, on which ``submit`` takes ids as they are: the host does
        #: not check those (see :meth:`check_fetched`).
        self.ids_device = torch.device("cpu")
        self._from_gpu: torch.cuda.Stream | None = None
        self._locked: dict[torch.dtype, RowBuffer] = {}
        self.setup: list[SetupStep] = []  #: The costs of opening, one by one.

    def submit(self, ids: Tensor) -> Ticket:
        """Start fetching the rows ``ids`` (``[B]``, int32 or int64, on the host or ``ids_device``).

        The caller may change the ids as soon as this returns; the path itself does not.

        Raises:
            TypeError: ids are not a tensor of int32 or int64.
            ValueError: ids are not one-dimensional or lie on the wrong device.
            IndexError: an id on the host is negative or not below ``num_rows``, or there are ids
                and no rows. For a bad id on a GPU the row is 0, and :meth:`check_fetched` raises.
            RuntimeError: see :meth:`check_usable`; or ``lookahead + 1`` fetches are in flight whose
                results have not been used; or the table is no longer as it was opened: it has
                moved, has another shape, requires a gradient, or has changed and is not ``live``.
        """
        with plain_torch():
            self.check_usable()
            self._opened.check(self.live)
            check_ids(ids, self.num_rows, self.ids_device)
            return self._submit(ids.contiguous())

    def fetch(self, ids: Tensor) -> Tensor:
        """Fetch the rows ``ids`` now, into memory that the caller owns, as ``x[ids]`` does."""
        return self.hand_over(self.submit(ids).result())

    def hand_over(self, rows: Tensor) -> Tensor:
        """Copy the latest ``result`` to memory of its own, or give its buffer away."""
        with plain_torch():
            return copied(rows.view(torch.uint8)).view(rows.dtype)

    @property
    def table_version(self) -> int:
        """Count the writes to the table that torch has seen; 0 where torch does not count."""
        return self._opened.version()

    def check_usable(self) -> None:
        """Raise ``RuntimeError`` if it is closed, or this is a forked child and the parent opened
        it with threads or a GPU."""
        if self._closed:
            raise RuntimeError(f"{type(self).__name__} is closed: open the strategy again")
        if self._pid != os.getpid() and (self.lookahead or self.device.type != "cpu"):
            raise RuntimeError(
                "opened in the parent process, whose GPU and threads a forked child cannot use: "
                "fetch there, and let a loader's workers only sample"
            )

    def to_fetch_device(self, ids: Tensor) -> Tensor:
        """Return ``ids`` where :meth:`submit` takes them, copied from GPU to host if needed.

        The host waits only for that copy, on a separate stream, so no queued work may still write
        the ids. The result is valid until the next call.
        """
        if ids.device.type in ("cpu", self.ids_device.type):
            return ids
        if self._from_gpu is None:
            self._from_gpu = torch.cuda.Stream(ids.device)  # type: ignore[no-untyped-call]
        make = functools.partial(torch.empty, dtype=ids.dtype, device="cpu", pin_memory=True)
        here = self._locked.setdefault(ids.dtype, RowBuffer(make)).rows(ids.numel())
        with torch.cuda.stream(self._from_gpu):
            here.copy_(ids, non_blocking=True)
        self._from_gpu.synchronize()
        return here

    def check_fetched(self) -> None:
        """Check that all ids submitted on a GPU so far are in the table, after waiting for the GPU;
        an ``IndexError``, raised once, names one that is not. Call it after an epoch; a path that
        takes ids on a GPU also calls it in ``_close``."""

    @abstractmethod
    def _submit(self, ids: Tensor) -> Ticket:
        """Fetch checked, contiguous ``ids``; copy them if the fetch goes on after the return."""

    def tune(self, ids: Tensor, beside: Callable[[], object]) -> list[SetupStep]:
        """Tune the path, if ``tunable``, before anything is timed, and return the results. ``ids``
        are a typical minibatch's; ``beside`` does (on a GPU: queues) a training step."""
        return []

    def recall(self, steps: Sequence[SetupStep]) -> list[SetupStep]:
        """Apply the results ``found`` of :meth:`tune` in another process, in place of ``tune``, and
        only where ``tuning`` is not empty; return what to report."""
        return []

    def close(self) -> None:
        """Free buffers, join threads, undo registrations; safe to call twice. A forked child closes
        only its copy: it must not touch the parent's GPU."""
        if not self._closed:
            self._closed = True
            if self._pid == os.getpid():
                self._close()

    def _close(self) -> None:
        """Free the subclass's resources; called once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True, eq=False)
class Minibatches:
    """Minibatches whose data paths :meth:`Strategy.data_paths` describes."""

    batches: Iterable[Tensor]  #: Ids ``[B]`` of each in the order of fetching.
    row_bytes: int
    num_rows: int  #: Of the table.
    knowledge: Knowledge = NOTHING  #: With which the path is opened.
    #: The minibatches of each earlier epoch, in their order; read while iterating.
    before: Iterable[Iterable[Tensor]] = ()


@dataclass(frozen=True)
class Strategy(ABC):
    """A data path and its parameters: the fields of the subclass, each a ``Literal`` of strings.

    Every field has a default, which is the first string of its ``Literal``.
    """

    #: The strategy's name in plans, rows and plots.
    name: ClassVar[str]
    #: One line for ``gatherbench list strategies`` and the README's table.
    summary: ClassVar[str]
    #: The colour in plots: blue, orange, green, vermilion, sky, purple, grey, yellow, brown, navy,
    #: pale.
    colour: ClassVar[str] = "yellow"

    def __post_init__(self) -> None:
        known = parameters(type(self))
        check_parameters(self.name, {name: getattr(self, name) for name in known}, known)

    @property
    def variant(self) -> str:
        """The parameters as one word, e.g. ``pinned``; ``default`` for a strategy without any.

        It is part of the key of every row. If there are other parameters, a default of ``memory``
        or ``grid`` is left out: older rows have no such parameter.
        """
        known = parameters(type(self))
        words = {name: str(getattr(self, name)) for name in known}
        for later in ("memory", "grid"):
            if len(known) > 1 and later in known and words[later] == known[later][0]:
                del words[later]
        return ",".join(words.values()) or "default"

    def skip(self, device: torch.device, table_bytes: int = 0) -> Reason | None:
        """Return why this strategy cannot run on ``device`` (host or GPU), or ``None``: for an
        absent GPU ``no_device``, if the strategy supports any. ``table_bytes`` is the size of the
        feature table, 0 if unknown."""
        return path_skip(device)

    def surroundings(self, device: torch.device) -> AbstractContextManager[object]:
        """Provide what must exist before the process first uses ``device``: by default nothing.
        Entered before ``skip``, which returns why if this fails."""
        return nullcontext()

    @property
    def needs(self) -> frozenset[Need]:
        """The knowledge that the path needs before it opens; by default none."""
        return frozenset()

    @property
    def role(self) -> Role:
        """The part that the path plays in results: see :data:`Role`; that of another package is
        ``zero_copy``, ``control`` or ``other``."""
        return "other"

    @property
    def lookahead(self) -> int:
        """The minibatches that the open path prefetches: its parameter ``ahead``, by default 0."""
        return int(getattr(self, "ahead", 0))

    @abstractmethod
    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        """Describe how one minibatch travels: ``ids`` ``[B]``, rows of ``row_bytes`` bytes."""

    def data_paths(self, minibatches: Minibatches) -> Iterator[DataPath]:
        """Describe how minibatches travel, one by one; a path overrides it if that depends on
        knowledge, on its file, or on earlier minibatches."""
        return (self.data_path(ids, minibatches.row_bytes) for ids in minibatches.batches)

    def kept_bytes(self, table_bytes: int, knowledge: Knowledge = NOTHING) -> int:
        """Return how many bytes of the table stay in GPU memory while open; 0 by default. If there
        are any, ``skip`` refuses a table that does not fit (``places.py``)."""
        return 0

    def open(
        self, features: Tensor, device: torch.device, knowledge: Knowledge = NOTHING
    ) -> Fetcher:
        """Open the path from ``features`` ``[N, D]`` (host memory) to ``device``.

        The table may be used in place: keep it where it is until the fetcher is closed, and write
        to it only if the path is ``live``. A table without rows is allowed; no id is valid for it.

        Raises:
            TypeError, ValueError: the table fails :func:`check_features`; ``skip`` gives a reason
                for this device; or ``knowledge`` lacks something that the path :attr:`needs`.
        """
        with plain_torch():
            check_features(features)
            reason = self.skip(device, features.nbytes)
            if reason is not None:
                raise ValueError(f"{self.name} ({self.variant}) cannot run on {device}: {reason}")
            if missing := knowledge.missing(self.needs):
                raise ValueError(f"{self.name} ({self.variant}) has to know {', '.join(missing)}")
            return self._open(features, device, knowledge.limited_to(self.needs))

    @abstractmethod
    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        """Open the path; table, device and knowledge have been checked."""


@functools.cache
def parameters(strategy: type[Strategy]) -> dict[str, tuple[str, ...]]:
    """Return the parameters of a strategy and the values of each, the default first."""
    hints = get_type_hints(strategy)
    return {f.name: get_args(hints[f.name]) for f in dataclasses.fields(strategy)}


def announcing(
    batches: Iterable[Tensor], ahead: int, announce: Callable[[Tensor], object]
) -> Iterator[Tensor]:
    """Yield minibatches as the loop does: each after the ``ahead`` next ones are announced."""
    waiting: deque[Tensor] = deque()
    for ids in batches:
        if ahead:
            announce(ids)
        waiting.append(ids)
        if len(waiting) > ahead:
            yield waiting.popleft()
    yield from waiting


def check_features(features: Tensor) -> None:
    """Refuse a table that no data path could read row by row: what is not a tensor is a
    ``TypeError``, an unfit shape, layout or device a ``ValueError``."""
    if not isinstance(features, Tensor):
        remedy = "; torch.from_numpy makes one" if type(features).__name__ == "ndarray" else ""
        raise TypeError(f"features: expected a torch tensor, got {type(features).__name__}{remedy}")
    fault = None
    if features.layout != torch.strided or features.is_quantized:
        kind = features.dtype if features.is_quantized else features.layout
        fault = f"expected a plain dense tensor, got {kind}"
    elif features.dim() != 2:
        fault = f"expected shape [N, D], got {tuple(features.shape)}"
    elif features.device.type != "cpu":
        fault = f"the table must lie in host memory, got {features.device}; call .cpu() first"
    elif features.shape[1] == 0:
        fault = "rows of width 0 have nothing to fetch"
    elif not features.is_contiguous():
        fault = "the table must be contiguous; call .contiguous(), or numpy.ascontiguousarray"
    # Such a view shares the memory of another tensor and is conjugated or negated only when torch
    # reads it: a copy of its bytes would give the other tensor's values.
    elif features.is_conj() or features.is_neg():
        fault = "a lazy conjugate or negative; call .resolve_conj().resolve_neg() first"
    if fault is not None:
        raise ValueError(f"features: {fault}")


#: What to do with a table that is trained, in place of fetching from it.
TRAINED = (
    "no gradient flows through a fetch, so x would not be trained. Index a table that is trained "
    "by torch (x[ids], torch.nn.Embedding); for constant features give x.detach() of a tensor that "
    "nobody writes to"
)


class _OpenedTable:
    """The table as it was when a path opened, which may read it by its address from then on. The
    reference is weak: a path that has copied the table may free it."""

    def __init__(self, table: Tensor) -> None:
        self._table = weakref.ref(table)
        self._counted = not table.is_inference()  # torch counts no writes to inference tensors
        self._found, self._version = self._place(table), self.version()

    @staticmethod
    def _place(table: Tensor) -> tuple[object, ...]:
        return table.data_ptr(), table.shape, table.stride(), table.dtype

    def version(self) -> int:
        """Count the writes that torch has seen; 0 if it does not count or the table is gone."""
        table = self._table()
        return 0 if table is None or not self._counted else table._version

    def check(self, live: bool) -> None:
        """Raise if the table has changed; see :meth:`Fetcher.submit`."""
        table = self._table()
        if table is None:
            return
        if self._place(table) != self._found:
            raise RuntimeError(
                "the table has other memory or another shape than when it was opened, and a GPU "
                "may still read the old one: x.share_memory_(), sending x to a process that is not "
                "forked, x.data = …, x.set_(), x.resize_() and x.t_() do that. Do it before "
                "unified(x), or call unified(x) again"
            )
        if table.requires_grad:
            raise RuntimeError(f"the table requires a gradient since it was opened: {TRAINED}")
        if not live and self.version() != self._version:
            raise RuntimeError(
                "the table was changed since it was opened, and this path has copied rows of it, "
                "which are the old ones: take a path that reads the table itself, such as "
                "aligned_zero_copy in registered memory, or call unified(x) again after the change"
            )


def not_plain(rows: Tensor) -> str | None:
    """Return why a tensor is not plain rows that lie in memory as they are, or ``None``: a subclass
    of Tensor, or a lazy negative or conjugate, may do its work only at its first use."""
    if type(rows) is not Tensor:
        return f"rows are a plain torch.Tensor, and there when result() returns: not {type(rows)}"
    if rows.layout != torch.strided or rows.is_neg() or rows.is_conj():
        return "rows are dense and lie in memory as they are: no sparse tensor, and no lazy view"
    return None


def check_ids(ids: Tensor, num_rows: int, device: torch.device) -> None:
    """Refuse what ``Fetcher.submit`` does, for ids on the host or ``device``."""
    if not isinstance(ids, Tensor):
        raise TypeError(f"ids: expected a torch tensor, got {type(ids).__name__}")
    if ids.dtype not in ID_DTYPES:
        raise TypeError(f"ids: expected int32 or int64, got {ids.dtype}")
    if ids.dim() != 1:
        raise ValueError(f"ids: expected shape [B], got {tuple(ids.shape)}")
    if ids.device.type not in ("cpu", device.type):
        raise ValueError(f"ids: expected on {device}, got {ids.device}; move them first")
    if ids.numel() == 0:
        return
    if ids.device.type != "cpu":
        if num_rows == 0:
            raise IndexError(f"ids: {rows_of(num_rows)}")
        return
    # NumPy, not torch: after an operation on torch's pool all its threads spin for milliseconds. On
    # 16 cores with an H200 they took most of an epoch's processor time.
    low, high = int(ids.numpy().min()), int(ids.numpy().max())
    if low < 0 or high >= num_rows:
        where = int(((ids < 0) | (ids >= num_rows)).nonzero()[0])
        raise IndexError(f"ids[{where}] = {int(ids[where])}: {rows_of(num_rows)}")


def copied(ids: Tensor) -> Tensor:
    """Copy ids (or bytes) on their device, so that they stay unchanged during a fetch; on the host
    by NumPy: from 32,769 numbers on torch wakes its pool, which spins afterwards."""
    return torch.from_numpy(ids.numpy().copy()) if ids.device.type == "cpu" else ids.clone()


def rows_of(num_rows: int) -> str:
    return f"the table has rows 0..{num_rows - 1}" if num_rows else "the table has no rows"
