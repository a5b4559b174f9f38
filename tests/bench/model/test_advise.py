"""Advice agrees with the model that it stands on, fits memory, and says what it cannot know."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gatherbench.bench.model.advise import answer as advise_answer
from gatherbench.bench.model.advise.answer import Asked, answer
from gatherbench.bench.model.advise.question import (
    AdviceError,
    Question,
    graph_of,
    graph_sizes,
    source_graph,
)
from gatherbench.bench.model.advise.rank import (
    Advice,
    Option,
    advise,
    average_load,
    best_kept,
    distinct_paths,
    gpu_need,
    pinned_need,
    predict,
    ranked,
    table_on_gpu,
)
from gatherbench.bench.model.errors import error_of
from gatherbench.bench.model.profile import load_profile
from gatherbench.bench.read.units import span
from gatherbench.bench.show.advice import SCHEMA_VERSION, headline, minibatches, render, to_json
from gatherbench.datasets.dataset import DatasetError
from gatherbench.strategies.places import TABLE_SHARE
from gatherbench.strategies.registry import STRATEGIES, build
from tools.validate_model import drawn_by_program

from ..printed import printed

#: With a slow sampler, so that epochs are bound by drawing minibatches.
PROFILE = drawn_by_program(load_profile("rtx3090-pcie4"))
LARGE = Question(source_graph("papers100M-like"), (15, 10))
#: Its cases on a machine of which nobody knows what a page visit costs.
PAGES = ("rmat, read.page_visits low", "rmat, read.page_visits high")
SMALL = Question(graph_of(200_000, 5_000_000, 100, classes=10, train_nodes=50_000, laws=("rmat",)))


@cache
def advice_on(question: Question, profile: Any = PROFILE) -> Any:
    sizes = graph_sizes(question)
    return advise(question, sizes, profile)


def test_the_ranking_is_the_models() -> None:
    for question in (LARGE, SMALL, replace(LARGE, gpus=4)):
        advice = advice_on(question)
        times = [option.longest_s for option in advice.ranked]
        assert times == sorted(times)
        loads = {
            (s.name, s.variant): load
            for s, load in distinct_paths(question, *advice.sizes, advice.profile)
        }
        for option in advice.ranked:
            load = loads[option.path]
            every = predict(question, load, advice.profile)
            assert tuple(one.epoch_s.value for one in every) == option.epochs_s
            assert option.basis == "modelled"
            assert "profile rtx3090-pcie4" in option.source


def test_every_strategy_is_there_and_alike_variants_are_one() -> None:
    (sizes,) = graph_sizes(SMALL)
    found = [(s.name, s.variant) for s, _ in distinct_paths(SMALL, sizes, PROFILE)]
    # What is sharded over ranks is nothing of its own on one GPU.
    graphless = {kind.name for kind in STRATEGIES if not (kind().needs or kind().aside)}
    assert {name for name, _ in found} == graphless
    remarks = advice_on(SMALL).remarks
    for name in {
        kind.name for kind in STRATEGIES if kind().needs - {"ranks"} and "file" not in kind().needs
    }:
        assert any(said.startswith(f"{name} is left out: it has to know") for said in remarks)
    assert [v for n, v in found if n == "cpu_gather"] == ["pinned", "prefetch", "naive"]
    assert len([n for n, _ in found if n == "async_zero_copy"]) == 1
    assert len([n for n, _ in found if n == "aligned_zero_copy"]) == 1


def test_a_table_that_fits_belongs_in_gpu_memory() -> None:
    level = advice_on(SMALL)
    assert level.table_fits is True
    kept = (
        "Profile rtx3090-pcie4. The feature table takes 76.3 MiB and fits in the GPU's 24 GiB:"
        " keep it there (all_in_gpu), {} an epoch (modelled)"
    )
    (resident,) = (o for o in level.ranked if o.strategy == "all_in_gpu")
    low, high = error_of("all_in_gpu", 0) or (0.0, 0.0)
    off = " Beside epochs measured on one H200 the model was off by"
    off += f" {low:+.0%} to {high:+.0%} (all_in_gpu)"
    assert level.ranked[0].longest_s < resident.longest_s < 1.05 * level.ranked[0].longest_s
    nothing = f"{kept.format('223 ms')}: no other path is 5% ahead.{off}."
    assert headline(level) == nothing
    alone = advice_on(SMALL, load_profile("h200-sxm-pcie5"))
    assert alone.ranked[0].strategy == "all_in_gpu"
    assert "an epoch (modelled): no other path is 5% ahead in every case." in headline(alone)


def test_a_table_that_does_not_fit_is_not_ranked_there() -> None:
    advice = advice_on(LARGE)
    assert advice.table_fits is False
    assert "does not fit in the GPU's 24 GiB. Take async_zero_copy" in headline(advice)
    assert " an epoch (modelled), " in headline(advice)
    assert headline(advice).endswith(
        " Drawing minibatches is then what bounds it: a faster sampler would help most."
    )
    h200 = advice_on(replace(LARGE, gpu_memory_bytes=24 << 30), load_profile("h200-sxm-pcie5"))
    assert "Drawing minibatches" not in headline(h200), "it does not know how fast they are drawn"
    (option,) = (o for o in advice.unranked if o.strategy == "all_in_gpu")
    assert option.reason == "It needs 53.1 GiB of GPU memory, and 24 GiB are there."
    roomy = advice_on(replace(LARGE, gpu_memory_bytes=float(80 << 30)))
    assert roomy.table_fits is True
    assert not roomy.unranked


def test_a_table_that_leaves_no_room_beside_it_does_not_fit() -> None:
    """``all_in_gpu`` itself refuses to take more than its share of the memory."""
    (resident,) = (o for o in advice_on(SMALL).ranked if o.strategy == "all_in_gpu")
    for share, fits in ((TABLE_SHARE * 0.99, True), ((1 + TABLE_SHARE) / 2, False)):
        asked = replace(SMALL, gpu_memory_bytes=resident.gpu_bytes / share)
        assert advice_on(asked).table_fits is fits


def test_unknown_constants_leave_options_unranked_with_the_reason() -> None:
    profile = PROFILE.with_constant("copy.pageable", None, "nobody measured it")
    advice = advice_on(SMALL, profile)
    (option,) = advice.unranked
    assert (option.strategy, option.variant) == ("cpu_gather", "naive")
    assert option.reason == "Not known: copy.pageable: nobody measured it."
    roomless = advice_on(SMALL, PROFILE.with_constant("gpu.memory", None, "nobody knows"))
    assert roomless.table_fits is None
    assert "is not known (say --gpu-memory)" in headline(roomless)
    assert {option.fits for option in roomless.ranked} == {None}
    profile = PROFILE.with_constant("gpu.launch", None, "nobody measured it")
    nothing = advice_on(LARGE, profile)
    assert not nothing.ranked
    assert "Nothing can be ranked" in headline(nothing)
    assert "calibrate --base" in headline(nothing)


def test_minibatches_that_fit_nowhere_are_said() -> None:
    advice = advice_on(replace(LARGE, gpu_memory_bytes=1.1e8, batch_size=20_000))
    assert not advice.ranked
    assert headline(advice).endswith("nor do the minibatches of any path: make them smaller.")


def test_how_fast_minibatches_are_drawn_is_said_with_its_source_or_left_out_of_all() -> None:
    (said,) = (r for r in advice_on(LARGE).remarks if r.startswith("minibatches drawn at"))
    assert said.startswith("minibatches drawn at 23 M edges/s, which all share (fitted to")
    advice = advice_on(LARGE, PROFILE.with_constant("host.sample_rate", None, "not measured"))
    assert len(advice.ranked) == len(advice_on(LARGE).ranked)
    assert any("without drawing minibatches, which all share" in r for r in advice.remarks)


def test_a_part_that_another_hides_is_beside_it() -> None:
    """Not told by adding up: parts that GPUs share, or several that are hidden, mislead a sum."""

    def ends(question: Question, profile: Any = PROFILE) -> dict[str, str]:
        ranked = advice_on(question, profile).ranked
        return {f"{o.strategy} {o.variant}": o.reason.rpartition(", ")[2] for o in ranked}

    crowded = ends(replace(LARGE, gpus=8, machines=2))
    assert crowded["async_zero_copy stream,auto"] == "beside it."
    assert crowded["cpu_gather naive"] == "at another time."
    few_cores = PROFILE.with_constant("host.cores", 2.0, "made up")
    few_cores = few_cores.with_constant("host.sample_rate", 8e7, "made up")
    slow = ends(LARGE, few_cores)
    assert slow["async_zero_copy stream,auto"] == "beside it."
    assert slow["aligned_zero_copy given"] == "at another time."
    assert slow["cpu_gather pinned"] == "at another time."  # training, which the host issues
    assert slow["cpu_gather prefetch"] == "partly beside it."


def test_what_gpus_would_share_and_nobody_knows_is_said() -> None:
    machine = load_profile("a100-pcie4")
    assert not [r for r in advice_on(LARGE, machine).remarks if "shared" in r]
    told = [r for r in advice_on(replace(LARGE, gpus=4), machine).remarks if "shared" in r]
    assert [r.partition(":")[0] for r in told] == [
        "as if GPUs shared no ports (node.root_ports",
        "as if GPUs shared no host memory (host.memory_rate",
    ]


@pytest.mark.parametrize(
    ("name", "params", "pinned_table", "on_gpu"),
    [
        ("cpu_gather", {"mode": "naive"}, False, False),
        ("cpu_gather", {"mode": "pinned"}, False, False),
        ("cpu_gather", {"mode": "prefetch"}, False, False),
        ("aligned_zero_copy", {}, True, False),
        ("async_zero_copy", {}, True, False),
        ("all_in_gpu", {}, False, True),
    ],
)
def test_memory_that_a_path_needs(
    name: str, params: dict[str, Any], pinned_table: bool, on_gpu: bool
) -> None:
    (sizes,) = graph_sizes(SMALL)
    load = average_load(build(name, params), SMALL, sizes)
    table, rows, need = SMALL.graph.table_bytes, load.payload_bytes, gpu_need(load, SMALL, sizes)
    assert table_on_gpu(load) is on_gpu
    assert (pinned_need(load) == table) is pinned_table
    assert need > (table if on_gpu else 0) + rows
    if params == {"mode": "naive"}:
        assert pinned_need(load) == 0
    elif params:
        assert 2 * rows <= pinned_need(load) < 4 * rows
    if params == {"mode": "prefetch"}:  # a fetch ahead needs a second buffer
        blocking = average_load(build(name, {"mode": "pinned"}), SMALL, sizes)
        ahead = need - gpu_need(blocking, SMALL, sizes)
        assert ahead == pytest.approx(sizes.rows * 400)


def test_managed_memory_may_be_larger_than_the_gpus_and_lies_with_each_process() -> None:
    table = SMALL.graph.table_bytes
    profile = load_profile("nvidia-h200").with_constant("gpu.memory", table / 0.6, "made up")
    for gpus, host, fits in ((1, 1.5, True), (2, 2.5, True), (2, 1.5, False)):
        there = profile.with_constant("host.memory", host * table, "made up")
        advice = advice_on(replace(SMALL, gpus=gpus), there)
        every = [o for o in (*advice.ranked, *advice.unranked) if o.strategy == "aligned_zero_copy"]
        (managed,) = (option for option in every if "managed" in option.variant)
        (given,) = (option for option in every if option.variant == "given")
        assert (managed.fits, managed in advice.ranked) == (fits, fits)
        assert (given.fits, given.pinned_bytes, managed.pinned_bytes) == (True, table, 0)
        assert managed.host_bytes == gpus * given.host_bytes == gpus * table


def test_json_says_all_that_the_table_says() -> None:
    advice = advice_on(LARGE)
    said = json.loads(json.dumps(to_json(advice)))
    assert set(said) == {
        "schema_version", "headline", "table_fits_in_gpu", "question", "minibatches_per_epoch",
        "minibatches", "profile", "strategies", "disk_caches",
        "remarks",
    }  # fmt: skip
    assert said["schema_version"] == SCHEMA_VERSION
    every = (*advice.ranked, *advice.unranked)
    assert [s["rank"] for s in said["strategies"]] == [o.rank for o in every]
    assert [s["epochs_s"] for s in said["strategies"]] == [
        dict(zip(PAGES, o.epochs_s, strict=True)) if o.epochs_s else None for o in every
    ]
    assert [s["model_error"] for s in said["strategies"]] == [
        o.error and list(o.error) for o in every
    ]
    assert any(o.error for o in every)
    assert len(advice.ranked) >= 6
    assert advice.unranked
    assert set(said["strategies"][0]) == {*asdict(advice.ranked[0]), "model_error"}
    assert said["question"]["fanouts"] == [15, 10]
    assert said["question"]["graph"]["table_bytes"] == LARGE.graph.table_bytes
    assert said["minibatches_per_epoch"] == 1208
    assert len(said["minibatches"]["rmat"]["num_nodes"]) == 3
    assert said["profile"]["unknown"].keys() == advice.profile.unknown().keys()
    assert said["profile"]["default"] == ""


def test_the_table_names_every_option_and_calls_it_modelled() -> None:
    text = printed(render(advice_on(LARGE)))
    assert all(option.strategy in text for option in advice_on(LARGE).ranked)
    assert text.count("modelled") >= 6
    assert "not ranked: all_in_gpu" in text
    assert "computed, not sampled" in text


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (Asked(), "give a dataset, or --nodes, --edges and --dim"),
        (Asked(dataset="wordnet", nodes=5), "not both"),
        (Asked(dataset="wordnett"), "did you mean 'wordnet'"),
        (Asked(nodes=10, edges=20), "--nodes, --edges and --dim go together"),
        (Asked(nodes=1, edges=20, dim=4), "--nodes 1: must be at least 2"),
        (Asked(nodes=10, edges=20, dim=4, dtype="flot32"), "did you mean 'float32'"),
        (Asked(nodes=10, edges=20, dim=4, fanouts="10;5"), "numbers with commas"),
        (Asked(nodes=10, edges=20, dim=4, fanouts="10,0"), "above 0 a layer"),
        (Asked(nodes=10, edges=20, dim=4, model="gcn"), "sage or gat"),
        (Asked(nodes=10, edges=20, dim=4, batch_size=0), "--batch-size 0"),
        (Asked(nodes=10, edges=20, dim=4, gpus=0), "--gpus 0"),
        (Asked(nodes=10, edges=20, dim=4, machines=0), "--machines 0"),
        (Asked(nodes=10, edges=20, dim=4, train_nodes=11), "--train-nodes 11"),
        (Asked(nodes=10, edges=20, dim=4, classes=-1), "--classes -1"),
        (Asked(nodes=10, edges=20, dim=4, gpu_memory=-1.0), "--gpu-memory"),
        (Asked(nodes=10, edges=20, dim=4, gpu_memory=1e-4), "--gpu-memory: 0.0001 GiB"),
        (
            Asked(nodes=10, edges=20, dim=4, host_memory=1e-4),
            "--host-memory: 0.0001 GiB.*write 512",
        ),
        (Asked(nodes=10, edges=20, dim=4, network=1e-3), "--network: 0.001 Gb/s; expected"),
        (Asked(nodes=10, edges=20, dim=4, disk="fast"), "--disk 'fast': write 250k,3GB/s"),
        (Asked(nodes=10, edges=20, dim=4, disk="250k,3GiB/s"), "--disk '250k,3GiB/s': write 250k"),
        (Asked(nodes=10, edges=20, dim=4, disk="1"), "--disk: 0.001 thousand reads a second; exp"),
        (Asked(nodes=10, edges=20, dim=4, disk="1k,9000GB/s"), "--disk: 9000 GB/s; expected 0.001"),
        (Asked(nodes=100, edges=10**6, dim=4), "too dense, 100 nodes have at most 9,900"),
        (Asked(nodes=100, edges=9000, dim=4, law="rmat"), "too dense for RMAT"),
        (Asked(nodes=100, edges=200, dim=4, law="unifrom"), "did you mean 'uniform'"),
        (Asked(nodes=100, edges=200, dim=4, sampler="dgl"), "--sampler 'dgl': edges a second"),
        (Asked(nodes=100, edges=200, dim=4, sampler="20X"), "such as 20M, or pytorch-direct"),
        (Asked(nodes=100, edges=200, dim=4, sampler="20"), r"'20': edges a second \(1k to"),
    ],
)
def test_what_has_no_answer_is_said(asked: Asked, message: str, tmp_path: Path) -> None:
    with pytest.raises((AdviceError, DatasetError), match=message):
        answer(asked, tmp_path, tmp_path)


def test_a_prepared_dataset_is_sampled(
    tiny_root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GATHERBENCH_DATA", str(tiny_root))
    advice = answer(Asked(dataset="tiny", fanouts="3,2", batch_size=50), tmp_path, tmp_path)
    assert [sizes.law for sizes in advice.sizes] == [""]
    assert minibatches(advice).endswith("rows (sampled from it)")
    assert advice.question.graph.train_nodes == 200
    assert advice.question.batches == 4
    assert advice.sizes[0].num_nodes[0] == 50
    everything = (*advice.ranked, *advice.unranked, *advice.others)
    cached = [option for option in everything if option.strategy == "cached_zero_copy"]
    placed = [option for option in cached if option.rank is not None]
    assert [option.lookahead for option in sorted(placed, key=lambda o: o.lookahead)] == [0, 1]
    assert {o.variant for o in cached} >= {"presampled,50%,1", "degree,10%,0"}, "all are known"
    assert not any(word in o.variant for o in cached for word in ("oracle", "random", "lru"))
    for other in advice.others:
        assert not any(other.ahead_of(o) for o in placed if o.lookahead == other.lookahead)
    assert len(to_json(advice)["strategies"]) == len(everything)
    said = printed(render(advice))
    assert f"{placed[0].variant} keeps" in said
    assert all(f"{other.variant} " in said for other in advice.others)
    # What was measured is there, whatever its words: only bounds and controls are not.
    ran = [("async_zero_copy", "green_context,25"), ("cached_zero_copy", "lru,10%,0")]
    bound = ("cached_zero_copy", "oracle,10%,0")
    epochs = dict.fromkeys([*ran, bound], (1.0, "measured: a run"))
    paths = {o.path for o in advise(advice.question, advice.sizes, advice.profile, epochs).ranked}
    assert set(ran) <= paths
    assert bound not in paths
    few = answer(Asked(dataset="tiny", batch_size=50, train_nodes=7), tmp_path, tmp_path)
    assert few.sizes[0].num_nodes[0] == 7
    with pytest.raises(AdviceError, match="tiny is, and is sampled"):
        answer(Asked(dataset="tiny", law="uniform"), tmp_path, tmp_path)


def test_a_dataset_that_is_not_prepared_is_computed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GATHERBENCH_DATA", str(tmp_path))
    advice = answer(Asked(dataset="papers100M-like"), tmp_path, tmp_path)
    assert [sizes.law for sizes in advice.sizes] == ["rmat"]
    real = answer(Asked(dataset="ogbn-arxiv"), tmp_path, tmp_path)
    assert [sizes.law for sizes in real.sizes] == ["rmat", "uniform", "powerlaw"]
    asked = answer(Asked(dataset="ogbn-arxiv", law="powerlaw"), tmp_path, tmp_path)
    assert [sizes.law for sizes in asked.sizes] == ["powerlaw"]
    assert advice.question.graph.train_nodes == 1_207_179
    assert not list(tmp_path.iterdir())


def test_this_machines_calibration_is_taken_if_it_knows_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advise_answer, "this_machine", lambda: "mine")
    asked = Asked(nodes=100_000, edges=900_000, dim=64)

    def said(gpus: tuple[str, ...] = ()) -> str:
        monkeypatch.setattr(advise_answer, "describe_gpus", lambda: {"gpus": gpus})
        advice = answer(asked, tmp_path, tmp_path)
        assert to_json(advice)["profile"]["default"] == advice.default
        return headline(advice).partition(". The")[0]

    stands_in = "Profile rtx3090-pcie4 (a default: "
    no_gpu = f"{stands_in}this machine has no GPU; --profile NAME says another)"
    assert said() == no_gpu
    assert said(("a GPU",)).startswith(f"{stands_in}this machine is not calibrated; gatherbench")
    own = replace(PROFILE, name="mine")
    (tmp_path / "mine.toml").write_text(own.to_toml())
    assert said() == "Profile mine"
    host = own.with_constant("gpu.launch", None, "no_device")
    (tmp_path / "mine.toml").write_text(host.to_toml())
    assert said().startswith(f"{stands_in}{tmp_path / 'mine.toml'} knows no GPU; ")
    named = answer(replace(asked, profile="rtx3090-pcie4"), tmp_path, tmp_path)
    assert headline(named).startswith("Profile rtx3090-pcie4. The")


def test_what_the_profile_knows_as_a_range_makes_epochs_range() -> None:
    """Two constants with two ends: four epochs of each path, of which JSON names the ends."""
    asked = replace(LARGE, gpu_memory_bytes=float(24 << 30))
    visits = load_profile("h200-sxm-pcie5").with_constant("read.page_visits", 1e12, "made up")
    advice = advice_on(asked, visits)
    reads = next(option for option in advice.ranked if option.strategy == "aligned_zero_copy")
    assert len(reads.epochs_s) == 4
    assert reads.shortest_s < 0.8 * reads.longest_s
    ends = ("link.max_request low, read.roof low", "link.max_request high, read.roof high")
    (said,) = (
        one["epochs_s"]
        for one in to_json(advice)["strategies"]
        if (one["strategy"], one["variant"]) == reads.path
    )
    assert [said[f"rmat, {end}"] for end in ends] == [reads.longest_s, reads.shortest_s]
    (said,) = (one for one in advice.remarks if one.startswith("only a range is known of"))
    for key in ("link.max_request", "read.roof"):
        assert f"of {key} ({advice.profile[key].source})" in said
    seen = {reads.path: (1e-3, "a run")}
    measured = advise(asked, advice.sizes, advice.profile, seen).ranked[0]
    assert (measured.path, measured.epochs_s) == (reads.path, (1e-3,) * 4)


def made_up(
    strategy: str, *epochs_s: float, kept: float = 0.0, ahead: int = 0, basis: str = "modelled"
) -> Option:
    sizes = (1e6, 0.0, kept, ahead, True)
    return Option(
        strategy, f"{kept:g}" if kept else "default", "", epochs_s, basis, "", "link", "", *sizes
    )


def test_of_what_keeps_a_part_the_least_stands_that_no_other_is_ahead_of() -> None:
    """By hand: 20 of 100 is 6 % ahead of 10, and 50 only 4 % ahead of 20."""
    paths = [made_up("c", seconds, kept=kept) for kept, seconds in
             ((10, 1.06), (1, 1.2), (20, 1.0), (50, 0.96))]  # fmt: skip
    worse = made_up("c", 1.3, kept=20)
    ahead = [made_up("c", 0.8, kept=kept, ahead=1) for kept in (50, 1)]
    apart = [made_up("c", 1.5, kept=10, basis="measured"), made_up("d", 2.0, kept=10)]
    whole = [made_up("c", 0.7, kept=100), made_up("c", 1.6)]
    found = best_kept([worse, *paths, *ahead, *apart, *whole], 100)
    assert found == [paths[2], ahead[1], *apart, *whole]
    several = [made_up("c", 1.0, 2.0, kept=1), made_up("c", 0.5, 2.0, kept=50)]
    assert best_kept(several, 100) == several[:1], "ahead under one law alone"


def test_a_rank_begins_where_every_path_before_is_ahead_of_every_path_after() -> None:
    """By hand, under two laws: a leads b, neither leads c (0.9 < 1 but 3 > 2), and all lead d."""
    a, b, c, d = (
        made_up("a", 1.0, 2.0),
        made_up("b", 1.5, 2.5),
        made_up("c", 0.9, 3.0),
        made_up("d", 2.0, 4.0),
    )
    assert a.ahead_of(b)
    assert not a.ahead_of(c)
    assert not c.ahead_of(a)
    assert [(o.strategy, o.rank) for o in ranked([d, c, b, a])] == [
        ("a", 1), ("c", 1), ("b", 1), ("d", 4)
    ]  # fmt: skip
    close = [made_up("a", 1.0), made_up("b", 1.04), made_up("c", 1.08)]
    assert [o.rank for o in ranked(close)] == [1, 1, 1]  # b is level with both
    assert [o.rank for o in ranked([close[0], close[2]])] == [1, 2]
    # The second leads the third, but the first does not (3 > 2.5): no rank begins.
    mixed = [made_up("a", 3.0, 1.0), made_up("b", 1.0, 4.0), made_up("c", 2.5, 5.0)]
    assert [(o.strategy, o.rank) for o in ranked(mixed)] == [("a", 1), ("b", 1), ("c", 1)]


def test_the_paths_to_choose_from_are_those_that_no_other_leads() -> None:
    def said(*options: Option) -> str:
        return headline(Advice(LARGE, (), PROFILE, ranked(options)))

    close = said(made_up("a", 1.0), made_up("b", 1.04), made_up("c", 1.08))
    assert "Take a (default): 1.00 s an epoch (modelled), 1.1 times as fast as c" in close
    assert "Level with it, which pins none: b (default) with none." in close
    assert close.endswith("Of a and b no epoch was measured beside the model.")
    laws = said(made_up("a", 1.0, 2.0), made_up("b", 1.5, 2.5), made_up("c", 0.9, 3.0))
    assert "is not decided: none is ahead in every case of a (default), c (default)." in laws
    assert laws.endswith("Of a and c no epoch was measured beside the model.")
    ratios = said(made_up("a", 1.0, 2.0), made_up("b", 1.5, 4.0))
    assert "Take a (default): 1.00 to 2.00 s an epoch" in ratios
    assert "1.5 to 2.0 times as fast as b" in ratios


def of_numbers(*, profile: Any = PROFILE, **graph: Any) -> Any:
    return advice_on(Question(graph_of(**graph)), profile)


def test_a_graph_that_is_not_there_gets_a_range_over_the_laws() -> None:
    """Each epoch is that of its law alone, and the answer says between which and how to know."""
    numbers = {"nodes": 20_000_000, "edges": 400_000_000, "dim": 500, "train_nodes": 10**6}
    whole = of_numbers(**numbers)
    laws = ("rmat", "uniform", "powerlaw")
    assert tuple(sizes.law for sizes in whole.sizes) == laws
    for place, law in enumerate(laws):  # each at both ends of what page visits cost
        alone = {o.path: o.epochs_s for o in of_numbers(**numbers, laws=(law,)).ranked}
        ends = slice(2 * place, 2 * place + 2)
        assert {o.path: o.epochs_s[ends] for o in whole.ranked} == alone
    most = {o.path: o for o in of_numbers(**numbers, laws=("uniform",)).ranked}
    for option in whole.ranked:  # uniform neighbours make the largest minibatches
        assert option.gpu_bytes == most[option.path].gpu_bytes
        assert option.reason == most[option.path].reason
    best = whole.ranked[0]
    assert best.shortest_s < 0.5 * best.longest_s
    between = span(best.shortest_s, best.longest_s, "s")
    assert f"{between} an epoch (modelled), " in headline(whole)
    said = printed(render(whole))
    assert between in said
    assert "To know, bring the graph: gatherbench datasets import." in said
    cases = [f"{law}, read.page_visits {end}" for law in laws for end in ("low", "high")]
    said = to_json(whole)["strategies"][0]["epochs_s"]
    assert said == dict(zip(cases, best.epochs_s, strict=True))


def test_under_every_law_reads_beside_training_are_ahead() -> None:
    """Without a limit on page visits: a CPU gather has the processor to itself while it lasts."""
    graph = source_graph("ogbn-papers100M", 1_207_179)
    free = load_profile("rtx3090-pcie4").with_constant("read.page_visits", 1e12, "made up")
    advice = advice_on(Question(graph), free)
    copied_or_registered = [o for o in advice.ranked if "managed" not in o.variant]
    assert [(o.strategy, o.rank) for o in copied_or_registered[:2]] == [
        ("async_zero_copy", 1), ("cpu_gather", 3)
    ]  # fmt: skip
    assert "gatherbench datasets prepare ogbn-papers100M" in printed(render(advice))


def test_a_law_that_has_no_such_graph_is_left_out_and_said() -> None:
    advice = of_numbers(nodes=100, edges=9000, dim=4)
    assert [sizes.law for sizes in advice.sizes] == ["uniform", "powerlaw"]
    assert "no graph of the law rmat has so many edges: it is left out" in advice.remarks


def test_minibatches_are_drawn_at_this_projects_rate_but_where_a_program_is_named(
    tmp_path: Path,
) -> None:
    """94,500 edges in 1.61 ms are 58.7 M a second, on two cores; 23.01 M only by name, on five."""
    asked = Asked(dataset="papers100M-like", profile="rtx3090-pcie4")
    own = answer(asked, tmp_path, tmp_path)
    named = answer(replace(asked, sampler="pytorch-direct"), tmp_path, tmp_path)
    rates = [
        (a.profile["host.sample_rate"].value, a.profile["host.sample_cores"].value)
        for a in (own, named)
    ]
    assert rates == [(pytest.approx(94_500 / 1.61e-3, rel=1e-3), 2.0), (23.01e6, 5.0)]
    for sampler, edges in (("20M", 2e7), ("1.5e7", 1.5e7)):
        both = [
            answer(replace(asked, profile=name, sampler=sampler), tmp_path, tmp_path)
            for name in ("rtx3090-pcie4", "nvidia-h200")
        ]
        assert {advice.profile["host.sample_rate"].value for advice in both} == {edges}
        assert [advice.profile["host.sample_cores"].value for advice in both] == [2.0, 16.0]
        assert not any("compare two profiles" in remark for a in both for remark in a.remarks)
    assert "compare two profiles under one --sampler" in own.remarks[0]
    assert own.ranked[0].longest_s < 0.7 * named.ranked[0].longest_s
    assert named.ranked[0].bound == "cpu (sampling)"


def test_only_five_per_cent_separate_paths_and_the_text_says_so() -> None:
    """By hand: 1.04 is within 5 % of 1, 1.06 is not; of several cases no order need hold."""
    one, near, far = made_up("a", 1.0), made_up("b", 1.04), made_up("c", 1.06)
    assert one.level_with(near)
    assert not one.ahead_of(near)
    assert one.ahead_of(far)
    assert not one.level_with(far)
    (sizes,) = graph_sizes(SMALL)

    def said(*options: Option) -> str:
        return printed(render(Advice(SMALL, (sizes,), PROFILE, ranked(options))))

    assert "Paths of one rank are level: each is within 5% of the next." in said(one, near)
    assert "Paths of one rank" not in said(one, far)
    several = said(made_up("a", 1.0, 2.0), made_up("b", 2.0, 1.0))
    assert "level or not decided: no order of them holds by 5% in every case." in several


def test_what_could_stand_in_its_place_is_level_and_the_rest_is_named_apart() -> None:
    """By hand: 1.03 is level with 1; 1.2, which keeps less, is not."""
    (sizes,) = graph_sizes(SMALL)
    kept, level, longer = (
        made_up("c", seconds, kept=share * SMALL.graph.table_bytes)
        for share, seconds in ((0.2, 1.0), (0.5, 1.03), (0.1, 1.2))
    )
    advice = Advice(SMALL, (sizes,), PROFILE, ranked([kept]), others=(level, longer))
    said = printed(render(advice))
    assert "keeps 20% of the table, 15.3 MiB, in GPU memory: more gains less than 5%." in said
    assert f"In its place could stand: {level.variant} 1.03 s." in said
    assert f"Not level with it: {longer.variant} 1.20 s." in said


def test_page_visits_that_nobody_knows_are_a_range_above_one_gib() -> None:
    """By hand, over 8 GiB: an H200 visits 41.934 M pages a second, one for each row of 512 B."""
    profile = load_profile("rtx3090-pcie4").with_constant("gpu.memory", 4e9, "made up")
    small, large = (
        Question(graph_of(rows, 400_000_000, 128, train_nodes=100_000, laws=("uniform",)))
        for rows in (2**21, 2**24)
    )
    assert (small.graph.table_bytes, large.graph.table_bytes) == (2**30, 2**33)
    assert small.told(profile) is profile
    known = profile.with_constant("read.page_visits", 3e7, "measured")
    assert large.told(known) is known
    advice = advice_on(large, profile)
    (sizes,) = advice.sizes
    paths = {option.path: option for option in advice.ranked}
    slow, fast = paths["aligned_zero_copy", "given"].epochs_s
    by_link = sizes.rows * 4 * (128 + 20) / (31.51e9 * 0.92)
    by_pages = sizes.rows / 41.934e6
    assert slow - fast == pytest.approx(100 * (by_pages - by_link), rel=1e-3)
    assert len(set(paths["cpu_gather", "pinned"].epochs_s)) == 1
    assert not any("managed" in o.variant for o in (*advice.ranked, *advice.unranked))
    (said,) = (one for one in advice.remarks if one.startswith("only a range is known of"))
    assert "from what an H200 was measured at, profile nvidia-h200, to no limit" in said


def test_what_is_ahead_only_without_a_limit_on_page_visits_is_not_recommended() -> None:
    """With a fast sampler the GPU's reads decide: 1.97 s without a limit, 2.76 s as on an H200."""
    asked = Question(source_graph("papers100M-like"))
    profile = load_profile("rtx3090-pcie4").with_constant("host.sample_rate", 2e8, "made up")
    advice = advice_on(asked, profile)
    paths = {option.path: option for option in advice.ranked}
    reads, copies = paths["async_zero_copy", "stream,auto"], paths["cpu_gather", "prefetch"]
    assert reads.epochs_s == (pytest.approx(2.76, abs=0.01), pytest.approx(1.97, abs=0.01))
    assert copies.epochs_s == (pytest.approx(2.96, abs=0.01),) * 2
    free = advice_on(asked, profile.with_constant("read.page_visits", 1e12, "made up"))
    assert "Take async_zero_copy" in headline(free)


def test_the_dataset_is_only_to_be_prepared_for_what_preparing_tells() -> None:
    remarks = [one for one in advice_on(SMALL).remarks if "is left out: it has to know" in one]
    told = {one.partition(" ")[0]: one.rpartition(" (")[2] for one in remarks}
    assert told["cached_zero_copy"] == "prepare the dataset)"
    assert told["partition_buffer"] == "name them in a plan)"
