"""What is measured and in which turn, the table that it leaves, and what a machine is asked."""

import dataclasses
import subprocess
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatherbench.bench.machine import gpus
from gatherbench.bench.probe import cases, machine, stand
from gatherbench.bench.probe.cases import GIB, MIB, SPANS
from gatherbench.bench.probe.stand import (
    Observation,
    PointFile,
    ProbeError,
    RefusedError,
    ends_within,
    row_of,
    visit,
)
from gatherbench.bench.read.points import Point, PointRow, is_point_table, read_points
from gatherbench.kernels import cuda_calls


@pytest.mark.parametrize(
    ("cores", "threads"), [(1, (1,)), (3, (1, 2, 3)), (4, (1, 2, 4)), (24, (1, 2, 4, 8, 16, 24))]
)
def test_calibrated_points_are_distinct_and_some_are_held_out(cores, threads):
    assert cases.thread_counts(cores) == threads
    points = [*cases.host_points(cores, 9), *cases.gpu_points([MIB, 2 * MIB, 4 * MIB], cores)]
    assert len(set(points)) == len(points)
    held = [p for p in points if p.held_out]
    plain = {dataclasses.replace(p, held_out=False) for p in held}
    assert not plain & {p for p in points if not p.held_out}
    assert {p.case for p in held} == {"host_gather", "gpu_gather", "sm_read"}


def test_spans_that_do_not_fit_are_left_out():
    assert cases.fitting(SPANS, 128 * GIB) == SPANS
    assert cases.fitting(SPANS, 20 * GIB) == (GIB, 8 * GIB)
    assert cases.fitting(SPANS, 0) == ()


POINTS = [Point("sm_read", grid_percent=blocks) for blocks in range(1, 30)]
ONE = Observation(1, 1.0, "none")


def test_rounds_take_turns_in_an_order_drawn_anew_until_the_time_is_spent():
    seen: list[Point] = []
    kept: list[PointRow] = []

    def measure(point: Point) -> Observation:
        seen.append(point)
        return ONE

    size = len(POINTS)
    whole = visit(
        POINTS, measure, kept.append, out_of_time=lambda: len(seen) >= 3 * size + 5, warm_up=POINTS
    )
    assert whole == 2
    assert seen[:size] == POINTS  # the warm-up, of which no row is kept
    assert len(kept) == 2 * size + 5
    assert Counter(row.round for row in kept) == {1: size, 2: size, 3: 5}
    assert set(seen[size : 2 * size]) == set(seen[2 * size : 3 * size]) == set(POINTS)
    assert seen[size : 2 * size] != seen[2 * size : 3 * size]
    again = list(seen)
    seen.clear()
    visit(POINTS, measure, kept.append, out_of_time=lambda: len(seen) >= 2 * size, warm_up=POINTS)
    assert seen == again[: 2 * size], "the same turns"


def test_rounds_end_when_there_are_enough_and_not_before_the_least():
    for least, most, spent, rounds in ((0, 3, False, 3), (2, 0, True, 2), (0, 0, True, 0)):
        kept: list[PointRow] = []
        whole = visit(
            POINTS,
            lambda point: ONE,
            kept.append,
            out_of_time=lambda spent=spent: spent,  # type: ignore[misc]
            least_rounds=least,
            most_rounds=most,
        )
        assert (whole, len(kept)) == (rounds, rounds * len(POINTS))


def test_a_refused_point_is_one_row_with_the_reason_and_an_error_names_its_point():
    def measure(point: Point) -> Observation:
        if point.grid_percent < 3:
            raise RefusedError("not here")
        return ONE

    kept: list[PointRow] = []
    visit(POINTS, measure, kept.append, out_of_time=lambda: False, most_rounds=4)
    refused = [row for row in kept if row.reason]
    assert {row.point.grid_percent for row in refused} == {1, 2}
    assert len(refused) == 2
    assert len(kept) == 4 * (len(POINTS) - 2) + 2
    assert visit(POINTS[:2], measure, kept.append, out_of_time=lambda: False) == 1  # none is left

    def fail(point: Point) -> Observation:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError) as failed:
        visit(POINTS, fail, kept.append, out_of_time=lambda: False)
    assert failed.value.__notes__[0].startswith("while measuring Point(case='sm_read'")


def test_rows_are_on_disk_at_once_and_come_back(tmp_path):
    path = tmp_path / "rows.csv"
    with PointFile(path) as file:
        file.add(row_of(Point("round_trip", span_bytes=GIB), 3, 10, 2.0, "clock"))
        assert len(path.read_text().splitlines()) == 2
    with PointFile(path) as file:  # another process goes on
        file.add(row_of(Point("counted_bytes", 64, policy="dgl", held_out=True), reason="no, none"))
    assert is_point_table(path)
    first, second = read_points(path).itertuples()
    assert (first.case, first.round, first.amount, first.unit) == ("round_trip", 3, 10, "1")
    assert (first.time_s, first.source, first.reason, first.held_out) == (2, "clock", "", False)
    assert (second.unit, second.reason, second.policy, second.order) == ("B", "no, none", "dgl", "")
    assert second.held_out
    assert second.amount != second.amount  # NaN: there is none
    none = read_points(None)
    assert len(none) == 0
    assert none.dtypes.to_dict() == read_points(path).dtypes.to_dict()


def test_a_full_disk_says_where_to_go():
    with (
        pytest.raises(ProbeError, match=r"/dev/full: .*No space left.*--out"),
        PointFile(Path("/dev/full")) as file,
    ):
        file.add(row_of(Point("gpu_copy"), 3, 10, 2.0, "clock"))


HANGS = """
from gatherbench.bench.probe.stand import ends_within

def driver_call():
    {hang}

with ends_within({seconds}):
    driver_call()
"""


@pytest.mark.parametrize(
    ("hang", "seconds", "said"),
    [
        ("import threading; threading.Event().wait()", 0.3, "in driver_call"),
        ("import ctypes; ctypes.PyDLL(None).sleep(50)", 0.3, "in driver_call"),  # keeps the lock
        ("import threading; threading.Event().wait()", -1.0, "Timeout"),
    ],
)
def test_a_driver_that_answers_no_more_ends_the_process_which_says_where(hang, seconds, said):
    command = [sys.executable, "-c", HANGS.format(hang=hang, seconds=seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert said in done.stderr


def test_what_ends_in_time_is_left_alone(monkeypatch):
    """The watchdog is called off, whatever ends the block."""
    told: list[object] = []
    watchdog = SimpleNamespace(
        dump_traceback_later=lambda seconds, **_: told.append(seconds),
        cancel_dump_traceback_later=lambda: told.append("off"),
    )
    monkeypatch.setattr(stand, "faulthandler", watchdog)
    with pytest.raises(KeyError), ends_within(0.2):
        raise KeyError
    assert told == [0.2, "off"]


BARE = """
import sys
for missing in {missing!r}:
    sys.modules[missing] = None
import tools.gpu.micro, gatherbench.bench.probe.gpu, tools.gpu.overlap
import tools.gpu.counters, tools.gpu.peer
import gatherbench.strategies.conformance, gatherbench.strategies.registry
for missing in ("typer", "platformdirs", "ogb", "torch_geometric"):
    sys.modules[missing] = None
for there in ("pydantic", "rich", "pandas", "pyarrow", "scipy"):
    sys.modules.pop(there, None)
from gatherbench.bench.probe import calibrate
sys.exit(calibrate.main(["--device", "cuda", "--out", {out!r}]))
"""


def test_bare_machines_can_measure_and_calibrate(tmp_path):
    """GPU machines may lack what the rest of the project needs; here there is no GPU to go on."""
    missing = ("pydantic", "platformdirs", "ogb", "typer", "rich", "pandas", "pyarrow", "scipy")
    code = BARE.format(missing=missing, out=str(tmp_path))
    command = ["env", "CUDA_VISIBLE_DEVICES=", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "sees no CUDA GPU" in done.stderr


def test_the_machine_is_told_with_the_code_that_ran_on_it(cuda, monkeypatch):
    told = machine.describe()
    assert told["commit"]
    assert told["gpu"] == "a stand-in"
    assert datetime.fromisoformat(told["began"]).tzinfo
    assert bool(told["gpus"]) == (told["no_gpu"] is None)
    monkeypatch.setenv("GATHERBENCH_COMMIT", "0123456789ab")
    monkeypatch.setitem(sys.modules, "gatherbench.bench.machine.gpus", None)
    bare = machine.describe()
    assert (bare["commit"], bare["gpus"], bare["gpu"]) == ("0123456789ab", [], "a stand-in")
    assert "gpus" in bare["no_gpu"]


def config_space(*capabilities: tuple[int, int, int], size: int = 256) -> bytes:
    """PCI configuration with (place, id, Device Control) for each capability, linked in order."""
    space = bytearray(size)
    space[0x34] = capabilities[0][0]
    following = [place for place, *_ in capabilities[1:]] + [0]
    for (place, kind, control), after in zip(capabilities, following, strict=True):
        space[place : place + 2] = kind, after
        space[place + 8] = control
    return bytes(space)


LOOP = bytearray(config_space((0x40, 0x01, 0)))
LOOP[0x41] = 0x40


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (config_space((0x40, 0x01, 0), (0x60, 0x10, 1 << 5)), 256),
        (config_space((0x60, 0x10, 2 << 5 | 0x1F)), 512),
        (config_space((0x40, 0x01, 0)), None),
        (config_space((0x40, 0x01, 0), (0x60, 0x10, 1 << 5))[:64], None),
        (bytes(LOOP), None),
        (b"", None),
        (None, None),
    ],
)
def test_the_payload_is_read_from_the_configuration(tmp_path, space, expected):
    if space is not None:
        (tmp_path / "config").write_bytes(space)
    assert machine.max_payload(tmp_path / "config") == expected


def test_a_machine_with_a_gpu_is_asked(monkeypatch, tmp_path):
    folder = tmp_path / "0000:1b:00.0"
    folder.mkdir()
    (folder / "config").write_bytes(config_space((0x60, 0x10, 1 << 5)))
    gpu = SimpleNamespace(name="NVIDIA H200", total_memory=150 << 30, uuid="1234")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(machine, "PCI_DEVICES", tmp_path)
    idle, awake = ({"link_gen_current": gen, "link_width_current": 16} for gen in (1, 5))
    told: dict[str, Any] = {"gpus": [awake, idle], "gpu_in_use": "this one"}
    monkeypatch.setattr(gpus, "describe_gpus", lambda: told)
    bus = b"0000:1B:00.0".ljust(32, b"\0")
    monkeypatch.setattr(cuda_calls, "call_runtime", lambda *call: bus)
    facts = machine.ask_gpu(torch.device("cuda", 0))
    assert (facts.slug, facts.gpus, facts.gpu_memory_bytes) == ("nvidia-h200", 2, 150 << 30)
    assert (facts.link_generation, facts.link_lanes, facts.max_payload) == (5, 16, 256)
    told["gpu_in_use"] = None  # which of them it is, nobody says
    assert machine.ask_gpu(torch.device("cuda", 0)).link_generation is None
    told["gpus"] = [awake]
    assert machine.ask_gpu(torch.device("cuda", 0)).link_generation == 5

    def refused(*call: object) -> None:
        raise cuda_calls.CudaCallError("cudaDeviceGetPCIBusId", "cudaErrorNotSupported", "no")

    told["gpus"] = []
    monkeypatch.setattr(cuda_calls, "call_runtime", refused)
    facts = machine.ask_gpu(torch.device("cuda", 0))
    assert (facts.link_generation, facts.link_lanes, facts.max_payload) == (None, None, None)


def test_this_host_can_be_asked():
    facts = machine.ask_host()
    assert facts.slug.startswith("cpu-")
    assert facts.cores >= 1
    assert not facts.gpus
