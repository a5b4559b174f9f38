"""Shared resources and the schedule of an epoch against closed forms; wrong ones fail them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatherbench.bench.model import schedule
from gatherbench.bench.model.estimate import Estimate
from gatherbench.bench.model.physics import Part
from gatherbench.bench.model.schedule import Activity, Parts, Timeline, run_epoch, simulate

Simulate = Callable[[Sequence[Activity]], list[tuple[float, float]]]


def check_sharing(model: Simulate) -> None:
    """Max-min fairness by hand."""
    alone = [Activity(2.0, {"link": 1.0})]
    assert model(alone) == [pytest.approx((0, 2))]
    # Two of the same share it; when the shorter is done the other has it all.
    times = model([Activity(1.0, {"link": 1.0}), Activity(2.0, {"link": 1.0})])
    assert times == [pytest.approx((0, 2)), pytest.approx((0, 3))]
    # Half of a resource each: no one waits.
    times = model([Activity(1.0, {"link": 0.5}), Activity(1.0, {"link": 0.5})])
    assert times == [pytest.approx((0, 1)), pytest.approx((0, 1))]
    # A small demand beside a large one: both are slowed alike until the resource is full.
    times = model([Activity(1.0, {"link": 0.5}), Activity(1.0, {"link": 1.0})])
    assert times == [pytest.approx((0, 1.5)), pytest.approx((0, 1.5))]
    # What is reserved runs at full speed, the other takes the rest.
    times = model([Activity(1.0, {"sm": 0.25}, reserved=True), Activity(1.0, {"sm": 1.0})])
    assert times == [pytest.approx((0, 1)), pytest.approx((0, 1.25))]
    # Order: the second waits for the first.
    times = model([Activity(1.0), Activity(1.0, {}, (0,)), Activity(0.0, {}, (1,))])
    assert times == [pytest.approx((0, 1)), pytest.approx((1, 2)), pytest.approx((2, 2))]
    # One that meets a full resource does not hold back one that does not.
    times = model([Activity(1.0, {"a": 1.0}), Activity(1.0, {"a": 1.0}), Activity(1.0, {"b": 1.0})])
    assert [end for _, end in times] == pytest.approx([2, 2, 1])


def changed(**change: Callable[[Activity], object]) -> Simulate:
    """All activities with one field of another value."""
    return lambda every: simulate(
        [replace(a, **{name: value(a) for name, value in change.items()}) for a in every]  # type: ignore[arg-type]
    )


WRONG_SHARING = {
    "nothing shared": changed(demands=lambda a: {}),
    "nothing reserved": changed(reserved=lambda a: False),
    "held whole": changed(demands=lambda a: dict.fromkeys(a.demands, 1.0)),
    "no order": changed(after=lambda a: ()),
}


def test_resources_are_shared_fairly():
    check_sharing(simulate)


@pytest.mark.parametrize("wrong", WRONG_SHARING.values(), ids=WRONG_SHARING)
def test_wrong_sharing_is_rejected(wrong):
    with pytest.raises(AssertionError):
        check_sharing(wrong)


def test_an_activity_cannot_wait_for_a_later_one():
    with pytest.raises(ValueError, match="activity 0"):
        simulate([Activity(1.0, {}, (1,)), Activity(1.0)])
    with pytest.raises(ValueError, match="negative"):
        simulate([Activity(-1.0)])
    assert simulate([]) == []


# Nothing, or no less than a nanosecond: among the smallest floats a product is mostly rounding.
SECONDS = st.just(0.0) | st.floats(1e-9, 10)


@given(
    st.lists(
        st.tuples(SECONDS, st.sampled_from("ab"), st.floats(0.05, 1), st.booleans()), max_size=8
    )
)
def test_no_resource_gives_more_than_it_has(drawn):
    activities = [Activity(s, {r: share}, reserved=kept) for s, r, share, kept in drawn]
    times = simulate(activities)
    for resource in "ab":
        mine = [a for a in activities if resource in a.demands]
        work = sum(a.seconds * a.demands[resource] for a in mine)
        assert max((end for _, end in times), default=0.0) >= work * (1 - 1e-9)
    assert all(
        end - begin >= a.seconds * (1 - 1e-9)
        for (begin, end), a in zip(times, activities, strict=True)
    )


def part(seconds: float, **demands: float) -> Part:
    return Part(Estimate(seconds), "a test", {k.replace("_", " "): v for k, v in demands.items()})


def parts(
    sample: float,
    fetch: float,
    train: float,
    *,
    lookahead: int = 0,
    gather: float | None = None,
    by_kernel: bool = True,
    gpu_share: float = 0.0,
    link: float = 1.0,
    workers: int = 0,
    cores: int = 64,
    issue: float = 0.0,
    submit: float = 0.0,
    beside: float = 0.0,
    gpu_samples: bool = False,
) -> Parts:
    return Parts(
        sample=part(sample, cpu=1 / cores if workers else 1.0)
        if not gpu_samples
        else part(sample, issuing_thread=1.0),
        submit_s=Estimate(submit),
        issue_s=Estimate(issue),
        gpu_samples=gpu_samples,
        gather=None if gather is None else part(gather, cpu=1.0, issuing_thread=beside),
        transfer=part(fetch, link=link),
        by_kernel=by_kernel,
        expand=None,
        train=part(train, multiprocessors=1.0),
        lookahead=lookahead,
        gpu_share=gpu_share,
        sample_workers=workers,
    )


Epoch = Callable[[Parts, int], Timeline]


def check_limits(model: Epoch) -> None:
    """The epochs that can be written down."""
    n = 20
    # Nothing overlaps but drawing the next minibatch with training on this one.
    blocking = model(parts(0.0, 3.0, 2.0), n)
    assert blocking.epoch_s == pytest.approx(n * 5.0)
    assert blocking.fetch_s == pytest.approx(n * 3.0)
    assert blocking.train_s == pytest.approx(n * 2.0)
    hidden = model(parts(1.0, 3.0, 2.0), n)
    assert hidden.epoch_s == pytest.approx(1.0 + n * 5.0)
    assert hidden.sample_s == pytest.approx(1.0)
    drawing = model(parts(4.0, 3.0, 2.0), n)  # longer than training: the rest is waited for
    assert drawing.epoch_s == pytest.approx(n * (4.0 + 3.0) + 2.0)
    # One ahead: the slower of the two sets the pace, the other is seen once.
    assert model(parts(0.0, 3.0, 2.0, lookahead=1), n).epoch_s == pytest.approx(n * 3.0 + 2.0)
    assert model(parts(0.0, 2.0, 3.0, lookahead=1), n).epoch_s == pytest.approx(n * 3.0 + 2.0)
    sampled = model(parts(4.0, 3.0, 2.0, lookahead=1), n)
    assert sampled.epoch_s == pytest.approx(n * 4.0 + 3.0 + 2.0)
    # The gather's share of the GPU is taken from training while it runs: 2 s of work, of which
    # the first 3 s beside a fetch go at 3/4 of the speed.
    shared = model(parts(0.0, 3.0, 4.0, lookahead=1, gpu_share=0.25), n)
    assert (shared.train_s - 4.0) / (n - 1) == pytest.approx(4.0 + 0.25 * 3.0, rel=1e-6)
    # The CPU gathers, then the engine copies; both before training, neither beside a fetch.
    staged = model(parts(0.0, 2.0, 1.0, gather=3.0, by_kernel=False), n)
    assert staged.epoch_s == pytest.approx(3.0 + 2.0 + (n - 1) * (3.0 + 2.0) + 1.0)
    # One ahead the three make a pipeline.
    ahead = model(parts(0.0, 2.0, 1.0, gather=3.0, by_kernel=False, lookahead=1), n)
    assert ahead.epoch_s == pytest.approx(n * 3.0 + 2.0 + 1.0)
    # A worker draws whatever the host waits for: 4 s are hidden behind the 5 s of the others, ...
    drawn = model(parts(4.0, 3.0, 2.0, workers=1), n)
    assert drawn.epoch_s == pytest.approx(4.0 + n * (3.0 + 2.0))
    assert drawn.sample_s == pytest.approx(4.0)
    # ... and of 8 s what is left: the wait for the first one, then 8 - 5 s a minibatch.
    slow = model(parts(8.0, 3.0, 2.0, workers=1), n)
    assert slow.epoch_s == pytest.approx(n * 8.0 + 3.0 + 2.0)
    assert slow.sample_s == pytest.approx(8.0 + (n - 1) * (8.0 - 5.0))
    # Two draw two in 8 s, in which the rest of two takes 10; of 12 s the 2 s beyond are waited for.
    assert model(parts(8.0, 3.0, 2.0, workers=2), n).epoch_s == pytest.approx(8.0 + n * 5.0)
    pairs = model(parts(12.0, 3.0, 2.0, workers=2), n)
    assert pairs.epoch_s == pytest.approx(n / 2 * 12.0 + 2 * 5.0)
    assert pairs.sample_s == pytest.approx(12.0 + (n / 2 - 1) * 2.0)
    # On two cores two workers take a gather on both of them half of its speed. It has 2 of its 3 s
    # behind it when the second pair is drawn, 4 s later, and then goes on alone. The others of
    # these 4 minibatches meet no one: 3 s of gathering, 2 of copying each, 1 of training at last.
    busy = model(parts(2.0, 2.0, 1.0, gather=3.0, by_kernel=False, workers=2, cores=2), 4)
    assert busy.epoch_s == pytest.approx(2.0 + (4.0 + 1.0 + 2.0) + 3 * (3.0 + 2.0) + 1.0)
    # A step ends when it is issued, however short it is; the host then draws the next one.
    issued = model(parts(1.0, 0.0, 2.0, issue=3.0), n)
    assert issued.epoch_s == pytest.approx(n * (1.0 + 3.0))
    assert issued.train_s == pytest.approx(n * 3.0)
    # Edges from host memory are copied behind the rows: the host waits for these, then issues.
    copied = model(parts(1.0, 3.0, 1.0, issue=2.0, submit=0.5), n)
    assert copied.epoch_s == pytest.approx(n * (1.0 + 0.5 + 3.0 + 2.0))
    # What was drawn on the GPU is there: it issues meanwhile, the step is done when both are, ...
    drawn_there = model(parts(1.0, 3.0, 1.0, issue=2.0, submit=0.5, gpu_samples=True), n)
    assert drawn_there.epoch_s == pytest.approx(n * (1.0 + 0.5 + 3.0 + 1.0))
    assert drawn_there.train_s == pytest.approx(n * 1.0)
    # ... as with 4.5 s of issuing, in which the rows come: the step begins behind them.
    busy_host = model(parts(1.0, 3.0, 1.0, issue=4.5, submit=0.5, gpu_samples=True), n)
    assert busy_host.epoch_s == pytest.approx(n * (1.0 + 0.5 + 4.5))
    assert busy_host.train_s == pytest.approx(n * (4.5 - 3.0))
    # Averaging gradients begins when the step is done; only its own time is told as such.
    averaged = model(replace(parts(1.0, 0.0, 2.0, issue=3.0), all_reduce=part(0.5)), n)
    assert averaged.epoch_s == pytest.approx(n * (1.0 + 3.0) + 0.5)
    assert averaged.all_reduce_s == pytest.approx(n * 0.5)
    # For rows that the CPU gathers it waits, not for their copy.
    by_cpu = parts(1.0, 2.0, 1.0, gather=3.0, by_kernel=False, issue=2.5, gpu_samples=True)
    assert model(by_cpu, n).epoch_s == pytest.approx(n * (1.0 + 3.0 + 3.0))
    # Ahead of training, a gather leaves the thread that draws and issues alone: 6 s of either.
    beside: dict[str, Any] = {"gather": 6.0, "by_kernel": False, "lookahead": 1}
    beside |= {"gpu_samples": True, "issue": 4.0}
    free = [model(parts(2.0, 0.0, 0.0, **beside), k).epoch_s for k in (40, 20)]
    assert (free[0] - free[1]) / 20 == pytest.approx(6.0)
    # Where both need all of it they go at half their pace: 12 s. Where the gather needs half of
    # it, at two thirds: 9 s.
    for share, pace in ((1.0, 12.0), (0.5, 9.0)):
        ends = [model(parts(2.0, 0.0, 0.0, **beside, beside=share), k).epoch_s for k in (40, 20)]
        assert (ends[0] - ends[1]) / 20 == pytest.approx(pace)
    # A long epoch goes on as the simulated one does.
    long = model(parts(1.0, 3.0, 2.0, lookahead=1), 1000)
    assert long.epoch_s == pytest.approx(1.0 + 1000 * 3.0 + 2.0)


def summed(fold: Callable[[list[float]], float]) -> Epoch:
    """Minibatches that take the ``fold`` of their parts, one after the other."""

    def epoch(parts: Parts, batches: int) -> Timeline:
        seconds = [p.seconds.value or 0.0 for p in (parts.sample, parts.transfer, parts.train) if p]
        return Timeline(batches * fold(seconds), 0.0, 0.0, batches * seconds[-1])

    return epoch


def with_parts(change: Callable[[Parts], dict[str, Any]]) -> Epoch:
    return lambda parts, batches: run_epoch(replace(parts, **change(parts)), batches)


WRONG_EPOCHS = {
    "added up": summed(sum),
    "the longest part": summed(max),
    "never ahead": with_parts(lambda p: {"lookahead": 0}),
    "always ahead": with_parts(lambda p: {"lookahead": max(1, p.lookahead)}),
    "no workers": with_parts(lambda p: {"sample_workers": 0}),
    "one worker": with_parts(lambda p: {"sample_workers": min(1, p.sample_workers)}),
    "free cores": with_parts(
        lambda p: {"sample": replace(p.sample, demands={})} if p.sample_workers else {}
    ),
    "a free GPU": with_parts(lambda p: {"gpu_share": 0.0}),
    "issued before": with_parts(lambda p: {"issue_s": Estimate(0.0)}),
    "started for nothing": with_parts(lambda p: {"submit_s": Estimate(0.0)}),
    "rows awaited": with_parts(lambda p: {"gpu_samples": False}),
    "rows never awaited": with_parts(lambda p: {"gpu_samples": True}),
    "a gather beside nothing": with_parts(
        lambda p: {"gather": p.gather and replace(p.gather, demands={"cpu": 1.0})}
    ),
    "a free gather": with_parts(lambda p: {"gather": None}),
}


def test_the_schedule_agrees_with_closed_forms():
    check_limits(run_epoch)


@pytest.mark.parametrize("wrong", WRONG_EPOCHS.values(), ids=WRONG_EPOCHS)
def test_a_wrong_schedule_is_rejected(wrong):
    with pytest.raises(AssertionError):
        check_limits(wrong)


def test_a_step_waits_for_the_minibatch_that_is_drawn_ahead_of_it():
    """Drawing takes 5 s, fetch and step 1 s: minibatches 0 and 1 are drawn by 10 s, step 0 begins,
    and every 5 s another; the last two follow one another from 100 s on."""
    found = run_epoch(parts(5.0, 1.0, 1.0, lookahead=1), 20)
    assert found.epoch_s == pytest.approx(102.0)
    assert (found.sample_s, found.fetch_s, found.train_s) == pytest.approx((82.0, 0.0, 20.0))


def test_of_minibatches_that_workers_draw_only_the_steps_own_is_waited_for():
    """A worker draws one every 5 s. Step 0 has its own at 5 s and is issued when the next one's
    fetch begins, at 10 s; those 5 s are no drawing of its own."""
    drawn = replace(parts(5.0, 0.0, 1.0, lookahead=1), sample_workers=1)
    found = run_epoch(drawn, 2)
    assert found.epoch_s == pytest.approx(12.0)
    assert (found.sample_s, found.fetch_s, found.train_s) == pytest.approx((5.0, 5.0, 2.0))


def test_the_host_draws_nothing_while_it_issues_a_step():
    """2 s drawing, 3 s issuing a step that takes the GPU 3 s: 5 s each where nothing is fetched."""
    issuing = replace(parts(2.0, 0.0, 3.0), issue_s=Estimate(3.0))
    assert run_epoch(issuing, 10).epoch_s == pytest.approx(50.0)
    assert run_epoch(parts(2.0, 0.0, 3.0), 10).epoch_s == pytest.approx(32.0)


def test_gpus_share_ports_processor_and_nothing_else():
    on_link = parts(0.0, 3.0, 1.0)
    alone = run_epoch(on_link, 10).epoch_s
    assert run_epoch(on_link, 10, gpus=4).epoch_s == pytest.approx(alone)
    crowded = run_epoch(on_link, 10, gpus=2, gpus_per_port=2).epoch_s
    assert 10 * 2 * 3.0 <= crowded < 2 * alone  # one trains while the other reads
    most = run_epoch(on_link, 10, gpus=3, gpus_per_port=4).epoch_s
    assert 10 * 3 * 3.0 <= most < 3 * alone, "three share a port for four, no fourth"
    on_cpu = parts(0.0, 0.1, 0.1, gather=3.0, by_kernel=False)
    assert run_epoch(on_cpu, 10, gpus=8).epoch_s >= 10 * 8 * 3.0
    half = parts(0.0, 3.0, 1.0, link=0.5)
    assert run_epoch(half, 10, gpus=2, gpus_per_port=2).epoch_s == pytest.approx(alone)


TIMES = st.floats(0.01, 5)


@settings(max_examples=40)
@given(TIMES, TIMES, TIMES, st.integers(0, 2), st.integers(1, 40))
def test_an_epoch_lies_between_its_bounds(sample, fetch, train, lookahead, batches):
    made = run_epoch(parts(sample, fetch, train, lookahead=lookahead), batches)
    assert made.epoch_s >= batches * max(sample, fetch, train) * (1 - 1e-9)
    blocking = run_epoch(parts(sample, fetch, train), batches).epoch_s
    # Before the first step the host draws the minibatches ahead, which a blocking path draws later,
    # beside training.
    head = min(lookahead, batches) * min(sample, train)
    assert made.epoch_s <= (blocking + head) * (1 + 1e-9)
    assert blocking <= batches * (sample + fetch + train) * (1 + 1e-9)
    assert made.sample_s + made.fetch_s + made.train_s == pytest.approx(made.epoch_s)


@settings(max_examples=40)
@given(TIMES, TIMES, TIMES, st.integers(0, 2), st.integers(1, 12), st.integers(1, 4))
def test_workers_with_cores_of_their_own_make_no_epoch_longer(
    sample, fetch, train, lookahead, batches, workers
):
    alone = run_epoch(parts(sample, fetch, train, lookahead=lookahead), batches)
    drawn = parts(sample, fetch, train, lookahead=lookahead, workers=workers)
    made = run_epoch(drawn, batches)
    assert made.epoch_s <= alone.epoch_s * (1 + 1e-9)
    waves = -(-batches // workers)
    assert made.epoch_s >= max(waves * sample, batches * fetch, batches * train) * (1 - 1e-9)
    assert made.sample_s + made.fetch_s + made.train_s == pytest.approx(made.epoch_s)


def test_a_worker_draws_two_ahead_of_what_the_host_has_taken():
    """Draws take 1 s, fetches 10 and steps 1: minibatches are taken at 1, 11 and 22 s."""
    activities: list[Activity] = []
    program = schedule._Program(parts(1.0, 10.0, 1.0, workers=1), 1, 1, "0", activities)
    for _ in range(5):
        program.add_minibatch()
    times = simulate(activities)
    assert [times[n][1] for n in program.taken[:3]] == pytest.approx([1, 11, 22])
    assert [times[n][0] for n in program.samples] == pytest.approx([0, 1, 2, 11, 22])


@pytest.mark.parametrize("workers", [0, 1, 3, 8])
def test_the_pace_of_a_long_epoch_is_that_of_a_simulated_one(monkeypatch, workers):
    drawing = 0.3 if not workers else 3.0 * workers  # which is then what the epoch waits for
    gathered = parts(drawing, 1.7, 1.1, lookahead=1, gather=0.9, by_kernel=False, workers=workers)
    for made in (gathered, parts(drawing, 1.7, 1.1, lookahead=1, gpu_share=0.5, workers=workers)):
        continued = run_epoch(made, 150)
        with monkeypatch.context() as patch:
            patch.setattr(schedule, "_SIMULATED", 1000)
            whole = run_epoch(made, 150)
        assert continued.epoch_s == pytest.approx(whole.epoch_s, rel=1e-6)
        assert continued.fetch_s == pytest.approx(whole.fetch_s, rel=1e-6)
