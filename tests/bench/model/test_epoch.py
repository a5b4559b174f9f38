"""The closed form of an epoch against what can be written down by hand; wrong forms fail it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatherbench.bench.model import epoch as epoch_module
from gatherbench.bench.model.epoch import EpochPrediction, predict_batches
from gatherbench.bench.model.physics import MinibatchLoad, Part, load_of
from gatherbench.bench.model.profile import load_profile
from gatherbench.strategies.data_path import DataPath, total

PROFILE = load_profile("rtx3090-pcie4")
N = 20


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Callable[..., EpochPrediction]:
    """An epoch whose parts take these seconds."""

    def predicted(
        sample: float,
        transfer: float,
        train: float,
        *,
        issue: float = 0.0,
        submit: float = 0.0,
        gather: float = 0.0,
        expand: float = 0.0,
        batches: int = N,
        **load: Any,
    ) -> EpochPrediction:
        seconds = {"sample": sample, "submit": submit, "gather": gather, "transfer": transfer}
        seconds |= {"train": train, "expand": expand}
        parts = {name: Part(s, name) for name, s in seconds.items() if s or name in _ALWAYS}
        monkeypatch.setattr(epoch_module, "minibatch_parts", lambda *_: parts)
        monkeypatch.setattr(epoch_module, "issuing", lambda *_: issue)
        return predict_batches(MinibatchLoad(0.0, **load), PROFILE, batches)

    return predicted


_ALWAYS = ("sample", "submit", "train")


def test_on_the_host_the_next_minibatch_is_drawn_beside_training(model):
    blocking = model(0.0, 3.0, 2.0)
    assert (blocking.epoch_s, blocking.fetch_s, blocking.train_s) == (N * 5.0, N * 3.0, N * 2.0)
    hidden = model(1.0, 3.0, 2.0)
    assert (hidden.epoch_s, hidden.sample_s) == pytest.approx((1.0 + N * 5.0, 1.0))
    drawing = model(4.0, 3.0, 2.0)  # longer than training: the rest is waited for
    assert drawing.epoch_s == pytest.approx(N * (4.0 + 3.0) + 2.0)
    # The CPU gathers, then the engine copies; both before training, neither beside a fetch.
    staged = model(0.0, 2.0, 1.0, gather=3.0)
    assert staged.epoch_s == pytest.approx(N * (3.0 + 2.0) + 1.0)
    # A step ends when it is issued, however short it is; the host then draws the next one.
    issued = model(1.0, 0.0, 2.0, issue=3.0)
    assert (issued.epoch_s, issued.train_s) == pytest.approx((N * (1.0 + 3.0), N * 3.0))
    # Edges from host memory are copied behind the rows: the host waits for these, then issues.
    copied = model(1.0, 3.0, 1.0, issue=2.0, submit=0.5)
    assert copied.epoch_s == pytest.approx(N * (1.0 + 0.5 + 3.0 + 2.0))


def test_one_ahead_the_slowest_sets_the_pace(model):
    assert model(0.0, 3.0, 2.0, lookahead=1).epoch_s == pytest.approx(N * 3.0 + 2.0)
    assert model(0.0, 2.0, 3.0, lookahead=1).epoch_s == pytest.approx(N * 3.0 + 2.0)
    sampled = model(4.0, 3.0, 2.0, lookahead=1)
    assert sampled.epoch_s == pytest.approx(N * 4.0 + 3.0 + 2.0)
    pipeline = model(0.0, 2.0, 1.0, gather=3.0, lookahead=1)
    assert pipeline.epoch_s == pytest.approx(N * 3.0 + 2.0 + 1.0)
    # The gather's share of the GPU is taken from training while it runs, 3 of 4 s and more.
    shared = model(0.0, 3.0, 4.0, lookahead=1, gpu_share=0.25)
    assert shared.train_s == pytest.approx(N * (4.0 + 0.25 * 3.0))
    assert model(0.0, 30.0, 3.0, lookahead=1, gpu_share=0.25).train_s == pytest.approx(N * 4.0)


def test_what_the_gpu_draws_comes_behind_the_step_before(model):
    """The host issues a step while its rows come, and waits for those that the CPU brings."""
    there = {"gpu_samples": True, "submit": 0.5}
    short = model(1.0, 3.0, 1.0, issue=2.0, **there)
    assert short.epoch_s == pytest.approx(N * (1.0 + 0.5 + 3.0 + 1.0))
    assert (short.sample_s, short.train_s) == pytest.approx((N * 1.0, N * 1.0))
    busy = model(1.0, 3.0, 1.0, issue=4.5, **there)  # 1.5 s are left when the rows are there
    assert busy.epoch_s == pytest.approx(N * (1.0 + 0.5 + 4.5))
    assert (busy.fetch_s, busy.train_s) == pytest.approx((N * 3.5, N * 1.5))
    by_cpu = model(1.0, 2.0, 1.0, gather=3.0, issue=2.5, gpu_samples=True)
    assert by_cpu.epoch_s == pytest.approx(N * (1.0 + 3.0 + 3.0))
    staged = model(1.0, 2.0, 1.0, issue=2.5, gpu_samples=True, pageable_bytes=1.0)
    assert staged.epoch_s == pytest.approx(N * (1.0 + 2.0 + 2.5))
    ahead = model(1.0, 3.0, 1.0, issue=1.5, lookahead=1, **there)
    assert ahead.epoch_s == pytest.approx(1.0 + 0.5 + 3.0 + 1.5 + (N - 1) * 3.0)
    kept = model(1.0, 3.0, 1.0, issue=1.5, expand=2.0, lookahead=1, **there)
    assert kept.epoch_s == pytest.approx(1.0 + 0.5 + 3.0 + 2.0 + 1.5 + (N - 1) * 5.0)
    issued = model(1.0, 3.0, 1.0, issue=4.0, lookahead=1, **there)
    assert issued.epoch_s == pytest.approx(N * 5.5 + 3.0)


def test_beside_a_gather_of_the_cpu_a_step_takes_longer_to_issue(model):
    """Ahead of training: 1.43 times as long, as measured."""
    load = {"gather": 2.0, "lookahead": 1, "gpu_samples": True, "issue": 4.0}
    slowed = [model(1.0, 0.0, 1.0, **load, batches=n).epoch_s for n in (40, 20)]
    assert (slowed[0] - slowed[1]) / 20 == pytest.approx(1.0 + 1.43 * 4.0)
    long = [model(1.0, 0.0, 1.0, **load | {"gather": 9.0}, batches=n).epoch_s for n in (40, 20)]
    assert (long[0] - long[1]) / 20 == pytest.approx(9.0)


def test_an_epoch_is_bound_by_what_it_would_gain_most_from(model):
    assert model(0.5, 3.0, 2.0).bound == "transfer"
    assert model(0.5, 3.0, 4.0).bound == "train"
    assert model(9.0, 3.0, 4.0, lookahead=1).bound == "sample"
    assert model(0.5, 3.0, 2.0, gather=5.0, lookahead=1).bound == "gather"
    assert model(0.0, 0.1, 0.1, issue=4.0).bound == "train"


def test_an_epoch_needs_a_minibatch_and_a_gpu():
    for batches, gpus in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="at least one minibatch and one GPU"):
            predict_batches(MinibatchLoad(0.0), PROFILE, batches, gpus=gpus)


SECONDS = st.floats(1e-6, 1.0)


@given(SECONDS, SECONDS, SECONDS, st.integers(0, 1), st.booleans(), st.integers(1, 50))
def test_stages_add_up_and_an_epoch_lies_between_its_bounds(
    sample, link, train, ahead, on_gpu, batches
):
    """No part of all minibatches takes longer than the epoch, nor it more than all in turn."""
    num_bytes = 31.51e9 * 0.92 * 128 / 148 * link
    load = MinibatchLoad(
        num_bytes,
        gpu_link_read_bytes=num_bytes,
        gpu_requests={128: num_bytes / 128},
        gpu_page_visits=0.0,
        lookahead=ahead,
        gpu_samples=on_gpu,
        sample_s=sample,
        train_s=train,
    )
    one = predict_batches(load, PROFILE, batches)
    assert one.sample_s + one.fetch_s + one.train_s == pytest.approx(one.epoch_s)
    assert min(one.sample_s, one.fetch_s, one.train_s) >= 0
    submit = PROFILE.number("gpu.submit")
    assert one.epoch_s >= batches * max(sample, link, train) * (1 - 1e-9)
    assert one.epoch_s <= batches * (sample + submit + link + train) * (1 + 1e-9)


# A path that keeps a part of the table in GPU memory, and gathers or reads the rest.

HALF = 5e8
READ = MinibatchLoad(
    HALF, gpu_link_read_bytes=HALF, gpu_requests={128: HALF / 128}, gpu_page_visits=0.0
)
GATHERED = MinibatchLoad(
    HALF, cpu_read_bytes=HALF, cpu_write_bytes=HALF, copy_engine_bytes=HALF, gpu_requests={}
)
BOTH = replace(
    READ, payload_bytes=2 * HALF, cpu_read_bytes=HALF, cpu_write_bytes=HALF, copy_engine_bytes=HALF
)


def parts_of(load: MinibatchLoad) -> Mapping[str, Part]:
    return predict_batches(load, PROFILE, N).parts


def test_rows_that_are_gathered_and_rows_read_in_place_both_cross_the_link():
    read, gathered, both = map(parts_of, (READ, GATHERED, BOTH))
    together, alone = both["transfer"], (read["transfer"], gathered["transfer"])
    lengths = [part.seconds for part in alone]
    assert together.seconds == pytest.approx(sum(lengths))
    assert together.bound == alone[lengths.index(max(lengths))].bound
    assert both["gather"] == gathered["gather"]
    assert "expand" not in both
    assert BOTH.brought_bytes == 2 * HALF


def test_paths_add_up_and_a_count_that_one_lacks_is_lacking():
    reads = DataPath(10, gpu_link_read_bytes=10, gpu_requests={32: 1, 128: 2}, gpu_page_visits=3)
    copies = DataPath(5, cpu_write_bytes=5, copy_engine_bytes=6, gpu_requests={})
    both = total([reads, copies, reads])
    assert (both.payload_bytes, both.gpu_link_read_bytes, both.copy_engine_bytes) == (25, 20, 6)
    assert both.gpu_requests == {32: 2, 128: 4}
    assert both.gpu_page_visits == 6, "copies visit no page"
    uncounted = replace(reads, gpu_requests=None, gpu_page_visits=None)
    for paths in ([reads, uncounted], [uncounted, reads]):
        assert total(paths).gpu_requests is None
        assert total(paths).gpu_page_visits is None
    half = load_of(both, 0.5, row_bytes=4)
    assert (half.payload_bytes, half.gpu_page_visits, half.row_bytes) == (12.5, 3.0, 4)
    assert half.gpu_requests == {32: 1, 128: 2}
    assert load_of(total([]), 1.0).gpu_requests == {}


def test_rows_that_the_gpu_reads_where_the_cpu_wrote_them_cross_once():
    once = replace(BOTH, payload_bytes=HALF, copy_engine_bytes=HALF / 50)
    assert once.brought_bytes == HALF
    assert parts_of(once)["transfer"] == parts_of(READ)["transfer"]
    assert parts_of(once)["gather"] == parts_of(GATHERED)["gather"]
