"""Epochs that were measured on a GPU beside the model: the file is what comes out, and what follows
from it."""

from dataclasses import replace

import pytest

from gatherbench.bench.model import errors
from gatherbench.bench.model.errors import Beside, error_of, measured_beside, ratio_errors
from tools import model_errors

NOTES = errors.FILE.with_name("NOTES.md")
ONE = Beside("box", "20261123-run-1", "w", "zero", "a", 0, 1.0, 2.0, 1.0)


def test_the_file_is_what_the_committed_runs_yield(tmp_path):
    """``python -m tools.model_errors`` writes it anew after a change of the model."""
    model_errors.write(model_errors.beside(), tmp_path / "epochs.csv")
    assert (tmp_path / "epochs.csv").read_text() == errors.FILE.read_text()


def test_the_notes_hold_the_table_as_it_comes_out():
    notes = NOTES.read_text(encoding="utf-8")
    assert "\n".join(model_errors.table(measured_beside())) in notes
    assert f"less than a factor of {errors.told_apart():.2f}" in notes


def test_the_table_by_hand():
    """Twice and half as long as measured: +100 and −50 %, a root mean square of 79 %."""
    two = (ONE, replace(ONE, variant="b", modelled_s=0.5))
    lines = model_errors.table(two)
    assert lines[0] == "| modelled / measured − 1, % | w (run-1) |"
    assert lines[2:4] == ["| zero a | +100 |", "| zero b | −50 |"]
    assert "| by steps (`gpu.issue`) | 79.1 % | −50 % | +100 % | 0 of 2 |" in lines
    assert "| by a chain of kernels | 0.0 % | +0 % | +0 % | 2 of 2 |" in lines


def test_nine_in_ten_epochs_come_within_15_percent():
    """Of a machine whose calibration was taken beside the runs; with a chain's issuing, half."""
    every = measured_beside()
    near = [sum(abs(o.error) <= 0.15 for o in every)]
    near += [sum(abs(o.chained_s / o.measured_s - 1) <= 0.15 for o in every)]
    assert (len(every), near) == (50, [46, 25])


def test_an_error_is_modelled_over_measured_less_one():
    assert ONE.error == 1.0


def test_errors_of_a_path_are_those_of_its_name_and_lookahead(monkeypatch):
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


def test_the_table_is_put_in_the_place_of_the_one_before(tmp_path, monkeypatch):
    notes = tmp_path / "NOTES.md"
    before, after = ("\n".join(model_errors.table([one])) for one in (replace(ONE, run="1-b"), ONE))
    notes.write_text(f"above\n\n{before}\n\nbelow\n")
    monkeypatch.setattr(model_errors, "NOTES", notes)
    monkeypatch.setattr(model_errors, "beside", lambda results: iter([ONE]))
    monkeypatch.setattr(model_errors, "write", lambda found: None)
    model_errors.main(tmp_path)
    assert notes.read_text() == f"above\n\n{after}\n\nbelow\n"


def test_a_run_whose_profile_is_not_shipped_is_left_out(monkeypatch):
    monkeypatch.setattr(model_errors, "profile_names", lambda: [])
    assert list(model_errors.beside()) == []
