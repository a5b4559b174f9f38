"""A block of cases: paths that take turns in one process, epoch by epoch; or a case alone.

Two processes of one path differ by more than two paths of one process do: on an H200 the logarithm
of the epoch has a standard deviation of 0.165 between processes and 0.077 within one. So with
``together`` all paths of a workload are opened in one process over one table. A *block* is one
epoch of each, in an order that is drawn for each block from the plan's seed, each path on another
set of minibatches. Readers pair ratios within blocks (:mod:`gatherbench.stats.interval`).

Paths that do not fit into memory with the others, on the GPU or on the host, have blocks of their
own after them, in the same process. A failure ends only its own case; if CUDA or the process is
lost with it, the runner starts another process for the rest. If the run's time would end amid a
block, the paths end before it. A block that the part records counts, even if the process is cut off
later: another continues with the next one. A case alone is measured again.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from gatherbench.bench.run.group import ALONE, Alone
from gatherbench.bench.run.job import Block, Job, outcome
from gatherbench.bench.run.measure import MeasuredCase
from gatherbench.bench.run.part import PartWriter
from gatherbench.bench.run.rows import PLACE, PROCESS
from gatherbench.bench.run.session import Session
from gatherbench.bench.run.table import Table, has_room
from gatherbench.strategies.places import free_bytes

T = TypeVar("T")

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

    Raises:
        SystemExit: CUDA is lost: cases without an end have to be measured in another process.
        Exception: the disk is full, or something that the cases share is unavailable.
    """
    return _Turns(block, out, table, group).measured()


@dataclass(eq=False)
class _Path:
    """A path that takes turns: the time that it has had, and how it ended."""

    job: Job
    case: MeasuredCase
    spent_s: float
    status: str = ""


class _Turns:
    """The paths of a block, which share a session."""

    def __init__(self, block: Block, out: PartWriter, table: Table | None, group: Alone) -> None:
        self._begin, began = time.perf_counter(), time.time()
        self._block, self._out, first = block, out, block.jobs[0]
        self._session = Session(first, table, group)
        self._draw = random.Random(f"0 {first.case.workload.id} {first.case.repeat}")
        self._epochs_done, self._epochs = 0, 0
        self._paths = list[_Path]()
        for job in block.jobs:
            self._paths.append(_Path(job, MeasuredCase(job, out, self._session), job.spent_s))
            self._epochs += _OPENS + job.measure.epochs - job.start + _ENDS
            if not job.alone:
                source = "time.time; its paths took turns, from this epoch on"
                out.row(job.rows.ok(*PROCESS, began, source, job.start or -1))

    def measured(self) -> bool:
        """Measure all; return whether none failed."""
        waiting, session = list(self._paths), self._session
        self._draw.shuffle(waiting)
        for path in waiting:
            if not path.job.alone and path.case.refused() is None:
                session.table(path.case.strategy)
                break
        for path in waiting:
            path.spent_s += (time.perf_counter() - self._begin) / len(waiting)
        while waiting:
            opened, waiting = self._opened(waiting)
            self._take_turns(opened)
            for path in opened:
                self._turn(path, path.case.finish, _ENDS)
                if not path.status:
                    self._end(path, "ok", None)
            if waiting:  # the host may have room for only one table
                kept = session.kind(waiting[0].case.strategy)
                session.tables = {k: table for k, table in session.tables.items() if k == kept}
        return all(path.status != "failed" for path in self._paths)

    def _opened(self, waiting: Sequence[_Path]) -> tuple[list[_Path], list[_Path]]:
        """Open and warm up the paths that fit together; return them, and those that did not fit."""
        opened, later = list[_Path](), list[_Path]()
        for path in waiting:
            if opened and not self._fits(path):
                later.append(path)
                continue
            self._turn(path, path.case.open, _OPENS)
            if not path.status:
                opened.append(path)
        return opened, later

    def _fits(self, path: _Path) -> bool:
        """Return whether there is room for it with the paths that are open."""
        strategy, session = path.case.strategy, self._session
        spec, kind = session.dataset.spec, session.kind(strategy)
        kept = strategy.kept_bytes(spec.table_bytes, session.known.limited_to(strategy.needs))
        if kept and kept > _SHARE * free_bytes(session.device):
            return False
        return (kind in session.tables or has_room(spec, kind)) and path.case.refused() is None

    def _take_turns(self, opened: Sequence[_Path]) -> None:
        alone, longest_s, before = self._block.jobs[0].alone, 0.0, None
        epochs = self._block.jobs[0].measure.epochs
        for number, sets in enumerate(latin_square(len(opened), epochs)):
            began = time.monotonic()
            late = longest_s and began + _BLOCK_AND_END * longest_s > self._block.until
            if late and not alone:
                break
            of_path = dict(zip(opened, sets, strict=True))
            left = {p: s for p, s in of_path.items() if not p.status and p.job.start <= number}
            order = apart(left, self._draw, before)
            for place, path in enumerate(order):
                if not alone:
                    source = f"place in a block of {len(opened)} paths, shuffled"
                    self._out.row(path.job.rows.ok(*PLACE, place, source, number))
                self._turn(path, partial(path.case.epoch, number, left[path]))
                before = left[path]
            for path in order:
                if not (path.status or alone):
                    did = {"wall_time_s": path.spent_s, "rows": path.case.checker.rows}
                    self._out.write("block", **path.job.case.names, number=number, **did)
            self._out.sync()
            longest_s = max(longest_s, time.monotonic() - began)

    def _turn(self, path: _Path, work: Callable[[], str | None], epochs: int = 1) -> None:
        """Do a piece of the case's work; if that returns a reason, or fails, the case ends.

        The work is expected to take as long as so many ``epochs``.
        """
        if path.status:
            return
        self._say(path.job.case.id, path.spent_s - path.job.spent_s)
        begin = time.perf_counter()

        def guarded() -> str | None:
            with ExitStack() as undo:
                undo.push(path.case)
                reason = work()
                if reason is None:
                    undo.pop_all()
            return reason

        status, reason = outcome(guarded)
        path.spent_s += time.perf_counter() - begin
        if status != "ok":
            self._end(path, status, reason)
            if status == "failed" and self._session.device.type == "cuda":
                try:
                    torch.cuda.synchronize()
                except Exception as error:  # it persists in this process
                    raise SystemExit(1) from error
        self._epochs_done += epochs
        self._say()

    def _say(self, case: str | None = None, before_s: float = 0.0) -> None:
        """Record whose turn it is (``None``: nobody's), with its time so far in this process."""
        done, now = self._epochs_done / self._epochs, time.monotonic()
        self._out.write("turn", case=case, since=now, before_s=before_s, done=done)

    def _end(self, path: _Path, status: str, reason: str | None) -> None:
        path.status = status
        self._out.end(path.job.rows, status, reason, path.spent_s)


def latin_square(paths: int, sets: int) -> list[list[int]]:
    """Return for each block the set of minibatches of each path.

    A set is the minibatches of one measured epoch. Over a repeat each path has every set once:
    differences of cost between sets cancel out of a ratio as soon as all blocks are complete. Sets
    come in groups of at least as many as there are paths, each a Latin square: if a run's time ends
    amid a group, no path is favoured, as the column of each is drawn for each repeat. Paths beyond
    the number of sets share one with others in every block.
    """
    square = list[list[int]]()
    for group in np.array_split(np.arange(sets), max(1, sets // max(1, paths))):
        places = np.add.outer(np.arange(len(group)), np.arange(paths))
        square += group[places % len(group)].tolist()
    return square


def apart(sets: Mapping[T, int], draw: random.Random, before: int | None = None) -> list[T]:
    """Return the paths in a random order in which no two neighbours have the same set.

    The second would find the first one's rows in the CPU's caches (300 MB on the host of an H200).
    If all paths have different ``sets``, every such order is equally likely. If more than half of
    the remaining ones share a set, some have to follow each other. ``before``: the set of the epoch
    right before.
    """
    left, order = dict(sets), list[T]()
    while left:
        often = Counter(left.values())
        others = [path for path, chosen in left.items() if chosen != before]
        # A set of more than half of them has to be every other one from here on.
        urgent = [path for path in others if 2 * often[left[path]] > len(left)]
        order.append(draw.choice(urgent or others or list(left)))
        before = left.pop(order[-1])
    return order
