"""Do all series of a workload train alike? On a set of minibatches all begin with the same weights
and dropout.

So losses of a set, and accuracy, are equal but for rounding, and betray a path that delivered other
rows in a timed epoch, whatever the comparison of rows saw (:mod:`gatherbench.bench.run.check`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from gatherbench.bench.run.rows import SET, Row
from gatherbench.bench.run.store import (
    CASE_METRIC,
    CASE_STAGE,
    CHECK_STAGE,
    CaseId,
    RunStore,
    key_of,
)

#: What is compared, and how far it may be off by backend: the mean loss of an epoch by a share of
#: it, the accuracy absolutely. Sums are rounded in any order, on a GPU always, on the host where
#: threads share them: between right cases of WordNet losses were seen to differ by 5e-7 of them in
#: three epochs. A path that stops fetching at its fourth minibatch moves the loss by a tenth.
TOLERANCES = {
    ("train", "loss"): {"host": 1e-4, "cuda": 0.01},
    ("eval", "test_accuracy"): {"host": 0.005, "cuda": 0.02},
}
#: The gather that needs no trust: what it trains to is right.
BASELINE = "cpu_gather"
SOURCE = "losses and accuracy compared with those of the workload's other cases"
#: What is known of a case before it has fetched a row, or although its rows were wrong.
_STILL_RIGHT = (CASE_STAGE, CHECK_STAGE, "setup")
_END = (CASE_STAGE, CASE_METRIC)


def without_wrong(rows: Sequence[Row]) -> list[Row]:
    """The rows, of cases that are no result only what is declared of them and how they ended.

    A result is a case that ended well: it has passed its last comparison, and nobody found its rows
    or losses wrong.
    """
    right = {key_of(r) for r in rows if (r.stage, r.metric) == _END and r.status == "ok"}
    right -= {key_of(r) for r in rows if (r.stage, r.status) == (CHECK_STAGE, "failed")}

    def holds(row: Row) -> bool:
        of_the_run = row.basis != "measured" or not row.workload
        return of_the_run or row.stage in _STILL_RIGHT or key_of(row) in right

    return [row for row in rows if holds(row)]


def fail_strays(store: RunStore) -> int:
    """Write down which cases :func:`judged` finds to stray; how many those are.

    To be called when no case is being measured.
    """
    rows = store.rows()
    all_rows = judged(rows)
    if len(all_rows) > len(rows):
        store.replace(lambda _: True, all_rows)
    return len(all_rows) - len(rows)


def judged(rows: Sequence[Row]) -> list[Row]:
    """The rows, with the cases failed that did not train as the others of their workload.

    Each gets a row ``check.training`` that says where it strays, and its last row says so, too.
    What it measured stays; :func:`without_wrong` leaves it out. A run that was killed has not been
    judged: whoever reads it does so.
    """
    found = strays(without_wrong(rows))
    kept, ends = [], []
    for row in rows:
        if (row.stage, row.metric) == _END and key_of(row) in found:
            reason = found[key_of(row)]
            lost = replace(row, value=None, status="failed", reason=reason)
            stray = replace(lost, stage=CHECK_STAGE, metric="training", unit="1", source=SOURCE)
            ends += [replace(stray, reason=f"failed: {reason}"), lost]
        else:
            kept.append(row)
    return kept + ends


def strays(rows: Iterable[Row]) -> dict[CaseId, str]:
    """The cases that trained otherwise than the reference of their workload, and where they stray.

    A process that goes on with a case that was cut off trains a new model: its epochs are compared
    with those of other paths that did so there. The reference is the median of the baseline's
    cases, else of the medians of the series. Where
    two series without a baseline differ, nobody knows which is right, and both fail.
    """
    groups: dict[tuple[str, str, int, str, str], dict[CaseId, float]] = defaultdict(dict)
    rows = list(rows)
    # Runs from before there were sets had the minibatches in the same order.
    sets = {
        (key_of(row), row.epoch): row.value or 0
        for row in rows
        if (row.stage, row.metric) == SET[:2]
    }
    for row in rows:
        # Ranks have losses of their own; those of a case that failed may have no mean beside them.
        if (row.stage, row.metric) in TOLERANCES and row.value is not None and row.rank == -1:
            chosen = int(sets.get((key_of(row), row.epoch), row.epoch))
            where = (row.workload, row.backend, chosen, row.stage, row.metric)
            groups[where][key_of(row)] = row.value
    found: dict[CaseId, str] = {}
    # The sets in their order, and then the score, whose epoch is -1.
    for where in sorted(groups, key=lambda where: (where[2] < 0, where)):
        _, backend, chosen, stage, metric = where
        values = groups[where]
        series: dict[tuple[str, str], list[float]] = defaultdict(list)
        for (_, strategy, variant, _), value in values.items():
            series[strategy, variant].append(value)
        plain = [value for (name, _), of in series.items() if name == BASELINE for value in of]
        right = median(plain or map(median, series.values()))
        allowed = TOLERANCES[stage, metric][backend] * (right if metric == "loss" else 1.0)
        name = f"{stage}.{metric}" + (f" of minibatch set {chosen}" if chosen >= 0 else "")
        whose = f"with {BASELINE}" if plain else "in the other series"
        for case, value in values.items():
            if abs(value - right) > allowed:
                said = f"it trained on other rows: {name} is {value!r}, and {right!r} {whose}"
                found.setdefault(case, said)
    return found
