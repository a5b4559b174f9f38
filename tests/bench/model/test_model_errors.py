"""Epochs that were measured on a GPU beside the model: the file is what comes out, what follows
from it, and what the epochs tell of the training loop."""

import math
from dataclasses import replace

import pytest

from gatherbench.bench.model import errors
from gatherbench.bench.model.errors import Beside, error_of, measured_beside, ratio_errors
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.bench.model.profile import LinkProfile, load_profile
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.training_cost import TrainingCost
from tools import model_errors, training_loop
from tools.model_errors import between_processes
from tools.training_loop import Epoch, fitted

NOTES = errors.FILE.with_name("NOTES.md")
#: Without the run itself; with its training as measured.
_WAYS = ("other_runs_s", "trained_s")
ONE = Beside("box", "20261123-run-1", "w", "zero", "a", 0, 1.0, 2.0, 1.5, 1.0, 1.0, 1.0)


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    (found,) = model_errors.gpu_runs(model_errors.RESULTS).values()
    return found


@pytest.fixture(scope="module")
def shipped() -> LinkProfile:
    return load_profile("nvidia-h200")


def test_the_file_is_what_the_committed_runs_yield(tmp_path, runs, shipped):
    """``python -m tools.model_errors`` writes it anew after a change of the model."""
    model_errors.write(model_errors.beside_of(runs, shipped), tmp_path / "epochs.csv")
    assert (tmp_path / "epochs.csv").read_text() == errors.FILE.read_text()
    assert len(measured_beside()) == 82


def test_the_profile_holds_what_the_committed_runs_tell_of_the_loop(runs, shipped):
    assert fitted(list(training_loop.epochs_of(runs, shipped)), shipped) == shipped
    for key, series in (("loop.issue", 22), ("loop.submit", 64), ("loop.gather", 6)):
        assert f"median of {series} series of epochs on nvidia-h200" in shipped[key].source


def test_the_notes_hold_the_table_as_it_comes_out():
    notes = NOTES.read_text(encoding="utf-8")
    assert "\n".join(model_errors.table(measured_beside())) in notes
    assert f"less than a factor of {errors.told_apart():.2f}" in notes
    assert f"itself differed by {100 * between_processes(measured_beside()):.0f} %" in notes


def test_the_table_by_hand():
    """Twice and half as long as measured: +100 and −50 %, a root mean square of 79 %."""
    two = (ONE, replace(ONE, variant="b", modelled_s=0.5))
    lines = model_errors.table(two)
    assert lines[0] == "| modelled / measured − 1, % | w (run-1) |"
    assert lines[2:4] == ["| zero a | +0 → +100 |", "| zero b | +0 → −50 |"]
    assert "| with `[loop]` | 79.1 % | −50 % | +100 % | 0 of 2 |" in lines
    assert "| as timed alone | 0.0 % | +0 % | +0 % | 2 of 2 |" in lines


def test_it_is_worse_of_machines_than_of_paths_that_it_did_not_see():
    """Root mean square 22 % with all, 30 without a run, 24 without a path; 45 as timed alone."""

    def rms(name: str) -> float:
        off = [replace(o, modelled_s=getattr(o, name)).error for o in measured_beside()]
        return math.sqrt(sum(e * e for e in off) / len(off))

    assert rms("modelled_s") == pytest.approx(0.221, abs=0.005)
    assert 1.3 * rms("modelled_s") < rms("other_runs_s") < 1.4 * rms("modelled_s")
    assert rms("other_paths_s") < 1.1 * rms("modelled_s")
    assert rms("alone_s") > 2 * rms("modelled_s")
    third = [one for one in measured_beside() if one.run.endswith("fbf04e")]
    near = [sum(abs(getattr(o, n) / o.measured_s - 1) <= 0.15 for o in third) for n in _WAYS]
    assert (len(third), near) == (42, [10, 34])


def test_processes_of_one_path_differ_by_their_standard_deviation():
    """Logarithms 0 and 1 apart: a variance of 0.5; what ran once tells nothing."""
    again = replace(ONE, run="20261123-run-2", measured_s=math.e)
    assert between_processes([ONE, again, replace(ONE, variant="b")]) == pytest.approx(0.5**0.5)
    assert between_processes(measured_beside()) == pytest.approx(0.266, abs=0.001)


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


def epoch(fetch_ms: float, train_ms: float, **load: float) -> Epoch:
    """50 operations a step; 1 MB rows."""
    asked = MinibatchLoad(1e6, training=TrainingCost(0, 0, 50, 0), gpu_table_bytes=1e6)
    return Epoch("run", ("w", "s", "v"), replace(asked, **load), fetch_ms / 1e3, train_ms / 1e3)  # type: ignore[arg-type]


def test_the_loops_constants_by_hand(shipped):
    """Rows that lie ready tell 2 and 4 ms of issuing, 1 and 3 ms of starting: 60 µs and 2 ms.

    A gather takes 10 ms, of which 2 start it, 0.5 are its rate's, and some its copy's; beside one
    a step takes 4.5 ms in place of 3.
    """
    by_cpu = {"cpu_write_bytes": 1e6, "cpu_read_bytes": 1e6, "copy_engine_bytes": 1e6}
    staged = {**by_cpu, "pageable_bytes": 1e6}
    machine = shipped.with_constant("host.cores", 1.0, "x")
    machine = machine.with_constant("host.gather_rate", 2e9, "x")
    machine = machine.with_constant("host.memory_rate", 1e13, "x")
    machine = machine.with_constant("copy.to_device", 1e9, "x")
    ready = [epoch(1, 2), epoch(3, 4, lookahead=1, gpu_link_read_bytes=1e6)]
    read = epoch(50, 60, gpu_link_read_bytes=1e6)  # waits for its rows: tells nothing of the host
    gathers = [
        epoch(10, 3, **by_cpu),
        epoch(99, 99, **staged),
        epoch(0, 4.5, lookahead=1, **by_cpu),
    ]
    found = fitted([*ready, read, *gathers], machine)
    assert found["loop.issue"].value == pytest.approx(60e-6)
    assert found["loop.submit"].value == pytest.approx(2e-3)
    assert found["loop.gather"].value == pytest.approx(6.5e-3, rel=0.01)
    assert found["loop.beside_gather"].value == pytest.approx(0.5)
    # Where the host's own clock was read it counts: of starting a fetch that is waited for, too.
    clocked = [
        replace(read, start_s=5e-3, issue_s=9e-3),
        replace(ready[0], start_s=5e-3, issue_s=4e-3),
    ]
    told = fitted([*clocked, *(replace(g, start_s=1.0, issue_s=1.0) for g in gathers)], machine)
    assert told["loop.issue"].value == pytest.approx(80e-6)
    assert told["loop.submit"].value == pytest.approx(5e-3)
    slower = fitted([*ready, epoch(0, 30, lookahead=1, **by_cpu)], machine)
    assert slower["loop.beside_gather"].value == 1.0, "no more than all of the thread"
    assert slower["loop.gather"].value is None
    assert fitted([read], machine)["loop.issue"].values == ()
