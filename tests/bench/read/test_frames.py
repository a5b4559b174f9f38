"""A run as data frames: a line an epoch, a line a case; as a reader with pandas alone has it."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
from tests.bench.observations import rows_in, rows_of_run, write_rows

import gatherbench
from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.read.tables import RunError, of_mean_epoch, run_of
from gatherbench.bench.run.frames import KNOWN, Column, frames_of, reading
from gatherbench.bench.run.part import StoreError
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.store import RunStore

CASE = Case(Workload("tiny"), "cpu_gather", "naive", {}, 0)
MAKE = RowMaker("run", "abc", "box", "host").of(CASE)


@pytest.mark.parametrize(
    ("stage", "metric", "unit", "declared", "name"),
    [
        ("epoch", "wall_time", "s", False, "epoch_s"),
        ("fetch", "wall_time", "s", False, "fetch_s"),
        ("fetch", "payload", "B", False, "fetch_payload_bytes"),
        ("fetch", "gpu_link_read", "B", True, "declared_gpu_link_read_bytes"),
        ("fetch", "declared_payload", "B", True, "declared_payload_bytes"),
        ("fetch", "gpu_requests_32_bytes", "1", True, "declared_gpu_requests_32b"),
        ("sample", "edges", "1", True, "declared_sample_edges"),
        ("epoch", "pcie_host_to_device", "B", False, "link_rx_bytes"),
        ("energy", "pcie_device_to_host", "B", False, "energy_link_tx_bytes"),
        ("epoch", "window_time", "s", False, "window_s"),
        ("epoch", "gpu_energy", "J", False, "gpu_energy_j"),
        ("epoch", "gpu_clock", "Hz", False, "gpu_clock_hz"),
        ("case", "wall_time", "s", False, "case_s"),
        ("setup", "gather_2_threads_step_time", "s", False, "setup_gather_2_threads_step_s"),
        ("setup", "page_visit_rate", "1/s", False, "setup_page_visit_rate_per_s"),
        ("train", "loss", "1", False, "train_loss"),
        ("epoch", "timer_ticks", "1", False, "timer_ticks"),
        ("epoch", "rank", "1", False, "epoch_rank"),
    ],
)
def test_a_column_is_named_after_stage_metric_and_unit(stage, metric, unit, declared, name):
    assert Column(stage, metric, unit, declared).name == name


def test_a_column_says_what_it_means():
    assert Column("fetch", "wall_time", "s", declared=False).meaning == KNOWN["fetch_s"]
    requests = Column("fetch", "gpu_requests_96_bytes", "1", declared=True)
    assert requests.meaning == "requests of N bytes on the link"
    assert Column("epoch", "new_one", "J", declared=False).meaning == (
        "new one (measured; stage epoch)"
    )


def test_rows_become_a_line_an_epoch_and_a_line_a_case():
    declared = RowMaker("run", "abc", "box", "host", basis="declared").of(CASE)
    polled = "NVML [samples={}, period=0.02 s]"
    rows = [
        MAKE.ok("setup", "process_began", "s", 17.5, "time.time"),
        MAKE.ok("setup", "open_time", "s", 0.5, "clock"),
        MAKE.missing("setup", "numa_node", "1", "driver", "unsupported: one node"),
    ]
    for epoch, seconds in enumerate((3.0, 4.0)):
        rows += [MAKE.ok("setup", "process_began", "s", 18.5, "time.time", 1)] * epoch
        rows += [
            MAKE.ok("epoch", "wall_time", "s", seconds, "clock", epoch),
            MAKE.ok("epoch", "gpu_power", "W", 7, polled.format(5 + epoch), epoch),
            MAKE.missing("epoch", "gpu_energy", "J", "NVML", "no_device: none", epoch=epoch),
            declared.ok("fetch", "gpu_link_read", "B", 640, "formula", epoch),
        ]
    rows.append(MAKE.missing("train", "loss", "1", "mean", "unsupported: no model", epoch=1))
    rows.append(MAKE.ok("case", "wall_time", "s", 9, "clock"))
    frames = frames_of(rows)
    epochs = frames.epochs
    told = epochs[["block", "epoch", "epoch_s", "gpu_power_w", "gpu_power_samples"]]
    assert told.values.tolist() == [[0, 0, 3, 7, 5], [1, 1, 4, 7, 6]]
    assert epochs["declared_gpu_link_read_bytes"].tolist() == [640, 640]
    assert set(epochs["basis"]) == {"measured"}
    (case,) = frames.cases.to_dict("records")
    told = [case[name] for name in ("status", "reason", "case_s", "setup_open_s")]
    assert told == ["ok", None, 9, 0.5]
    assert [
        (r["epoch"], r["column"], r["reason"], r["source"])
        for r in frames.reasons.to_dict("records")
    ] == [
        (-1, "setup_numa_node", "unsupported: one node", None),
        (-1, "gpu_energy_j", "no_device: none", None),  # of both epochs
        (1, "train_loss", "unsupported: no model", None),
    ]
    assert frames.columns["gpu_power_w"].source == "NVML [samples=N, period=0.02 s]"


def every_rank() -> list[Row]:
    """Two repeats of two ranks, three epochs each, in which no two observations are alike."""
    rows: list[Row] = []
    for repeat, rank, epoch in product(range(2), range(2), range(3)):
        number = 100 * repeat + 10 * rank + epoch
        make = replace(MAKE, repeat=repeat, rank=rank)
        declared = replace(make, basis="declared")
        polled = f"NVML [samples={number}, period=0.02 s]"
        why = f"no_device: {repeat} {rank}"
        rows += [
            *([make.ok("setup", "process_began", "s", 17.5 + repeat, "time.time")] * (epoch == 0)),
            make.ok("epoch", "wall_time", "s", 1 + number, "clock", epoch),
            make.ok("epoch", "gpu_power", "W", 0, polled, epoch),
            make.missing("epoch", "gpu_energy", "J", "NVML", why, epoch=epoch),
            declared.ok("fetch", "gpu_link_read", "B", 640 + number, "formula", epoch),
        ]
        if epoch > rank:
            why = f"failed: {rank}"
            rows.append(
                declared.missing("train", "operations", "1", "shapes", why, "failed", epoch)
            )
        else:
            seen = f"shapes; {number} of 900"
            rows.append(declared.ok("train", "operations", "1", number + 0.5, seen, epoch))
        if epoch == 0:
            rows.append(make.ok("setup", "open_time", "s", 0.25 * number, "clock"))
            rows.append(make.ok("eval", "test_accuracy", "1", 0.36, "count"))
            rows.append(declared.ok("fetch", "row", "B", 400, "bytes of a row"))
            rows.append(make.ok("case", "wall_time", "s", 7 + number, "clock"))
    theirs = replace(MAKE, basis="predicted", borrowed="sample")
    return [*rows, theirs.ok("epoch", "wall_time", "s", 0.5, "model", 0)]


def test_each_rank_and_repeat_keeps_its_values_reasons_and_counts(tmp_path):
    """As lines, and as files."""
    rows = every_rank()
    frames = frames_of(rows)
    energy = [one for one in frames.reasons.to_dict("records") if one["column"] == "gpu_energy_j"]
    told = {(one["repeat"], one["rank"], one["epoch"], one["reason"]) for one in energy}
    both = [*product(range(2), repeat=2)]
    assert told == {(*at, -1, "no_device: {} {}".format(*at)) for at in both}
    assert frames.cases.loc[frames.cases["status"].notna(), "epochs"].tolist() == [3] * 4
    blocks = frames.epochs.loc[frames.epochs["basis"] == "measured", ["repeat", "block"]]
    assert blocks.drop_duplicates().values.tolist() == [[0, 0], [1, 1]]
    assert sorted(rows_in(frames), key=repr) == sorted(rows, key=repr)
    store = RunStore.create(tmp_path, "box", {"name": "mine", "cases": []}, {})
    write_rows(store, rows)
    assert sorted(rows_of_run(store.folder), key=repr) == sorted(rows, key=repr)


def test_of_a_case_that_is_no_result_what_was_declared_and_how_it_ended_stays():
    """Repeat 0 failed its last comparison."""
    rows = every_rank()
    rows.append(MAKE.missing("check", "rows", "1", "compare", "failed: differs", "failed"))
    plan = {"workloads": {}, "cases": [], "measure": {}}
    made = run_of(Path(), plan, {}, frames_of(rows), going=False)
    assert set(zip(made.epochs["basis"], made.epochs["repeat"], strict=True)) == {
        ("measured", 1),
        ("predicted", 0),
    }
    ended = made.cases[made.cases["status"].notna()].groupby("repeat")
    assert ended["setup_open_s"].apply(list).to_dict() == {0: [0, 2.5], 1: [25, 27.5]}
    scores = ended["eval_test_accuracy"].apply(list).to_dict()
    assert scores[1] == [0.36, 0.36]
    assert pd.isna(scores[0]).all()


def test_a_process_that_had_but_the_end_of_a_case_left_has_no_epoch():
    """The one before it was killed behind the last block; and it failed, which the case says."""
    frames = frames_of(
        [
            MAKE.ok("setup", "process_began", "s", 17.5, "time.time"),
            MAKE.ok("epoch", "wall_time", "s", 3, "clock", 0),
            MAKE.ok("setup", "process_began", "s", 18.5, "time.time", 1),
            replace(MAKE, commit="def").missing("case", "wall_time", "s", "", "boom", "failed"),
        ]
    )
    assert [*frames.epochs["commit"], *frames.cases["commit"]] == ["abc", "def"]
    next_repeat = replace(MAKE, repeat=1)
    began = next_repeat.ok("setup", "process_began", "s", 19.5, "time.time")
    later = frames_of([began, next_repeat.ok("epoch", "wall_time", "s", 3, "clock", 0)], frames)
    assert later.epochs["block"].tolist() == [0, 1]
    assert frames.epochs[["epoch", "block"]].values.tolist() == [[0, 0]]
    assert frames.cases[["epochs", "status", "reason"]].values.tolist() == [[1, "failed", "boom"]]
    assert frames.cases["case_s"].isna().all()


def test_an_observation_that_stands_twice_is_refused():
    twice = [MAKE.ok("epoch", "wall_time", "s", 1, "clock", 0)] * 2
    with pytest.raises(ValueError, match=r"epoch\.wall_time of .* repeat 0, epoch 0 stands twice"):
        frames_of(twice)


def test_what_a_case_declares_is_the_mean_of_the_epochs_that_were_measured():
    """Requests of 64 B are in one epoch of three: (0 + 9 + 0) / 3; a reason leaves no number."""
    make = replace(MAKE, basis="declared")
    rows = [make.ok("fetch", "row", "B", 132, "formula")]
    for epoch, payload in ((0, 100), (4, 110), (2, 150)):
        rows.append(MAKE.ok("fetch", "payload", "B", payload, "count", epoch))
        rows.append(make.ok("fetch", "declared_payload", "B", payload, "count", epoch))
        rows.append(make.missing("fetch", "disk_read", "B", "count", "unknown: why", epoch=epoch))
    rows.append(make.ok("fetch", "gpu_requests_64_bytes", "1", 9, "count", 4))
    found = of_mean_epoch(frames_of(rows))
    assert found.index.tolist() == [(CASE.workload.id, "cpu_gather", "naive", "host", 0)]
    assert found.iloc[0].dropna().to_dict() == {
        "declared_row_bytes": 132,
        "declared_payload_bytes": 120,
        "declared_gpu_requests_64b": 3,
    }


def test_the_frames_of_a_run(make_run):
    failures = {("unified_zero_copy", "registered"): ("failed", "out of memory")}
    run = gatherbench.load_run(make_run(failures=failures))
    assert list(run.epochs)[:4] == ["run", "commit", "machine", "backend"]
    assert len(run.epochs) == 2 * 3 * 4  # of the path that failed nothing counts
    assert not run.epochs["noisy"].any()
    failed = run.cases.set_index("strategy").loc["unified_zero_copy"]
    assert set(failed["status"]) == {"failed"}
    assert set(failed["reason"]) == {"out of memory"}
    assert run.columns.loc["fetch_s", ["unit", "meaning"]].tolist() == ["s", KNOWN["fetch_s"]]
    missing = run.reasons[run.reasons["column"] == "gpu_energy_j"]
    assert set(missing["reason"]) == {"no_device: none here"}
    assert len(missing) == 2 * 3  # one line a case, not one an epoch


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("epochs", "gpu_energy_j", "5"),  # beside its reason
        ("epochs", "epoch_s", ""),  # and no reason
        ("cases", "case_s", ""),
        ("cases", "reason", "but it ended well"),
    ],
)
def test_a_number_has_a_value_or_a_reason(make_run, table, column, value):
    folder = make_run()
    lines = pd.read_csv(folder / f"{table}.csv", dtype=str, keep_default_na=False)
    lines.loc[1, column] = value
    lines.to_csv(folder / f"{table}.csv", index=False, lineterminator="\n")
    name = "case_s" if table == "cases" else column
    with pytest.raises(RunError, match=rf"{table}\.csv: line 3: {name} of .*, or neither; put a"):
        gatherbench.load_run(folder)


def test_what_is_known_stands_first_and_what_each_column_holds_is_told(make_run):
    run = gatherbench.load_run(make_run(declared=True))
    metrics = list(run.epochs)[list(run.epochs).index("used") + 1 :]
    assert metrics[:4] == ["epoch_s", "sample_s", "fetch_s", "train_s"]
    assert list(run.cases)[-1] == "epochs"
    about = run.columns.loc["declared_gpu_link_read_bytes"].to_dict()
    assert about == {
        "unit": "B",
        "source": "test",
        "meaning": KNOWN["declared_gpu_link_read_bytes"],
        "stage": "fetch",
        "metric": "gpu_link_read",
        "declared": True,
    }


def test_an_error_without_words_of_the_system_keeps_its_own():
    """Such is Arrow's, of a damaged page of Parquet."""
    said = "samples.parquet: cannot be read: odd; put a whole copy of it there"
    with pytest.raises(StoreError, match=said), reading(Path("samples.parquet")):
        raise OSError("odd\nand more")
