"""Series of one workload train alike, or fail: who is the reference, what is told, what is left."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.bench.observations import rows_of_run, write_rows

from gatherbench.bench.read.derive import problems, stage_breakdown
from gatherbench.bench.read.tables import load_run, run_of
from gatherbench.bench.run.agreement import judged, right_in, strays_in
from gatherbench.bench.run.frames import frames_of
from gatherbench.bench.run.part import LISTS, CaseId
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.store import RunStore

NAIVE, PINNED = ("cpu_gather", "naive"), ("cpu_gather", "pinned")
ALIGNED, OURS, THEIRS = ("aligned_zero_copy", "given"), ("ours", "x"), ("theirs", "x")


def case(
    series: tuple[str, str],
    losses: list[float],
    accuracy: float | None = None,
    *,
    repeat: int = 0,
    workload: str = "w",
    backend: str = "host",
) -> list[Row]:
    """What a case leaves: an epoch's time and loss each, its score, and its end."""
    make = RowMaker("run", "c", "box", backend, workload, "tiny", *series, repeat)
    rows = [make.ok("check", "rows", "1", 100, "compared")]
    for epoch, loss in enumerate(losses):
        rows.append(make.ok("epoch", "wall_time", "s", 2.0, "clock", epoch))
        rows.append(make.ok("train", "loss", "1", loss, "mean", epoch))
    if accuracy is not None:
        rows.append(make.ok("eval", "test_accuracy", "1", accuracy, "nodes"))
    return [*rows, make.ok("case", "wall_time", "s", 9.0, "clock")]


def strays(rows: Iterable[Row]) -> dict[CaseId, str]:
    return strays_in(frames_of(rows))


def found(*cases: list[Row]) -> dict[tuple[str, int], str]:
    """Strategy and repeat of those who stray, and what is said of them."""
    return {(key[1], key[3]): said for key, said in strays(chain(*cases)).items()}


def test_the_first_epoch_that_strays_is_named_or_the_score():
    right = case(NAIVE, [4.0, 3.25, 3.0], 0.5)
    said = found(right, case(ALIGNED, [4.0, 3.5, 2.0], 0.25), case(PINNED, [4.0, 3.25, 3.0], 0.5))
    assert said == {
        ("aligned_zero_copy", 0): "it trained on other rows: train.loss of minibatch set 1 is 3.5,"
        " and 3.25 with cpu_gather"
    }
    said = found(case(NAIVE, [4.0], 0.34), case(ALIGNED, [4.0], 0.12))
    assert "eval.test_accuracy is 0.12, and 0.34 with cpu_gather" in said["aligned_zero_copy", 0]


def test_a_rank_alone_says_nothing_of_the_loss_of_all():
    """Two ranks' mean is 4. Of a case one of whose ranks died, theirs are in the table alone."""
    ranks = [replace(r, rank=n) for n, x in enumerate((3.5, 4.5)) for r in case(NAIVE, [x])[:-1]]
    assert found(ranks, case(ALIGNED, [4.0])) == {}
    assert found([*case(NAIVE, [4.0]), *ranks], case(ALIGNED, [4.0])) == {}
    assert list(found([*case(NAIVE, [4.0]), *ranks], case(ALIGNED, [4.5]))) == [(ALIGNED[0], 0)]


def test_where_a_ranks_rows_were_wrong_its_case_is_no_result():
    """Although the case as a whole ended well."""
    found = {"rank": 1, "value": None, "status": "failed", "reason": "failed: row 3"}
    wrong = replace(case(NAIVE, [4.0])[0], **found)
    frames = frames_of([*case(NAIVE, [4.0]), wrong, *case(ALIGNED, [4.0])])
    assert {name for _, name, *_ in right_in(frames)} == {ALIGNED[0]}


def repeats(series: tuple[str, str], *losses: float, **how: Any) -> list[Row]:
    """Cases of one epoch each."""
    return [r for n, loss in enumerate(losses) for r in case(series, [loss], repeat=n, **how)]


@pytest.mark.parametrize(
    ("cases", "strays"),
    [
        # The plain gather is right whatever a majority says,
        (
            [repeats(NAIVE, 4.0), repeats(ALIGNED, 5.0), repeats(OURS, 5.0), repeats(THEIRS, 5.0)],
            [(ALIGNED, 0), (OURS, 0), (THEIRS, 0)],
        ),
        # and most of its repeats, where they differ.
        ([repeats(NAIVE, 5.0, 4.0, 4.0), repeats(OURS, 4.0)], [(NAIVE, 0)]),
        # Without one, most series are, however often they were measured; of two nobody.
        (
            [repeats(ALIGNED, 5.0, 5.0, 5.0, 5.0), repeats(OURS, 4.0), repeats(THEIRS, 4.0)],
            [(ALIGNED, repeat) for repeat in range(4)],
        ),
        ([repeats(ALIGNED, 5.0), repeats(OURS, 4.0)], [(ALIGNED, 0), (OURS, 0)]),
        # Other workloads and backends are no witnesses.
        (
            [
                repeats(NAIVE, 4.0),
                repeats(OURS, 5.0, workload="v"),
                repeats(OURS, 6.0, backend="cuda"),
            ],
            [],
        ),
    ],
)
def test_who_is_right(cases, strays):
    said = found(*cases)
    assert set(said) == {(name, repeat) for (name, _), repeat in strays}
    if len(strays) == 4:
        assert said[ALIGNED[0], 0].endswith("is 5.0, and 4.0 in the other series")


@pytest.mark.parametrize(
    ("backend", "right", "wrong"),
    [  # Of a loss of 4 one per cent is 0.04, and 1e-4 of it 0.0004; and the accuracy.
        ("cuda", [(4.039, 0.519), (3.961, 0.481)],
         [(4.041, 0.5), (3.959, 0.5), (4.0, 0.521), (4.0, 0.479)]),
        ("host", [(4.00039, 0.504), (3.99961, 0.496)],
         [(4.00041, 0.5), (3.99959, 0.5), (4.0, 0.506), (4.0, 0.494)]),
    ],
)  # fmt: skip
def test_rounding_is_forgiven(backend, right, wrong):
    plain = [
        case(NAIVE, [loss], 0.5, repeat=repeat, backend=backend)
        for repeat, loss in enumerate((3.9999, 4.0, 4.0001))
    ]
    for (loss, accuracy), strayed in [(of, False) for of in right] + [(of, True) for of in wrong]:
        said = found(*plain, case(ALIGNED, [loss], accuracy, backend=backend))
        assert set(said) == ({("aligned_zero_copy", 0)} if strayed else set()), (loss, accuracy)


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """A run of which ``aligned_zero_copy`` strayed and ``ours`` crashed after a wrong epoch."""
    fields = {"dataset": "tiny", "scale": 1.0, "model": "sage", "hidden": 16, "batch_size": 9}
    fields |= {"fanouts": [2], "max_batches": 0, "seed": 0}
    series = (NAIVE, ALIGNED, OURS)
    case_of = {"workload": "w", "params": {}, "repeat": 0}
    cases = [{**case_of, "strategy": s, "variant": v} for s, v in series]
    plan: dict[str, Any] = {"name": "p", "workloads": {"w": fields}, "cases": cases}
    plan["measure"] = {"epochs": 1, "warmup_epochs": 0}
    store = RunStore.create(tmp_path, "box", plan, {})
    make = RowMaker("run", "c", "box", "host", "w", "tiny", *OURS, 0)
    ours = case(OURS, [7.0])[:-1]
    crash = make.missing("case", "wall_time", "s", "clock", "killed by signal 9", "failed")
    declared = RowMaker("run", "c", "box", "host", "w", "tiny", *ALIGNED, 0, "declared")
    aligned = [declared.ok("fetch", "cpu_read", "B", 8, "declared"), *case(ALIGNED, [5.0])]
    write_rows(store, [*case(NAIVE, [4.0]), *aligned, *ours, crash])
    return store


def ended(store: RunStore) -> int:
    """As a run ends; how many cases have failed by that."""
    before = store.frames()
    after = judged(before)
    after.write(store.folder)
    return int(
        (after.cases["status"] == "failed").sum() - (before.cases["status"] == "failed").sum()
    )


def test_who_strays_fails_and_leaves_no_number_to_be_shown(store):
    measured = rows_of_run(store)
    assert ended(store) == 1, "who crashed has failed already"
    run = load_run(store.folder)
    assert list(stage_breakdown(run)["strategy"]) == ["cpu_gather"]
    reasons = problems(run).set_index("strategy")["reason"]
    assert "train.loss of minibatch set 0 is 5.0" in reasons["aligned_zero_copy"]
    assert reasons["ours"] == "killed by signal 9", "what happened first"
    said = run.reasons[run.reasons["column"] == "check_training"].iloc[0]
    assert (said["strategy"], said["status"]) == ("aligned_zero_copy", "failed")
    assert said["reason"].startswith("failed: it trained on other rows: ")
    # The table keeps all of it but for the end of the case that had ended well.
    ended_well = [r for r in measured if r.strategy == "aligned_zero_copy" and r.stage == "case"]
    assert set(measured) - set(rows_of_run(store)) == set(ended_well)
    assert ended(store) == 0


def test_a_run_that_was_killed_is_read_as_if_it_had_ended(store):
    """It has not been judged, and of a case whose end is not written nothing counts."""
    write_rows(store, [*rows_of_run(store), *case(("all_in_gpu", "default"), [4.0])[:-1]])
    before = (store.folder / "cases.csv").read_bytes()
    run = load_run(store.folder)
    assert list(stage_breakdown(run)["strategy"]) == ["cpu_gather"]
    assert set(run.measured.reset_index()["strategy"]) == {"cpu_gather"}
    assert "it trained on other rows" in problems(run).set_index("strategy")["reason"][ALIGNED[0]]
    assert (store.folder / "cases.csv").read_bytes() == before


def test_an_interrupted_case_without_an_end_is_left_for_resume(store):
    rows = rows_of_run(store)
    write_rows(store, [r for r in rows if r.stage != "case" or r.strategy == "cpu_gather"])
    before = rows_of_run(store)
    assert ended(store) == 0
    assert rows_of_run(store) == before


def test_samples_of_wrong_cases_are_left_out(store):
    columns = {"workload": "w", "variant": ["naive", "given"], "repeat": 0, "epoch": 0}
    columns |= {"strategy": ["cpu_gather", "aligned_zero_copy"], "stage": "fetch", "batch": 0}
    samples = pd.DataFrame({**columns, "value_s": [1.0, 2.0]})[list(LISTS["samples"])]
    ended(store)
    run = run_of(store.folder, store.plan(), {}, store.frames(), samples=samples)
    assert list(run.samples["value_s"]) == [1.0]
