"""What is said of modelled epochs: ratios worked out by hand, ranges, and what was borrowed."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gatherbench.bench.model.profile import load_profile
from gatherbench.bench.read.modelled import modelled_ratios
from gatherbench.bench.read.summary import summarise
from gatherbench.bench.read.tables import Run, load_run
from gatherbench.bench.run.store import RunStore
from gatherbench.bench.show.views import model

from ..printed import told

MakeRun = Callable[..., Path]
Series = tuple[str, str, object]
MACHINE = "cpu-amd-epyc-2c"
#: Epochs of 2, 1.6, 1, 0.8 s; the fixture adds 0.01 s to the stages.
NAIVE = ("cpu_gather", "naive", (0.2, 1.29, 0.5))
PINNED = ("cpu_gather", "pinned", (0.2, 0.89, 0.5))
ALIGNED = ("aligned_zero_copy", "given", (0.2, 0.29, 0.5))
BOUND = ("all_in_gpu", "default", (0.2, 0.09, 0.5))
TWO = ["wordnet-sage16x2-b1000-1f2e3d4c", "wordnet-gat16x2-b1000-1f2e3d4d"]
FOUR = (NAIVE, PINNED, ALIGNED, BOUND)
BEST = " ".join(ALIGNED[:2])
#: Drawing takes 0.2 s of 2 to 0.8 s.
SHARE = "; that is 10% to 25% of these epochs"
HEAD = "Modelled for rtx3090-pcie4, not measured: "


def said(run: Run) -> list[str]:
    """What is said of modelled epochs, without where they run, the most important first."""
    return [point.text.removeprefix(HEAD) for point in model.modelled_points(run)]


@pytest.fixture(autouse=True)
def precise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model errs no more than what counts as level."""
    monkeypatch.setattr(model, "told_apart", lambda **_: 1.05)


@pytest.fixture
def modelled(make_run: MakeRun) -> Callable[..., Run]:
    """A run whose modelled series are these."""

    def make(*series: tuple[str, str, object], **more: object) -> Run:
        return load_run(make_run(series=[NAIVE], modelled=series, **more))

    return make


def notes(run: Run) -> list[str]:
    return [note for note in model.MODEL.notes(run) if "roofline" not in note]


FAST = f"{BEST} is the fastest: "
BOUNDED = "all_in_gpu, the upper bound, reached "
OVER = " as fast as cpu_gather naive"
TWICE = [(*one[:2], [one[2], one[2]]) for one in (NAIVE, ALIGNED)]
RANGING = ("unified_zero_copy", "registered", [(0.2, 0.1, 0.5), (0.2, 0.6, 0.5)])
LEVEL = ("async_zero_copy", "stream,auto", [(0.2, 0.3, 0.5), (0.2, 0.3, 0.5)])
AS_SHORT = ("unified_zero_copy", "managed", [ALIGNED[2], (0.2, 0.6, 0.5)])
#: Modelled series, and what is said of them, worked out by hand.
SAID: dict[str, tuple[Sequence[Series], list[str]]] = {
    "a bound": (FOUR, [f"{FAST}2.00×{OVER}.", f"{BOUNDED}2.50×{OVER}."]),
    # All in GPU memory, but its gather is not hidden: 1.02 s after 1 s, within 5 %.
    "a level bound": (
        [*FOUR[:3], ("all_in_gpu", "default", (0.2, 0.31, 0.5))],
        [f"{FAST}2.00×{OVER}.", f"{BOUNDED}1.96×{OVER}, level with what it bounds."],
    ),
    "a slower bound": (
        [NAIVE, ALIGNED, (*BOUND[:2], (0.2, 0.6, 0.5))],
        [
            f"{FAST}2.00×{OVER}.",
            "all_in_gpu, the upper bound, came out slower than what it bounds.",
        ],
    ),
    # One modelled path, and a measured gather: nothing was run against either.
    "no rival": (
        [ALIGNED, BOUND],
        [f"{BEST} took 1.00 s: no other path to compare it with.", f"{BOUNDED}800 ms."],
    ),
    # Aligned reads take 1 or 0.8 s; beside a baseline of 2 or 1.8 s: 2 or 2.25 times.
    "ranges end by end": (
        [(*NAIVE[:2], [NAIVE[2], (0.2, 1.09, 0.5)]), (*ALIGNED[:2], [ALIGNED[2], BOUND[2]])],
        [f"{FAST}2.00× to 2.25×{OVER}."],
    ),
    "one end says so and the other does not": (
        [*TWICE, RANGING, AS_SHORT, LEVEL],
        [
            "level at the shortest epochs: aligned_zero_copy given 2.00× and async_zero_copy"
            f" stream,auto 1.98×{OVER}.",
            "not decided against those: unified_zero_copy registered 1.53× to 2.47× and"
            " unified_zero_copy managed 1.53× to 2.00×.",
        ],
    ),
    # Its epochs at some corner might be shorter than any: nobody can say who has the shortest.
    "unknown at some corner": (
        [(*NAIVE[:2], [NAIVE[2], (0.2, 1.49, 0.5)]), (*BOUND[:2], [BOUND[2]]), ALIGNED],
        [
            "cpu_gather naive took 2.00 to 2.20 s: no other path to compare it with (not decided"
            " against aligned_zero_copy given).",
            "not known at every end of the profile’s ranges: aligned_zero_copy given and all_in_gpu"
            " default.",
        ],
    ),
}


@pytest.mark.parametrize(("series", "expected"), SAID.values(), ids=list(SAID))
def test_what_is_said_claims_no_more_than_holds_at_every_corner(modelled, series, expected):
    assert said(modelled(*series)) == expected


def test_a_point_has_the_fields_of_what_it_says(modelled):
    first, bound = model.modelled_points(modelled(*FOUR))
    assert (first.verdict, first.subjects, first.over) == ("FAST", (BEST,), "cpu_gather naive")
    assert first.values == (pytest.approx((2.0, 2.0, 2.0)),)
    assert (first.kind, first.condition) == ("modelled", HEAD.removesuffix(": "))
    assert bound.fields()["values"] == [pytest.approx([2.5, 2.5, 2.5])]


@pytest.mark.parametrize(("error", "decided"), [(1.59, True), (1.61, False)])
def test_paths_within_the_models_own_error_are_not_ranked(modelled, monkeypatch, error, decided):
    """1.6 s over 1 s."""
    monkeypatch.setattr(model, "told_apart", lambda **_: error)
    (text,) = said(modelled(*FOUR[:3]))
    assert text.startswith(f"{HEAD[:-2]} (told apart from a factor of {error} on): ")
    assert (f"{FAST}2.00×" in text) is decided
    undecided = (
        "not decided which path is the fastest: aligned_zero_copy given 2.00× and cpu_gather"
    )
    assert (undecided in text) is (not decided)


@pytest.mark.parametrize(
    ("profile", "knows"), [("nvidia-h200", True), ("rtx3090-pcie4", False), ("", False)]
)
def test_the_model_errs_more_where_the_profile_does_not_know_the_loop(
    modelled, monkeypatch, profile, knows
):
    monkeypatch.setattr(model, "told_apart", lambda *, issue_known: 1.1 if issue_known else 1.7)
    run = modelled(*FOUR[:3])
    text = load_profile(profile).to_toml() if profile else "no TOML"
    RunStore(run.folder).profile_file.write_text(text, encoding="utf-8")
    factor = "1.10" if knows else "1.70"
    assert f"told apart from a factor of {factor} on" in said(run)[0]


def test_a_model_that_borrows_from_disturbed_epochs_alone_says_so(modelled):
    told = f"Minibatches come as fast as {MACHINE} was measured to have them"
    for number, (beside, end) in enumerate(
        [
            ({}, ", beside other work throughout, so no ratio is given"),
            ({"beside": (*NAIVE[:2], 0)}, ""),
        ]
    ):
        more = {"other_cores": 1.5, "name": f"2026112{number}-a-1", **beside}
        run = modelled(*FOUR, borrowed={ALIGNED[:2]: ["sample"]}, **more)
        assert notes(run) == [f"{told}{end}{SHARE}."]
        # A repeat beside other work leaves quiet ones: then the ratio is given.
        assert ("×" in said(run)[0]) is (not end)
        ratios = modelled_ratios(run, *NAIVE[:2])
        assert (ALIGNED[:2] in set(zip(ratios["strategy"], ratios["variant"], strict=True))) is (
            not end
        )


def test_a_ratio_of_ranges_is_taken_end_by_end(modelled):
    """Aligned reads take 1 or 0.8 s; beside a baseline of 2 or 1.8 s: 2 or 2.25 times."""
    naive = (*NAIVE[:2], [NAIVE[2], (0.2, 1.09, 0.5)])
    aligned = (*ALIGNED[:2], [ALIGNED[2], BOUND[2]])
    run = modelled(naive, aligned)
    (line,) = summarise(run).query("basis == 'predicted' and variant == 'given'").to_dict("records")
    ends = [line[name] for name in ("low", "high", "fetch_low", "fetch_high")]
    assert ends == pytest.approx([0.8, 1.0, 0.09, 0.29])
    assert [line["speedup_low"], line["speedup_high"]] == pytest.approx([2.0, 2.25])
    nothing = [line[name] for name in ("median", "fetch", "speedup")]
    assert all(map(math.isnan, nothing)), "no value between the ends"
    assert line["train"] == pytest.approx(0.5)


def test_several_workloads_share_a_point_for_one_answer(modelled):
    """Of the second, stages take twice as long: 3.99 over 1.99 s, and over 1.59 s."""
    points = model.modelled_points(modelled(*FOUR, workloads=TWO))
    assert [point.text.removeprefix(HEAD) for point in points] == [
        f"{BEST} is the fastest on 2 workloads: from 2.00× to 2.01×{OVER}.",
        f"{BOUNDED}from 2.50× to 2.51×{OVER} on 2 workloads.",
        *(f"{FAST}2.00×{OVER}.", f"{BOUNDED}2.50×{OVER}."),
        *(f"{FAST}2.01×{OVER}.", f"{BOUNDED}2.51×{OVER}."),
    ]
    assert [point.of_one for point in points] == [False, False, True, True, True, True]
    assert len({point.workloads for point in points[2:]}) == 2


def test_what_nobody_would_train_with_is_never_ranked(make_run):
    """Measured and modelled: the oracle is the fastest of both runs, and is not named."""
    assert said(load_run(make_run("20261122-none-b"))) == []
    oracle = ("cached_zero_copy", "oracle,10%,0", (0.2, 0.1, 0.5))
    run = load_run(make_run(series=[NAIVE, ALIGNED, oracle], modelled=[NAIVE, ALIGNED, oracle]))
    text = " ".join(point.text for point in told(run))
    assert text.count("aligned_zero_copy given is the fastest") == 2
    assert "oracle" not in text
