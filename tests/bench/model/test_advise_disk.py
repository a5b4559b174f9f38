"""Advice on a table that fits in no memory: from which disk path, with which cache, how fast."""

import json
from dataclasses import replace
from functools import cache

import pytest

from gatherbench.bench.model.advise import caches
from gatherbench.bench.model.advise.answer import answer
from gatherbench.bench.model.advise.asked import Asked
from gatherbench.bench.model.advise.caches import POLICIES, with_caches
from gatherbench.bench.model.advise.option import average_load
from gatherbench.bench.model.advise.question import Question, disk_of, graph_of, graph_sizes
from gatherbench.bench.model.advise.rank import Advice, advise, off_disk
from gatherbench.bench.model.profile import LinkProfile, load_profile
from gatherbench.bench.show.advice import recommendation, render, to_json
from gatherbench.strategies.disk_direct import DiskDirect
from gatherbench.strategies.registry import build

from ..printed import printed

GIB = 2.0**30
BARE = load_profile("rtx3090-pcie4")
#: A table of 200 GB, of nodes that are asked for alike; minibatches of about 1000 nodes.
LARGE = Question(
    graph_of(400_000_000, 6_000_000_000, 125, classes=10, train_nodes=100_000, laws=("uniform",)),
    (2,),
    400,
    host_memory_bytes=80 * GIB,
    disk_iops=250e3,
    disk_bandwidth=3e9,
)


@pytest.fixture(autouse=True)
def two_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulating all of them, or more rows, takes time and tells nothing more here."""
    monkeypatch.setattr(caches, "ROWS", 5000)
    some = {name: POLICIES[name] for name in ("belady", "lru")}
    monkeypatch.setattr(caches, "POLICIES", some)


@cache
def advice_on(question: Question, profile: LinkProfile = BARE) -> Advice:
    return with_caches(advise(question, graph_sizes(question), profile))


def test_reading_every_row_is_bound_by_the_disks_reads():
    """A minibatch has some 1200 rows of 500 B, each in a read of its own, of one block or two."""
    advice = advice_on(LARGE)
    (sizes,) = advice.sizes
    load = average_load(DiskDirect(), LARGE, sizes)
    assert load.disk_payload_bytes == pytest.approx(sizes.rows * 500)
    # Rows of 500 B begin at every multiple of 4 B of a block alike: 124 of 1024 places cut them.
    assert load.disk_requests == pytest.approx(sizes.rows, rel=1e-3)
    assert load.disk_bytes == pytest.approx(sizes.rows * 4096 * (1 + 124 / 1024), rel=0.02)
    direct = next(o for o in advice.ranked if o.strategy == "disk_direct" and o.lookahead == 1)
    assert direct.longest_s == pytest.approx(250 * sizes.rows / 250e3, rel=0.02)
    assert direct.bound == "disk (reads a second)"
    assert direct.reason.startswith("Reading the disk takes")
    assert (direct.placement, direct.host.table, direct.fits) == ("on the disk", 0.0, True)
    # By hand: 400 M nodes at 8 + 8 + 4 B, 6 G edges at 4 B, and two buffers for the rows.
    assert direct.host.total == pytest.approx(400e6 * 20 + 6e9 * 4 + 2 * 2**20, rel=1e-6)


def test_a_cache_saves_the_reads_that_it_holds():
    """90 % of 80 GiB less 29.8 GiB of graph hold a fifth of 200 GB, and no half. Where rows are
    asked for alike, it holds a fifth of the requests."""
    advice = advice_on(LARGE)
    by_lru = [one for one in advice.caches if one.policy == "lru"]
    assert [one.table_share for one in by_lru] == [0.01, 0.05, 0.1, 0.2]
    most = by_lru[-1]
    assert most.cache_bytes == pytest.approx(40e9)
    assert most.memory_share == pytest.approx(40e9 / (80 * GIB))
    assert most.hit_rates == (pytest.approx(0.2, abs=0.01),)
    direct = next(o for o in advice.ranked if o.strategy == "disk_direct" and o.lookahead == 1)
    every = (*advice.ranked, *advice.others)
    cached = next(o for o in every if o.path == ("disk_cached", "lru,20%,warm,1,100"))
    assert cached.longest_s == pytest.approx(0.8 * direct.longest_s, rel=0.03)
    assert cached.variant == build("disk_cached", {"policy": "lru", "share": "20%"}).variant
    assert (cached.host.table, cached.basis) == (most.cache_bytes, "modelled")
    assert cached.placement == (
        "on the disk, 37.3 GiB of it (20%) in host memory, which holds"
        f" {most.hit_rates[0]:.0%} of the rows asked for"
    )
    assert advice.ranked[0].strategy == "disk_cached"
    assert advice.take is not None
    assert advice.take.strategy == "disk_cached"
    assert "does not fit into memory" in recommendation(advice)[1]


def test_a_cache_is_compared_where_the_gpu_s_memory_is_not_known():
    advice = advice_on(LARGE, BARE.with_constant("gpu.memory", None, "not said"))
    (cached,) = {o for o in (*advice.ranked, *advice.others) if "lru" in o.variant}
    assert cached.fits is None


def test_ranks_of_a_machine_divide_the_memory():
    two = advice_on(replace(LARGE, gpus=2)).caches
    one = advice_on(LARGE).caches
    assert {c.table_share for c in one} == {0.01, 0.05, 0.1, 0.2}
    assert {c.table_share for c in two} == {0.01, 0.05, 0.1}, "two fifths do not fit"
    assert max(c.cache_bytes for c in two) == pytest.approx(40e9)


def test_more_than_is_needed_is_not_recommended():
    """A larger cache is never slower; a GPU that is busy for longer gains nothing from one."""
    larger = [one for one in advice_on(LARGE).caches if one.policy == "lru"]
    assert [one.epochs_s for one in larger] == sorted((o.epochs_s for o in larger), reverse=True)
    slow = BARE.with_constant("gpu.launch", 5e-3, "made up")
    lazy = next(o for o in advice_on(LARGE, slow).ranked if o.strategy == "disk_cached")
    assert lazy.cache_bytes == pytest.approx(2e9)


def test_without_a_disk_the_remedy_is_said():
    advice = advice_on(replace(LARGE, disk_iops=None, disk_bandwidth=None))
    assert not advice.ranked
    (said,) = recommendation(advice)
    assert said.endswith(
        "take more machines, or a disk, whose speed nobody knows yet: measure it (gatherbench"
        " calibrate) or say it (--disk IOPS,BANDWIDTH)."
    )
    refused = {o.strategy: o.reason for o in advice.unranked}
    assert "gatherbench advise --disk IOPS,BANDWIDTH" in refused["disk_direct"]
    assert all(not one.epochs_s for one in advice.caches)
    assert "belady" in printed(render(advice, why=True))


def test_what_fits_in_memory_is_not_left_on_a_disk():
    roomy = replace(LARGE, host_memory_bytes=512 * GIB, disk_iops=None, disk_bandwidth=None)
    advice = advice_on(roomy)
    assert not off_disk(roomy, advice.profile)
    assert not any("disk" in option.strategy for option in (*advice.ranked, *advice.unranked))
    assert advice.caches == ()
    # Who names a disk is told of it all the same; in host memory the table is faster.
    named = advice_on(replace(LARGE, host_memory_bytes=512 * GIB))
    places = [option.strategy for option in named.ranked]
    assert places.index("cpu_gather") < places.index("disk_direct")
    untold = replace(LARGE, host_memory_bytes=None)
    assert "a cache in host memory before the disk: say --host-memory" in advice_on(untold).remarks


def test_the_text_and_the_json_say_what_each_cache_holds_and_takes():
    advice = advice_on(LARGE)
    text, said = printed(render(advice, why=True)), json.loads(json.dumps(to_json(advice)))
    assert "Modelled: requests that a cache in host memory holds, and the epoch" in text
    assert "10%, 18.6 GiB" in text
    assert len(said["disk_caches"]) == 8
    (last,) = [
        one for one in said["disk_caches"] if (one["policy"], one["table_share"]) == ("lru", 0.2)
    ]
    every = (*advice.ranked, *advice.others)
    cached = next(o for o in every if o.path == ("disk_cached", last["variant"]))
    assert set(last["epochs_s"].values()) == {cached.longest_s}
    assert [case.partition(",")[0] for case in last["epochs_s"]] == ["uniform"] * 2
    assert last["basis"] == "modelled"
    assert last["hit_rates"] == {"uniform": pytest.approx(0.2, abs=0.01)}
    assert f"{100 * last['hit_rates']['uniform']:.1f} %, " in text
    assert said["question"]["disk_iops"] == 250e3
    assert any("simulated on 5,000 rows" in remark for remark in said["remarks"])


@pytest.mark.parametrize(
    ("text", "disk"),
    [
        ("250k,3GB/s", (250e3, 3e9)),
        ("1.5M, 14 GB/s", (1.5e6, 14e9)),
        ("90000,500MB/s", (90e3, 500e6)),
        ("250", (250.0, None)),
        ("", (None, None)),
    ],
)
def test_a_disk_is_read_as_people_write_it(text, disk):
    assert disk_of(text) == disk


def test_a_calibrated_disk_needs_no_option(tmp_path):
    own = BARE.with_constant("disk.iops", ((1.0, 20e3), (128.0, 100e3)), "measured")
    path = tmp_path / "mine.toml"
    path.write_text(own.to_toml(), encoding="utf-8")
    asked = Asked(
        nodes=400_000_000,
        edges=6_000_000_000,
        dim=125,
        train_nodes=100_000,
        fanouts="2",
        batch_size=400,
        host_memory=80,
        profile=str(path),
        law="uniform",
    )
    advice = answer(asked, tmp_path, tmp_path)
    direct = next(o for o in advice.ranked if o.strategy == "disk_direct" and o.lookahead == 1)
    assert direct.longest_s == pytest.approx(250 * advice.sizes[0].rows / 100e3, rel=0.02)
