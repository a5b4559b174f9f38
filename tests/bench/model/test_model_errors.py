"""Epochs that were measured on a GPU beside the model: the file is what comes out, and what follows
from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gatherbench.bench.model import errors
from gatherbench.bench.model.errors import Beside, error_of, measured_beside, ratio_errors

RESULTS = Path(__file__).parents[3] / "results"
ONE = Beside("box", "run", "w", "zero", "a", 0, 1.0, 2.0, 1.5)


def test_the_file_is_what_the_committed_runs_yield(tmp_path: Path) -> None:
    """``python -m gatherbench.bench.model.errors`` writes it anew after a change of the model."""
    errors.write(errors.beside_of(RESULTS), tmp_path / "epochs.csv")
    assert (tmp_path / "epochs.csv").read_text() == errors.FILE.read_text()
    assert len(measured_beside()) == 45


def test_an_error_is_modelled_over_measured_less_one() -> None:
    assert (ONE.error, ONE.path_error) == (1.0, 0.5)


def test_errors_of_a_path_are_those_of_its_name_and_lookahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1 s measured, modelled as 2, 0.5 and 1.1 s; what fetches ahead is another path."""
    known = (
        ONE,
        replace(ONE, variant="b", modelled_s=0.5),
        replace(ONE, lookahead=1, modelled_s=1.1),
    )
    monkeypatch.setattr(errors, "measured_beside", lambda: known)
    assert error_of("zero", 0) == (-0.5, 1.0)
    assert error_of("zero", 1) == pytest.approx((0.1, 0.1))
    assert error_of("never", 0) is None


def test_what_all_paths_are_off_alike_is_no_error_of_a_ratio() -> None:
    """Modelled 2, 1 and 4 times as long: ratios off by 2, 2 and 4; other workloads are apart."""
    of_one = [replace(ONE, modelled_s=times) for times in (2.0, 1.0, 4.0)]
    apart = [replace(one, workload="x", modelled_s=9.0) for one in of_one]
    assert sorted(ratio_errors([*of_one, *apart])) == pytest.approx([1, 1, 1, 2, 2, 4])
    other_run = [replace(of_one[0], run="later")]
    assert sorted(ratio_errors([*of_one, *other_run])) == pytest.approx([2, 2, 4])


def test_most_pairs_are_told_apart_no_closer_than_the_ratio() -> None:
    found = ratio_errors(measured_beside())
    within = sum(one <= errors.told_apart() for one in found) / len(found)
    assert within == pytest.approx(errors.SHARE, abs=1 / len(found))
