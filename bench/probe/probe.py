"""Run a probe: cases in rounds, each row saved at once, then medians and a picture.

rows.csv     every observation, or the reason why there is none
probe.csv    medians and the machine: the one small file that can be sent in
probe.png    GB/s of random rows over the size of the table
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pandas as pd
import torch

from gatherbench.bench.meters.cpu import OtherWork, is_quiet
from gatherbench.bench.probe.case import NEEDS, Case, Scope, every_case
from gatherbench.bench.probe.machine import Facts, ask
from gatherbench.bench.probe.rig import (
    Observation,
    ProbeError,
    RefusedError,
    Rig,
    append_row,
    ends_within,
    writing,
)
from gatherbench.bench.probe.table import draw, medians, sent
from gatherbench.bench.read.points import Point, PointRow, read_points
from gatherbench.plugins import nearest

Device = Literal["auto", "cpu", "cuda"]
#: The default seconds of a whole probe, and of the profile of a GPU.
BUDGET_S, PROFILE_BUDGET_S = 60.0, 300.0
#: Seconds reserved for freeing the tables; a probe this late is judged to hang.
CLOSING_S, LATE_S = 5.0, 60.0
MOST_ROUNDS = 100
#: The rounds that a profile needs: fewer give no useful spread.
FEWEST_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Probed:
    """The result of a probe.

    Attributes:
        medians: the table of :func:`~gatherbench.bench.probe.table.medians`.
        rounds: the number of complete rounds.
        other_cores: cores that other work kept busy meanwhile; ``None``: few, or not counted.
    """

    medians: pd.DataFrame
    facts: Facts
    rounds: int
    folder: Path
    other_cores: float | None

    @property
    def title(self) -> str:
        """The title of the picture."""
        facts = self.facts
        busy = f"; other work kept {self.other_cores:.1f} cores busy" if self.other_cores else ""
        return f"{facts.description} ({facts.date}, {facts.commit}; {self.rounds} rounds{busy})"


def chosen(names: Sequence[str], scope: Scope) -> list[Case]:
    """Return the cases of these names, or if there are none, those of the scope.

    Raises:
        ProbeError: a name is unknown.
    """
    cases = every_case()
    for name in names:
        if name not in cases:
            raise ProbeError(
                f"no case is called {name!r}{nearest(name, cases)}; see `gatherbench probe --list`"
            )
    return [cases[name] for name in dict.fromkeys(names)] or [
        case for case in cases.values() if case.scope <= scope
    ]


def cuda_device(device: Device) -> torch.device | None:
    """Return the current GPU, or ``None`` to measure the host alone.

    Raises:
        ProbeError: ``device`` is ``"cuda"``, and there is no GPU.
    """
    missing = NEEDS["gpu"]()
    if device == "cuda" and missing is not None:
        raise ProbeError(f"{missing.cause}; --device cpu measures the host alone")
    if device == "cpu" or missing is not None:
        return None
    return torch.device("cuda", torch.cuda.current_device())


def probe(
    out: Path | None,
    *,
    names: Sequence[str] = (),
    scope: Scope = Scope.MINUTE,
    device: Device = "auto",
    disk: Path | None = None,
    budget_s: float = 0.0,
    rounds: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> Probed:
    """Measure the chosen cases that this machine can run, and write the three files.

    Args:
        out: a folder without rows (default: a new one in ``probe/``).
        names: the cases to measure; if there are none, those of ``scope``.
        disk: a folder whose disk is timed, with a temporary file of at most 1 GiB.
        budget_s: seconds for everything; 0: a minute, or five for the profile of a GPU.
        rounds: the number of rounds, whatever the time; 0: as many as the time allows.
        say: gets messages about progress.

    Raises:
        ProbeError: an unknown device or case, no place for the files, or a wrong pointer chase.
        RuntimeError: CUDA's context was lost; earlier rows are saved.
    """
    began, gpu = time.monotonic(), cuda_device(device)
    scope = Scope.NAMED if names else scope
    usual = PROFILE_BUDGET_S if gpu and scope == Scope.PROFILE else BUDGET_S
    end = began + (budget_s or usual) - CLOSING_S
    cases, facts = chosen(names, scope), ask(gpu)
    folder = out or Path("probe") / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{facts.machine}"
    rows = folder / "rows.csv"
    if rows.exists():
        raise ProbeError(f"{rows} exists already: choose another folder with --out")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)

    def add(
        case: Case, point: Point, number: int, observation: Observation | None, reason: str = ""
    ) -> None:
        amount, seconds, source = observation or (None, None, "")
        append_row(rows, PointRow(point, number, amount, case.unit, seconds, source, reason))
        if reason:
            say(f"left out: {point.case} {point.policy} {point.row_bytes or ''}: {reason}")

    with ExitStack() as stack:
        limit = 3600.0 if rounds else end - began + CLOSING_S + LATE_S
        stack.enter_context(ends_within(limit))
        rig = stack.enter_context(Rig(gpu, disk, say))
        case_of: dict[Point, Case] = {}
        for case in cases:
            lacking = [str(refusal) for refusal in case.missing().values()]
            if not gpu and "gpu" in case.needs:
                lacking = [str(NEEDS["gpu"]() or "not used: --device cpu")]
            try:
                if lacking:
                    raise RefusedError(lacking[0])
                case_of |= dict.fromkeys(case.points(rig, scope), case)
            except RefusedError as refusal:
                if names or gpu:  # without a GPU, list only named cases that need one
                    add(case, Point(case.name), 0, None, str(refusal))
        say(f"{len(case_of)} points of {len(cases)} cases; rows go to {rows}")
        work = OtherWork()
        complete_rounds = visit(
            list(case_of),
            lambda point: case_of[point].run(rig, point),
            lambda point, *row: add(case_of[point], point, *row),
            out_of_time=lambda: not rounds and time.monotonic() > end,
            most_rounds=rounds or MOST_ROUNDS,
        )
        busy = work.cores()
        facts = ask(gpu)  # the link is awake now
    table = medians(read_points(rows))
    result = Probed(table, facts, complete_rounds, folder, None if is_quiet(busy) else busy)
    with writing(folder):
        sent(table, facts).to_csv(folder / "probe.csv", index=False, float_format="%.6g")
        draw(table, result.title, folder / "probe.png")
    return result


def visit(
    points: Sequence[Point],
    measure: Callable[[Point], Observation],
    add: Callable[..., None],
    *,
    out_of_time: Callable[[], bool],
    most_rounds: int,
) -> int:
    """Measure every point once a round until the time is spent; return the number of whole rounds.

    Round 0 measures all without a row: it compiles kernels, allocates memory and wakes the link.
    Each later round has its own random order, so a drift of the machine (clocks, another guest's
    traffic) affects all points alike, and an interrupted probe has measured all equally often.

    Args:
        add: gets a point, the number of the round and an observation, or ``None`` and a reason.
        out_of_time: called before each point, after the first complete round.

    A point that is refused is added once with its reason, and left out of later rounds.
    """
    remaining, generator = list(points), random.Random(0)
    for number in range(most_rounds + 1):
        for point in generator.sample(remaining, len(remaining)) if number else points:
            if number > 1 and out_of_time():
                return number - 1
            try:
                observation = measure(point)
            except RefusedError as refusal:
                remaining.remove(point)
                add(point, number, None, str(refusal))
            except Exception as error:
                error.add_note(f"while measuring {point}")
                raise
            else:
                if number:
                    add(point, number, observation)
        if not remaining or (number and out_of_time()):
            return number
    return most_rounds
