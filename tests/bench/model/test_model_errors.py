"""Epochs that were measured on a GPU beside the model, and what follows from them."""

import itertools
import math
from dataclasses import replace

import pytest

from gatherbench.bench.model import errors
from gatherbench.bench.model.errors import Beside, measured_beside, ratio_errors

NOTES = errors.FILE.with_name("NOTES.md")
ONE = Beside("box", "20261123-run-1", "w", "zero", "a", 0, 1.0, 2.0, 1.0)


def test_nine_in_ten_epochs_come_within_15_percent():
    """Of a machine whose calibration was taken beside the runs; with a chain's issuing, half."""
    every = measured_beside()
    near = [sum(abs(o.error) <= 0.15 for o in every)]
    near += [sum(abs(o.chained_s / o.measured_s - 1) <= 0.15 for o in every)]
    assert (len(every), near) == (47, [44, 23])


def test_ratios_beyond_the_limit_are_off_as_the_notes_say():
    """Each pair of a run's workload whose modelled epochs differ by more than 1.19."""
    said = " ".join(NOTES.read_text(encoding="utf-8").split())
    every = itertools.combinations(measured_beside(), 2)
    pairs = [(a, b) for a, b in every if (a.run, a.workload) == (b.run, b.workload)]
    ratios = [(a.modelled_s / b.modelled_s, a.measured_s / b.measured_s) for a, b in pairs]
    upright = [(m, r) if m > 1 else (1 / m, 1 / r) for m, r in ratios]
    beyond = [(m, r) for m, r in upright if m > errors.told_apart()]
    right = sum(r > 1 for _, r in beyond)
    off = [m / r for m, r in beyond]
    spread = math.exp(math.sqrt(sum(math.log(one) ** 2 for one in off) / len(off)))
    assert f"{len(beyond)} of the {len(pairs)} pairs differ by more: it has {right} in" in said
    assert (
        f"from {1 - min(off):.0%} too small to {max(off) - 1:.0%} too large".replace("%", " %")
        in said
    )
    assert f"root mean square {100 * (spread - 1):.0f} %" in said


def test_an_error_is_modelled_over_measured_less_one():
    assert ONE.error == 1.0


def test_what_all_paths_are_off_alike_is_no_error_of_a_ratio():
    """Modelled 2, 1 and 4 times as long: ratios off by 2, 2 and 4; other workloads are apart."""
    of_one = [replace(ONE, modelled_s=times) for times in (2.0, 1.0, 4.0)]
    apart = [replace(one, workload="x", modelled_s=9.0) for one in of_one]
    assert sorted(ratio_errors([*of_one, *apart])) == pytest.approx([1, 1, 1, 2, 2, 4])
    other_run = [replace(of_one[0], run="20261124-later-2")]
    assert sorted(ratio_errors([*of_one, *other_run])) == pytest.approx([2, 2, 4])


def test_most_pairs_are_told_apart_no_closer_than_the_ratio():
    found = ratio_errors(measured_beside())
    within = sum(one <= errors.told_apart() for one in found) / len(found)
    assert errors.SHARE <= within < errors.SHARE + 2 / len(found)
