"""What is said of modelled epochs: ratios worked out by hand, and what was borrowed."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from gatherbench.bench.read.derive import noisy_series, predictions
from gatherbench.bench.read.tables import Run, load_run
from gatherbench.bench.show.views import model

MakeRun = Callable[..., Path]
MACHINE = "cpu-amd-epyc-2c"
#: Epochs of 2, 1.6, 1, 0.8 s; the fixture adds 0.01 s to the stages.
NAIVE = ("cpu_gather", "naive", (0.2, 1.29, 0.5))
PINNED = ("cpu_gather", "pinned", (0.2, 0.89, 0.5))
ALIGNED = ("aligned_zero_copy", "given", (0.2, 0.29, 0.5))
BOUND = ("all_in_gpu", "default", (0.2, 0.09, 0.5))
FOUR = (NAIVE, PINNED, ALIGNED, BOUND)
#: Drawing takes 0.2 s of 2 to 0.8 s.
SHARE = ": 10.0 to 25.0 % of these epochs"


@pytest.fixture
def modelled(make_run: MakeRun) -> Callable[..., Run]:
    """A run whose modelled series are these."""

    def make(*series: tuple[str, str, object], **more: object) -> Run:
        return load_run(make_run(series=[NAIVE], modelled=series, **more))

    return make


def notes(run: Run) -> list[str]:
    return [note for note in model.MODEL.note(run).splitlines() if "roofline" not in note]


def test_a_model_that_borrows_from_disturbed_epochs_alone_says_so(modelled):
    told = f"Drawing minibatches takes the time that was measured on {MACHINE}"
    for number, (beside, end) in enumerate(
        [
            ({}, ", while other work ran throughout, so no ratio is given"),
            ({"beside": (*NAIVE[:2], 0)}, ""),
        ]
    ):
        more = {"other_cores": 1.5, "name": f"2026112{number}-a-1", **beside}
        run = modelled(*FOUR, borrowed={ALIGNED[:2]: ["sample"]}, **more)
        assert notes(run) == [f"{told}{end}{SHARE}."]
        # A repeat beside other work leaves quiet ones: then the ratio is given.
        (ratio,) = predictions(run).query("variant == 'given'")["speedup"]
        assert math.isnan(ratio) is bool(end)


def test_a_model_that_may_borrow_from_a_quiet_series_says_nothing(make_run):
    more = {"modelled": FOUR, "borrowed": {ALIGNED[:2]: ["sample"]}, "repeats": 1}
    run = load_run(
        make_run(series=[NAIVE, PINNED], other_cores=1.5, beside=(*PINNED[:2], 0), **more)
    )
    assert [key[1:3] for key in noisy_series(run)] == [PINNED[:2]]
    assert not predictions(run)["noisy"].any()


def test_a_ratio_is_of_two_predicted_epochs(modelled):
    """Of 2 s and 1 s."""
    (line,) = predictions(modelled(NAIVE, ALIGNED)).query("variant == 'given'").to_dict("records")
    found = [line[name] for name in ("median", "fetch", "train", "speedup")]
    assert found == pytest.approx([1.0, 0.29, 0.5, 2.0])


def test_where_every_prediction_borrows_from_noisy_epochs_none_has_a_ratio(modelled):
    """On a machine that was busy throughout."""
    borrowed = {series[:2]: ["sample"] for series in FOUR}
    table = predictions(modelled(*FOUR, borrowed=borrowed, other_cores=1.5))
    assert len(table) == len(FOUR)
    assert table["speedup"].isna().all()
