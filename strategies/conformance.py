"""Check that a strategy does what every strategy must do.

For each check the tests have a deliberately wrong strategy that it must reject. The tests run all
checks on every registered strategy, :func:`check_strategy` runs them on one from elsewhere.
"""

from __future__ import annotations

import functools
import itertools
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gatherbench.kernels.reference import reference_gather, same_bytes
from gatherbench.kernels.table_file import TableFile
from gatherbench.outside import words_of
from gatherbench.reason import Reason
from gatherbench.strategies.base import (
    COUNTS,
    ID_DTYPES,
    UNRANKED,
    Fetcher,
    Minibatches,
    Strategy,
    Ticket,
    announcing,
    not_plain,
)
from gatherbench.strategies.bounds import ready_ids
from gatherbench.strategies.data_path import BYTES, DataPath
from gatherbench.strategies.knowledge import Knowledge, adjacency_of, current_ranks
from gatherbench.strategies.partition_orders import Partitions

#: Dtypes, and bytes of a row of each: powers of two, either side of a 128 B line, and the widths of
#: known datasets; each once, because code that moves rows sees only bytes.
SHAPES: dict[torch.dtype, tuple[int, ...]] = {
    torch.int8: (1, 127, 129),
    torch.float16: (2, 130, 4096),
    torch.bfloat16: (100, 126),
    torch.float32: (4, 128, 400, 353 * 4),
    torch.float64: (8, 16, 602 * 4, 8192),
}
NUM_ROWS = 257
HEADER_BYTES = 128  #: Before the rows in a file, as many as in NumPy's shortest header.


@contextmanager
def _float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


#: The modes of torch that a training may have switched on around any call.
MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "torch.inference_mode": torch.inference_mode,
    "torch.no_grad": torch.no_grad,
    "torch.autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "torch.set_default_device": lambda: torch.device("meta"),
    "torch.set_default_dtype": _float64,
}


class NonconformingError(AssertionError):
    """A strategy breaks the contract; the message names the strategy, its input and its fault."""


Check = Callable[[Strategy, torch.device], None]
CHECKS: list[Check] = []


def _check(run: Check) -> Check:
    """Add ``run`` to :data:`CHECKS`; its errors also name the strategy."""

    @functools.wraps(run)
    def check(strategy: Strategy, device: torch.device) -> None:
        try:
            with _naming((run.__doc__ or "").partition("\n")[0]):
                run(strategy, device)
        except NonconformingError as breach:
            raise NonconformingError(f"{strategy.name} ({strategy.variant}): {breach}") from breach

    CHECKS.append(check)
    return check


def check_strategy(strategy: Strategy, device: torch.device) -> None:
    """Run every check; the first that fails raises :class:`NonconformingError`."""
    for check in CHECKS:
        check(strategy, device)


def random_table(rows: int, width: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Make a table ``[rows, width]`` of random bytes, with NaN payloads, infinities and -0.0."""
    generator = torch.Generator().manual_seed(seed)
    size = (rows, width * dtype.itemsize)
    return torch.randint(0, 256, size, dtype=torch.uint8, generator=generator).view(dtype)


def id_patterns(num_rows: int) -> dict[str, Tensor]:
    """Return named patterns of int64 ids for a table of ``num_rows`` (at least 1) rows."""
    generator = torch.Generator().manual_seed(1)
    ascending = torch.arange(num_rows)
    return {
        "empty": torch.empty(0, dtype=torch.int64),
        "one": torch.tensor([num_rows // 2]),
        "first": torch.zeros(1, dtype=torch.int64),
        "last": torch.tensor([num_rows - 1]),
        "repeated": torch.full((33,), num_rows // 3),
        "sorted": ascending,
        "reversed": ascending.flip(0),
        "shuffled": torch.randperm(num_rows, generator=generator),
        "random": torch.randint(0, num_rows, (num_rows + 44,), generator=generator),
    }


@_check
def check_shapes(strategy: Strategy, device: torch.device) -> None:
    """Each dtype and width of a row gives the right bytes."""
    for dtype, widths in SHAPES.items():
        for row_bytes in widths:
            check_rows(strategy, device, dtype, row_bytes)


def check_rows(
    strategy: Strategy, device: torch.device, dtype: torch.dtype, row_bytes: int
) -> None:
    """Every pattern of ids, int32 and int64, gives the reference's bytes."""
    table = random_table(NUM_ROWS, row_bytes // dtype.itemsize, dtype)
    untouched, size = table.clone(), f"{dtype} rows of {row_bytes} B"
    with _naming(size), open_known(strategy, table, device) as fetcher:
        for (name, ids), kind in itertools.product(id_patterns(NUM_ROWS).items(), ID_DTYPES):
            with _naming(what := f"{name} {kind} ids, {size}"):
                rows = fetcher.submit(_on(fetcher, ids.to(kind))).result()
                _same(rows, _wanted(strategy, table, ids), device, what)
    _require(same_bytes(table, untouched) is None, "the feature table was changed")


@_check
def check_pipeline(strategy: Strategy, device: torch.device) -> None:
    """``lookahead + 1`` fetches in flight, of changing size, from one ids tensor used again."""
    table = random_table(NUM_ROWS, 37, torch.float32)
    generator = torch.Generator().manual_seed(2)
    with open_known(strategy, table, device) as fetcher:
        text = f"its lookahead is {strategy.lookahead}, and its fetcher's {fetcher.lookahead}"
        _require(fetcher.lookahead == strategy.lookahead >= 0, text)
        for count in (5, 200, 3, 0, 411, 410, 64, 5000):
            flight: list[tuple[Tensor, Ticket]] = []
            for more in range(fetcher.lookahead + 1):
                ids = torch.randint(0, NUM_ROWS, (count + more,), generator=generator)
                given = _on(fetcher, ids.clone())
                fetcher.announce(given)
                flight.append((ids, fetcher.submit(given)))
                _require(torch.equal(given.cpu(), ids), "the ids were changed")
                given.zero_()
            results = [ticket.result() for _, ticket in flight]
            for k, ((ids, ticket), rows) in enumerate(zip(flight, results, strict=True)):
                fetch = f"fetch {k + 1} of {len(flight)} in flight"
                _same(rows, _wanted(strategy, table, ids), device, fetch)
                _require(ticket.result() is rows, "result() gave another tensor the second time")


@_check
def check_flight_rules(strategy: Strategy, device: torch.device) -> None:
    """Too many fetches in flight, rows that are gone and a closed fetcher raise RuntimeError."""
    table = random_table(NUM_ROWS, 5, torch.float32)
    with open_known(strategy, table, device) as fetcher:
        ids = _on(fetcher, torch.arange(9))
        tickets = [fetcher.submit(ids) for _ in range(fetcher.lookahead + 1)]
        _raises(RuntimeError, lambda: fetcher.submit(ids), "one fetch too many in flight")
        for ticket in tickets:
            ticket.result()
        for _ in tickets:
            fetcher.submit(ids).result()
        _raises(RuntimeError, tickets[0].result, "a result that was overwritten")
        in_flight = fetcher.submit(ids)
    fetcher.close()
    _raises(RuntimeError, in_flight.result, "a result after close()")
    closed = open_known(strategy, table, device)  # with no fetch in flight, which raises, too
    closed.close()
    _raises(RuntimeError, lambda: closed.submit(ids), "submit() after close()")


@_check
def check_bad_ids(strategy: Strategy, device: torch.device) -> None:
    """Bad ids raise, nothing that was handed out changes, and the fetcher goes on working.

    Ids on a GPU are checked later: a bad one reads nothing, is reported once and spoils no row.
    """
    table, good = random_table(NUM_ROWS, 33, torch.float16), torch.arange(NUM_ROWS)
    outside: dict[str, Tensor] = {}
    for kind in ID_DTYPES:
        for value in (-1, NUM_ROWS, torch.iinfo(kind).max, torch.iinfo(kind).min):
            outside[f"id {value} ({kind})"] = ids = torch.arange(20, dtype=kind)
            ids[13] = value
    bad: list[tuple[str, type[Exception], Any]] = [
        *((name, IndexError, ids) for name, ids in outside.items()),
        *((f"{kind} ids", TypeError, good.to(kind)) for kind in (torch.float32, torch.int16)),
        ("bool ids", TypeError, good > 1),
        ("a list of ids", TypeError, [0, 1, 2]),
        ("ids of two dimensions", ValueError, good[:4].view(2, 2)),
        ("ids on meta", ValueError, good.to("meta")),
    ]
    with open_known(strategy, table, device) as fetcher:
        for fault, error, ids in bad:
            rows = fetcher.submit(_on(fetcher, good)).result()
            _raises(error, functools.partial(fetcher.submit, ids), fault)
            _same(rows, _wanted(strategy, table, good), device, f"rows handed out before {fault}")
        if fetcher.ids_device.type == "cpu" or strategy.role == "no_fetch":
            return
        for fault, ids in outside.items():
            rows = fetcher.submit(_on(fetcher, ids)).result().clone()
            _raises(IndexError, fetcher.check_fetched, f"{fault} on the device")
            fetcher.check_fetched()
            wanted = reference_gather(table, torch.arange(20))
            wanted[13] = 0
            _same(rows, wanted, device, f"rows beside {fault}")


@_check
def check_bad_tables(strategy: Strategy, device: torch.device) -> None:
    """Tables that cannot be read row by row, and devices without a path, are refused.

    A table without rows serves empty ids alone.
    """
    good, meta = torch.zeros(4, 6), torch.device("meta")
    bad: list[tuple[str, type[Exception], Any, torch.device]] = [
        ("a list as table", TypeError, [[1.0]], device),
        ("a table of one dimension", ValueError, good[0], device),
        ("a table of three dimensions", ValueError, good.view(4, 2, 3), device),
        ("a table of width 0", ValueError, torch.zeros(4, 0), device),
        ("a transposed table", ValueError, good.t(), device),
        ("a table with gaps", ValueError, good[:, :3], device),
        ("a table on meta", ValueError, good.to(meta), device),
        ("the device meta", ValueError, good, meta),
    ]
    for fault, error, table, to in bad:
        _raises(error, functools.partial(strategy.open, table, to), fault)
    has_reason = isinstance(strategy.skip(meta), Reason)
    _require(has_reason, "skip() has no Reason against the device meta")
    with open_known(strategy, torch.empty(0, 3), device) as fetcher:
        rows = fetcher.submit(_on(fetcher, torch.empty(0, dtype=torch.int64))).result()
        _require(tuple(rows.shape) == (0, 3), f"an empty table gave {tuple(rows.shape)}")
        zero = _on(fetcher, torch.zeros(1, dtype=torch.int64))
        _raises(IndexError, lambda: fetcher.submit(zero), "id 0 of an empty table")


@_check
def check_data_path(strategy: Strategy, device: torch.device) -> None:
    """The declared bytes fit the batch: payload exact, nothing negative, every row from somewhere.

    What the path counts while it fetches is what it declares. A minibatch takes no more distinct
    rows from GPU memory than the strategy declares to keep there. The path declares the knowledge
    that it uses, and only one that is never ranked may know the measured minibatches.
    """
    row_bytes, known = 129, known_of(strategy, NUM_ROWS)
    batches = id_patterns(NUM_ROWS)
    first, later = (
        list(strategy.data_paths(Minibatches(batches.values(), row_bytes, NUM_ROWS, known, before)))
        for before in ((), [batches.values()])
    )
    count = f"data_paths() gave {len(later)} paths for {len(batches)} minibatches"
    _require(len(later) == len(batches), count)
    table_bytes = NUM_ROWS * row_bytes
    kept = strategy.kept_bytes(table_bytes, known)
    _require(0 <= kept <= table_bytes, f"of a table of {table_bytes} B it keeps {kept} B")
    for (name, ids), path in zip(batches.items(), later, strict=True):
        payload = len(ids) * row_bytes if strategy.role != "no_fetch" else 0
        written, read = path.cpu_write_bytes, path.cpu_read_bytes
        crosses = path.copy_engine_bytes + path.gpu_link_read_bytes > 0
        from_gpu = path.gpu_memory_bytes - (len(ids) - len(set(ids.tolist()))) * row_bytes
        overlaps = 0 < path.gpu_share < 1 and strategy.lookahead > 0
        arrives = f"{path.arriving_bytes} B of rows arrive, and {payload} B are wanted"
        stays = f"{from_gpu} B of distinct rows come from GPU memory, and kept_bytes() is {kept} B"
        for holds, otherwise in (
            (path.payload_bytes == payload, "wrong payload_bytes"),
            (overlaps or path.gpu_share == 0, f"a share of {path.gpu_share} of a GPU"),
            (min(getattr(path, field) for field in BYTES) >= 0, f"negative bytes in {path}"),
            (crosses == (payload > 0), f"{'some' if crosses else 'no'}thing crosses the link"),
            (path.arriving_bytes == payload, arrives),
            (written <= read, f"the CPU writes {written} B and reads {read} B"),
            (from_gpu < kept + row_bytes, stays),  # whole rows; kept_bytes ignores their size
        ):
            _require(holds, f"{name} ids: {otherwise}")
    honest = "measured" not in strategy.needs or strategy.role in UNRANKED
    _require(honest, "it knows the measured minibatches, and its role is no control's")
    table = random_table(NUM_ROWS, row_bytes, torch.int8)
    for need in sorted(strategy.needs - {"process"}):
        less = known.limited_to(strategy.needs - {need})
        _raises(ValueError, functools.partial(strategy.open, table, device, less), f"no {need}")
    with open_known(strategy, table, device) as fetcher:
        unknown = ", ".join(set(fetcher.counts()) - set(COUNTS))
        _require(not unknown, f"counts() names {unknown}, which COUNTS does not")
        for paths in (first, later):
            _check_counts(fetcher, batches.values(), paths, row_bytes)


def _check_counts(
    fetcher: Fetcher, batches: Iterable[Tensor], paths: list[DataPath], row_bytes: int
) -> None:
    fetcher.drop_caches()
    fetcher.begin_epoch()
    given, counted = [_on(fetcher, ids) for ids in batches], fetcher.counts()
    coming = announcing(given, fetcher.announced, fetcher.announce)
    for ids, path in zip(coming, paths, strict=True):
        declared = {
            "rows_on_device": path.gpu_memory_bytes // row_bytes,
            "rows_in_memory": (path.payload_bytes - path.disk_payload_bytes) // row_bytes,
            "disk_read": path.disk_bytes,
            "disk_requests": path.disk_requests,
        }
        fetcher.submit(ids).result()
        before, counted = counted, fetcher.counts()
        for name in counted.keys() & declared.keys():
            counts = counted[name] - before[name]
            text = f"{counts} of {name} were counted, and {declared[name]} declared"
            _require(declared[name] in (None, counts), text)


@_check
def check_modes(strategy: Strategy, device: torch.device) -> None:
    """Torch's modes around ``open``, ``submit`` and ``result`` change nothing, then or later."""
    table = random_table(NUM_ROWS, 2048, torch.float32)  # its buffers are larger than a huge page
    generator = torch.Generator().manual_seed(6)
    for name, mode in MODES.items():
        with _naming(f"under {name}"), open_known(strategy, table, device, mode) as fetcher:
            for count, under in ((3, False), (300, True), (290, False), (600, False)):
                ids = torch.randint(0, NUM_ROWS, (count,), generator=generator)
                given = _on(fetcher, ids)
                with mode() if under else nullcontext():
                    rows = fetcher.submit(given).result()
                what = f"rows fetched {'under' if under else 'after'} {name}"
                _same(rows, _wanted(strategy, table, ids), device, what)
                fit = not rows.is_inference() and not rows.requires_grad
                _require(fit, f"{what}: nothing can be trained with them")


@_check
def check_changes(strategy: Strategy, device: torch.device) -> None:
    """A write to the table shows or is refused; so does a write over earlier rows.

    A table that has moved is refused: some paths would read its old place.
    """
    table, ids = random_table(NUM_ROWS, 37, torch.float32), torch.arange(NUM_ROWS)
    with open_known(strategy, table, device) as fetcher:
        given = _on(fetcher, ids)
        rows = fetcher.submit(given).result()
        before, version = rows.clone(), rows._version
        for _ in range(fetcher.lookahead + 1):
            fetcher.submit(given.flip(0)).result()
        noticed = rows._version != version or same_bytes(rows, before) is None
        text = "rows were overwritten, and autograd not told (RowBuffer, increment_version)"
        _require(noticed, text)
        if "file" in strategy.needs or strategy.role == "no_fetch":
            return
        table.zero_()
        if fetcher.live:
            rows = fetcher.submit(given).result()
            _same(rows, _wanted(strategy, table, ids), device, "rows after a write to the table")
        else:
            written = "a fetch from copied rows after a write to the table"
            _raises(RuntimeError, lambda: fetcher.submit(given), written)
        there = table.data  # a GPU may still have it mapped
        table.data = table.clone()
        _raises(RuntimeError, lambda: fetcher.submit(given), "a fetch from a table that has moved")
        table.data = there


def known_of(strategy: Strategy, num_rows: int, file: TableFile | None = None) -> Knowledge:
    """Return what the strategy needs to know of a random graph, whose table ``file`` holds."""
    generator = torch.Generator().manual_seed(3)
    edges = torch.randint(0, max(1, num_rows), (2, 4 * num_rows), generator=generator)
    batches = list(torch.split(edges.view(-1), max(1, num_rows)))
    known = Knowledge(
        graph=adjacency_of(edges, num_rows),
        training_ids=np.arange(0, num_rows, 3),
        earlier=lambda epoch: batches[epoch:],
        measured=batches,
        ranks=current_ranks(),
        file=file or TableFile(Path(os.devnull), HEADER_BYTES, num_rows, 1),
        partitions=Partitions(7, 3, "beta") if num_rows >= 7 else Partitions(1, 1, "sequential"),
    )
    return known.limited_to(strategy.needs)


def open_known(
    strategy: Strategy,
    table: Tensor,
    device: torch.device,
    mode: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Fetcher:
    """Open the strategy under a mode of torch, with the knowledge that it needs of a random graph;
    a file that has to hold the table is a temporary one, which lives with the fetcher."""
    folder = tempfile.TemporaryDirectory() if "file" in strategy.needs else None
    file = written(table, Path(folder.name)) if folder else None
    known = known_of(strategy, len(table), file)
    with mode():
        fetcher = strategy.open(table, device, known)
    if folder is not None:
        weakref.finalize(fetcher, folder.cleanup)
    return fetcher


def written(table: Tensor, folder: Path) -> TableFile:
    """Write the table to a file in ``folder``, behind a header as short as NumPy's."""
    row_bytes = table.shape[1] * table.element_size()
    file = TableFile(folder / "table", HEADER_BYTES, len(table), row_bytes)
    file.path.write_bytes(bytes(file.offset) + table.view(torch.uint8).numpy().tobytes())
    return file


def _on(fetcher: Fetcher, ids: Tensor) -> Tensor:
    return ids.to(fetcher.ids_device)


def _wanted(strategy: Strategy, table: Tensor, ids: Tensor) -> Tensor:
    no_fetch = strategy.role == "no_fetch"
    return reference_gather(table, ready_ids(ids.numel(), len(table)) if no_fetch else ids)


def _same(rows: Tensor, wanted: Tensor, device: torch.device, what: str) -> None:
    fault = not_plain(rows)
    if fault is None and rows.device.type != device.type:
        fault = f"the rows lie on {rows.device}, not on {device}"
    fault = fault or same_bytes(rows, wanted)
    _require(fault is None, f"{what}: {fault}")


def _raises(error: type[Exception], action: Callable[[], object], what: str) -> None:
    try:
        action()
    except error as caught:
        _require(bool(str(caught)), f"{what}: {error.__name__} without a message")
    except Exception as caught:
        raise NonconformingError(f"{what}: {caught!r} instead of {error.__name__}") from caught
    else:
        raise NonconformingError(f"{what}: accepted, {error.__name__} expected")


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Put ``what``, the input, before the message of any error in the block."""
    try:
        yield
    except NonconformingError:
        raise
    except Exception as error:
        raise NonconformingError(f"{what}: {words_of(error)}") from error


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise NonconformingError(otherwise)
