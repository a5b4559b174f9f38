"""Advice agrees with the model that it stands on, fits memory, and says what it cannot know."""

import json
import math
from dataclasses import asdict, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatherbench.bench.model.advise import answer as advise_answer
from gatherbench.bench.model.advise import option as option_module
from gatherbench.bench.model.advise.answer import answer
from gatherbench.bench.model.advise.asked import Asked
from gatherbench.bench.model.advise.kept import from_the_law
from gatherbench.bench.model.advise.memory import (
    HostNeed,
    beside_table,
    gpu_need,
    graph_bytes,
    pinned_need,
    table_on_gpu,
)
from gatherbench.bench.model.advise.option import (
    LEVEL,
    Option,
    average_load,
    drawn,
    in_words,
    predict,
)
from gatherbench.bench.model.advise.question import (
    USUAL_CLASSES,
    AdviceError,
    Question,
    graph_of,
    graph_sizes,
    source_graph,
)
from gatherbench.bench.model.advise.rank import (
    Advice,
    advise,
    best_of_alike,
    distinct_paths,
    off_disk,
    ranked,
)
from gatherbench.bench.model.errors import error_of, measured_beside, told_apart
from gatherbench.bench.model.estimate import Estimate
from gatherbench.bench.model.profile import drawn_by_program, load_profile
from gatherbench.bench.read.units import ITEM_BYTES, span
from gatherbench.bench.show.advice import (
    SCHEMA_VERSION,
    minibatches,
    recommendation,
    render,
    to_json,
)
from gatherbench.datasets.dataset import DatasetError
from gatherbench.strategies.places import TABLE_SHARE
from gatherbench.strategies.registry import STRATEGIES, build

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


def test_the_ranking_is_the_models():
    for question in (LARGE, SMALL, replace(LARGE, gpus=4)):
        advice = advice_on(question)
        times = [(option.rank, option.longest_s) for option in advice.ranked]
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


def test_every_strategy_is_there_and_alike_variants_are_one():
    (sizes,) = graph_sizes(SMALL)
    found = [(s.name, s.variant) for s, _ in distinct_paths(SMALL, sizes, PROFILE)]
    # What is sharded over ranks is nothing of its own on one GPU.
    graphless = {kind.name for kind in STRATEGIES if not (kind().needs or kind().aside)}
    assert {name for name, _ in found} == {*graphless, "cached_zero_copy"}
    shares = {v for n, v in found if n == "cached_zero_copy"}
    assert shares == {
        f"presampled,{share}%,{ahead}" for share in (1, 5, 10, 20, 50) for ahead in (0, 1)
    }
    remarks = advice_on(SMALL).remarks
    for name in {
        kind.name for kind in STRATEGIES if kind().needs - {"ranks"} and "file" not in kind().needs
    } - {"cached_zero_copy"}:
        assert any(said.startswith(f"{name} is left out: it has to know") for said in remarks)
    assert [v for n, v in found if n == "cpu_gather"] == ["pinned", "prefetch", "naive"]
    assert len([n for n, _ in found if n == "async_zero_copy"]) == 1
    assert len([n for n, _ in found if n == "aligned_zero_copy"]) == 1


def said_first(advice: Advice) -> str:
    return "\n".join(recommendation(advice))


def test_a_table_that_fits_belongs_in_gpu_memory():
    advice = advice_on(SMALL)
    assert advice.table_fits is True
    paths = {option.path: option for option in advice.ranked}
    resident, usual = paths["all_in_gpu", "default"], paths["cpu_gather", "pinned"]
    assert advice.ranked[0].longest_s < resident.longest_s < 1.05 * advice.ranked[0].longest_s
    assert recommendation(advice)[:2] == (
        "Take all_in_gpu (the table takes 76.3 MiB and fits there):"
        f" {1e3 * resident.longest_s:.0f} ms an epoch, modelled.",
        f"That is {usual.longest_s / resident.longest_s:.1f} times as fast as the usual way,"
        f" cpu_gather pinned ({1e3 * usual.longest_s:.0f} ms).",
    )
    low, high = error_of("all_in_gpu", 0, issue_known=False) or (0.0, 0.0)
    assert recommendation(advice)[2].startswith(
        f"How sure: modelled epochs of such paths were {low:+.0%} to {high:+.0%} off on an H200;"
        " profile rtx3090-pcie4; "
    )
    assert recommendation(advice)[2].endswith(" as good.")


def test_a_profile_that_does_not_know_what_steps_take_to_issue_errs_more_and_says_so():
    """An H200's own has it, and the other profiles do not."""
    here = advice_on(SMALL, load_profile("nvidia-h200")).ranked[0]
    there = advice_on(SMALL).ranked[0]
    assert (here.issue_known, there.issue_known) == (True, False)
    for family in (("cpu_gather", 0), ("async_zero_copy", 1), ("all_in_gpu", 0)):
        known, unknown = (error_of(*family, issue_known=k) or (0.0, 0.0) for k in (True, False))
        assert unknown[0] < known[0]
    assert told_apart(issue_known=False) > told_apart()
    said = "what a training step takes to issue"
    assert any(said in note for note in advice_on(SMALL).notes)
    assert not any(said in note for note in advice_on(SMALL, load_profile("nvidia-h200")).notes)


def test_a_table_that_fits_stays_in_gpu_memory_unless_something_is_ahead():
    """Whole in GPU memory 1 s; the fetch beside training has to be beyond the model's error."""
    whole = replace(made_up("all_in_gpu", 1.0, kept=SMALL.graph.table_bytes), variant="default")
    near, far = (made_up("a", times / told_apart()) for times in (1.01, 0.99))
    for rival, taken in ((near, whole), (far, far)):
        found = Advice(SMALL, (), PROFILE, ranked([whole, rival]))
        assert found.take is not None
        assert found.take.path == taken.path


def test_a_table_that_does_not_fit_is_not_ranked_there():
    advice = advice_on(LARGE)
    assert advice.table_fits is False
    assert advice.take is not None
    assert advice.take.role != "bound"
    (option,) = (o for o in advice.unranked if o.strategy == "all_in_gpu")
    assert option.reason == "It needs 53.1 GiB of GPU memory, and 90% of 24 GiB may be taken."
    roomy = advice_on(replace(LARGE, gpu_memory_bytes=float(80 << 30)))
    assert roomy.table_fits is True
    assert {option.strategy for option in roomy.unranked} == {"copy_engine_gather"}


def test_three_lines_come_first_and_each_is_one():
    laws = of_numbers(nodes=10**6, edges=10**7, dim=64)
    for advice in (advice_on(LARGE), advice_on(SMALL), laws):
        lines = recommendation(advice)
        assert len(lines) == 3
        assert all(len(line) <= 120 for line in lines), lines
        assert len(recommendation(replace(advice, default="of nobody"))[2]) <= 120
        text = printed(render(advice))
        assert text.startswith("\n".join(lines) + "\n\n")


def test_assumptions_are_told_to_who_asks_why():
    advice = advice_on(LARGE)
    short, long = printed(render(advice)), printed(render(advice, why=True))
    for text in ("assumed or left out", ", bound by "):
        assert text not in short
        assert text in long
    assert "--why: where the time goes" in short


def test_the_graph_lies_in_host_memory_too():
    """By hand: 8 (N + 1) and 4 E of neighbour lists, 8 N of labels, 4 N by the sampler."""
    nodes, edges = 111_059_956, 1_615_685_872
    graph = LARGE.graph
    assert (graph.nodes, graph.edges) == (nodes, edges)
    assert graph_bytes(graph) == 8 * (nodes + 1) + 4 * edges + 8 * nodes
    found = {o.path: o for o in advice_on(LARGE).ranked}
    (sizes,) = graph_sizes(LARGE)
    staging = 2 * 2 ** math.ceil(math.log2(sizes.rows * 512))
    need = found["cpu_gather", "pinned"].host
    assert need == HostNeed(nodes * 512, graph_bytes(graph), 4 * nodes, staging)
    assert need.total == pytest.approx(61.2 * 2**30, rel=2e-3)
    assert found["aligned_zero_copy", "given"].host.staging == 0
    # 54 GiB hold the table, but not what lies beside it; of 64 GiB 90 % are too little as well.
    for memory, fits in ((54, False), (64, False), (70, True)):
        asked = replace(LARGE, host_memory_bytes=memory * 2.0**30)
        advice = advice_on(asked)
        assert any(o.strategy == "cpu_gather" for o in advice.ranked) is fits
        assert ("does not fit into memory" in said_first(advice)) is not fits or not advice.ranked
    refused = next(o for o in advice_on(replace(LARGE, host_memory_bytes=64 * 2.0**30)).unranked
                   if o.path == ("cpu_gather", "pinned"))  # fmt: skip
    assert refused.reason == (
        "It needs 61.1 GiB of host memory (the table 53 GiB, the graph 7.67 GiB, the sampler"
        " 424 MiB, staging 64 MiB), and 90% of 64 GiB may be taken."
    )
    assert "host" in printed(render(advice_on(LARGE))).splitlines()[5]


def test_parameters_are_words():
    for name, params, words in (
        ("cpu_gather", {"mode": "prefetch"}, "cpu_gather prefetch"),
        ("all_in_gpu", {}, "all_in_gpu"),
        ("async_zero_copy", {}, "async_zero_copy"),
        ("async_zero_copy", {"memory": "managed"}, "async_zero_copy, memory managed"),
        ("disk_cached", {"policy": "lru", "share": "50%"}, "disk_cached, policy lru, share 50%"),
    ):
        assert in_words(build(name, params)) == words


def test_hot_rows_are_told_from_the_law():
    """24 GiB hold a part of 53 GiB: what is kept is not read, and what is not kept is."""
    advice = advice_on(LARGE)
    every = {o.path: o for o in (*advice.ranked, *advice.others, *advice.unranked)}
    kept = every["cached_zero_copy", "presampled,10%,0"]
    assert kept.kept_bytes == pytest.approx(0.1 * LARGE.graph.table_bytes)
    assert kept.longest_s < every["aligned_zero_copy", "given"].longest_s
    assert every["cached_zero_copy", "presampled,50%,0"].fits is False
    notes = " ".join(advice.notes)
    assert "as if training nodes lay anywhere" in notes
    assert "papers100M-like: it does not cache like papers100M" in notes


def test_what_was_not_measured_so_far_is_said():
    """An H200's rates of pages end at 32 GiB; this table has 53."""
    h200 = load_profile("nvidia-h200")
    advice = advice_on(replace(LARGE, gpu_memory_bytes=24.0 * 2**30), h200)
    for what in ("pages", "pages of managed memory"):
        (said,) = (note for note in advice.notes if f"how many {what} a second" in note)
        assert "is known of tables up to 32 GiB: of this one it may be fewer" in said
    other = advice_on(replace(LARGE, gpu_memory_bytes=24.0 * 2**30))
    assert any("up to 32 GiB; this one is larger; this GPU" in note for note in other.notes)
    small = replace(LARGE, graph=source_graph("papers100M-like", scale=0.5))
    within = advice_on(replace(small, gpu_memory_bytes=24.0 * 2**30), h200)
    assert not any("a second a GPU reads" in note for note in within.notes)
    beyond = "managed memory that is larger than GPU memory was not measured yet, on no GPU"
    assert beyond in within.notes
    assert beyond not in advice_on(small, h200).notes, "it has 140 GB"
    managed = next(o for o in within.ranked if o.managed)
    assert managed.pinned_bytes == 0
    assert not any("this one is larger" in note for note in within.notes)


def test_a_table_that_leaves_no_room_beside_it_does_not_fit():
    """``all_in_gpu`` itself refuses to take more than its share of the memory."""
    (resident,) = (o for o in advice_on(SMALL).ranked if o.strategy == "all_in_gpu")
    for share, fits in ((TABLE_SHARE * 0.99, True), ((1 + TABLE_SHARE) / 2, False)):
        asked = replace(SMALL, gpu_memory_bytes=resident.gpu_bytes / share)
        assert advice_on(asked).table_fits is fits


def test_unknown_constants_leave_options_unranked_with_the_reason():
    profile = PROFILE.with_constant("copy.pageable", None, "nobody measured it")
    advice = advice_on(SMALL, profile)
    (option,) = (o for o in advice.unranked if o.strategy != "copy_engine_gather")
    assert (option.strategy, option.variant) == ("cpu_gather", "naive")
    assert option.reason == "Not known: copy.pageable: nobody measured it."
    roomless = advice_on(SMALL, PROFILE.with_constant("gpu.memory", None, "nobody knows"))
    assert roomless.table_fits is None
    assert {option.fits for option in roomless.ranked} == {None}
    profile = PROFILE.with_constant("gpu.launch", None, "nobody measured it")
    nothing = advice_on(LARGE, profile)
    assert not nothing.ranked
    assert "Nothing can be ranked" in said_first(nothing)
    assert "calibrate --base" in said_first(nothing)


def test_minibatches_that_fit_nowhere_are_said():
    advice = advice_on(replace(LARGE, gpu_memory_bytes=1.1e8, batch_size=20_000))
    assert not advice.ranked
    assert recommendation(advice) == (
        "Nothing fits, not even the minibatches of any path: make them smaller.",
    )


def test_how_fast_minibatches_are_drawn_is_said_with_its_source_or_left_out_of_all():
    (said,) = (r for r in advice_on(LARGE).remarks if r.startswith("minibatches drawn at"))
    assert said.startswith("minibatches drawn at 23 M edges/s, which all share (fitted to")
    advice = advice_on(LARGE, PROFILE.with_constant("host.sample_rate", None, "not measured"))
    drawn = advice_on(LARGE)
    assert len(advice.ranked) + len(advice.others) == len(drawn.ranked) + len(drawn.others)
    assert any("without drawing minibatches, which all share" in r for r in advice.remarks)


def test_a_part_that_another_hides_is_beside_it():
    """Not told by adding up: parts that GPUs share, or several that are hidden, mislead a sum."""

    def ends(question: Question, profile: Any = PROFILE) -> dict[str, str]:
        advice = advice_on(question, profile)
        every = (*advice.ranked, *advice.others)
        return {f"{o.strategy} {o.variant}": o.reason.rpartition(", ")[2] for o in every}

    crowded = ends(replace(LARGE, gpus=8, machines=2))
    assert crowded["async_zero_copy stream,auto"] == "beside it."
    assert crowded["cpu_gather naive"] == "at another time."
    few_cores = PROFILE.with_constant("host.cores", 2.0, "made up")
    few_cores = few_cores.with_constant("host.sample_rate", 8e7, "made up")
    slow = ends(LARGE, few_cores)
    assert slow["async_zero_copy stream,auto"] == "beside it."
    assert slow["aligned_zero_copy given"] == "at another time."
    assert slow["cpu_gather pinned"] == "at another time."  # training, which the host issues


@pytest.mark.parametrize(
    ("felt", "how"), [(0.1, "beside it"), (0.5, "partly beside it"), (0.9, "at another time")]
)
def test_how_much_of_a_part_the_longest_one_hides_is_said(felt, how):
    """Of what the transfer takes alone, the epoch is longer by the share ``felt``."""
    epoch: Any = SimpleNamespace(
        at_once_s={"transfer": 1e-3, "train": 2e-3},
        parts={"train": SimpleNamespace(bound="memory")},
        epoch_s=Estimate(0.3),
        exposed={"train": 1.0, "transfer": felt},
    )
    assert option_module._sentence(epoch, 100) == (
        "Training takes 200 ms of 300 ms, bound by memory;"
        f" the transfer over the link takes 100 ms, {how}."
    )


def test_elements_are_as_long_as_torch_s():
    assert {name: getattr(torch, name).itemsize for name in ITEM_BYTES} == ITEM_BYTES


def test_what_a_graph_does_not_tell_is_assumed_and_said():
    assert SMALL.graph.assumed == ()
    assert graph_of(200, 5_000, 100).assumed == (
        "an epoch trains on all 200 nodes (say --train-nodes)",
        f"{USUAL_CLASSES} classes (say --classes)",
    )


def test_what_gpus_would_share_and_nobody_knows_is_said():
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
def test_memory_that_a_path_needs(name, params, pinned_table, on_gpu):
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


def test_managed_memory_cannot_be_shared():
    """Each GPU of a machine has a table of its own, and none of it is pinned."""
    advice = advice_on(replace(LARGE, gpus=2), load_profile("nvidia-h200"))
    every = (*advice.ranked, *advice.others, *advice.unranked)
    (managed,) = (o for o in every if o.words == "aligned_zero_copy, memory managed")
    (given,) = (o for o in every if o.path == ("aligned_zero_copy", "given"))
    table = LARGE.graph.table_bytes
    assert (given.host.table, managed.host.table) == (table, 2 * table)
    assert (given.pinned_bytes, managed.pinned_bytes) == (table, 0)
    assert managed.longest_s < given.longest_s, "pages hold up what is registered"


def test_json_says_all_that_the_table_says():
    advice = advice_on(LARGE)
    said = json.loads(json.dumps(to_json(advice)))
    assert set(said) == {
        "schema_version", "recommendation", "take", "table_fits_in_gpu", "question",
        "minibatches_per_epoch", "minibatches", "profile", "strategies", "disk_caches", "notes",
        "remarks",
    }  # fmt: skip
    assert said["schema_version"] == SCHEMA_VERSION
    every = (*advice.ranked, *advice.unranked, *advice.others)
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
    assert set(said["strategies"][0]) == {
        *asdict(advice.ranked[0]), "model_error", "host_bytes"
    }  # fmt: skip
    assert tuple(said["take"]) == advice.take.path
    assert said["question"]["fanouts"] == [15, 10]
    assert said["question"]["graph"]["table_bytes"] == LARGE.graph.table_bytes
    assert said["minibatches_per_epoch"] == 1208
    assert len(said["minibatches"]["rmat"]["num_nodes"]) == 3
    assert said["profile"]["unknown"].keys() == advice.profile.unknown().keys()
    assert said["profile"]["default"] == ""


def test_the_table_names_every_option_and_calls_it_modelled():
    text = printed(render(advice_on(LARGE)))
    assert all(option.words in text for option in advice_on(LARGE).ranked)
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
        (Asked(nodes=100, edges=200, dim=4, sampler="20X"), "such as 20M, gpu, or pytorch-direct"),
        (Asked(nodes=100, edges=200, dim=4, sampler="20"), r"'20': edges a second \(1k to"),
        (
            Asked(nodes=100, edges=200, dim=4, sampler="gpu", profile="rtx3090-pcie4"),
            "--sampler gpu: profile rtx3090-pcie4 does not know what a draw takes there",
        ),
    ],
)
def test_what_has_no_answer_is_said(asked, message, tmp_path):
    with pytest.raises((AdviceError, DatasetError), match=message):
        answer(asked, tmp_path, tmp_path)


def test_a_prepared_dataset_is_sampled(tiny_root, monkeypatch, tmp_path):
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
    said = printed(render(advice, why=True))
    assert f"{placed[0].words} keeps" in said
    assert all(other.words in said for other in advice.others if other.kept_bytes)
    # What was measured is there, whatever its words: only bounds and controls are not.
    ran = [("async_zero_copy", "green_context,25"), ("cached_zero_copy", "lru,10%,0")]
    bound = ("cached_zero_copy", "oracle,10%,0")
    epochs = dict.fromkeys([*ran, bound], (1.0, "measured: a run"))
    paths = {o.path for o in advise(advice.question, advice.sizes, advice.profile, epochs).ranked}
    assert set(ran) <= paths
    assert bound not in paths
    few = answer(Asked(dataset="tiny", batch_size=50, train_nodes=7), tmp_path, tmp_path)
    assert few.sizes[0].num_nodes[0] == 7
    with pytest.raises(AdviceError, match="tiny is prepared, and is sampled"):
        answer(Asked(dataset="tiny", law="uniform"), tmp_path, tmp_path)


def test_a_dataset_that_is_not_prepared_is_computed(monkeypatch, tmp_path):
    monkeypatch.setenv("GATHERBENCH_DATA", str(tmp_path))
    advice = answer(Asked(dataset="papers100M-like"), tmp_path, tmp_path)
    assert [sizes.law for sizes in advice.sizes] == ["rmat"]
    real = answer(Asked(dataset="ogbn-arxiv"), tmp_path, tmp_path)
    assert [sizes.law for sizes in real.sizes] == ["rmat", "uniform", "powerlaw"]
    asked = answer(Asked(dataset="ogbn-arxiv", law="powerlaw"), tmp_path, tmp_path)
    assert [sizes.law for sizes in asked.sizes] == ["powerlaw"]
    assert advice.question.graph.train_nodes == 1_207_179
    assert not list(tmp_path.iterdir())


def test_this_machines_calibration_is_taken_if_it_knows_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(advise_answer, "this_machine", lambda: "mine")
    asked = Asked(nodes=100_000, edges=900_000, dim=64)

    def said(gpus: tuple[str, ...] = ()) -> str:
        monkeypatch.setattr(advise_answer, "describe_gpus", lambda: {"gpus": gpus})
        advice = answer(asked, tmp_path, tmp_path)
        assert to_json(advice)["profile"]["default"] == advice.default
        return f"{recommendation(advice)[2]} {advice.default}"

    stands_in = "; profile rtx3090-pcie4 (default); "
    assert stands_in in said()
    assert said().endswith("this machine has no GPU; --profile NAME says another")
    assert "this machine is not calibrated; gatherbench" in said(("a GPU",))
    own = replace(PROFILE, name="mine")
    (tmp_path / "mine.toml").write_text(own.to_toml())
    assert said().endswith(" "), "it is no default"
    assert "; profile mine; " in said()
    host = own.with_constant("gpu.launch", None, "no_device")
    (tmp_path / "mine.toml").write_text(host.to_toml())
    assert f"{tmp_path / 'mine.toml'} knows no GPU; " in said()
    named = answer(replace(asked, profile="rtx3090-pcie4"), tmp_path, tmp_path)
    assert "; profile rtx3090-pcie4; " in recommendation(named)[2]


def test_what_the_profile_knows_as_a_range_makes_epochs_range():
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
    variant = f"{kept:g}" if kept else "default"
    sizes = (1e6, 0.0, kept, ahead, True)
    return Option(
        strategy, variant, strategy, "other", "", epochs_s, basis, "measured: a run", "link", "",
        *sizes,
    )  # fmt: skip


def test_of_what_keeps_a_part_the_least_stands_that_no_other_is_ahead_of():
    """By hand: 20 of 100 is 6 % ahead of 10, and 50 only 4 % ahead of 20."""
    paths = [made_up("c", seconds, kept=kept) for kept, seconds in
             ((10, 1.06), (1, 1.2), (20, 1.0), (50, 0.96))]  # fmt: skip
    ahead = [made_up("c", 0.8, kept=kept, ahead=1) for kept in (50, 1)]
    apart = [made_up("c", 1.5, kept=11, basis="measured"), made_up("d", 2.0, kept=10)]
    found = best_of_alike([*paths, *ahead, *apart])
    assert found == [paths[2], ahead[1], *apart]
    several = [made_up("c", 1.0, 2.0, kept=1), made_up("c", 0.5, 2.0, kept=50)]
    assert best_of_alike(several) == several[:1], "ahead under one law alone"


def test_variants_that_are_level_are_one_line_and_managed_memory_stands_for_them():
    """By hand: 1.04 is level with 1, and 1.06 is not."""
    one, near, far = (replace(made_up("a", t), variant=str(t)) for t in (1.0, 1.04, 1.06))
    assert best_of_alike([one, near, far]) == [one, far]
    managed = replace(near, managed=True)
    assert best_of_alike([one, managed]) == [managed]
    assert best_of_alike([one, made_up("b", 1.0)]) == [one, made_up("b", 1.0)]


def test_of_a_path_that_keeps_as_much_managed_memory_stands_unless_registered_is_ahead():
    """By hand: as much kept at 1 and 1.04 s is level; at 1.06 s the other is ahead."""
    keeping, more = (made_up("a", 1.0, kept=kept) for kept in (100.0, 200.0))
    for seconds, stands in ((1.04, True), (1.06, False)):
        managed = replace(made_up("a", seconds, kept=100.0), managed=True)
        (found,) = best_of_alike([keeping, managed, more])
        assert found.managed is stands


def test_the_rank_is_how_many_are_ahead():
    """By hand, two laws, told apart by a fifth: a leads b, neither leads c, and all lead d."""
    assert 1.2 < told_apart() < 1.25
    a, b, c, d = (
        made_up("a", 1.0, 2.0),
        made_up("b", 1.6, 3.2),
        made_up("c", 0.9, 3.0),
        made_up("d", 2.6, 5.2),
    )
    assert a.ahead_of(b)
    assert not a.ahead_of(c)
    assert not c.ahead_of(a)
    found = ranked([d, c, b, a])
    assert [(o.strategy, o.rank) for o in found] == [("a", 1), ("c", 1), ("b", 2), ("d", 4)]
    assert [o.strategy for o in Advice(LARGE, (), PROFILE, found).lead] == ["a", "c"]


def test_modelled_paths_closer_than_the_model_s_error_are_not_told_apart():
    """Two strategies err apart, variants of one alike; what was measured is told by 5 %."""
    apart = told_apart()
    one, near, far = made_up("a", 1.0), made_up("b", 0.99 * apart), made_up("c", 1.01 * apart)
    assert not one.ahead_of(near)
    assert one.ahead_of(far)
    assert one.ahead_of(replace(near, strategy="a"))
    seen = [replace(option, basis="measured") for option in (one, near)]
    assert seen[0].ahead_of(seen[1])
    assert not one.ahead_of(seen[1])
    blind = [replace(option, issue_known=False) for option in (one, far)]
    assert not any(a.ahead_of(b) for a, b in ((one, blind[1]), (blind[0], far), blind))
    assert LEVEL == 1.05


def test_of_what_is_not_told_apart_the_safest_is_taken():
    """By hand: prefetch at 1 s may be as long as 1 / (1 + its error) s; the other errs less."""
    ahead = replace(made_up("cpu_gather", 1.0, ahead=1), variant="prefetch")
    reads = replace(made_up("async_zero_copy", 1.1, ahead=1), variant="stream,auto")
    for option in (ahead, reads):
        low, _ = error_of(*option.family) or (0.0, 0.0)
        assert option.safest_s == pytest.approx(option.longest_s / (1 + low))
    best = min((ahead, reads), key=lambda option: option.safest_s)
    advice = Advice(LARGE, (), PROFILE, ranked([ahead, reads]))
    assert advice.take is not None
    assert advice.take.path == best.path
    never = made_up("nobody", 1.0)
    assert never.error is None
    assert never.safest_s == pytest.approx(1 / (1 + min(one.error for one in measured_beside())))
    # Without what a step takes to issue epochs came out up to 48 % too short.
    assert replace(never, issue_known=False).safest_s == pytest.approx(1 / 0.52, rel=0.01)
    assert (
        "no epoch of such a path was ever measured"
        in recommendation(Advice(LARGE, (), PROFILE, ranked([never])))[2]
    )


def test_the_ratio_is_over_the_usual_way_and_of_one_basis():
    usual = replace(
        made_up("cpu_gather", 2.0, 4.0), variant="pinned", words="cpu_gather pinned",
        role="conventional",
    )  # fmt: skip
    fast = made_up("a", 1.0, 1.0)

    def second(*options: Option, unranked: tuple[Option, ...] = ()) -> str:
        return recommendation(Advice(LARGE, (), PROFILE, ranked(options), unranked))[1]

    assert second(fast, usual) == (
        "That is 2.0 to 4.0 times as fast as the usual way, cpu_gather pinned (2.00 to 4.00 s)."
    )
    assert second(usual).startswith("That is the usual way itself")
    assert "give no ratio" in second(replace(fast, basis="measured"), usual)
    absent = replace(usual, fits=False)
    assert second(fast, unranked=(absent,)) == (
        "The usual way, cpu_gather pinned, does not fit into memory: see below."
    )
    assert "is not known" in second(fast)


def of_numbers(*, profile: Any = PROFILE, **graph: Any) -> Any:
    return advice_on(Question(graph_of(**graph)), profile)


def test_a_graph_that_is_not_there_gets_a_range_over_the_laws():
    """Each epoch is that of its law alone, and the answer says between which and how to know."""
    numbers = {"nodes": 20_000_000, "edges": 400_000_000, "dim": 500, "train_nodes": 10**6}
    whole = of_numbers(**numbers)
    laws = ("rmat", "uniform", "powerlaw")
    assert tuple(sizes.law for sizes in whole.sizes) == laws
    for place, law in enumerate(laws):  # each at both ends of what page visits cost
        one = of_numbers(**numbers, laws=(law,))
        alone = {o.path: o.epochs_s for o in (*one.ranked, *one.others)}
        ends = slice(2 * place, 2 * place + 2)
        every = (*whole.ranked, *whole.others)
        assert {o.path: o.epochs_s[ends] for o in every} == alone
    one = of_numbers(**numbers, laws=("uniform",))
    most = {o.path: o for o in (*one.ranked, *one.others)}
    for option in whole.ranked:  # uniform neighbours make the largest minibatches
        assert option.gpu_bytes == most[option.path].gpu_bytes
        assert option.reason == most[option.path].reason
    best = whole.ranked[0]
    assert best.shortest_s < 0.5 * best.longest_s
    between = span(best.shortest_s, best.longest_s, "s")
    said = printed(render(whole))
    assert between in said
    assert "To know, bring it: gatherbench datasets import." in said
    cases = [f"{law}, read.page_visits {end}" for law in laws for end in ("low", "high")]
    said = to_json(whole)["strategies"][0]["epochs_s"]
    assert said == dict(zip(cases, best.epochs_s, strict=True))


def test_what_the_laws_disagree_on_is_not_decided():
    """Few rows a minibatch favour one path, many another: neither is ahead under every law."""
    one, other = made_up("a", 1.0, 3.0), made_up("b", 3.0, 1.0)
    assert [option.rank for option in ranked([one, other])] == [1, 1]
    graph = source_graph("ogbn-papers100M", 1_207_179)
    assert "gatherbench datasets prepare ogbn-papers100M" in printed(
        render(advice_on(Question(graph)))
    )


def test_a_law_that_has_no_such_graph_is_left_out_and_said():
    advice = of_numbers(nodes=100, edges=9000, dim=4)
    assert [sizes.law for sizes in advice.sizes] == ["uniform", "powerlaw"]
    assert "no graph of the law rmat has so many edges: it is left out" in advice.remarks


def test_minibatches_are_drawn_at_this_projects_rate_but_where_a_program_is_named(tmp_path):
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
    assert not any("--sampler gpu" in note for note in named.notes), "nobody knows what it takes"


def test_where_the_gpu_draws_a_layer_takes_what_the_profile_says_and_it_holds_the_graph(tmp_path):
    """By hand: three layers of 0.35 ms; the graph and 8 B a node lie in GPU memory alone."""
    profile = load_profile("nvidia-h200")
    on_gpu = replace(SMALL, fanouts=(15, 10, 5), gpu_samples=True)
    on_cpu = replace(on_gpu, gpu_samples=False)
    (sizes,) = graph_sizes(on_gpu)
    load = average_load(build("all_in_gpu", {}), on_gpu, sizes)
    found = drawn(load, profile, 3).sample_s
    assert found is not None
    assert found.value == pytest.approx(1.05e-3)
    (said,) = found.remarks
    assert said.startswith(f"minibatches drawn on the GPU, which all share ({WHERE}); what many")
    unknown = drawn(load, profile.with_constant("gpu.draw", None, "nobody timed it"), 3).sample_s
    said = "without drawing minibatches, which all share (gpu.draw: nobody timed it)"
    assert unknown == Estimate(0.0, (), (said,))
    assert drawn(average_load(build("all_in_gpu", {}), on_cpu, sizes), profile, 3).sample_s is None
    (epoch,) = predict(on_gpu, load, profile)
    assert epoch.parts["sample"].seconds.value == pytest.approx(1.05e-3)
    more = gpu_need(load, on_gpu, sizes) - gpu_need(load, on_cpu, sizes)
    layers = [min(n * f, 5e6) for n, f in zip(sizes.num_nodes, (15, 10, 5), strict=False)]
    assert layers[0] == 15_000
    # 40 B for each edge that the widest layer could have; of two minibatches all edges' ends.
    drawing = 40 * max(layers) + 2 * 16 * sum(layers)
    assert more == pytest.approx(graph_bytes(SMALL.graph) + 8 * 200_000 + drawing)
    assert beside_table(load, on_gpu).total == 0
    assert beside_table(load, on_cpu).graph == graph_bytes(SMALL.graph)
    staged = average_load(build("cpu_gather", {"mode": "pinned"}), on_gpu, sizes)
    for gpus in (1, 2):  # a pair of buffers each
        need = beside_table(staged, replace(on_gpu, gpus=gpus))
        assert need == HostNeed(staging=gpus * pinned_need(staged))
        assert need.staging > 0
    gpu, cpu = (advice_on(question, profile) for question in (on_gpu, on_cpu))
    assert gpu.ranked[0].longest_s < cpu.ranked[0].longest_s
    assert [any("--sampler gpu" in note for note in one.notes) for one in (gpu, cpu)] == [0, 1]
    asked = Asked(nodes=1000, edges=9000, dim=4, sampler="gpu", profile="nvidia-h200", law="rmat")
    told = answer(asked, tmp_path, tmp_path)
    assert told.question.gpu_samples
    assert told.profile["host.sample_rate"] == profile["host.sample_rate"]
    assert answer(replace(asked, sampler="GPU"), tmp_path, tmp_path).question.gpu_samples


WHERE = load_profile("nvidia-h200")["gpu.draw"].source


def test_drawing_on_the_gpu_is_advised_where_the_graph_has_room_there_and_it_was_timed():
    """By hand: the graph, 8 B a node and what is drawn, beside the path; not with a byte less."""
    profile = load_profile("nvidia-h200")
    asked = replace(SMALL, fanouts=(15, 10, 5))
    said = "try --sampler gpu"
    path = advice_on(asked, profile).ranked[0]
    (sizes,) = graph_sizes(asked)
    most = [n * f for n, f in zip(sizes.num_nodes, (15, 10, 5), strict=False)]
    drawing = 40 * max(most) + 2 * 16 * sum(most)
    held = graph_bytes(asked.graph) + 8 * 200_000 + drawing
    room = (path.gpu_bytes + held) / TABLE_SHARE
    for there, told in ((room + 1, True), (room - 1, False)):
        small = profile.with_constant("gpu.memory", there, "made up")
        assert any(said in note for note in advice_on(asked, small).notes) is told
    untimed = profile.with_constant("gpu.draw", None, "nobody timed it")
    assert not any(said in note for note in advice_on(asked, untimed).notes)
    full = replace(asked, gpu_samples=True, gpu_memory_bytes=1.1e8)
    (why,) = recommendation(advice_on(full, profile))[:1]
    assert why == "Nothing fits beside the graph, from which the GPU draws: leave --sampler out."


def test_the_note_on_drawing_is_of_the_shortest_epoch():
    """Rows of 1600 B: the longest epoch is bound by the CPU's gather."""
    graph = graph_of(200_000, 5_000_000, 400, classes=10, train_nodes=50_000, laws=("rmat",))
    advice = advice_on(Question(graph), load_profile("nvidia-h200"))
    assert [advice.ranked[at].bound for at in (0, -1)] == ["cpu (sampling)", "cpu"]
    assert any("--sampler gpu" in note for note in advice.notes)


def test_a_graph_from_which_the_gpu_draws_takes_no_host_memory_and_is_placed():
    """By hand: the host has room for the table, and not for the graph beside it."""
    there = (SMALL.graph.table_bytes + graph_bytes(SMALL.graph) / 2) / TABLE_SHARE
    host = load_profile("nvidia-h200").with_constant("host.memory", there, "made up")
    on_gpu = replace(SMALL, gpu_samples=True)
    assert [off_disk(one, host) for one in (SMALL, on_gpu)] == [True, False]
    profile, said = load_profile("nvidia-h200"), "keep them on the GPU, or read them in place"
    large = (LARGE, replace(LARGE, gpu_samples=True))
    found = [any(said in note for note in advice_on(one, profile).notes) for one in large]
    assert found == [True, False]


def test_hot_rows_by_a_law_are_reckoned_over_managed_memory_too():
    """The other rows are read in pages of their own, and nothing is registered."""
    (sizes,) = graph_sizes(SMALL)
    of = {one.memory: one for one in from_the_law() if (one.share, one.ahead) == ("5%", "0")}
    loads = {memory: average_load(path, SMALL, sizes) for memory, path in of.items()}
    registered, managed = loads["registered"], loads["managed"]
    assert registered.gpu_page_visits
    assert 0 < managed.managed_page_visits <= registered.gpu_page_visits, "pages of 2 MiB"
    assert not managed.gpu_page_visits
    assert managed.gpu_table_bytes == registered.gpu_table_bytes
    options = advice_on(SMALL, load_profile("nvidia-h200"))
    kept = [o for o in (*options.ranked, *options.others) if o.strategy == "cached_zero_copy"]
    assert {o.pinned_bytes > 0 for o in kept} == {True, False}


def test_what_a_rank_is_stands_once_above_the_table():
    (sizes,) = graph_sizes(SMALL)

    def said(*options: Option) -> str:
        return printed(render(Advice(SMALL, (sizes,), PROFILE, ranked(options))))

    one, near, far = made_up("a", 1.0), made_up("b", 1.04), made_up("c", 2.0)
    assert said(one, near).count(f"is ahead by more than {told_apart() - 1:.0%}, as far") == 1
    blind = replace(near, issue_known=False)
    apart = told_apart(issue_known=False) - 1
    assert said(one, blind).count(f"is ahead by more than {apart:.0%}, as far") == 1
    assert "Rank 1" not in said(one, far)
    seen = [replace(option, basis="measured") for option in (one, near)]
    assert "Rank 1: no path is ahead of it by more than 5%." in said(*seen)


def test_what_could_stand_in_its_place_is_level_and_the_rest_is_named_apart():
    """By hand: 1.03 is level with 1; 1.2, which keeps less, is not."""
    (sizes,) = graph_sizes(SMALL)
    kept, level, longer = (
        made_up("c", seconds, kept=share * SMALL.graph.table_bytes)
        for share, seconds in ((0.2, 1.0), (0.5, 1.03), (0.1, 1.2))
    )
    advice = Advice(SMALL, (sizes,), PROFILE, ranked([kept]), others=(level, longer))
    said = printed(render(advice, why=True))
    assert "keeps 20% of the table, 15.3 MiB, in GPU memory: more gains less than 5%." in said
    assert f"In its place could stand: {level.words}: 1.03 s." in said
    assert f"Not level with it: {longer.words}: 1.20 s." in said


def test_page_visits_that_nobody_knows_are_a_range_above_one_gib():
    """By hand, over 8 GiB: an H200 visits 42.923 M pages a second, one for each row of 512 B."""
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
    by_pages = sizes.rows / 42.923e6
    assert slow - fast == pytest.approx(100 * (by_pages - by_link), rel=1e-3)
    assert len(set(paths["cpu_gather", "pinned"].epochs_s)) == 1
    managed = next(o for o in advice.ranked if o.words == "aligned_zero_copy, memory managed")
    assert managed.epochs_s == (fast, fast), "its pages hold nothing up"
    (said,) = (one for one in advice.remarks if one.startswith("only a range is known of"))
    assert "from what an H200 was measured at, profile nvidia-h200, to no limit" in said


def test_the_dataset_is_only_to_be_prepared_for_what_preparing_tells():
    remarks = [one for one in advice_on(SMALL).remarks if "is left out: it has to know" in one]
    told = {one.partition(" ")[0]: one.rpartition(" (")[2] for one in remarks}
    assert told["partition_buffer"] == "name them in a plan)"
