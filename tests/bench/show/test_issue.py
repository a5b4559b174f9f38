"""What the host does in an epoch: what it needs to issue it, and how fast it gathers."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from gatherbench.bench.read.tables import load_run
from gatherbench.bench.show.answer import answers
from gatherbench.bench.show.views.resources import GATHER, ISSUE, gather_rates

from ..written_run import BASELINE, PAYLOAD_BYTES, PINNED, ZERO_COPY, change, seen, write_run

#: Epochs of 1.71 s (the baseline), 0.81 and 1.01 s, of 20 minibatches each.
UNIFIED = ("unified_zero_copy", "registered", (0.2, 0.1, 0.5))
ALIGNED = ("aligned_zero_copy", "given", (0.2, 0.3, 0.5))
IN_GPU = ("all_in_gpu", "default", (0.2, 0.3, 0.5))


def issued(train: float, fetch: float, drain: float, waited: float | None = None) -> Any:
    """Of each epoch of every case what the host needed, s."""

    def more(_case: object, _repeat: int, epoch: int) -> Iterator[Mapping[str, Any]]:
        if epoch >= 0:
            values = {"issue_train": train, "issue_fetch": fetch, "drain": drain}
            values |= {} if waited is None else {"wait_sample": waited}
            yield from seen("host", "s", values)
            yield from seen("epoch", "1", {"minibatches": 20})

    return more


def test_what_was_issued_is_a_share_of_the_epoch(run_of):
    run = run_of(
        series=[BASELINE, ALIGNED],
        backend="cuda",
        sampling="gpu",
        more=issued(0.505, 0.101, 0.0505),
    )
    assert ISSUE.applies(run)
    table = ISSUE.frame(run)
    assert len(table.lines) == 2
    shares = run.medians.reset_index().set_index("strategy")
    of_path = shares.loc[
        "aligned_zero_copy", ["issue_wait", "issue_train", "issue_fetch", "issue_left"]
    ]
    assert of_path.tolist() == pytest.approx(
        [0.2 / 1.01, 0.505 / 1.01, 0.101 / 1.01, 0.0505 / 1.01]
    )
    assert shares.loc["cpu_gather", "issue_train"] == pytest.approx(0.505 / 1.71)
    assert not shares["host_bound"].any(), "60 % of the epoch"
    assert shares["issue_draw"].isna().all(), "nobody told what part of the stage was a wait"
    assert "draw" not in [column.field for column in table.columns]


def test_what_the_loop_draws_itself_is_no_wait(run_of):
    """0.2 s of 1.01 for minibatches, and 0.5 for steps and fetches: 69 %."""
    run = run_of(series=[BASELINE, ALIGNED], backend="cuda", more=issued(0.4, 0.1, 0.05))
    shares = run.medians.reset_index().set_index("strategy").loc["aligned_zero_copy"]
    assert shares[["issue_draw", "issue_wait"]].tolist() == pytest.approx([0.2 / 1.01, 0.0])
    assert shares["host_bound"]


@pytest.mark.parametrize(("waited", "bound"), [(0.01, True), (0.15, False)])
def test_what_the_training_thread_takes_to_begin_draws_is_issued_too(run_of, waited, bound):
    """Of 1.01 s 0.2 for minibatches; 0.5 for steps and fetches, and what was no wait: 68, 54 %."""
    run = run_of(
        series=[BASELINE, ALIGNED],
        backend="cuda",
        sampling="gpu",
        more=issued(0.4, 0.1, 0.05, waited),
    )
    shares = run.medians.reset_index().set_index("strategy").loc["aligned_zero_copy"]
    assert shares["issue_draw"] == pytest.approx((0.2 - waited) / 1.01)
    assert shares["issue_wait"] == pytest.approx(waited / 1.01)
    assert shares["issued"] == pytest.approx((0.5 + 0.2 - waited) / 1.01)
    assert shares["host_bound"] == bound
    table = ISSUE.frame(run)
    assert "draw" in [column.field for column in table.columns]


@pytest.mark.parametrize(
    ("train", "drain", "bound"),
    [
        (0.7, 0.05, True),  # 79 %, and a step left: 0.05 × 20 / 1.01
        (0.55, 0.05, False),  # 64 %
        (0.7, 0.15, False),  # three steps left: the GPU was behind
    ],
)
def test_issuing_bounds_an_epoch_if_it_takes_most_of_it_and_the_gpu_is_done(
    run_of, train, drain, bound
):
    series = [BASELINE, ALIGNED, IN_GPU]
    run = run_of(series=series, backend="cuda", sampling="gpu", more=issued(train, 0.1, drain))
    shares = run.medians.reset_index().set_index("strategy")["host_bound"].to_dict()
    assert shares == {"cpu_gather": False, "aligned_zero_copy": bound, "all_in_gpu": bound}


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ({}, True),
        ({"step": "issued", "gpus": 1, "around_step": ""}, True),
        ({"around_step": "x:ToHost"}, False),
        ({"step": "captured"}, False),
        ({"model": "gat"}, False),
        ({"gpus": 2, "scaling": "weak"}, False),
    ],
)
def test_capturing_is_named_as_a_remedy_where_the_plan_would_take_it(run_of, workload, said):
    series = [BASELINE, ALIGNED, UNIFIED]
    run = run_of(series=series, backend="cuda", sampling="gpu", more=issued(0.7, 0.1, 0.05))
    run = replace(run, plan=deepcopy(run.plan))
    for one in run.plan["workloads"].values():
        one.update(workload)
    (found,) = answers(run)
    assert found.verdict == "host-bound"
    assert ('step = "captured"' in found.change) == said


def test_a_path_that_gathers_on_the_cpu_is_not_called_bound_by_issuing(run_of):
    run = run_of(series=[BASELINE], backend="cuda", sampling="gpu", more=issued(0.2, 1.4, 0.01))
    assert not run.medians.reset_index()["host_bound"].any()


def test_on_the_host_nothing_is_issued(run_of):
    assert not ISSUE.applies(run_of(series=[BASELINE]))


@pytest.mark.parametrize(("sampling", "workers"), [("gpu", 0), ("live", 2)])
def test_where_a_gpu_draws_no_threads_do(tmp_path, sampling, workers):
    folder = write_run(tmp_path / "box" / "20261121-quick-abc1", backend="cuda", sampling=sampling)
    change(folder / "plan.json", lambda plan: plan["measure"].update(sampler_workers=2))
    assert load_run(folder).sampler_workers == workers


def test_a_gather_and_a_path_that_the_host_bounds_are_compared(run_of):
    """The gather issues 93 % of its epoch of 0.86 s, its gather within; the other 79 % of 1.01."""
    pinned = ("cpu_gather", "pinned", (0.2, 0.15, 0.5))
    series = [BASELINE, pinned, ALIGNED]
    run = run_of(series=series, backend="cuda", sampling="gpu", more=issued(0.7, 0.1, 0.05))
    assert answers(run)[0].text.startswith("Fastest: cpu_gather (pinned), 1.17×")


def test_what_issues_and_what_else_it_does_is_not_known_counts_draws_and_steps_alone(run_of):
    """A path off a disk: 0.5 s of steps are 50 % of 1.01 s, whatever its fetches take to submit."""
    disk = ("disk_direct", "threads", (0.2, 0.3, 0.5))
    more = issued(0.5, 0.3, 0.05)
    run = run_of(series=[BASELINE, disk, ALIGNED], backend="cuda", sampling="gpu", more=more)
    shares = run.medians.reset_index().set_index("strategy")
    assert shares["issued"].to_dict() == pytest.approx(
        {"cpu_gather": 0.5 / 1.71, "disk_direct": 0.5 / 1.01, "aligned_zero_copy": 0.8 / 1.01}
    )
    assert shares["host_bound"].to_dict() == {
        "cpu_gather": False, "disk_direct": False, "aligned_zero_copy": True,
    }  # fmt: skip


# The gather of the CPU in the loop beside what it does alone.


def gathering(alone: bool = True, **seconds: float) -> Any:
    """The seconds in which each variant gathers an epoch's rows; alone 8 MB take it 1 ms."""

    def more(case: tuple[str, str, str], _repeat: int, epoch: int) -> Iterator[Mapping[str, Any]]:
        if epoch < 0 and alone:
            yield from seen("setup", "B", {"gathered": 8e6})
            yield from seen("setup", "s", {"gather_time": 1e-3})
        if epoch >= 0 and (taken := seconds.get(case[2])) is not None:
            yield from seen("fetch", "s", {"gather_time": taken})

    return more


def test_a_gather_in_the_loop_stands_beside_it_alone(run_of):
    """Of 8 GB/s 6.4 are 80 %. Reads in place are no conventional path."""
    of = gathering(**{"pinned": PAYLOAD_BYTES / 6.4e9, ZERO_COPY[1]: 9.0})
    (row,) = gather_rates(run_of(series=[BASELINE, PINNED, ZERO_COPY], more=of)).to_dict("records")
    assert (row["strategy"], row["variant"], row["alone_B_per_s"]) == ("cpu_gather", "pinned", 8e9)
    assert row["in_the_loop_B_per_s"] == pytest.approx(6.4e9)
    assert row["loop_to_alone_share"] == pytest.approx(0.8)


def test_what_was_not_tried_alone_has_no_share(run_of):
    run = run_of(series=[BASELINE, PINNED], more=gathering(alone=False, pinned=9.0))
    assert gather_rates(run)[["alone_B_per_s", "loop_to_alone_share"]].isna().all(axis=None)
    assert GATHER.applies(run)
    assert not GATHER.applies(run_of(series=[BASELINE, PINNED], more=gathering()))
