"""What differs in one field: every number worked out by hand, from rows that were made up."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from gatherbench.bench.read.axis import AXES, accuracy_by_then, axis, disk_strategies
from gatherbench.bench.read.tables import load_run

from ..disk_run import CACHED, DIRECT, LARGE, MAPPED, write_disk
from ..ranks_run import write_ranks
from ..written_run import edit, put, seen, write_run

NAIVE, ALIGNED = ("cpu_gather", "naive"), ("aligned_zero_copy", "given")
OTF = "OTF threshold=30 shared=yes"


def three(line: Any, name: str) -> list[float]:
    return [line[name], line[f"{name}_low"], line[f"{name}_high"]]


def test_efficiency_is_time_of_one_rank_over_ranks_times_theirs(make_run):
    """Of 2 ranks one waits for 0.02 × 1.25 s, the other not; the exchange takes 0.05 of it."""
    run = load_run(write_ranks(make_run, {ALIGNED: {1: 2.0, 2: 1.25, 4: 1.0}}))
    found = axis(run, "gpus")
    assert list(found["value"]) == ["1", "2 strong", "4 strong"]
    assert set(found["family"]) == {"wordnet GraphSAGE"}
    assert found["epoch"].tolist() == pytest.approx([2.0, 1.25, 1.0])
    assert found["ratio"].tolist() == pytest.approx([1.0, 0.625, 0.5])
    assert found["efficiency"].tolist() == pytest.approx([1.0, 0.8, 0.5])
    _, two, four = found.to_dict("records")
    assert (two["wait"], two["all_reduce"]) == pytest.approx((0.0125, 0.0625))
    # Ranks 0 to 3 wait for 3, 2, 1 and 0 times 0.02 s.
    assert four["wait"] == pytest.approx(0.03)
    assert set(found["reason"]) == {""}


def test_of_repeats_that_do_not_count_no_rank_s_wait_counts(make_run):
    run = load_run(write_ranks(make_run, {ALIGNED: {1: 2.0, 2: 1.25}}))
    strange = (run.epochs["rank"] >= 0) & (run.epochs["repeat"] > 0)
    epochs = run.epochs.assign(
        wait_s=run.epochs["wait_s"].mask(strange, 9.0), used=run.epochs["repeat"] == 0
    )
    busy = replace(run, epochs=epochs, cases=run.cases.assign(used=run.cases["repeat"] == 0))
    assert axis(busy, "gpus")["wait"].iloc[1] == pytest.approx(0.0125)


def test_weak_scaling_is_compared_by_the_time_for_a_seed(make_run):
    """2 s for 20 000 seeds; 2.5 s for 40 000 with 2 ranks: 0.1 over 2 × 0.0625 ms."""
    times, seeds = {ALIGNED: {1: 2.0, 2: 2.5}}, {1: 2e4, 2: 4e4}
    found = axis(load_run(write_ranks(make_run, times, scaling="weak", seeds=seeds)), "gpus")
    assert found["efficiency"].tolist() == pytest.approx([1.0, 0.8])
    assert found["ratio"].tolist() == pytest.approx([1.0, 1.25])
    assert found["seeds"].tolist() == [2e4, 4e4]


@pytest.mark.parametrize(
    ("failed", "reasons"),
    [(2, ["", "failed: it broke", ""]), (1, ["failed: it broke", "no gpus 1", "no gpus 1"])],
)
def test_what_was_not_measured_has_a_reason_and_is_no_base(make_run, failed, reasons):
    times = {ALIGNED: {1: 2.0, 2: 1.25, 4: 1.0}, NAIVE: {1: 4.0}}
    run = load_run(write_ranks(make_run, times, failures={(failed, *ALIGNED): "it broke"}))
    found = axis(run, "gpus").query("strategy == 'aligned_zero_copy'")
    assert list(found["reason"]) == reasons
    assert list(found["epoch"].isna()) == [why.startswith("failed") for why in reasons]
    assert list(found["ratio"].isna()) == [bool(why) for why in reasons]


def test_paths_off_a_disk_are_compared_with_the_table_in_memory(make_run):
    """On the second workload CPU gather could not run."""
    run = load_run(write_disk(make_run))
    fits, large = (mine for _, mine in axis(run, "path").groupby("family", sort=False))
    over = fits.set_index("strategy")
    assert over["ratio"].to_dict() == pytest.approx(
        {"cpu_gather": 1, "disk_mmap": 2, "disk_direct": 4, "disk_cached": 2.5}
    )
    assert fits["value"].iloc[0] == "cpu_gather (naive)"
    assert over.loc["disk_cached", ["in_memory", "amplification", "declared"]].tolist() == [
        0.25, 8, 7.5,
    ]  # fmt: skip
    assert over.loc["disk_direct", ["in_flight", "roof"]].tolist() == pytest.approx([125, 1.5e6])
    assert large["reason"].iloc[0] == "skipped: no_memory: too little of it"
    assert set(large["reason"].iloc[1:]) == {"no path cpu_gather (naive)"}
    assert large["ratio"].isna().all()
    assert large["amplification"].notna().sum() == 2


def test_bytes_requests_and_hits_are_set_against_the_rows_that_were_read(make_run):
    """16 GB for 2 GB of rows; 12 GB for the 3 M rows of 500 B that the cache did not have.

    4 M reads in a fetch of 0.8 × 4 s; 3 M in an epoch of 2.5 s, which the fetches run ahead of. By
    Little's law, of reads of 100 µs, 1.25 M and 1.2 M a second are 125 and 120 in flight.
    """
    run = load_run(write_disk(make_run))
    assert disk_strategies(run) == ["disk_cached", "disk_direct", "disk_mmap"]
    table = axis(run, "path").set_index("workload").loc[LARGE].set_index("strategy")
    numbers = ["amplification", "declared", "process", "device", "in_memory", "iops", "in_flight"]
    numbers += ["roof", "latency_median", "latency_99th"]
    nan = math.nan
    for (path, _), expected in {
        DIRECT: (8, 8, 8, 8, nan, 4e6 / 3.2, 125, 1.5e6, 9e-5, 4e-4),
        CACHED: (8, 7.5, 8, 8.4, 0.25, 3e6 / 2.5, 120, 1.5e6, 9e-5, 4e-4),
        MAPPED: (nan, nan, 1.5, 1.6, nan, nan, nan, nan, nan, nan),
    }.items():
        assert table.loc[path, numbers].tolist() == pytest.approx(expected, nan_ok=True)


def test_a_path_that_found_every_row_has_no_bytes_for_a_byte(make_run):
    folder = write_disk(make_run)
    edit(folder, put(lambda _: 4e6, metric="rows_in_memory"))
    found = axis(load_run(folder), "path").query("strategy == 'disk_cached'")
    assert (found["in_memory"] == 1).all()
    assert found["amplification"].isna().all()


def test_over_what_other_work_met_throughout_there_is_no_ratio(make_run):
    run = load_run(write_disk(make_run))
    gather = run.cases["strategy"] == "cpu_gather"
    busy = replace(run, cases=run.cases.assign(noisy=gather, other_cores=1.5))
    assert axis(busy, "path")["ratio"].isna().all()


#: Seconds of sampling, fetching and training, of each model.
TIMES = {"sage": (0.2, 0.1, 0.2), "x:RGCN": (0.2, 0.1, 1.8), "x:CompactRGCN": (0.2, 0.1, 0.6)}
IDS = {model: f"wordnet-{model[2:]}16x2-b1000-{number:08x}" for number, model in enumerate(TIMES)}


def of_models(case: tuple[str, str, str], _repeat: int, epoch: int) -> Iterator[Mapping[str, Any]]:
    if epoch < 0:
        yield from seen("eval", "1", {"test_accuracy": 0.36})
    if epoch < 0 and "RGCN" in case[0]:
        yield from seen("train", "B", {"peak": 160e6})
        yield from seen("sample", "1", {"pairs": 90, "edges": 100}, basis="declared")


def test_a_relational_model_is_compared_with_pyg_s_layer_of_the_same_values(make_run):
    """Welch: logarithms 0, x, 2x on each side, x = log 1.1: variance x² · 2/3, four degrees."""
    folder = make_run(
        series=[(*ALIGNED, {IDS[model]: of for model, of in TIMES.items()})],
        workloads={ident: {"model": model} for model, ident in IDS.items()},
        longer=lambda _workload, repeat, _epoch: (1.0, 1.1, 1.21)[repeat],
        repeats=3,
        more=of_models,
    )
    sage, theirs, ours = axis(load_run(folder), "model").to_dict("records")
    assert [one["value"] for one in (sage, theirs, ours)] == ["sage", "RGCN", "CompactRGCN"]
    assert ours["family"] == "wordnet"
    reach = math.exp(2.776445 * math.log(1.1) * math.sqrt(2 / 3))
    assert three(ours, "longer") == pytest.approx([1 / 3, 1 / 3 / reach, reach / 3], rel=1e-5)
    assert three(theirs, "longer") == [1, 1, 1], "it is PyG's"
    epochs = [(0.9 * f + 0.01, 2.1 * f + 0.01) for f in (1.0, 1.1, 1.21)]  # 0.01 s of no stage
    assert ours["ratio"] == pytest.approx(math.prod(a / b for a, b in epochs) ** (1 / 3))
    assert three(ours, "epoch") == pytest.approx([epochs[1][0], epochs[0][0], epochs[2][0]])
    assert (ours["train"], ours["peak"], ours["distinct"]) == (pytest.approx(0.66), 160e6, 0.9)
    assert ours["accuracy"] == 0.36
    assert math.isnan(sage["peak"])


def of_steps(case: tuple[str, str, str], _repeat: int, epoch: int) -> Iterator[Mapping[str, Any]]:
    if epoch >= 0:
        yield from seen("epoch", "1", {"minibatches": 20})
        host = 1 if case[0].endswith("1") else 0
        yield from seen("train", "B", {"peak": 9e6 - 4e6 * host})
        yield from seen("around_step", "B", {"out": 6e7 * host, "in": 4e7 * host})
        yield from seen("around_step", "s", {"stall": 0.5 * host})


def test_what_is_moved_around_a_step_is_of_a_step_and_its_memory_the_most(make_run):
    """Of 20 steps: 60 MB are 3 MB, and 0.5 s are 25 ms. Fetching takes 0.3 s over 0.2."""
    times = {f"wordnet-sage16x2-b1000-0000000{n}": (0.2, 0.2 + 0.1 * n, 0.5) for n in (0, 1)}
    where = dict(zip(times, ("", "x:ToHost"), strict=True))
    folder = make_run(
        series=[(*NAIVE, times)],
        workloads={ident: {"around_step": of} for ident, of in where.items()},
        longer=lambda *_: 1.0,
        more=of_steps,
    )
    keep, host = axis(load_run(folder), "around_step").to_dict("records")
    assert (keep["value"], host["value"]) == ("", "ToHost")
    assert (keep["peak"], host["peak"]) == (9e6, 5e6)
    assert (keep["out"], keep["stall"]) == (0, 0)
    assert (host["out"], host["in"], host["stall"]) == (3e6, 2e6, 0.025)
    assert host["fetch"] == pytest.approx(1.5)


#: By workload: way of sampling, seed, and seconds of an epoch.
EPOCHS = {"": (1.0, 2.0), f"x:{OTF}": (0.8, 1.8)}
SAMPLED = {
    f"wordnet-sage16x2-b1000-{number:08x}": (way, seed, EPOCHS[way][seed])
    for number, (way, seed) in enumerate((way, seed) for way in EPOCHS for seed in (0, 1))
}


def sampled(case: tuple[str, str, str], _repeat: int, epoch: int) -> Iterator[Mapping[str, Any]]:
    plain = SAMPLED[case[0]][0] == ""
    if epoch < 0:
        distinct = 900 if plain else 300
        yield from seen("sample", "1", {"distinct_neighbours": distinct}, basis="declared")
    else:
        right = 0.1 * (epoch + 1) - (0.0 if plain else 0.02)
        yield from seen("eval", "1", {"test_accuracy": right})


def test_seeds_stand_for_repeats_and_are_paired(tmp_path):
    """Epochs of 0.8 and 1.8 s over 1 and 2 s are 0.8 and 0.9: √0.72 is their geometric mean, and
    12.706 × (ln 0.9 - ln 0.8) / 2 what their logarithms reach with one degree of freedom.
    """
    folder = write_run(
        tmp_path / "20261124-structure-abc1",
        series=[(*NAIVE, {w: (0.0, 0.0, of[2] - 0.01) for w, of in SAMPLED.items()})],
        workloads={w: {"sampler": of[0], "seed": of[1]} for w, of in SAMPLED.items()},
        repeats=1,
        epochs=2,
        longer=lambda *_: 1.0,
        more=sampled,
    )
    run = load_run(folder)
    plain, cached = axis(run, "sampler").to_dict("records")
    assert (plain["value"], cached["value"]) == ("", OTF)
    reach = math.exp(12.7062 * math.log(0.9 / 0.8) / 2)
    middle = math.sqrt(0.72)
    assert three(cached, "ratio") == pytest.approx([middle, middle / reach, middle * reach], 1e-4)
    assert (plain["epoch"], cached["epoch"]) == pytest.approx((1.5, 1.3))
    assert (plain["distinct"], cached["distinct"]) == (900, 300)
    # All had 1.6 s: with the first seed one epoch had ended by then, with the second none.
    assert plain["then"] == pytest.approx((0.1 + 0.0) / 2)
    assert cached["then"] == pytest.approx((0.18 + 0.0) / 2)
    assert len(accuracy_by_then(run)) == 4


def test_a_field_without_two_values_has_no_line_and_no_other_field_an_axis(make_run):
    run = load_run(make_run(declared=True))
    assert all(axis(run, field).empty for field in AXES)
    assert disk_strategies(run) == []
    with pytest.raises(ValueError, match="no axis 'hidden'; there are gpus, path, "):
        axis(run, "hidden")
