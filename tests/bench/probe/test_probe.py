"""A probe as a whole: its files, budget, refusals, profile, table and picture; and its rig."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from typer.testing import CliRunner

from gatherbench.bench.cli import app
from gatherbench.bench.model.profile import LinkProfile, load_profile
from gatherbench.bench.probe import probe as probing
from gatherbench.bench.probe import rig
from gatherbench.bench.probe import table as table_module
from gatherbench.bench.probe.case import NEEDS, Scope, every_case
from gatherbench.bench.probe.points import (
    COLUMNS,
    Point,
    ProbeError,
    append_row,
    is_point_table,
    read_points,
)
from gatherbench.bench.probe.probe import probe, visit
from gatherbench.bench.probe.profile import BY_HAND, profile_of
from gatherbench.bench.probe.rig import GIB, MIB, Observation, RefusedError, Rig, filled_table
from gatherbench.bench.probe.table import draw, medians, table
from gatherbench.reason import unsupported
from tools.gpu_results import summary_line

CASES = every_case()
#: Two cores, with a GPU and without.
FACTS: dict[str, Any] = {
    "machine": "a-gpu", "cpu": "a processor", "cores": 2, "host_memory_bytes": 64 * GIB,
    "gpus": 1, "gpu": "A GPU", "gpu_memory_bytes": 24 * GIB, "link_generation": 4, "link_lanes": 16,
}  # fmt: skip
HOST = {**FACTS, "machine": "a-host", "gpus": 0, "gpu": "", "link_lanes": None}


def rows(*of: tuple[Point, float], rounds: int = 3) -> pd.DataFrame:
    """Three rounds of each: at that rate, 10 % slower and 10 % faster."""
    factors = (1.0, 0.9, 1.1)[:rounds]
    records: list[dict[str, Any]] = []
    for point, rate in of:
        for number, factor in enumerate(factors, 1):
            fields = {name: getattr(point, name) for name in COLUMNS if hasattr(point, name)}
            seen = {"round": number, "amount": rate * factor, "unit": "B", "time_s": 1.0}
            records.append({**fields, **seen, "source": "made up", "reason": ""})
    return pd.DataFrame(records, columns=list(COLUMNS))


def gathers(case: str, width: int, *rates: float) -> list[tuple[Point, float]]:
    """Over 1, 2, … GiB."""
    policy = {"policy": "aligned", "order": "given"} if case != "host_gather" else {"threads": 2}
    return [(Point(case, width, n * GIB, **policy), r) for n, r in enumerate(rates, 1)]


SEEN = [
    *gathers("gpu_gather", 64, 8e9, 2e9),
    *gathers("gpu_gather", 512, 40e9, 16e9),
    *gathers("managed_gather", 64, 32e9),
    *gathers("managed_gather", 512, 50e9),
    *gathers("host_gather", 64, 5e9, 4e9),
    *gathers("host_gather", 512, 9e9, 8e9),
    (Point("host_gather", 512, 2 * GIB, 1), 5e9),
    (Point("gpu_gather", 512, 2 * GIB, policy="dgl", order="sorted"), 99e9),
    (Point("sm_read", 0, GIB, grid_percent=10), 20e9),
    (Point("sm_read", 0, GIB, grid_percent=400), 51e9),
    (Point("copy_to_device"), 55e9),
    (Point("copy_pageable"), 3e9),
    (Point("gpu_matmul"), 5e13),
    (Point("gpu_issue"), 2e5),
    (Point("gpu_draw"), 5e3),
    (Point("gpu_submit"), 2.5e4),
    (Point("host_sample", threads=2), 3e7),
    (Point("host_copy", 0, GIB, 2), 10e9),
    (Point("host_copy", 0, GIB, 1), 6e9),
    (Point("gpu_copy"), 2e12),
    (Point("gpu_launch"), 1e5),
]


def test_the_table_has_medians_quartiles_and_reasons():
    """By hand: 5 in 0.5 s, 9 in 1 s and 40 in 2 s are 10, 9 and 20 a second, their quartiles 9.5
    and 15."""
    taken = rows((Point("gpu_copy"), 10.0)).assign(amount=[5.0, 9, 40], time_s=[0.5, 1, 2])
    refused = taken.iloc[:1].assign(case="gpu_gather", amount=None, time_s=None, reason="no")
    known = medians(pd.concat([taken, refused.astype({"amount": float, "time_s": float})]))
    one, other = known.to_dict("records")
    assert (one["rounds"], one["median_per_s"]) == (3, 10)
    assert (one["low_per_s"], one["high_per_s"]) == (9.5, 15)
    assert (other["rounds"], other["reason"], other["case"]) == (0, "no", "gpu_gather")


def test_a_machine_is_a_line_and_the_best_of_ours_stands_for_it():
    columns = table(medians(rows(*SEEN))).columns
    assert [column.header for column in columns] == ["case", "", "rate", "1 GiB", "2 GiB"]
    line = summary_line(medians(rows(*SEEN)))
    assert line == {
        "table": "1 GiB",  # of which both kinds of memory are known
        "registered": "8.0 / 40.0", "managed": "32.0 / 50.0", "CPU": "4.0 / 8.0",
        "copy engine": "55.0", "contiguous read by the GPU": "51.0", "memcpy": "10.0",
    }  # fmt: skip
    of_host = summary_line(medians(rows(*gathers("host_gather", 64, 5e9))))
    assert (of_host["table"], of_host["CPU"], of_host["registered"]) == ("–", "5.0 / –", "– / –")


def test_the_picture_has_what_is_known(tmp_path, monkeypatch):
    drawn: list[Figure] = []
    with monkeypatch.context() as open_still:
        open_still.setattr(table_module.plt, "close", drawn.append)
        draw(medians(rows(*SEEN)), "a title", tmp_path / "one.png")
    lines = {str(one.get_label()): [*one.get_ydata()] for one in drawn[0].axes[1].get_lines()}
    table_module.plt.close(drawn[0])
    assert lines["registered memory, read by the GPU"] == pytest.approx([40, 16])  # of 512 B
    assert lines["copy engine"] == pytest.approx([55, 55])  # GB/s
    draw(medians(rows((Point("gpu_copy"), 1.0))), "none of it", tmp_path / "two.png")
    for name in ("one", "two"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_profile_has_the_medians_by_hand():
    known = medians(rows(*SEEN))
    profile = profile_of(known, FACTS)
    expected: dict[str, Any] = {
        "copy.to_device": 55e9,
        "copy.pageable": 3e9,
        "gpu.flops": 5e13,
        "gpu.issue": 5e-6,
        "gpu.draw": 2e-4,
        "gpu.submit": 4e-5,
        "host.sample_rate": 3e7,
        "link.header": 12,
        "link.framing": 8,
        "gpu.memory_rate": 4e12,  # read and written
        "gpu.launch": 1e-5,
        "link.raw_rate": 31.508e9,
        "host.memory_rate": 20e9,  # 10 copied are 20
        "gpu.memory": float(f"{24 * GIB:.5g}"),
    }
    assert {key: profile[key].value for key in expected} == pytest.approx(expected, rel=1e-4)
    assert profile["read.page_visits"].value == ((GIB, 8e9 / 64), (2 * GIB, 2e9 / 64))
    assert profile["read.managed_page_visits"].value == ((GIB, 5e8),)
    assert profile["read.roof"].value == ((GIB, 51e9),)  # of the best grid
    assert profile["host.gather_rate"].value == ((64, 2e9), (512, 4e9))  # of two cores
    source = profile["copy.to_device"].source
    assert (
        source == "measured by gatherbench probe, 3 samples, quartiles -5.0% and +5.0%; a gibibyte"
    )
    for key in BY_HAND:
        assert profile[key].value is None
        assert profile[key].source == BY_HAND[key]


def test_a_profile_says_what_is_not_known_or_not_believed(tmp_path):
    known = medians(rows((Point("copy_to_device"), 1.0)))
    profile = profile_of(known, FACTS)
    assert profile["copy.to_device"].source.startswith("not believed: ")
    assert profile["gpu.flops"].source == "not measured"
    alone = profile_of(medians(rows(*gathers("host_gather", 64, 5e9))), HOST)
    assert alone.unknown()["link.raw_rate"] == "no_device: measured without a GPU"
    (tmp_path / "own.toml").write_text(alone.to_toml())
    assert load_profile(tmp_path / "own.toml") == alone


@pytest.mark.parametrize(
    ("generation", "lanes", "rate"),
    [
        (5, 16, 63.015e9),  # 32 GT/s × 128 / 130 × 16 / 8
        (6, 16, None),  # sends no single packets, as the model's headers have it
        (5, 3, None),  # no such width is sold
        (None, 16, None),
    ],
)
def test_a_profile_states_the_raw_rate_of_links_that_send_packets(generation, lanes, rate):
    facts = {**FACTS, "link_generation": generation, "link_lanes": lanes}
    link = profile_of(medians(rows((Point("copy_to_device"), 55e9))), facts)["link.raw_rate"]
    assert link.value == (rate if rate is None else pytest.approx(rate, rel=1e-4))


# ---- the rounds -------------------------------------------------------------------------------

POINTS = [Point("sm_read", grid_percent=blocks) for blocks in range(1, 30)]
ONE = Observation(1, 1.0, "none")


class Rows(list[tuple[Point, int, str]]):
    """The rows that a visit adds: point, round, reason."""

    def add(self, point: Point, number: int, reason: str = "", **seen: object) -> None:
        assert seen == ({} if reason else ONE._asdict())
        self.append((point, number, reason))


def test_rounds_take_turns_in_an_order_drawn_anew_until_the_time_is_spent():
    seen: list[Point] = []
    added = Rows()

    def measure(point: Point) -> Observation:
        seen.append(point)
        return ONE

    size = len(POINTS)
    spent = lambda: len(seen) >= 3 * size + 5  # noqa: E731
    assert visit(POINTS, measure, added.add, out_of_time=spent) == 2
    assert seen[:size] == POINTS  # the warm-up, which adds no row
    assert len(added) == 2 * size + 5
    assert Counter(number for _, number, _ in added) == {1: size, 2: size, 3: 5}
    assert set(seen[size : 2 * size]) == set(seen[2 * size : 3 * size]) == set(POINTS)
    assert seen[size : 2 * size] != seen[2 * size : 3 * size]
    again = list(seen)
    seen.clear()
    visit(POINTS, measure, added.add, out_of_time=spent)
    assert seen == again, "the same turns"


@pytest.mark.parametrize(("spent", "fewest", "rounds"), [(False, 1, 3), (True, 1, 1), (True, 2, 2)])
def test_rounds_end_when_there_are_enough_and_the_fewest_are_whole(
    spent, fewest, rounds, monkeypatch
):
    monkeypatch.setattr(probing, "MOST_ROUNDS", 3)
    added = Rows()
    whole = visit(POINTS, lambda _: ONE, added.add, out_of_time=lambda: spent, fewest=fewest)
    assert (whole, len(added)) == (rounds, rounds * len(POINTS))


def test_a_refused_point_is_told_once_with_the_reason_and_an_error_names_its_point(monkeypatch):
    def measure(point: Point) -> Observation:
        if point.grid_percent < 3:
            raise RefusedError("not here")
        return ONE

    def never() -> bool:
        return False

    monkeypatch.setattr(probing, "MOST_ROUNDS", 4)
    added = Rows()
    visit(POINTS, measure, added.add, out_of_time=never)
    refused = [row[0].grid_percent for row in added if row[1:] == (0, "not here")]
    assert refused == [1, 2]
    assert len(added) == 4 * (len(POINTS) - 2) + 2
    assert visit(POINTS[:2], measure, added.add, out_of_time=never) == 0

    def fail(point: Point) -> Observation:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError) as failed:
        visit(POINTS, fail, added.add, out_of_time=never)
    assert failed.value.__notes__[0].startswith("while measuring Point(case='sm_read'")


# ---- a whole one ------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds, however long a busy machine takes for them."""
    monkeypatch.setattr(probing, "MOST_ROUNDS", 3)
    monkeypatch.setattr(probing, "BUDGET_S", 3000)


def test_a_minute_of_a_host(small, quick, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said: list[str] = []
    done = probe(tmp_path / "new", say=said.append)
    assert {p.name for p in done.folder.iterdir()} == {"rows.csv", "probe.csv", "probe.png"}
    taken = read_points(done.folder / "rows.csv")
    assert set(taken["case"]) == {"host_copy", "host_gather"}
    assert done.rounds == 3
    assert (done.medians["rounds"][done.medians["reason"] == ""] == 3).all()
    file = pd.read_csv(done.folder / "probe.csv")
    assert set(file["machine"]) == {done.facts["machine"]}
    with pytest.raises(ProbeError, match="exists already: choose another folder"):
        probe(tmp_path / "new")


def test_a_minute_and_a_profile_of_a_gpu(cuda, quick, tmp_path):
    done = probe(tmp_path / "one")
    limits = {"copy_to_device", "sm_read", "gpu_gather", "managed_gather", "host_gather"}
    assert limits <= set(done.medians["case"])
    assert done.facts["gpu"] == "a stand-in"
    whole = probe(tmp_path / "two", scope=Scope.PROFILE)
    wanted = {one.name for one in CASES.values() if one.scope <= Scope.PROFILE}
    assert set(whole.medians["case"]) == wanted
    profile = profile_of(whole.medians, whole.facts)
    for key in ("read.roof", "gpu.launch", "copy.pageable", "read.page_visits", "gpu.issue"):
        # A host that plays a GPU may be outside of what a GPU can be: then it is not believed.
        assert profile[key].value is not None or "not believed" in profile[key].source, key


def test_named_cases_alone_are_measured_and_what_they_lack_is_a_row(cuda, tmp_path, monkeypatch):
    monkeypatch.setattr(probing, "MOST_ROUNDS", 2)
    monkeypatch.setitem(NEEDS, "managed", lambda: unsupported("no such memory", "another driver"))
    done = probe(tmp_path, names=["managed_gather", "gpu_copy"])
    known = done.medians.set_index("case")
    assert known.loc["managed_gather", "reason"] == "unsupported: no such memory; another driver"
    assert known.loc["gpu_copy", "rounds"] == 2
    with pytest.raises(ProbeError, match=r"no case is called 'gpu_copi'.*gpu_copy"):
        probe(tmp_path / "x", names=["gpu_copi"])


@pytest.mark.parametrize(("busy", "noted"), [(0.05, False), (1.5, True), (None, False)])
def test_other_work_is_noted(small, tmp_path, monkeypatch, busy, noted):
    monkeypatch.setattr(probing.OtherWork, "cores", lambda _: busy)
    monkeypatch.setattr(probing, "MOST_ROUNDS", 1)
    done = probe(tmp_path, names=["host_copy"])
    assert ("kept 1.5 cores busy" in done.title) is noted


def told(*arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, [*arguments])
    assert done.exit_code == status, done.output
    return " ".join(done.output.split())


def test_the_command_lists_measures_and_writes_a_profile(small, quick, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    listed = " ".join(told("probe", "--list").replace("│", " ").split())
    assert "gpu_matmul --profile lacks gpu" in listed
    assert "host_gather probe ok" in listed
    said = told("probe", "--profile", "own/one.toml")
    assert "only the host was measured" in said
    assert "It has no constants of a GPU and its link" in said
    assert "host_gather" in said
    profile: LinkProfile = load_profile(tmp_path / "own/one.toml")
    assert profile["host.sample_rate"].value
    assert profile["gpu.submit"].source == "no_device: measured without a GPU"
    told("probe", "--profile", "folder", "--out", "other")
    assert [path.name for path in Path("folder").iterdir()] == [f"{profile.name}.toml"]
    assert [path.name for path in Path("probe").iterdir()] != []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cases", "sm_reed"], "no case is called 'sm_reed'"),
        (["--profile", "one.csv"], "name a folder, or a file that ends in .toml"),
        (["--profile", "one.toml", "--cases", "sm_read"], "leave --cases out"),
        (["--out", "/dev/null/x"], "choose a folder with --out"),
    ],
)
def test_what_cannot_be_is_one_line(arguments, said, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert said in told("probe", *arguments, status=2)


@pytest.mark.parametrize("kind", [MemoryError, RuntimeError])
def test_what_stops_a_probe_is_an_error_and_no_traceback(kind, small, tmp_path, monkeypatch):
    def stops(rig: object, point: Point) -> Observation:
        raise kind("CUDA error: illegal [memory] access")

    one = dataclasses.replace(CASES["host_copy"], run=stops)
    monkeypatch.setattr(probing, "every_case", lambda: {"host_copy": one})
    text = told("probe", "--out", str(tmp_path / "x"), status=1)
    assert "error: CUDA error: illegal [memory] access" in text


# ---- the rig -------------------------------------------------------------------------------------


def test_rows_are_on_disk_at_once_and_come_back(tmp_path):
    path = tmp_path / "rows.csv"
    seen = {"round": 3, "amount": 10, "unit": "1", "time_s": 2.0, "source": "clock"}
    append_row(path, Point("round_trip", span_bytes=GIB), **seen)
    assert len(path.read_text().splitlines()) == 2
    held_out = Point("gpu_gather", 64, policy="dgl", held_out=True)
    append_row(path, held_out, round=0, amount=None, unit="B", reason="no, none")
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
    with pytest.raises(ProbeError, match=r"/dev/full: .*No space left.*--out"):
        append_row(Path("/dev/full"), Point("gpu_copy"), round=3)


def test_what_is_made_once_is_closed_with_the_rig_and_a_refusal_is_not_tried_again():
    made: list[str] = []

    class Held:
        def __init__(self, name: str) -> None:
            made.append(name)

        def close(self) -> None:
            made.append("closed")

    def refuse() -> None:
        made.append("refused")
        raise RefusedError("not here")

    with Rig() as one:
        assert one.once(Held, "a") is one.once(Held, "a")
        for _ in range(2):
            with pytest.raises(RefusedError, match="not here"):
                one.once(refuse)
    assert made == ["a", "refused", "closed"]


def test_the_hosts_table_is_as_large_as_a_quarter_of_the_free_memory(monkeypatch):
    sizes: list[int] = []
    monkeypatch.setattr(rig, "filled_table", lambda size: sizes.append(size) or torch.empty(0))
    for free in (64 * GIB, 5 * GIB, GIB):
        monkeypatch.setattr(rig, "available_bytes", lambda free=free: free)
        assert Rig().table.numel() == 0
    assert sizes == [2 * GIB, GIB, 256 * MIB]
    monkeypatch.setattr(rig, "available_bytes", lambda: 900 * MIB)
    with pytest.raises(RefusedError, match=r"no_memory: 0.9 GiB are free.*close other programs"):
        Rig().table  # noqa: B018


def test_every_eight_bytes_of_a_table_differ():
    words = filled_table(8 * 10_001).view(torch.int64)
    assert len(words.unique()) == 10_001


def test_a_machine_with_a_gpu_is_asked(monkeypatch):
    gpu = SimpleNamespace(name="NVIDIA H200", total_memory=150 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    idle, awake = (
        {"link_gen_current": gen, "link_width_current": 16, "driver": "580"} for gen in (1, 5)
    )
    told: dict[str, Any] = {"gpus": [awake, idle], "gpu_in_use": "this one"}
    monkeypatch.setattr(probing, "describe_gpus", lambda: told)
    facts = probing.facts_of(torch.device("cuda", 0))
    assert (facts["machine"], facts["gpus"]) == ("nvidia-h200", 2)
    assert facts["gpu_memory_bytes"] == 150 << 30
    assert (facts["link_generation"], facts["link_lanes"], facts["driver"]) == (5, 16, "580")
    assert probing.in_words(facts).startswith("NVIDIA H200, PCIe 5.0 x16; ")
    told["gpu_in_use"] = None  # which of them it is, nobody says
    assert probing.facts_of(torch.device("cuda", 0))["link_generation"] is None
    told["gpus"] = [awake]
    assert probing.facts_of(torch.device("cuda", 0))["link_generation"] == 5


def test_this_host_can_be_asked(monkeypatch):
    monkeypatch.setenv("GATHERBENCH_COMMIT", "0123456789ab")
    facts = probing.facts_of(None)
    assert facts["machine"].startswith("cpu-")
    assert facts["cores"] >= 1
    assert (facts["gpus"], facts["gpu"], facts["commit"]) == (0, "", "0123456789ab")
