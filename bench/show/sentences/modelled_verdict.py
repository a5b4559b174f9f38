"""What a machine that is not here would do, in a sentence that names what it rests on.

Series are compared corner by corner (:mod:`gatherbench.bench.read.modelled`), by the words of
every verdict: faster or level only where that holds at all of them, else not decided. A CPU gather
that was measured on another machine is not compared with anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatherbench.bench.read.modelled import borrows, corners, foreign_gathers
from gatherbench.bench.read.stats.judge import THRESHOLD, word_of
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import listed, short, span
from gatherbench.bench.show.sentences.provenance import modelled_for

#: The strategy whose table lies in the device's memory: what the others can at best come near to.
BOUND = "all_in_gpu"

#: Strategy and variant; and the seconds of an epoch, or a ratio of such, at each corner.
_Names = tuple[str, str]
_Corners = NDArray[np.float64]


class _Shortest(NamedTuple):
    """The shortest epochs of a workload: whose they are, for whom that is not decided, over whom.

    ``reference`` is the machine's own CPU gather; ``None``: there is none.
    """

    names: tuple[_Names, ...]
    undecided: tuple[_Names, ...]
    reference: _Names | None


def modelled_statement(run: Run) -> str | None:
    """The sentences on modelled epochs; ``None`` where there is nothing to compare."""
    seconds, foreign = corners(run), foreign_gathers(run)
    own: dict[str, dict[_Names, _Corners]] = {workload: {} for workload in run.workloads}
    for key, ends in zip(seconds.index, seconds.to_numpy(float), strict=True):
        if key not in foreign:
            own[key[0]][key[1], key[2]] = ends
    won: dict[_Shortest, dict[str, _Corners]] = {}
    bounds: dict[_Names | None, dict[str, _Corners]] = {}
    beaten = False
    own = {workload: times for workload, times in own.items() if times}
    for workload, times in own.items():
        bound = next((name for name in times if name[0] == BOUND), None)
        rivals = {name: mine for name, mine in times.items() if name[0] != BOUND}
        reference = _reference(rivals)
        shown = times
        if reference is not None:
            shown = {name: times[reference] / mine for name, mine in times.items()}
        if rivals:
            found = _shortest(rivals, reference)
            won.setdefault(found, {})[workload] = shown[found.names[0]]
            if bound is not None:
                beaten |= bool((times[bound] > (1 + THRESHOLD) * times[found.names[0]]).any())
        if bound is not None:
            bounds.setdefault(reference, {})[workload] = shown[bound]
    several = len(own) > 1
    clauses = [_clause(run, found, values, several) for found, values in won.items()]
    for reference, values in bounds.items():
        clauses.append(
            f"{BOUND}, the upper bound, reached {_reached(run, values, reference, several)}"
        )
    if beaten:
        clauses.append(f"whether {BOUND} bounds the others is not decided")
    if not clauses:
        return None
    where = f"Modelled, not measured, for {listed(modelled_for(run))}"
    return " ".join([f"{where}: {'; '.join(clauses)}.", *_rests_on(run, foreign)])


def _shortest(rivals: Mapping[_Names, _Corners], reference: _Names | None) -> _Shortest:
    best = min(rivals, key=lambda name: float(rivals[name].mean()))
    names, undecided = [best], list[_Names]()
    for name, times in rivals.items():
        over = times / rivals[best]
        word = word_of(float(over.min()), float(over.max()))
        if name != best and word != "SLOW":
            (names if word == "SAME" else undecided).append(name)
    return _Shortest(tuple(names), tuple(undecided), reference)


def _reference(names: Iterable[_Names]) -> _Names | None:
    """The machine's own ``cpu_gather``: ``naive``, the paper's baseline, where there is that."""
    gathers = [name for name in names if name[0] == "cpu_gather"]
    return min(gathers, key=lambda name: (name[1] != "naive", name[1]), default=None)


def _clause(run: Run, found: _Shortest, values: Mapping[str, _Corners], several: bool) -> str:
    names, reference = listed([" ".join(name) for name in found.names]), found.reference
    on = f" on {_where(run, list(values))}" if several and reference else ""
    level = " (level)" if len(found.names) > 1 else ""
    said = (
        f"{names} had the shortest epochs{on}{level}, {_reached(run, values, reference, several)}"
    )
    if reference is not None:
        over = " ".join(reference)
        said += f" as fast as {over}"
        if reference in found.names:
            said = f"nothing is faster than {over}{on}"
    if found.undecided:
        others = listed([" ".join(name) for name in found.undecided])
        said += f" (against {others}: not decided)"
    return said


def _reached(
    run: Run, values: Mapping[str, _Corners], reference: _Names | None, several: bool
) -> str:
    """The ends of ratios over a reference, over all workloads; of seconds, each workload's."""
    if reference is not None:
        ratios = np.concatenate(list(values.values()))
        return span(float(ratios.min()), float(ratios.max()), "×")
    return listed(
        [
            span(float(times.min()), float(times.max()), "s")
            + (f" on {short(run.names[workload])}" if several else "")
            for workload, times in values.items()
        ]
    )


def _where(run: Run, workloads: Sequence[str]) -> str:
    return short(run.names[workloads[0]]) if len(workloads) == 1 else f"{len(workloads)} workloads"


def _rests_on(run: Run, foreign: Iterable[tuple[str, ...]]) -> list[str]:
    """What was borrowed from the run's own machine, a sentence each."""
    said = []
    names = sorted({f"{strategy} {variant}" for _, strategy, variant, *_ in foreign})
    if names:
        said.append(
            f"No ratio over {listed(names)}: the CPU's gather there is that of {run.machine}, not"
            " of the machine that is modelled."
        )
    if borrows(run.rows, "sample").any():
        said.append(f"Minibatches come as fast as {run.machine} was measured to have them.")
    return said
