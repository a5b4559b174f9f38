"""A fit recovers the constants of a machine that is made up, and admits what it cannot know."""

import dataclasses
import functools
import io
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rich.console import Console

from gatherbench.bench.model.profile import SPECS, LinkProfile, load_profile
from gatherbench.bench.probe import calibrate as calibration
from gatherbench.bench.probe.calibrate import render
from gatherbench.bench.probe.cases import GATHERS, GIB, gpu_points, host_points, managed_points
from gatherbench.bench.probe.fit import (
    Fit,
    Measured,
    blank_profile,
    check,
    held_out_errors,
    predicted_rate,
    smallest_share,
    summarise,
)
from gatherbench.bench.probe.machine import MachineFacts
from gatherbench.bench.probe.stand import Observation, row_of, visit
from gatherbench.bench.read.points import Point, PointRow, read_points

RESULTS = Path(__file__).parents[3] / "results" / "nvidia-h200"
SPANS = (GIB, 4 * GIB, 16 * GIB)
CORES = 8
FACTS = MachineFacts(
    "made-up",
    "a machine that is not there",
    CORES,
    gpus=1,
    gpu_memory_bytes=24 * GIB,
    link_generation=4,
    link_lanes=16,
    max_payload=256,
)
POINTS = [*host_points(CORES, SPANS[-1]), *gpu_points(SPANS, CORES), *managed_points(SPANS[:2])]


def machine(**constants: Any) -> LinkProfile:
    """A profile in which everything is known."""
    known: dict[str, Any] = {
        "link.raw_rate": 31.508e9,
        "link.header": 12.0,
        "link.framing": 8.0,
        "link.dllp_share": 0.05,
        "link.max_payload": 256.0,
        "link.max_request": 128.0,
        "link.outstanding_reads": 300.0,
        "link.round_trip": 1.3e-6,
        "copy.to_device": 26e9,
        "copy.to_host": 25e9,
        "copy.pageable": 5e9,
        "read.roof": ((float(SPANS[0]), 24e9), (float(SPANS[-1]), 20e9)),
        "read.page_visits": ((float(SPANS[0]), 2e9), (float(SPANS[-1]), 3e7)),
        "read.managed_page_visits": ((float(SPANS[0]), 2e7), (float(SPANS[1]), 1e7)),
        "host.cores": float(CORES),
        "host.memory_rate": 90e9,
        "host.gather_rate": ((32.0, 1e9), (512.0, 3e9), (4096.0, 4e9)),
        "host.gather_scaling": ((1.0, 0.2), (4.0, 1.2), (float(CORES), 1.0)),
        "host.sample_rate": 50e6,
        "host.sample_cores": float(CORES),
        "gpu.memory": float(24 * GIB),
        "gpu.memory_rate": 9e11,
        "gpu.flops": 3e13,
        "gpu.launch": 8e-6,
        "gpu.issue": 46e-6,
        "gpu.replay": 2e-6,
        "gpu.draw": 0.3e-3,
        "gpu.submit": 40e-6,
        "node.gpus": 1.0,
        "node.root_ports": 1.0,
    }
    profile = blank_profile(FACTS)
    for key, value in {**known, **constants}.items():
        profile = profile.with_constant(key, value, "made up")
    return profile


class MadeUp:
    """Stands in for host and GPU: each point takes as long as the profile says, and some noise."""

    def __init__(self, profile: LinkProfile, noise: float = 0.0, seed: int = 0) -> None:
        self.profile, self.noise = profile, noise
        self._draw = random.Random(seed)

    def measure(self, point: Point) -> Observation:
        rate = self.rate(point) * (1 + self.noise * self._draw.uniform(-1, 1))
        return Observation(1e6, 1e6 / rate, "made up")

    def rate(self, point: Point) -> float:
        p = self.profile
        if point.case in ("host_gather", *GATHERS) and point.grid_percent == 0:
            rate = predicted_rate(p, point)
            assert rate is not None
            return rate
        if point.case == "sm_read":
            # One grid is the best, the others are slower.
            return (p["read.roof"].at(point.span_bytes) or 0) * (
                1 - abs(point.grid_percent - 400) / 1000
            )
        shared = min(1.0, 0.12 * point.grid_percent)
        constants: Mapping[str, float | None] = {
            "host_copy": (p["host.memory_rate"].value or 0) / 2 * min(1, point.threads / 4),
            "host_read": 1e9,
            "host_sample": (p["host.sample_rate"].value or 0) * point.threads / CORES,
            "gpu_gather": 20e9 * shared,
            "copy_to_device": p["copy.to_device"].value,
            "copy_to_host": p["copy.to_host"].value,
            "copy_pageable": p["copy.pageable"].value,
            "round_trip": 1 / (p["link.round_trip"].value or 1),
            "gpu_copy": (p["gpu.memory_rate"].value or 0) / 2,
            "gpu_matmul": p["gpu.flops"].value,
            "gpu_launch": 1 / (p["gpu.launch"].value or 1),
            "gpu_issue": 1 / (p["gpu.issue"].value or 1),
            "gpu_replay": 1 / (p["gpu.replay"].value or 1),
            "gpu_draw": 1 / (p["gpu.draw"].value or 1),
            "gpu_submit": 1 / (p["gpu.submit"].value or 1),
        }
        return constants[point.case] or 0.0


def measured(profile: LinkProfile, noise: float = 0.0, rounds: int = 5) -> dict[Point, Measured]:
    kept: list[PointRow] = []
    made_up = MadeUp(profile, noise)
    visit(POINTS, made_up.measure, kept.append, out_of_time=lambda: False, most_rounds=rounds)
    return summarise(kept)


def fitted(found: dict[Point, Measured], facts: MachineFacts = FACTS) -> LinkProfile:
    return Fit(blank_profile(facts), found, facts).run()


@functools.cache
def usual() -> tuple[dict[Point, Measured], LinkProfile]:
    """What is seen of the usual machine, without noise, and the profile that is fitted to it."""
    found = measured(machine())
    return found, fitted(found)


@settings(max_examples=3, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    tags=st.integers(101, 300),  # fewer bound managed rows before their pages do
    round_trip=st.floats(0.8e-6, 2.5e-6),
    to_device=st.floats(20e9, 28e9),
    gather=st.floats(5e8, 4e9),
    issue=st.floats(1e-5, 9e-5),
    launch=st.floats(2e-6, 5e-5),
    size=st.sampled_from([32, 64, 128]),
)
def test_the_constants_of_a_made_up_machine_are_recovered(
    tags, round_trip, to_device, gather, issue, launch, size
):
    truth = machine(
        **{
            "link.outstanding_reads": float(tags),
            "link.round_trip": round_trip,
            "link.max_request": float(size),
            "copy.to_device": to_device,
            "link.dllp_share": 1 - to_device * 276 / 256 / 31.508e9,
            "host.gather_rate": gather,
            "gpu.issue": issue,
            "gpu.launch": launch,
        }
    )
    profile = fitted(measured(truth, noise=0.001))
    not_one_number = ("read.roof", "read.page_visits", "host.gather_rate")
    curves = ("read.managed_page_visits", "host.gather_scaling")
    for key in curves:
        (known,) = truth[key].values
        assert isinstance(known, tuple)
        for at, expected in known:
            assert profile[key].at(at) == pytest.approx(expected, rel=0.01), key
    for key, constant in profile.constants.items():
        if key in (
            "link.max_request",
            "link.outstanding_reads",
            "host.memory",
            *not_one_number,
            *curves,
        ):
            continue
        if SPECS[key].otherwise and key not in (
            "gpu.issue",
            "gpu.replay",
            "gpu.draw",
        ):  # peers, a network, the host's size: nothing times them
            assert constant.source.startswith("not measured")
            continue
        least = 2e-3 if constant.unit == "1" else None  # of seconds it would hide them all
        assert constant.value == pytest.approx(truth[key].value, rel=0.01, abs=least), key
    for span in SPANS:
        assert profile["read.roof"].at(span) == pytest.approx(truth["read.roof"].at(span), rel=0.01)
    # Whatever pair was found, it must explain the gathers, the held-out ones too.
    checks = check(profile, measured(truth, rounds=1))
    gathers = [c for c in checks if c.point.case == "gpu_gather"]
    assert len(held_out_errors(checks)) > 5
    assert {c.point.order for c in gathers if c.point.held_out} == {"given", "sorted"}
    assert profile["read.page_visits"].at(SPANS[-1]) == pytest.approx(3e7, rel=0.01)
    assert all(c.error is not None and abs(c.error) < 0.04 for c in gathers)


def test_the_pair_is_found_where_reads_in_flight_set_the_pace():
    """A long round trip and few reads: nothing else explains rows of 32 B and of 4 KiB."""
    for size in (128, 64, 32):
        truth = machine(
            **{"link.max_request": float(size), "link.outstanding_reads": 64.0},
            **{"link.round_trip": 2e-6, "read.roof": 24e9},
        )
        profile = fitted(measured(truth, noise=0.002))
        assert profile["link.max_request"].value == size
        assert profile["link.outstanding_reads"].value == pytest.approx(64, rel=0.03)


def test_pages_that_set_the_pace_of_every_narrow_row_are_no_reads_in_flight():
    """As an H200 was seen: so many rows a second, whether one line or four, up to the link."""
    truth = machine(
        **{"read.page_visits": ((float(SPANS[0]), 4e7), (float(SPANS[-1]), 2e7))},
        **{"link.outstanding_reads": 1e5},
    )
    profile = fitted(measured(truth, noise=0.002))
    assert profile["link.outstanding_reads"].value is None
    assert profile["read.page_visits"].at(SPANS[0]) == pytest.approx(4e7, rel=0.01)
    point = Point("gpu_gather", row_bytes=400, span_bytes=SPANS[0], policy="aligned", order="given")
    # A row of 400 B reaches another page of 4 KiB in 24 of 256 places.
    assert predicted_rate(profile, point) == pytest.approx(400 * 4e7 / 1.09375, rel=0.02)


def test_sorted_gathers_visit_each_page_they_touch_once():
    """4 Mi rows of 64 B over 1 GiB touch all 16,384 pages; 64 Ki of 4 KiB all but e^-4 of them."""
    rates = {"read.page_visits": 1e6, "read.roof": 1e12, "link.raw_rate": 1e12}
    profile = machine(**rates, **{"link.outstanding_reads": 1e6})
    for row_bytes, rows, visits in ((64, 1 << 22, 16384), (4096, 1 << 16, 16384 * 0.98168)):
        point = Point(
            "gpu_gather", row_bytes=row_bytes, span_bytes=1 << 30, policy="aligned", order="sorted"
        )
        seconds = rows * row_bytes / (predicted_rate(profile, point) or 0)
        assert seconds == pytest.approx(visits / 1e6, rel=1e-4)


def test_reads_in_flight_that_were_not_reached_stay_unknown():
    truth = machine(**{"link.outstanding_reads": 1e5})
    profile = fitted(measured(truth, noise=0.002))
    assert profile["link.outstanding_reads"].value is None
    assert "not reached" in profile["link.outstanding_reads"].source


def test_held_out_points_are_not_looked_at():
    found, honest = usual()
    spoilt = {
        p: dataclasses.replace(m, median=m.median * 3) if p.held_out else m
        for p, m in found.items()
    }
    profile = fitted(spoilt)
    assert profile == honest
    assert smallest_share(found) == 10  # 0.12 a per cent: 8 would do, 10 was tried
    assert smallest_share({}) is None
    assert all(error < -0.6 for error in held_out_errors(check(profile, spoilt)))
    assert max(abs(error) for error in held_out_errors(check(profile, found))) < 0.05


def test_a_gather_on_some_cores_is_as_fast_as_it_was_seen():
    """Of 8 GB/s on 4 cores half on one of them and 9/8 on two; narrower rows scale alike."""
    rates = {1: 4e9, 2: 9e9, 4: 8e9}
    found = {Point("host_gather", 512, threads=n): Measured(r, r, r, 1) for n, r in rates.items()}
    found[Point("host_gather", 64, threads=4)] = Measured(2e9, 2e9, 2e9, 1)
    host = Fit(blank_profile(MachineFacts("x", "", 4)), found, MachineFacts("x", "", 4)).run()
    host = host.with_constant("host.memory_rate", 1e12, "made up")
    assert host["host.gather_scaling"].values == (((1.0, 0.5), (2.0, 1.125), (4.0, 1.0)),)
    for threads, rate in rates.items():
        point = Point("host_gather", 512, threads=threads)
        assert predicted_rate(host, point) == pytest.approx(rate)
    assert predicted_rate(host, Point("host_gather", 64, threads=2)) == pytest.approx(2.25e9)
    in_step = host.with_constant("host.gather_scaling", None, "nobody tried")
    assert predicted_rate(in_step, Point("host_gather", 512, threads=1)) == pytest.approx(2e9)


def test_the_shipped_profile_is_what_its_samples_yield():
    """CPU gathers are within 4 % of it, but for rows of 1412 B on all cores: 27 % too fast."""
    table = read_points(RESULTS / "nvidia-h200.samples.csv")
    names = [f.name for f in dataclasses.fields(Point)]
    rows = [
        PointRow(Point(**{n: r[n] for n in names}), r["round"], r["amount"], time_s=r["time_s"])
        for r in table.to_dict("records")
    ]
    shipped, found = load_profile("nvidia-h200"), summarise(rows)
    facts = MachineFacts("nvidia-h200", "", 16, 1, 150_754_820_096, 5, 16)
    refitted = Fit(blank_profile(facts), found, facts).run()
    told = [key for key, one in shipped.constants.items() if one.source.startswith("measured by")]
    assert len(told) >= 18
    for key in told:
        assert refitted[key] == shipped[key], key
    gathers = [c for c in check(shipped, found) if c.point.case == "host_gather"]
    assert len(gathers) == 16
    (far,) = (c.point for c in gathers if abs(c.error or 0.0) > 0.05)
    assert (far.row_bytes, far.threads) == (1412, 16)


def test_contiguous_reads_are_checked_by_the_best_grid_against_the_measurement():
    found, profile = usual()
    reads = [c.point for c in check(profile, found) if c.point.case == "sm_read"]
    assert [(p.span_bytes, p.grid_percent) for p in reads] == [(span, 400) for span in SPANS]
    said = profile["read.roof"].at(SPANS[1]) or 0
    (one,) = check(profile, {reads[1]: Measured(said / 2, said / 2, said / 2, 1)})
    assert one.error == pytest.approx(1.0)


def test_sources_say_how_often_and_with_what_spread():
    profile = fitted(measured(machine(), noise=0.1, rounds=9))
    source = profile["copy.to_device"].source
    assert source.startswith("measured by gatherbench calibrate on made-up, 9 samples, quartiles -")
    assert "72 samples, widest quartiles" in profile["host.gather_rate"].source
    for key, constant in profile.constants.items():
        assert constant.source, key


@pytest.mark.parametrize(
    ("change", "key", "reason"),
    [
        ({"link_generation": None}, "link.raw_rate", "NVML does not tell"),
        ({"link_generation": 6}, "link.raw_rate", "flits"),
        ({"link_generation": 7}, "link.raw_rate", "unsupported: PCIe generation 7"),
        ({"max_payload": None}, "link.max_payload", "takes root"),
        ({"max_payload": None}, "link.dllp_share", "needs link.raw_rate"),
        ({"link_lanes": 8}, "link.dllp_share", "faster than a link"),
        ({"gpus": 4}, "node.root_ports", "not measured"),
    ],
)
def test_what_the_machine_does_not_tell_is_unknown_with_a_reason(change, key, reason):
    profile = fitted(usual()[0], dataclasses.replace(FACTS, **change))
    assert reason in profile.unknown()[key]


def test_a_measurement_out_of_range_is_not_believed():
    slow = {Point("copy_to_host", span_bytes=SPANS[-1]): Measured(1e3, 1e3, 1e3, 5)}
    profile = fitted({**usual()[0], **slow})
    assert profile["copy.to_host"].value is None
    assert "not believed" in profile["copy.to_host"].source


def test_without_a_gpu_the_base_gives_what_is_missing():
    facts = MachineFacts("a-host", "two cores", CORES)
    found = {p: m for p, m in usual()[0].items() if p.case.startswith("host_")}
    alone = fitted(found, facts)
    assert alone["host.sample_rate"].value == pytest.approx(50e6)
    assert alone.unknown()["link.raw_rate"] == "no_device: calibrated without a GPU"
    base = load_profile("rtx3090-pcie4")
    mixed = Fit(calibration.named(base, facts), found, facts).run()
    link = [key for key in SPECS if key.startswith("link.")]
    assert all(mixed[key] == base[key] for key in link)
    assert mixed["host.gather_rate"] == alone["host.gather_rate"]
    assert mixed.name == "a-host+rtx3090-pcie4"
    assert base["copy.pageable"].value is not None
    assert mixed["copy.pageable"].value is None  # it is of the base's processor
    assert "of the processor of rtx3090-pcie4, not of this one" in mixed["copy.pageable"].source


@pytest.mark.parametrize(
    ("launch_s", "said"),
    [(2e-6, "Use it: gatherbench predict RUN --profile a.toml"), (None, "It knows no GPU")],
)
def test_the_report_shows_constants_what_was_held_out_and_the_next_step(launch_s, said):
    found, profile = usual()
    profile = profile.with_constant("gpu.launch", launch_s, "test")
    done = calibration.Calibration(profile, found, check(profile, found), 5, 1.0, (Path("a.toml"),))
    output = io.StringIO()
    Console(width=150, file=output).print(render(done))
    text, _, closing = output.getvalue().partition("Written:")
    assert said in closing
    for words in (
        *(key for key, _ in profile.constants.items()),
        *("31.5 GB/s", "1.30 µs", "50.0 M/s", "20.0 to 24.0 GB/s"),
        *("rows of 1412 B, 8 threads", "GPU read, 4 GiB", "held-out points are off by"),
        "10 % of the GPU's threads reach 95 %",
    ):
        assert words in text


def test_a_base_that_knows_but_a_range_predicts_no_read_and_every_gather_of_the_host():
    base = load_profile("h100-sxm-pcie5")
    assert base.ranges()
    host = base.with_constant("host.gather_rate", 1e9, "a test")
    reads = [Point("sm_read", span_bytes=1 << 30), Point("gpu_gather", 512, span_bytes=1 << 30)]
    assert [predicted_rate(host, point) for point in reads] == [None, None]
    assert predicted_rate(host, Point("host_gather", 512, threads=2)) == pytest.approx(2e9)


def test_quartiles_are_those_of_the_rates():
    rows = [row_of(Point("gpu_copy"), i, 1.0, 1 / rate) for i, rate in enumerate(range(1, 8))]
    found = summarise(rows)[Point("gpu_copy")]
    assert (found.low, found.median, found.high, found.count) == (2, 4, 6, 7)
    assert found.spread == "quartiles -50.0% and +50.0%"
    alone = summarise(rows[:1])[Point("gpu_copy")]
    assert alone.low == alone.median == alone.high
    assert summarise([row_of(Point("gpu_copy"), reason="not here")]) == {}
