"""What all stands share: the table, the loop over points, its end at the latest, the rows."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import faulthandler
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import torch
from torch import Tensor

from gatherbench.bench.probe.cases import CASES
from gatherbench.bench.read.points import COLUMNS, Point, PointRow
from gatherbench.kernels.host_memory import empty_table

CLOCK, EVENTS = "time.perf_counter", "torch.cuda.Event"
_CHUNK = 1 << 27


class ProbeError(RuntimeError):
    """This machine cannot be measured, measures nonsense, or keeps no rows where it was to."""


class RefusedError(RuntimeError):
    """A point cannot be measured on this machine; others can."""


class Observation(NamedTuple):
    """``amount`` (see :data:`gatherbench.bench.probe.cases.CASES`) took ``seconds``."""

    amount: float
    seconds: float
    source: str


#: Measures a point once: a host, a GPU, or a stand-in with known constants in a test.
Measure = Callable[[Point], Observation]


def filled_table(size: int) -> Tensor:
    """``size`` bytes (a multiple of 8), uint8: every eight bytes differ, so wrong rows are noticed.

    In huge pages where the kernel grants them, as the harness keeps a table.
    """
    words = empty_table((size // 8, 1), torch.int64).view(-1)
    fill_words(words)
    return words.view(torch.uint8)


def fill_words(words: Tensor) -> None:
    """Each of ``words`` (int64) another number than the others."""
    for start in range(0, words.numel(), _CHUNK):
        part = words[start : start + _CHUNK]
        torch.arange(start, start + part.numel(), out=part)
        part.mul_(-7046029254386353131)  # odd: still all different, and all bytes vary


def visit(
    points: Sequence[Point],
    measure: Measure,
    add: Callable[[PointRow], None],
    *,
    out_of_time: Callable[[], bool],
    warm_up: Sequence[Point] = (),
    least_rounds: int = 0,
    most_rounds: int = 0,
    begins: Callable[[int], None] = lambda number: None,
) -> int:
    """Measure every point once a round until the time is spent; the number of whole rounds.

    Each round has an order of its own: a drift of the machine (clocks, another guest's traffic)
    falls on all points alike, and a run that is cut short has measured them equally often.

    Args:
        out_of_time: asked before each point.
        warm_up: measured before round 1 and not reported: it loads kernels, takes memory, wakes
            the link.
        least_rounds: measured whatever the time.
        most_rounds: end after so many (0: the time decides).
        begins: told the number of each round that begins.

    A point that is refused is a row with the reason, and is visited no more.
    """
    left, generator, number = list(points), random.Random(0), 0
    turn = list(warm_up)
    while True:
        for point in turn:
            if (number > least_rounds or not least_rounds) and out_of_time():
                return max(0, number - 1)
            try:
                seen = measure(point)
            except RefusedError as why:
                print(f"{point} left out: {why}", flush=True)
                left.remove(point)
                add(row_of(point, number, reason=str(why)))
            except Exception as error:
                error.add_note(f"while measuring {point}")
                raise
            else:
                if number:
                    add(row_of(point, number, *seen))
        if not left or number == (most_rounds or -1):
            return number
        number += 1
        begins(number)
        turn = generator.sample(left, len(left))


@contextlib.contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    """The block is left within ``seconds``, or the process says where it stands and ends.

    A call into a driver that hangs cannot be cancelled, and may hold Python's lock for ever: the
    interpreter's own watchdog needs no lock. Rows that were added are on disk by then.
    """
    faulthandler.dump_traceback_later(max(1e-3, seconds), exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def row_of(
    point: Point,
    number: int = 0,
    amount: float | None = None,
    seconds: float | None = None,
    source: str = "",
    reason: str = "",
) -> PointRow:
    """A row in the unit of its case."""
    return PointRow(point, number, amount, CASES[point.case].unit, seconds, source, reason)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Tell a file that cannot be written from everything else that the system refuses."""
    try:
        yield
    except OSError as error:
        what = f"cannot be written: {error.strerror}; choose a folder with --out"
        raise ProbeError(f"{path}: {what}") from error


class PointFile:
    """Appends rows to a table of points, each on disk as soon as it is known; a context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: list[PointRow] = []
        with writing(path):
            self._file = path.open("a", encoding="utf-8", newline="")
            self._writer = csv.writer(self._file, lineterminator="\n")
            if not self._file.tell():
                self._writer.writerow(COLUMNS)

    def add(self, row: PointRow) -> None:
        """Keep one more."""
        self.rows.append(row)
        point, *observed = (getattr(row, field.name) for field in dataclasses.fields(row))
        with writing(self._path):
            self._writer.writerow([*dataclasses.astuple(point), *observed])
            self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # on a full disk the last row's failure is told
            self._file.close()
