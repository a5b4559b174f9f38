"""A block of cases: paths that take turns in one process, epoch by epoch; or a case alone.

Two processes of one path differ by more than two paths of one process do: on an H200 the logarithm
of the epoch has a standard deviation of 0.165 between processes and 0.077 within one. So with
``together`` all paths of a workload are opened in one process over one table. A *block* is one
epoch of each, in an order that is drawn for each block from the plan's seed, each path on another
set of minibatches (:mod:`gatherbench.bench.run.latin_square`). Readers pair ratios within blocks
(:mod:`gatherbench.stats.interval`).

Paths that do not fit into memory with the others, on the GPU or on the host, have blocks of their
own after them, in the same process. A failure ends only its own case. If CUDA or the process is
lost with it, the runner starts another process for the rest. If the run's time would end amid a
block, the paths end before it, with fewer epochs.

Once each path has had its epoch of a block and its rows are compared, the part records that. If the
process is cut off later, the block counts, and another process continues with the next one.
Ratios stay paired within blocks; a process that was cut off has fewer of them. A case that has a
process alone is not continued by another: it is measured again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

import torch

from gatherbench.bench.run.group import ALONE, Alone
from gatherbench.bench.run.job import Block, Job, outcome
from gatherbench.bench.run.latin_square import apart, latin_square
from gatherbench.bench.run.measure import MeasuredCase
from gatherbench.bench.run.part import PartWriter
from gatherbench.bench.run.rows import PLACE, PROCESS
from gatherbench.bench.run.session import Session
from gatherbench.bench.run.table import Table, has_room
from gatherbench.strategies.places import free_bytes

#: The number of blocks that must fit into the time left before one begins: it and the paths' end.
_BLOCK_AND_END = 2
#: A path's opening with its warm-up, or its end, takes about as long as this many epochs.
_OPENS, _ENDS = 3, 1

#: The share of the GPU's free memory that one more path may take: the training of the open paths
#: has yet to allocate the rest.
_SHARE = 0.5


def measure_block(
    block: Block, out: PartWriter, table: Table | None = None, group: Alone = ALONE
) -> bool:
    """Measure the cases into the part, which records how each ended; return whether none failed.

    For ``table`` and ``group`` see :class:`~gatherbench.bench.run.session.Session`.

    Raises:
        SystemExit: CUDA is lost: cases without an end have to be measured in another process.
        Exception: the disk is full, or something that the cases share is unavailable.
    """
    begin, began = time.perf_counter(), time.time()
    first, done = block.jobs[0], 0
    draw = random.Random(f"0 {first.case.workload.id} {first.case.repeat}")
    session = Session(first, table, group)
    work = sum(_OPENS + job.measure.epochs - job.start + _ENDS for job in block.jobs)

    def say(case: str | None = None, before_s: float = 0.0, did: int = 0) -> None:
        nonlocal done
        done += did
        share, now = done / work, time.monotonic()
        out.write("turn", case=case, since=now, before_s=before_s, done=share)

    paths = [_OpenPath(job, session, out, say) for job in block.jobs]
    for path in paths:
        if not path.job.alone:
            source = "time.time; its paths took turns, from this epoch on"
            out.row(path.job.rows.ok(*PROCESS, began, source, path.job.start or -1))
    waiting = list(paths)
    draw.shuffle(waiting)
    if usable := [path for path in waiting if not path.job.alone and path.case.refused() is None]:
        session.table(usable[0].case.strategy)
    for path in waiting:
        path.spent_s += (time.perf_counter() - begin) / len(waiting)
    while waiting:
        opened, waiting = _opened(waiting)
        _take_turns(opened, block, out, draw)
        for path in opened:
            path.turn(path.case.finish, _ENDS)
            if not path.over:
                path.end("ok", None)
        if waiting:  # the host may have room for only one table
            kept = session.kind(waiting[0].case.strategy)
            session.tables = {kind: table for kind, table in session.tables.items() if kind == kept}
    return not any(path.failed for path in paths)


def _take_turns(
    opened: Sequence[_OpenPath], block: Block, out: PartWriter, draw: random.Random
) -> None:
    longest_s, before = 0.0, None
    for number, sets in enumerate(latin_square(len(opened), block.jobs[0].measure.epochs)):
        began = time.monotonic()
        late = longest_s and began + _BLOCK_AND_END * longest_s > block.until
        if late and not block.jobs[0].alone:
            break
        of_path = dict(zip(opened, sets, strict=True))
        left = {
            path: s for path, s in of_path.items() if not path.over and path.job.start <= number
        }
        order = apart(left, draw, before)
        for place, path in enumerate(order):
            if not path.job.alone:
                source = f"place in a block of {len(opened)} paths, shuffled"
                out.row(path.job.rows.ok(*PLACE, place, source, number))
            path.turn(partial(path.case.epoch, number, left[path]))
            before = left[path]
        for path in order:
            if not (path.over or path.job.alone):
                out.block(path.job.case, number, path.spent_s, path.case.compared)
        out.sync()
        longest_s = max(longest_s, time.monotonic() - began)


def _opened(waiting: Sequence[_OpenPath]) -> tuple[list[_OpenPath], list[_OpenPath]]:
    """Open and warm up the paths that fit together; return them, and those that did not fit."""
    opened: list[_OpenPath] = []
    later = []
    for path in waiting:
        if opened and not path.fits():
            later.append(path)
            continue
        path.turn(path.case.open, _OPENS)
        if not path.over:
            opened.append(path)
    return opened, later


class _OpenPath:
    """A case that takes turns, with the time that it has had and whether it has ended.

    Args:
        say: reports the turn of a case (by default of none), the seconds that it has had in this
            process, and how many epochs more are done.
    """

    def __init__(
        self, job: Job, session: Session, out: PartWriter, say: Callable[..., None]
    ) -> None:
        self.job, self.case = job, MeasuredCase(job, out, session)
        self.spent_s, self.over, self.failed = job.spent_s, False, False
        self._session, self._out, self._say = session, out, say

    def fits(self) -> bool:
        """Return whether there is room for it with the paths that are open."""
        strategy, session = self.case.strategy, self._session
        spec = session.dataset.spec
        kept = strategy.kept_bytes(spec.table_bytes, session.known.limited_to(strategy.needs))
        if kept and kept > _SHARE * free_bytes(torch.device(self.job.device)):
            return False
        kind = session.kind(strategy)
        if kind not in session.tables and not has_room(spec, kind):
            return False
        return self.case.refused() is None

    def turn(self, work: Callable[[], str | None], epochs: int = 1) -> None:
        """Do a piece of the case's work; if that returns a reason, or fails, the case ends.

        Args:
            epochs: the expected duration of the work, in epochs.

        Raises:
            SystemExit: CUDA is lost.
            Exception: the disk is full.
        """
        if self.over:
            return
        self._say(self.job.case.id, self.spent_s - self.job.spent_s)
        begin = time.perf_counter()

        def guarded() -> str | None:
            with ExitStack() as undo:
                undo.push(self.case)
                reason = work()
                if reason is None:
                    undo.pop_all()
            return reason

        status, reason = outcome(guarded)
        self.spent_s += time.perf_counter() - begin
        if status != "ok":
            self.end(status, reason)
            if status == "failed" and self.job.device == "cuda":
                try:
                    torch.cuda.synchronize()
                except Exception as error:  # it persists in this process
                    raise SystemExit(1) from error
        self._say(did=epochs)

    def end(self, status: str, reason: str | None) -> None:
        self.over, self.failed = True, status == "failed"
        self._out.end(self.job.rows, status, reason, self.spent_s)
