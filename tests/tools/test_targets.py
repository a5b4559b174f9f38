"""What gpu-micro is held to: ratios within rounds, their intervals, and verdicts."""

import math
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pytest

from gatherbench.bench.probe.cases import GIB
from gatherbench.bench.probe.stand import PointFile, row_of
from gatherbench.bench.read.points import Point, PointRow, read_points
from tools.gpu.targets import MISSED, REACHED, UNDECIDED, Target, summary, targets, write_report


def gathered(policy: str, width: int, percent: int = 0) -> Point:
    return Point("gpu_gather", width, GIB, 0, percent, policy, "given")


def at(point: Point, rate: float, number: int) -> PointRow:
    return row_of(point, number, 1e9, 1e9 / rate, "clock")


def rounds(*rates: tuple[float, float, float], width: int = 512) -> list[PointRow]:
    """Rounds of a roof, ours and a peer's gather, at these rates; slower grids of each beside."""
    rows = []
    for number, (roof, ours, peer) in enumerate(rates, 1):
        rows += [
            at(Point("sm_read", span_bytes=GIB, grid_percent=800), roof, number),
            at(Point("sm_read", span_bytes=GIB, grid_percent=10), 0.5 * roof, number),
            at(gathered("aligned", width, 10), ours, number),
            at(gathered("aligned", width, 5), 0.5 * ours, number),
            at(gathered("dgl", width), peer, number),
            at(gathered("emogi", width), 0.9 * peer, number),
            at(gathered("aligned-idle", width), 9 * ours, number),  # ours, but not what is tried
            at(Point("sort_ids", 512, GIB), 1.0, number),
        ]
    return rows


def table(tmp_path: Path, rows: Iterable[PointRow]) -> pd.DataFrame:
    path = tmp_path / "rows.csv"
    path.unlink(missing_ok=True)
    with PointFile(path) as file:
        for row in rows:
            file.add(row)
    return read_points(path)


def found(tmp_path: Path, rows: Iterable[PointRow]) -> list[Target]:
    return targets(table(tmp_path, rows))


def test_ratios_are_taken_within_rounds(tmp_path):
    # The machine is twice as fast in the last round: no ratio moves.
    roof, peer = found(tmp_path, rounds((100, 96, 80), (102, 97.92, 81.6), (200, 192, 160)))
    assert (roof.target, roof.row_bytes, roof.at_least) == ("of the SM-read roof", 512, 0.95)
    assert (roof.ours, roof.other) == ("aligned, given, grid 10 %", "8 blocks a multiprocessor")
    assert (roof.ratio, roof.rounds, roof.verdict) == (pytest.approx(0.96), 3, REACHED)
    assert (roof.low, roof.high) == (pytest.approx(0.96), pytest.approx(0.96))
    assert peer.other == "policy of DGL, given"
    assert (peer.ratio, peer.at_least, peer.verdict) == (pytest.approx(1.2), 1.0, REACHED)


def test_a_verdict_needs_the_whole_interval(tmp_path):
    # Student's interval of the logarithms of 0.94, 0.96 and 0.94: t(0.975, 2 degrees) = 4.3027.
    roof, _ = found(tmp_path, rounds((100, 94, 90), (100, 96, 90), (100, 94, 90)))
    logs = [math.log(x) for x in (0.94, 0.96, 0.94)]
    mean = sum(logs) / 3
    reach = 4.3027 * math.sqrt(sum((x - mean) ** 2 for x in logs) / 2 / 3)
    assert roof.ratio == pytest.approx(math.exp(mean))
    assert roof.high == pytest.approx(math.exp(mean + reach), rel=1e-4)
    assert (roof.low < 0.95 < roof.high, roof.verdict) == (True, UNDECIDED)
    roof, peer = found(tmp_path, rounds((100, 90, 95), (100, 90.1, 95.1), (100, 90, 95)))
    assert (roof.verdict, peer.verdict) == (MISSED, MISSED)
    roof, peer = found(tmp_path, rounds((100, 96, 80)))
    assert (roof.verdict, peer.verdict) == (UNDECIDED, UNDECIDED), "one round bounds nothing"
    assert (roof.low, roof.high) == (0, math.inf)


def test_only_what_was_asked_for_has_a_verdict(tmp_path):
    near = [(100.0, 86.0, 80.0), (100.0, 86.1, 80.0), (100.0, 86.0, 80.0)]
    at_256, _ = found(tmp_path, rounds(*near, width=256))
    assert (at_256.at_least, at_256.verdict) == (0.85, REACHED)
    table(tmp_path, rounds(*((100.0, 40.0, 30.0),) * 3, width=64))
    said = write_report(tmp_path)
    assert "SM-read roof" not in said, "nobody asked for a share at this width"
    assert "over the fastest policy of a peer" in said
    written = pd.read_csv(tmp_path / "targets.csv")
    assert written["at_least"].tolist()[1:] == [1.0]
    assert math.isnan(written["at_least"][0])
    assert written["ratio"].tolist() == pytest.approx([0.4, 4 / 3])


def test_a_run_that_was_cut_off_answers_what_it_can(tmp_path):
    assert found(tmp_path, []) == []
    ours = at(gathered("aligned", 512), 50, 1)
    assert found(tmp_path, [ours, at(Point("sort_ids", 512, GIB), 1, 1)]) == []
    assert found(tmp_path, [ours, at(Point("sm_read", span_bytes=GIB), 60, 2)]) == []
    reason = row_of(Point("train_alone"), reason="skipped: no GPU")
    assert found(tmp_path, [reason]) == []
    assert write_report(tmp_path) == ""


def test_wholegraph_itself_is_a_peer(tmp_path):
    rows = [
        at(Point("peer_gather", 512, GIB, policy=policy, order=order), rate, number)
        for number in (1, 2, 3)
        for policy, order, rate in (
            ("aligned", "given", 10),
            ("aligned", "sorted", 12),
            ("WholeGraph 26.10", "its own", 8),
        )
    ]
    (one,) = found(tmp_path, rows)
    assert (one.ours, one.other) == ("aligned, sorted, grid 0 %", "WholeGraph 26.10, its own")
    assert (one.ratio, one.verdict) == (pytest.approx(1.5), REACHED)


def test_overlap_is_measured_against_the_longer_of_the_two(tmp_path):
    def steps(case: str, percent: int, load: str, *seconds: float) -> list[PointRow]:
        provider = "stream" if percent else ""
        point = Point(case, grid_percent=percent, load=load, provider=provider)
        return [row_of(point, number, 1, s, "clock") for number, s in enumerate(seconds, 1)]

    rows = [
        *steps("train_alone", 0, "short", 2.0, 2.0, 2.0),
        *steps("train_alone", 0, "long", 5.0, 5.0, 5.0),
        *steps("fetch_alone", 5, "", 4.0, 4.0, 4.0),
        *steps("fetch_alone", 10, "", 2.5, 2.5, 2.5),
        *steps("train_and_fetch", 5, "short", 4.0, 4.0, 4.0),
        *steps("train_and_fetch", 10, "short", 2.6, 2.6, 2.6),
        *steps("train_and_fetch", 15, "short", 2.5, 3.0, 2.5),
        *steps("train_and_fetch", 10, "long", 5.1, 5.1, 5.1),
    ]
    ratios = {one.ours: (one.ratio, one.verdict) for one in found(tmp_path, rows)}
    assert ratios == {
        "short, stream 5 %": (pytest.approx(4.0 / 2.5), MISSED),  # a slow fetch is no excuse
        "short, stream 10 %": (pytest.approx(2.6 / 2.5), REACHED),
        "short, stream 15 %": (pytest.approx((2.5 * 3.0 * 2.5) ** (1 / 3) / 2.5), UNDECIDED),
        "long, stream 10 %": (pytest.approx(5.1 / 5.0), REACHED),
    }
    others = {one.ours: one.other for one in found(tmp_path, rows)}
    assert others["short, stream 5 %"] == "fetch alone, stream 10 %"
    assert others["long, stream 10 %"] == "long alone"


def test_the_summary_takes_medians_and_the_best_roof(tmp_path):
    slow, fast = (Point("sm_read", span_bytes=GIB, grid_percent=b) for b in (100, 400))
    gather = gathered("aligned", 512)
    rows = [at(slow, 10e9, 1), at(fast, 50e9, 1), at(slow, 10e9, 2), at(fast, 50e9, 2)]
    rows += [at(gather, 20e9, 1), at(gather, 40e9, 2), at(gather, 25e9, 3)]
    rows.append(row_of(Point("counted_bytes", 512, GIB, policy="aligned"), 0, 7.0))  # not timed
    known = summary(table(tmp_path, rows)).set_index(["case", "grid_percent"])
    assert known["median_per_s"].to_dict() == pytest.approx(
        {("sm_read", 100): 10e9, ("sm_read", 400): 50e9, ("gpu_gather", 0): 25e9}
    )
    assert known["of_sm_read_roof"].to_dict() == pytest.approx(
        {("sm_read", 100): 0.2, ("sm_read", 400): 1.0, ("gpu_gather", 0): 0.5}
    )
    one = known.loc[("gpu_gather", 0)]
    assert (one["rounds"], one["slowest_per_s"], one["fastest_per_s"]) == (3, 20e9, 40e9)
    said = write_report(tmp_path)
    assert "Fastest" in said
    assert "25.0" in said


def test_the_mean_read_follows_from_the_bytes(tmp_path):
    def launch(policy: str, **amounts: float) -> list[PointRow]:
        return [
            row_of(Point(case, 512, GIB, policy=policy), 0, amount)
            for case, amount in amounts.items()
        ]

    expected = {"expected_sectors": 320_000.0, "expected_requests_128": 80_000.0}
    counted = {"counted_sectors": 320_000.0, "counted_bytes": 12_160_000.0}
    rows = [*launch("aligned", **expected, **counted), *launch("dgl", **expected)]
    table(tmp_path, rows)
    title, head, aligned, *_ = write_report(tmp_path).splitlines()
    assert title == "Counted by the GPU over expected"
    assert head.split() == ["policy", "row_bytes", "sectors", "requests", "mean_read_bytes"]
    # 10.24 MB in (12.16 - 10.24) MB / 12 B completions are 64 B each.
    assert aligned.split() == ["aligned", "512", "1.0", "64.0"]
