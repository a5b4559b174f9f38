"""The run's folder: what is written is read back, and what was torn is recovered."""

from __future__ import annotations

import os
import pickle
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gatherbench.bench.meters.base import LEAST, MOST
from gatherbench.bench.meters.nvml_device import SensorChoice
from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Case, Workload, case_id
from gatherbench.bench.read.tables import began
from gatherbench.bench.run import store as store_module
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.rows import BACKENDS, BASES, HEADER, UNITS, Row, RowMaker
from gatherbench.bench.run.store import (
    PartWriter,
    RunStore,
    StoreError,
    key_of,
    ranks_folder,
    read_part,
    read_ranks,
    rows_of,
    to_csv,
)
from gatherbench.reason import Reason

WORKLOAD = Workload("wordnet", fanouts=(25, 10))
CASE = Case(WORKLOAD, "cpu_gather", "pinned", {"mode": "pinned"}, 0)
MAKE = RowMaker("run", "abc", "box", "host", WORKLOAD.id, "wordnet", "cpu_gather", "pinned", 0)


HEAD = ",".join(HEADER)


def test_a_run_says_when_it_was_begun(store):
    """To the second and in UTC: of two runs of one day the later one is known."""
    then = datetime.fromisoformat(began(store.folder))
    assert then.utcoffset() == timedelta(0)
    assert timedelta(0) <= datetime.now(UTC) - then < timedelta(minutes=5)
    (store.folder / "env.json").unlink()
    assert began(store.folder) == f"{date.today():%Y-%m-%d}"
    assert began(store.folder.parent) == ""


def complete(make: RowMaker = MAKE) -> list[Row]:
    return [
        make.ok("epoch", "wall_time", "s", 1.25, "clock", epoch=0),
        make.ok("case", "wall_time", "s", 3.5, "clock"),
    ]


text = st.text(st.characters(exclude_categories=()), max_size=30)
rows = st.builds(
    lambda maker, stage, metric, unit, value, reason: (
        maker.ok(stage, metric, unit, value, "source")
        if reason is None
        else maker.missing(stage, metric, unit, "source", reason)
    ),
    st.builds(
        RowMaker,
        *(text, text, text, st.sampled_from(BACKENDS), text, text, text, text),
        st.integers(0, 99),
        st.sampled_from(BASES),
        st.sampled_from(("", "sample", "sample fetch")),
        st.integers(-1, 7),
    ),
    text,
    text,
    st.sampled_from(UNITS),
    st.floats(0, MOST).filter(lambda value: value == 0 or value >= LEAST),
    st.none() | text.filter(bool),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(rows, max_size=5), st.lists(rows, max_size=5))
def test_reading_back_gives_the_same_rows(tmp_path_factory, first, second):
    store = RunStore(tmp_path_factory.mktemp("run"))
    store.rows_file.write_text(f"{HEAD}\n")
    store.append(first)
    store.append(second)
    assert store.rows() == first + second


def test_an_earlier_versions_long_text_is_read_and_cut(store):
    """Python's reader takes 131,072 characters of itself, and resuming reads them, too."""
    store.append(complete())
    long = to_csv([MAKE.missing("check", "rows", "1", "clock", "@")])
    long = long.replace("@", "é\x1b[0m" * 10**6)
    with store.rows_file.open("a", encoding="utf-8") as file:
        file.write(long)
    *kept, row = store.rows()
    assert kept == complete()
    assert row.reason == "é" * 1600 + "…"
    assert store.recover() == {key_of(CASE)}


def test_a_reason_of_nothing_is_read_back(store):
    for words in ("", "\x1b[0m"):
        store.append([MAKE.missing("case", "wall_time", "s", "clock", words)])
    assert {row.reason for row in RunStore(store.folder).rows()} == {"no reason was given"}


def test_to_append_copies_and_parses_no_earlier_row(store, monkeypatch):
    seen, row_of = [], store_module._row
    monkeypatch.setattr(store_module, "_row", lambda cells: seen.append(cells) or row_of(cells))
    kept = store._known()
    for repeat in range(50):
        store.append(complete(replace(MAKE, repeat=repeat)))
        assert store._known() is kept, "the list itself, not another one"
    assert len(seen) == len(kept) == len(store.rows()) == 100
    assert store.rows() is not kept


def test_words_of_several_lines_with_a_nul_are_written_as_one_that_is_read_back(store):
    store.append([MAKE.missing("case", "wall_time", "s", "clock", "last\nwords\0", "failed")])
    assert [row.reason for row in store.rows()] == ["last | words\ufffd"]


def test_a_torn_line_in_a_run_that_has_ended_is_damage_and_resuming_mends_it(store):
    store.append(complete())
    with store.rows_file.open("r+b") as file:
        file.truncate(store.rows_file.stat().st_size - 1)  # of its last line the newline alone
    store.parts.rmdir()
    with pytest.raises(StoreError, match=r"rows.csv: line 3 is cut off in mid-row"):
        store.rows()
    assert store.recover() == set()
    assert store.rows() == []


@pytest.mark.parametrize("kept", [1, 20, 60])
def test_recover_drops_a_case_without_its_last_row_and_a_line_torn_at_any_byte(store, kept):
    whole, other = complete(), complete(replace(MAKE, repeat=1))
    store.append([*whole, other[0]])
    size = store.rows_file.stat().st_size
    store.append(other[1:])
    with store.rows_file.open("r+b") as file:
        file.truncate(size + kept)
    assert store.rows() == [*whole, other[0]]
    assert store.recover() == {key_of(CASE)}
    assert store.rows() == whole


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{HEAD}\nhalf a line\n", "line 2: 1 cells, expected 21"),
        (
            f"{HEAD}\n" + to_csv(complete()).replace("1.25", "nan"),
            "line 2: .* nan is no meas",
        ),
        (f"{HEAD}\n" + to_csv(complete()).replace("1.25", "1e308"), "line 2: .* 1e.308 is no me"),
        (f"{HEAD}\n" + to_csv(complete()).replace(",-1\n", f",{'9' * 5001}\n"), "line 2: "),
        (f"{HEAD}\n" + to_csv(complete()).replace(",0,0,", f",{10**20},0,"), "line 2: repeat = 1"),
        ("a,b\n1,2\n", "not a table of schema version 3"),
        (f"{HEAD},colour\n", "not a table of schema version 3"),
        ("", "not a table of schema version 3"),
    ],
)
def test_a_table_that_is_none_is_named_with_its_line(store, text, said):
    store.rows_file.write_text(text)
    with pytest.raises(StoreError, match=rf"rows\.csv: {said}"):
        store.rows()


def test_a_folder_that_is_no_run_is_refused_and_a_garbled_plan_is_named(store, tmp_path):
    with pytest.raises(StoreError, match="not a run folder"):
        RunStore.open(tmp_path)
    (store.folder / "plan.json").write_text("{")
    with pytest.raises(StoreError, match=r"plan\.json"):
        store.plan()


def test_a_part_holds_what_was_written_before_the_tear(tmp_path):
    path = tmp_path / "part.jsonl"
    with closing(PartWriter(path)) as out:
        for row in complete():
            out.row(row)
    with path.open("a") as file:
        file.write('{"kind": "row", "run_')
    assert rows_of(read_part(path)) == complete()


@pytest.mark.parametrize(
    "line",
    [
        *("3", "[]", "{}", '{"kind": ["row"]}', '{"kind": "end"}', "[" * 10**5, "9" * 5001),
        '{"kind": "row", "run_id": "a"}',
    ],
)
def test_a_part_that_is_none_is_named_with_its_remedy(store, line):
    store.part(CASE).write_text(f"{line}\n")
    with pytest.raises(StoreError, match=r"jsonl: line 1: .*; delete the file and resume the run"):
        list(read_part(store.part(CASE)))


def test_a_fifo_in_place_of_a_part_is_refused(store):
    os.mkfifo(store.part(CASE))
    with pytest.raises(StoreError, match=r"it is no regular file.*; delete the file and resume"):
        list(read_part(store.part(CASE)))


def test_a_rank_is_a_number_and_nothing_else(store):
    part = store.part(CASE)
    ranks_folder(part).mkdir()
    for name in ("rank1", "rank0", "rank01", "rank-1", "rank1_0", "rank٣", "rank 2", "rank"):
        with closing(PartWriter(ranks_folder(part) / f"{name}.jsonl")) as out:
            out.end("ok", None, 1.0)
    assert list(read_ranks(part)) == [0, 1]


def test_a_process_says_of_no_case_but_its_own():
    """Its repeat, strategy or workload in a part would be another's, or the baseline's."""
    other = replace(MAKE, strategy="all_in_gpu", repeat=7, workload="x", run_id="y", rank=1)
    made = MAKE.own(other.ok("epoch", "wall_time", "s", 1.25, "clock", epoch=0))
    assert made == replace(MAKE, rank=1).ok("epoch", "wall_time", "s", 1.25, "clock", epoch=0)


def test_a_plan_of_elsewhere_names_no_file_outside_of_the_folder(store):
    evil = Case(replace(WORKLOAD, model="mine:../../../there\0"), "../x", "a/b", {}, 0)
    assert store.part(evil).parent == store.parts
    assert "\0" not in store.part(evil).name


def test_samples_are_gathered_and_parts_go_when_the_run_is_finished(store):
    with closing(PartWriter(store.part(CASE))) as out:
        out.samples(CASE, 0, "fetch", [0.5, 0.25])
        out.end("ok", None, 1.0)
    store.write_samples(finished=False)
    assert store.parts.is_dir()
    store.write_samples(finished=True)
    assert not store.parts.exists()
    table = pq.read_table(store.folder / "samples.parquet").to_pydict()
    assert table["value_s"] == [0.5, 0.25]
    assert table["batch"] == [0, 1]
    assert table["variant"] == ["pinned", "pinned"]
    store.write_samples(finished=True)  # a resumed run that had nothing to do
    assert pq.read_table(store.folder / "samples.parquet").num_rows == 2


def test_a_part_that_is_set_aside_has_what_the_ranks_had_written(store):
    part = store.part(CASE)
    part.write_text('{"kind": "row", "cut off')
    ranks_folder(part).mkdir()
    for rank in (10, 2):
        with closing(PartWriter(ranks_folder(part) / f"rank{rank}.jsonl")) as out:
            out.row(replace(MAKE, rank=rank).ok("epoch", "wall_time", "s", rank, "clock", 0))
            out.samples(CASE, 0, "train", [1.0])
    (ranks_folder(part) / "rank_0_of_the_launchers_log").mkdir()
    assert store.keep_blocks(part) == 0
    kept = rows_of(read_part(store.interrupted / f"{part.stem}.0.jsonl"))
    assert [(row.rank, row.value) for row in kept] == [(2, 2.0), (10, 10.0)]
    assert list(store.parts.iterdir()) == []


def test_every_part_that_was_cut_off_is_kept_beside(store):
    for words in ("first", "second"):
        store.part(CASE).write_text(words)
        assert store.keep_blocks(store.part(CASE)) == 0
        assert not store.part(CASE).exists()
    assert sorted(p.read_text() for p in store.interrupted.iterdir()) == ["first", "second"]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"value": None}, {"reason": "why"}, {"value": float("nan")}, {"value": float("inf")}),
        *({"value": 1e308}, {"value": -1.0}, {"value": 5e-324}),
        *({"unit": "GB/s"}, {"backend": "gpu"}, {"basis": "model"}),
        *({"status": "fine"}, {"status": "failed"}),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(wrong):
    with pytest.raises(ValueError, match=r"value|reason|status|unit|backend|basis"):
        replace(complete()[0], **wrong)


def test_a_job_survives_its_way_to_a_process_and_to_another_machine(tmp_path):
    run, text = RowMaker("run", "abc", "box", "host"), TypeAdapter(Job)
    job = Job(CASE, Measure(epochs=2), "cpu", run, tmp_path, tmp_path, tmp_path / "p")
    sensors = SensorChoice("gpm", Reason("busy", "others count"))
    for changes in ({}, {"traces": tmp_path, "sensors": sensors}):
        one = replace(job, **changes)
        assert text.validate_json(text.dump_json(one)) == one
        assert pickle.loads(pickle.dumps(one)) == one


def test_a_long_name_is_one_that_a_file_can_have():
    """A class, a fan-out or a variant may be of any length; of those that begin alike each has a
    file of its own."""
    model, fanouts = f"mine:{'A' * 300}", (10,) * 200
    long = replace(WORKLOAD, dataset="d" * 100, model=model, fanouts=fanouts)
    other = replace(long, seed=long.seed + 1)
    names = [long.id, other.id, long.trace_id, other.trace_id]
    names += [case_id(long.id, "s", "v" * length, 0) for length in (300, 301)]
    assert len(set(names)) == 6
    assert max(map(len, names)) < 220
    assert long.id.rpartition("-")[2] != other.id.rpartition("-")[2]


def test_workload_ids_differ_when_any_field_does():
    others = [
        replace(WORKLOAD, seed=1),
        replace(WORKLOAD, max_batches=3),
        replace(WORKLOAD, fanouts=(10, 25)),
        replace(WORKLOAD, scale=0.5),
        replace(WORKLOAD, hidden=32),
    ]
    assert len({w.id for w in [WORKLOAD, *others]}) == 6


def test_workloads_that_differ_in_the_model_share_a_trace():
    assert replace(WORKLOAD, model="gat", hidden=64).trace_id == WORKLOAD.trace_id
    assert replace(WORKLOAD, batch_size=7).trace_id != WORKLOAD.trace_id
