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
from types import MappingProxyType
from typing import ClassVar, Literal, Protocol, Self, get_args, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.kernels.modes import plain_torch
from gatherbench.kernels.table_file import LATENCY_BINS as LATENCY_BINS  # noqa: PLC0414 - part of the contract
from gatherbench.plugins import nearest
from gatherbench.reason import Reason
from gatherbench.strategies.buffers import RowBuffer
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.knowledge import NOTHING, Knowledge, Need
from gatherbench.strategies.places import path_skip


@dataclass(frozen=True, slots=True)
class SetupStep:
    """Something that opening a path cost; it is reported apart from the fetches.

    Registering a table can take as long as copying it (DGL #3616). A benchmark that leaves this
    out, or hides it in the first epoch, misleads. ``metric`` is e.g. ``register_time``, ``unit``
    is ``s``, ``B`` or ``1``, ``source`` the clock, call or formula that the value comes from. Where
    there is no value, ``reason`` begins as that of ``Strategy.skip``.
    """

    metric: str
    unit: str
    value: float | None
    source: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Residency:
    """Where a path says that its table, or a part of it, lies, and where its runtime finds it.

    A "host" table that was silently copied to the device gives right values and wrong times
    (cugraph-gnn #255), so right values do not prove a data path.
    """

    expected: str
    found: str
    source: str
    part: str = "the table"


#: What a path is to those who read results, whatever it is called. ``baseline``: what the paper's
#: authors compare with; ``conventional``: the CPU gathers, at its best; ``zero_copy``: a GPU reads
#: rows in host memory; ``bound``: all rows are where they are used; ``floor``: nothing is fetched;
#: ``control``: hot rows are chosen as no training would choose them; ``choice``: the training shows
#: which of the others it is; ``other``: the rest (rows on a disk, over ranks, of other packages).
Role = Literal[
    "baseline", "conventional", "zero_copy", "bound", "floor", "control", "choice", "other"
]
#: Roles of paths that nobody would train with: they are measured and drawn, and never ranked.
UNRANKED: frozenset[Role] = frozenset({"floor", "control"})

#: What ids may be.
ID_DTYPES = (torch.int32, torch.int64)
#: What an open path may count, as :meth:`Fetcher.counts` tells it: the unit, and what it counts.
COUNTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "rows_on_device": ("1", "rows that the path found in device memory, by its own count"),
        "rows_in_memory": ("1", "rows that the path had kept in host memory, by its own count"),
        "disk_read": ("B", "bytes that the path asked the disk for, by its own count"),
        "disk_requests": ("1", "reads that the path sent to the disk, by its own count"),
        "gather_time": (
            "s",
            "time.perf_counter around each gather, in the thread that asks for it",
        ),
        "swaps": ("1", "partitions that took the place of others in memory, by the path's count"),
    }
)


class Ticket(Protocol):
    """A fetch in flight."""

    def result(self) -> Tensor:
        """The rows, ``[len(ids), D]`` on the fetcher's device, in the order of the ids.

        Work that is queued next on the current stream (maybe another than at ``submit``) finds the
        rows there. Reads on other streams have to be done before later fetches are submitted. Each
        call gives the same tensor. It may be overwritten after ``lookahead + 1`` later fetches:
        clone it to keep it.

        Raises:
            RuntimeError: so many fetches have been submitted since that the rows may be
                overwritten, or the fetcher is closed.
            Exception: whatever went wrong during the fetch.
        """
        ...


class Observed:
    """What an open path hears of the loop, and what it tells of itself."""

    #: How many minibatches further ahead the path wants to hear of: see :meth:`announce`.
    announced: int = 0

    def announce(self, ids: Tensor) -> None:
        """Say which rows will be asked for, before :meth:`Fetcher.submit` does; holds no buffer.

        Where ``announced`` is above 0, the loop announces each minibatch once, in the order of
        submission and so many ahead of it. Called by the thread that submits, maybe beside a fetch.
        """

    def forget(self) -> None:
        """Lose what earlier epochs brought into memory, where each is to begin cold.

        Brings nothing: it is called before an epoch, when nothing is in flight and no clock runs.
        """

    def expect(self, minibatches: int) -> None:
        """Say how many minibatches an epoch has, before one begins; not every loop knows."""

    def begin_epoch(self) -> None:
        """The loop begins a pass over its minibatches; nothing is in flight.

        Timed, as a part of the first minibatch's fetch.
        """

    def counts(self) -> Mapping[str, float]:
        """What the path counts since it was opened, of :data:`COUNTS`; waits for the device."""
        return {}

    def latencies(self) -> NDArray[np.int64] | None:
        """How many reads of the disk took how long, since the path was opened.

        ``[LATENCY_BINS]``: those that took less than 2^(k/4) µs and no less than 2^((k-1)/4).
        ``None`` where there are none, or nobody times them.
        """
        return None

    def residency(self) -> tuple[Residency, ...]:
        """Where the parts of the table lie that are read; none where nobody can be asked."""
        return ()


class Fetcher(Observed, ABC):
    """A data path that is open: it owns its buffers and threads until :meth:`close`.

    Args:
        features: the feature table ``[N, D]`` in host memory, contiguous, any dtype.
        device: where the fetched rows shall lie.
    """

    #: How many minibatches the loop may submit ahead of the one it trains on. 0 for a blocking
    #: strategy: its ``submit`` does the work. A path that is still being chosen may change it.
    lookahead: int = 0
    #: Whether :meth:`tune` has something to find out.
    tunable: bool = False
    #: Whether each fetch reads the table as it is then. Where it is false, the path has copied
    #: rows: after a write to the table that torch sees, :meth:`submit` raises.
    live: bool = True
    #: What that depends on beside the workload and the machine: where it is the same, what one
    #: process has found others :meth:`recall`. Empty: each finds its own.
    tuning: str = ""

    def __init__(self, features: Tensor, device: torch.device) -> None:
        check_features(features)
        self._opened = _OpenedTable(features)
        self.num_rows, self.row_width = int(features.shape[0]), int(features.shape[1])
        self.dtype = features.dtype
        self.device = device
        self._closed = False
        self._pid = os.getpid()
        #: Where ``submit`` takes ids beside the host: those that lie there are neither moved nor
        #: looked at by the host (see :meth:`check_fetched`).
        self.ids_device = torch.device("cpu")
        self._home: Home | None = None
        #: What opening cost, where the path has more to say than the time that ``open`` took.
        self.setup: list[SetupStep] = []

    def submit(self, ids: Tensor) -> Ticket:
        """Start fetching the rows ``ids`` (``[B]``, int32 or int64, on the host or ``ids_device``).

        The ids may be changed as soon as this returns: a fetch that goes on holds a copy. The path
        itself leaves them as they are.

        Raises:
            TypeError: ids are no tensor of int32 or int64.
            ValueError: ids are not one-dimensional or lie on the wrong device.
            IndexError: an id on the host is negative or not below ``num_rows``, or the table has no
                rows. Of such an id on a GPU the row is zeros, and :meth:`check_fetched` raises.
            RuntimeError: see :meth:`check_usable`; or ``lookahead + 1`` fetches are in flight whose
                results have not been taken; or the table is no longer what was opened: it has
                moved, has another shape, wants a gradient, or has changed and is not ``live``.
        """
        with plain_torch():
            self.check_usable()
            self._opened.check(self.live)
            check_ids(ids, self.num_rows, self.ids_device)
            return self._submit(ids.contiguous())

    def fetch(self, ids: Tensor) -> Tensor:
        """The rows ``ids`` at once, in memory that is the caller's own: as ``x[ids]`` gives them.

        Raises:
            As :meth:`submit`, and ``result`` of its ticket.
        """
        return self.hand_over(self.submit(ids).result())

    def hand_over(self, rows: Tensor) -> Tensor:
        """What a ticket's ``result`` gave last, in memory that no later fetch writes: a copy.

        A path whose buffer is easily replaced gives it away instead.
        """
        with plain_torch():
            return copied(rows.view(torch.uint8)).view(rows.dtype)

    @property
    def table_version(self) -> int:
        """How often torch has seen a write to the table; 0 where it does not count."""
        return self._opened.version()

    def check_usable(self) -> None:
        """
        Raises:
            RuntimeError: closed; or in a forked child, opened by the parent with threads or a GPU.
        """
        if self._closed:
            raise RuntimeError(f"{type(self).__name__} is closed: open the strategy again")
        if self._pid != os.getpid() and (self.lookahead or self.device.type != "cpu"):
            raise RuntimeError(
                "opened in the parent process, whose GPU and threads a forked child cannot use: "
                "fetch there, and let a loader's workers only sample"
            )

    def taken(self, ids: Tensor) -> Tensor:
        """``ids`` where :meth:`submit` takes them: as they are, or from the GPU to the host.

        The host waits for that copy alone, on a stream of its own. So the ids have to be there: no
        work may be left that makes them. What is returned holds until the next call.
        """
        if ids.device.type in ("cpu", self.ids_device.type):
            return ids
        if self._home is None:
            self._home = Home(ids.device)
        return self._home.bring(ids)

    def check_fetched(self) -> None:
        """Whether all ids on a GPU that were submitted so far are in the table; waits for it.

        To be called behind an epoch; :meth:`close` does, too.

        Raises:
            IndexError: one is not; names it. Said once.
        """

    @abstractmethod
    def _submit(self, ids: Tensor) -> Ticket:
        """Start the fetch; ``ids`` have been checked and are contiguous."""

    def tune(self, ids: Tensor, beside: Callable[[], object]) -> list[SetupStep]:
        """Choose what depends on the work that runs beside the fetches; what was found.

        Called at most once, before anything is timed, and only where ``tunable`` says so.

        Args:
            ids: of a typical minibatch, as for :meth:`submit`.
            beside: does (on a GPU: queues) one training step.
        """
        return []

    def recall(self, found: Sequence[SetupStep]) -> list[SetupStep]:
        """Choose as :meth:`tune` did in another process, which found this; what is told of it.

        Called in its place, and only where ``tuning`` is not empty.
        """
        return []

    def close(self) -> None:
        """Free buffers, join threads, undo registrations. Safe to call twice.

        A forked child closes its copy of this object only: what the object owns is the parent's,
        and a child that merely ends must not touch the GPU.
        """
        if not self._closed:
            self._closed = True
            if self._pid == os.getpid():
                self._close()

    def _close(self) -> None:
        """Free what the subclass owns; called once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True, eq=False)
class Minibatches:
    """Minibatches of which :meth:`Strategy.data_paths` says how they travel.

    Attributes:
        batches: ids ``[B]`` of each in the order of fetching.
        row_bytes, num_rows: of the table.
        knowledge: what the path is opened with.
        before: ids of the minibatches of each epoch that was fetched earlier, in their order; read
            as it is iterated.
    """

    batches: Iterable[Tensor]
    row_bytes: int
    num_rows: int
    knowledge: Knowledge = NOTHING
    before: Iterable[Iterable[Tensor]] = ()


@dataclass(frozen=True)
class Strategy(ABC):
    """A data path and its parameters: the fields of the subclass, each a ``Literal`` of words.

    Every field has a default, and the first word of each ``Literal`` is that default.
    """

    #: The strategy's name in plans, rows and plots.
    name: ClassVar[str]
    #: One line for ``gatherbench list strategies`` and the README's table.
    summary: ClassVar[str]
    #: In pictures: blue, orange, green, vermilion, sky, purple, grey, yellow, brown, navy,
    #: pale.
    colour: ClassVar[str] = "yellow"

    def __post_init__(self) -> None:
        for name, allowed in parameters(type(self)).items():
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(
                    f"{self.name}: {name} = {value!r} is not one of {', '.join(allowed)}"
                    + nearest(value, allowed)
                )

    @property
    def variant(self) -> str:
        """The parameters as one word, e.g. ``pinned`` or ``sorted,managed``.

        ``default`` for a strategy without parameters. Part of the key of every row. Beside other
        parameters ``memory`` is left out at its default: rows were written before there was any.
        """
        known = parameters(type(self))
        words = {name: str(getattr(self, name)) for name in known}
        if len(words) > 1 and words.get("memory") == known.get("memory", ("",))[0]:
            del words["memory"]
        return ",".join(words.values()) or "default"

    def skip(self, device: torch.device, table_bytes: int = 0) -> Reason | None:
        """Say why this strategy cannot run on ``device``; ``None``: it can, on the host and a GPU.

        ``table_bytes`` is the size of the feature table, 0 if not known yet, for one that needs
        room. Of a GPU that is not here the answer is ``no_device``, unless it runs on none.
        """
        return path_skip(device)

    def surroundings(self, device: torch.device) -> AbstractContextManager[object]:
        """Provide what has to be there before the process first touches ``device``: nothing here.

        Entered before ``skip`` is asked. What cannot be had raises nothing: ``skip`` says why.
        """
        return nullcontext()

    @property
    def needs(self) -> frozenset[Need]:
        """What the path has to know before it opens; nothing, as a rule."""
        return frozenset()

    @property
    def role(self) -> Role:
        """What readers of results take the path for, in place of its name: see :data:`Role`.

        Of another package's path: ``zero_copy``, ``control`` or ``other``.
        """
        return "other"

    @property
    def lookahead(self) -> int:
        """How many minibatches the opened path fetches ahead: its :attr:`Fetcher.lookahead`."""
        return 0

    @abstractmethod
    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        """How one minibatch travels: ``ids`` ``[B]``, rows of ``row_bytes`` bytes.

        Rows that are kept on the GPU because of their place in the table, or because earlier
        minibatches asked for them, are left to :meth:`data_paths`.
        """

    def data_paths(self, of: Minibatches) -> Iterator[DataPath]:
        """How minibatches travel, one path for each.

        :meth:`data_path` of each, unless the path depends on what it knows, on its file, or on the
        minibatches that were fetched before.
        """
        return (self.data_path(ids, of.row_bytes) for ids in of.batches)

    def kept_bytes(self, table_bytes: int, knowledge: Knowledge = NOTHING) -> int:
        """How much of a table of so many bytes lies in GPU memory while the path is open: none.

        A strategy that keeps the table there, or part of it, says so here, and ``skip`` refuses
        what does not fit (``places.py``).
        """
        return 0

    def open(
        self, features: Tensor, device: torch.device, knowledge: Knowledge = NOTHING
    ) -> Fetcher:
        """Make the path ready for ``features`` ``[N, D]`` (host memory) towards ``device``.

        The table is used in place where the path allows it: it must live, unchanged, until the
        fetcher is closed. A table without rows is allowed; no id is valid for it.

        Raises:
            TypeError, ValueError: a table that cannot be read row by row, see
                :func:`check_features`; a device on which the strategy says ``skip``; or something
                of what it :attr:`needs` is not known.
        """
        with plain_torch():
            check_features(features)
            reason = self.skip(device, features.numel() * features.element_size())
            if reason is not None:
                raise ValueError(f"{self.name} ({self.variant}) cannot run on {device}: {reason}")
            if missing := knowledge.missing(self.needs):
                raise ValueError(f"{self.name} ({self.variant}) has to know {', '.join(missing)}")
            return self._open(features, device, knowledge.limited_to(self.needs))

    @abstractmethod
    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        """Open the path; table, device and what is known have been checked."""


@functools.cache
def parameters(strategy: type[Strategy]) -> dict[str, tuple[str, ...]]:
    """The parameters of a strategy and the words that each may be, the default first."""
    hints = get_type_hints(strategy)
    return {f.name: get_args(hints[f.name]) for f in dataclasses.fields(strategy)}


def announcing(
    batches: Iterable[Tensor], ahead: int, announce: Callable[[Tensor], object]
) -> Iterator[Tensor]:
    """An epoch's minibatches, each when ``ahead`` more have been announced, as the loop does."""
    waiting: deque[Tensor] = deque()
    for ids in batches:
        if ahead:
            announce(ids)
        waiting.append(ids)
        if len(waiting) > ahead:
            yield waiting.popleft()
    yield from waiting


def check_features(features: Tensor) -> None:
    """Refuse a table that no data path could read row by row.

    Raises:
        TypeError: not a tensor.
        ValueError: not two-dimensional, not contiguous, not in host memory, rows of 0 bytes, or a
            tensor whose memory does not hold its values: sparse, quantized, or a lazy view.
    """
    if not isinstance(features, Tensor):
        raise TypeError(
            f"features: expected a torch tensor, got {type(features).__name__}"
            + ("; torch.from_numpy makes one" if type(features).__name__ == "ndarray" else "")
        )
    if features.layout != torch.strided or features.is_quantized:
        kind = features.dtype if features.is_quantized else features.layout
        raise ValueError(f"features: expected a plain dense tensor, got {kind}")
    if features.dim() != 2:
        raise ValueError(f"features: expected shape [N, D], got {tuple(features.shape)}")
    if features.device.type != "cpu":
        raise ValueError(
            f"features: the table must lie in host memory, got {features.device}; call .cpu() first"
        )
    if features.shape[1] == 0:
        raise ValueError("features: rows of width 0 have nothing to fetch")
    if not features.is_contiguous():
        raise ValueError(
            "features: the table must be contiguous; call .contiguous() first, or "
            "numpy.ascontiguousarray"
        )
    # Such a view has the memory of another tensor and is conjugated or negated only when torch
    # reads it: whoever moves bytes would bring the other tensor's values.
    if features.is_conj() or features.is_neg():
        raise ValueError(
            "features: a lazy conjugate or negative; call .resolve_conj().resolve_neg() first"
        )


class _OpenedTable:
    """The table as it was when a path opened, which may read it by its address from then on.

    It is held weakly: a path that has copied it may let it go.
    """

    def __init__(self, table: Tensor) -> None:
        self._table = weakref.ref(table)
        self._counted = not table.is_inference()  # torch counts no writes to the others
        self._found, self._version = self._place(table), self.version()

    @staticmethod
    def _place(table: Tensor) -> tuple[object, ...]:
        return table.data_ptr(), table.shape, table.stride(), table.dtype

    def version(self) -> int:
        """How often torch has seen a write; 0: nobody counts, or the table is gone."""
        table = self._table()
        return 0 if table is None or not self._counted else table._version

    def check(self, live: bool) -> None:
        """See :meth:`Fetcher.submit`."""
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


#: What to do with a table that is trained, in place of fetching from it.
TRAINED = (
    "no gradient flows through a fetch, so x would not be trained. Index a table that is trained "
    "by torch (x[ids], torch.nn.Embedding); for constant features give x.detach() of a tensor that "
    "nobody writes to"
)


def not_plain(rows: Tensor) -> str | None:
    """Why a tensor is not rows that lie in memory as they are; ``None`` if it is.

    A subclass may gather when somebody first uses it, and a lazy negative or conjugate has its work
    to do then.
    """
    if type(rows) is not Tensor:
        return f"rows are a plain torch.Tensor, and there when result() returns: not {type(rows)}"
    if rows.layout != torch.strided or rows.is_neg() or rows.is_conj():
        return "rows are dense and lie in memory as they are: no sparse tensor, and no lazy view"
    return None


class Home:
    """Brings ids from a GPU to page-locked host memory, on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._room: dict[torch.dtype, RowBuffer] = {}

    def bring(self, ids: Tensor) -> Tensor:
        """The ids on the host, until the next call."""
        room = self._room.setdefault(ids.dtype, RowBuffer(functools.partial(_locked, ids.dtype)))
        here = room.rows(ids.numel())
        with torch.cuda.stream(self._stream):
            here.copy_(ids, non_blocking=True)
        self._stream.synchronize()
        return here


def _locked(dtype: torch.dtype, count: int) -> Tensor:
    return torch.empty(count, dtype=dtype, device="cpu", pin_memory=True)


def check_ids(ids: Tensor, num_rows: int, device: torch.device) -> None:
    """Refuse ids that are none, or lie elsewhere than on the host and ``device``; on the host also
    those that would read outside the table. See ``Fetcher.submit``."""
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
    # Not torch's: an operation of its pool leaves all its threads spinning for some milliseconds:
    # on 16 cores beside an H200 they took most of an epoch's processor time.
    low, high = int(ids.numpy().min()), int(ids.numpy().max())
    if low < 0 or high >= num_rows:
        where = int(((ids < 0) | (ids >= num_rows)).nonzero()[0])
        raise IndexError(f"ids[{where}] = {int(ids[where])}: {rows_of(num_rows)}")


def copied(ids: Tensor) -> Tensor:
    """A copy of ids (or bytes) that stay as they are while a fetch goes on, where they lie.

    On the host not torch's: of 32,769 numbers on it wakes its pool, which spins afterwards.
    """
    return torch.from_numpy(ids.numpy().copy()) if ids.device.type == "cpu" else ids.clone()


def rows_of(num_rows: int) -> str:
    """Which ids there are, in words."""
    return f"the table has rows 0..{num_rows - 1}" if num_rows else "the table has no rows"
