"""Run a probe: cases in rounds, each row saved at once, then medians and a picture.

rows.csv     every observation, or the reason why there is none
probe.csv    medians and the machine: the one small file that can be sent in
probe.png    GB/s of random rows over the size of the table
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import torch

from gatherbench.bench.machine.env import commit_id, describe_cpu, machine_slug
from gatherbench.bench.machine.gpus import describe_gpus
from gatherbench.bench.meters.cpu import OtherWork, is_quiet
from gatherbench.bench.probe.case import NEEDS, Case, Scope, every_case
from gatherbench.bench.probe.points import Point, ProbeError, append_row, read_points, writing
from gatherbench.bench.probe.rig import Observation, RefusedError, Rig
from gatherbench.bench.probe.table import draw, medians
from gatherbench.plugins import nearest

#: The default seconds of a whole probe, and of the profile of a GPU.
BUDGET_S, PROFILE_BUDGET_S = 60.0, 300.0
#: Seconds reserved for freeing the tables.
CLOSING_S = 5.0
MOST_ROUNDS = 100
#: The rounds that a profile has, whatever the time: fewer give no useful spread.
PROFILE_ROUNDS = 3


def facts_of(device: torch.device | None) -> dict[str, Any]:
    """Describe this machine, with its CUDA ``device`` if any: the last columns of ``probe.csv``.

    ``None`` where the machine does not report it. ``cores`` are those that this process may use.
    The link is as trained when queried: an idle GPU may fall back to a slower generation.
    """
    cpu, gpu, in_use = describe_cpu(), None, dict[str, Any]()
    if device is not None:
        gpu, described = torch.cuda.get_device_properties(device), describe_gpus()
        # With several GPUs only the link of the one in use is awake.
        if described["gpu_in_use"] or len(described["gpus"]) == 1:
            in_use = described["gpus"][0]
    return {
        "machine": machine_slug({"gpus": [{"name": gpu.name}] if gpu else [], "cpu": cpu}),
        "cpu": cpu["model"],
        "cores": int(cpu["usable_cores"]),
        "host_memory_bytes": psutil.virtual_memory().total,
        "gpus": torch.cuda.device_count() if gpu else 0,
        "gpu": gpu.name if gpu else "",
        "gpu_memory_bytes": gpu.total_memory if gpu else None,
        "driver": in_use.get("driver"),
        "link_generation": in_use.get("link_gen_current"),
        "link_lanes": in_use.get("link_width_current"),
        "torch": torch.__version__,
        "commit": commit_id(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def in_words(facts: Mapping[str, Any]) -> str:
    """Describe the machine for people."""
    lanes, gpu = facts["link_lanes"], facts["gpu"]
    link = f", PCIe {facts['link_generation']}.0 x{lanes}" if lanes else ""
    return f"{gpu}{link}; " * bool(gpu) + f"{facts['cpu']}, {facts['cores']} cores"


@dataclass(frozen=True, slots=True)
class Probed:
    """The result of a probe: the tables of :func:`medians` and :func:`facts_of`, the number of
    complete rounds, and the cores that other work kept busy (``None``: few, or not counted)."""

    medians: pd.DataFrame
    facts: dict[str, Any]
    rounds: int
    folder: Path
    other_cores: float | None

    @property
    def title(self) -> str:
        """The title of the picture."""
        facts = self.facts
        busy = f"; other work kept {self.other_cores:.1f} cores busy" if self.other_cores else ""
        origin = f"{facts['date']}, {facts['commit']}; {self.rounds} rounds{busy}"
        return f"{in_words(facts)} ({origin})"


def chosen(names: Sequence[str], scope: Scope) -> list[Case]:
    """Return the cases of these names, or if there are none, those of the scope.

    Raises:
        ProbeError: a name is unknown.
    """
    cases = every_case()
    if unknown := [name for name in names if name not in cases]:
        near = nearest(unknown[0], cases)
        raise ProbeError(f"no case is called {unknown[0]!r}{near}; see `gatherbench probe --list`")
    of_scope = [case for case in cases.values() if case.scope <= scope]
    return [cases[name] for name in dict.fromkeys(names)] or of_scope


def probe(
    out: Path | None,
    *,
    names: Sequence[str] = (),
    scope: Scope = Scope.MINUTE,
    budget_s: float = 0.0,
    say: Callable[[str], None] = lambda text: None,
) -> Probed:
    """Measure the cases of ``names`` or ``scope`` that this machine can run; write the three files.

    Args:
        out: a folder without rows (default: a new one in ``probe/``).
        budget_s: seconds for everything; 0: a minute, or five for the profile of a GPU.
        say: gets messages about progress.

    Raises:
        ProbeError: an unknown case, or no place for the files.
        RuntimeError: CUDA's context was lost; earlier rows are saved.
    """
    began = time.monotonic()
    gpu = None if NEEDS["gpu"]() else torch.device("cuda", torch.cuda.current_device())
    scope = Scope.NAMED if names else scope
    usual = PROFILE_BUDGET_S if gpu and scope == Scope.PROFILE else BUDGET_S
    end = began + (budget_s or usual) - CLOSING_S
    cases, facts = chosen(names, scope), facts_of(gpu)
    folder = out or Path("probe") / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{facts['machine']}"
    rows = folder / "rows.csv"
    if rows.exists():
        raise ProbeError(f"{rows} exists already: choose another folder with --out")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    case_of: dict[Point, Case] = {}

    def add(case: Case, point: Point, number: int, reason: str = "", **observation: Any) -> None:
        append_row(rows, point, round=number, unit=case.unit, reason=reason, **observation)
        if reason:
            say(f"left out: {point.case} {point.policy} {point.row_bytes or ''}: {reason}")

    with Rig(gpu, say) as rig:
        for case in cases:
            if gpu is None and "gpu" in case.needs and not names:
                continue  # without a GPU, list only named cases that need one
            try:
                for refusal in case.missing().values():
                    raise RefusedError(str(refusal))
                case_of |= dict.fromkeys(case.points(case.name, rig, scope), case)
            except RefusedError as refusal:
                add(case, Point(case.name), 0, str(refusal))
        say(f"{len(case_of)} points of {len(set(case_of.values()))} cases; rows go to {rows}")
        work = OtherWork()
        complete_rounds = visit(
            list(case_of),
            lambda point: case_of[point].run(rig, point),
            lambda point, number, **row: add(case_of[point], point, number, **row),
            out_of_time=lambda: time.monotonic() > end,
            fewest=PROFILE_ROUNDS if scope == Scope.PROFILE else 1,
        )
        busy = work.cores()
        facts = facts_of(gpu)  # the link is awake now
    table = medians(read_points(rows))
    result = Probed(table, facts, complete_rounds, folder, None if is_quiet(busy) else busy)
    with writing(folder):
        table.assign(**facts).to_csv(folder / "probe.csv", index=False, float_format="%.6g")
        draw(table, result.title, folder / "probe.png")
    return result


def visit(
    points: Sequence[Point],
    measure: Callable[[Point], Observation],
    add: Callable[..., None],
    *,
    out_of_time: Callable[[], bool],
    fewest: int = 1,
) -> int:
    """Measure every point once a round until the time is spent; return the number of whole rounds.

    Round 0 measures all without a row: it compiles kernels, allocates memory and wakes the link.
    Each later round has its own random order, so a drift of the machine (clocks, another guest's
    traffic) affects all points alike, and an interrupted probe has measured all equally often.
    A point that is refused is added once with its reason, and left out of later rounds.

    Args:
        add: gets a point, the number of the round, and the fields of an observation or ``reason``.
        out_of_time: called before each point, after ``fewest`` complete rounds.
    """
    remaining, order = list(points), random.Random(0)
    for number in range(MOST_ROUNDS + 1):
        for point in order.sample(remaining, len(remaining)) if number else points:
            if number > fewest and out_of_time():
                return number - 1
            try:
                observation = measure(point)
            except RefusedError as refusal:
                remaining.remove(point)
                add(point, number, reason=str(refusal))
            except Exception as error:
                error.add_note(f"while measuring {point}")
                raise
            else:
                if number:
                    add(point, number, **observation._asdict())
        if not remaining or (number >= fewest and out_of_time()):
            return number
    return MOST_ROUNDS
