"""The run's folder: what is written is read back, and what was torn is recovered."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatherbench.bench.machine.reason import Reason
from gatherbench.bench.meters.gpu_choice import SensorChoice
from gatherbench.bench.plan.case import Case
from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.rows import BACKENDS, BASES, HEADER, UNITS, Row, RowMaker
from gatherbench.bench.run.store import (
    PartWriter,
    RunStore,
    StoreError,
    key_of,
    ranks_folder,
    read_part,
    rows_of,
    to_csv,
)

WORKLOAD = Workload("wordnet", fanouts=(25, 10))
CASE = Case(WORKLOAD, "cpu_gather", "pinned", {"mode": "pinned"}, 0)
MAKE = RowMaker("run", "abc", "box", "host", WORKLOAD.id, "wordnet", "cpu_gather", "pinned", 0)


def new_store(root: Path) -> RunStore:
    return RunStore.create(root, "box", {"name": "mine", "cases": []}, {"cpu": "x"})


def complete(make: RowMaker = MAKE) -> list[Row]:
    return [
        make.ok("epoch", "wall_time", "s", 1.25, "clock", epoch=0),
        make.ok("case", "wall_time", "s", 3.5, "clock"),
    ]


text = st.text(max_size=30).map(lambda s: " | ".join(s.splitlines()))
rows = st.builds(
    lambda maker, stage, metric, unit, value, reason: (
        maker.ok(stage, metric, unit, value, "source")
        if reason is None
        else maker.missing(stage, metric, unit, "source", reason)
    ),
    st.builds(
        RowMaker,
        text,
        text,
        text,
        st.sampled_from(BACKENDS),
        text,
        text,
        text,
        text,
        st.integers(0, 99),
        st.sampled_from(BASES),
        st.sampled_from(("", "sample", "sample fetch")),
        st.integers(-1, 7),
    ),
    text,
    text,
    st.sampled_from(UNITS),
    st.floats(allow_nan=False, allow_infinity=False),
    st.none() | text.filter(bool),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(rows, max_size=5))
def test_reading_back_gives_the_same_rows(tmp_path_factory, written: list[Row]) -> None:
    store = new_store(tmp_path_factory.mktemp("run"))
    store.append(written)
    assert store.rows() == written


def test_rows_of_several_appends_stay_in_order(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    first, second = complete(), complete(replace(MAKE, repeat=1))
    store.append(first)
    store.append(second)
    assert store.rows() == first + second


def test_recover_drops_a_case_without_its_last_row_and_a_torn_line(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    whole, cut = complete(), complete(replace(MAKE, repeat=1))[:1]
    store.append(whole)
    store.append(cut)
    with store.rows_file.open("a") as file:
        file.write('run,1,abc,box,host,"half a li')
    assert store.rows() == whole + cut
    assert store.recover() == {key_of(CASE)}
    assert store.rows() == whole


def test_a_torn_line_in_a_run_that_has_ended_is_damage_and_resuming_mends_it(
    tmp_path: Path,
) -> None:
    store = new_store(tmp_path)
    store.append(complete())
    with store.rows_file.open("r+b") as file:
        file.truncate(store.rows_file.stat().st_size - 1)  # of its last line the newline alone
    store.parts.rmdir()
    with pytest.raises(StoreError, match=r"rows.csv: line 3 is cut off in mid-row"):
        store.rows()
    assert store.recover() == set()
    assert store.rows() == []


@pytest.mark.parametrize("kept", [1, 20, 60])
def test_recover_after_a_tear_at_any_byte(tmp_path: Path, kept: int) -> None:
    store = new_store(tmp_path)
    whole = complete()
    store.append(whole)
    size = store.rows_file.stat().st_size
    store.append(complete(replace(MAKE, repeat=1)))
    with store.rows_file.open("r+b") as file:
        file.truncate(size + kept)
    store.recover()
    assert store.rows() == whole


def test_a_garbled_line_in_the_middle_is_named(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    with store.rows_file.open("a") as file:
        file.write("half a line\n")
    store.append(complete())
    with pytest.raises(StoreError, match="line 2"):
        store.rows()


def test_another_header_is_refused(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.rows_file.write_text("a,b\n1,2\n")
    with pytest.raises(StoreError, match="schema version"):
        store.rows()


def in_schema(version: int, rows: list[Row]) -> str:
    """A table as an earlier version wrote it: of schema 2, without the column of ranks."""
    lines = [line.rpartition(",")[0] for line in to_csv(rows).splitlines()]
    header = ",".join(HEADER).removesuffix(",rank")
    return "\n".join([header, *lines]).replace("run,3,", f"run,{version},") + "\n"


def test_a_table_of_schema_2_is_upgraded_and_rewritten(tmp_path: Path) -> None:
    """It knew one process a case."""
    store = new_store(tmp_path)
    now = complete(replace(MAKE, basis="predicted", backend="cuda", borrowed="sample fetch"))
    store.rows_file.write_text(in_schema(2, now))
    assert "rank" not in store.rows_file.read_text()
    rows = store.rows()
    assert rows == now
    assert {(row.schema_version, row.rank) for row in rows} == {(3, -1)}
    assert store.recover() == {key_of(CASE)}
    assert store.rows_file.read_text() == ",".join(HEADER) + "\n" + to_csv(now)


def test_a_table_of_a_later_schema_is_refused(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.rows_file.write_text(",".join([*HEADER, "colour"]) + "\n")
    with pytest.raises(StoreError, match="not a table of schema version 3"):
        store.rows()


OLD = """\
run_id,schema_version,commit,machine,backend,workload,dataset,strategy,variant,repeat,epoch,\
stage,metric,unit,value,source,status,reason
r,1,c,box,model,w,d,cpu_gather,naive,0,-1,fetch,row,B,400.0,declared,ok,
r,1,c,box,host,w,d,cpu_gather,naive,0,0,epoch,wall_time,s,7.0,clock,ok,
r,1,c,a100,model,w,d,cpu_gather,naive,0,0,epoch,wall_time,s,2.0,link model,ok,
r,1,c,a100,model,w,d,cpu_gather,naive,0,0,sample,borrowed_sample_time,s,0.5,sampling,ok,
r,1,c,a100,model,w,d,cpu_gather,naive,0,0,fetch,borrowed_gather_time,s,0.5,gather,ok,
r,1,c,a100,model,w,d,all_in_gpu,default,0,0,epoch,wall_time,s,,link model,skipped,unknown: x
r,1,c,box,host,w,d,cpu_gather,naive,0,-1,case,wall_time,s,9.0,clock,ok,
"""


def test_a_table_of_schema_1_is_upgraded_and_rewritten(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.rows_file.write_text(OLD)
    rows = store.rows()
    said = [(r.metric, r.basis, r.backend, r.borrowed) for r in rows]
    assert said == [
        ("row", "declared", "host", ""),
        ("wall_time", "measured", "host", ""),
        ("wall_time", "predicted", "cuda", "sample fetch"),
        ("borrowed_sample_time", "predicted", "cuda", "sample fetch"),
        ("borrowed_gather_time", "predicted", "cuda", "sample fetch"),
        ("wall_time", "predicted", "cuda", ""),
        ("wall_time", "measured", "host", ""),
    ]
    assert {(row.schema_version, row.rank) for row in rows} == {(3, -1)}
    store.recover()
    assert store.rows_file.read_text().startswith(",".join(HEADER) + "\n")
    assert store.rows() == [row for row in rows if row.strategy == "cpu_gather"], "one never ended"


@pytest.mark.parametrize(
    ("version", "later"), [(1, {"basis", "borrowed", "rank"}), (2, {"rank"}), (3, set[str]())]
)
def test_a_part_of_an_earlier_schema_is_upgraded(version: int, later: set[str]) -> None:
    (row,) = (row for row in complete() if row.stage == "case")
    old = {n: v for n, v in asdict(row).items() if n not in later}
    assert rows_of([{"kind": "row", **old, "schema_version": version}]) == [row]
    assert rows_of([{"kind": "end"}]) == []


def test_a_value_of_schema_1_that_is_none_names_its_line(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.rows_file.write_text(OLD.replace("7.0,clock", "nan,clock"))
    with pytest.raises(StoreError, match=r"line 3: .*not finite"):
        store.rows()


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no run folder"):
        RunStore.open(tmp_path)


def test_a_garbled_plan_is_named(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    (store.folder / "plan.json").write_text("{")
    with pytest.raises(StoreError, match=r"plan\.json"):
        store.plan()


def test_a_part_holds_what_was_written_before_the_tear(tmp_path: Path) -> None:
    path = tmp_path / "part.jsonl"
    with closing(PartWriter(path)) as out:
        for row in complete():
            out.row(row)
    with path.open("a") as file:
        file.write('{"kind": "row", "run_')
    assert rows_of(read_part(path)) == complete()


def test_samples_are_gathered_and_parts_go_when_the_run_is_finished(tmp_path: Path) -> None:
    store = new_store(tmp_path)
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


def test_a_part_that_is_set_aside_has_what_the_ranks_had_written(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    part = store.part(CASE)
    part.write_text('{"kind": "row", "cut off')
    ranks_folder(part).mkdir()
    for rank in (10, 2):
        with closing(PartWriter(ranks_folder(part) / f"rank{rank}.jsonl")) as out:
            out.row(replace(MAKE, rank=rank).ok("epoch", "wall_time", "s", rank, "clock", 0))
            out.samples(CASE, 0, "train", [1.0])
    (ranks_folder(part) / "rank_0_of_the_launchers_log").mkdir()
    store.set_aside(part)
    kept = rows_of(read_part(store.interrupted / f"{part.stem}.0.jsonl"))
    assert [(row.rank, row.value) for row in kept] == [(2, 2.0), (10, 10.0)]
    assert list(store.parts.iterdir()) == []


def test_set_aside_keeps_every_cut_off_part(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    for words in ("first", "second"):
        store.part(CASE).write_text(words)
        store.set_aside(store.part(CASE))
    assert sorted(p.read_text() for p in store.interrupted.iterdir()) == ["first", "second"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": None},
        {"reason": "why"},
        {"value": float("nan")},
        {"value": float("inf")},
        {"unit": "GB/s"},
        {"backend": "gpu"},
        {"basis": "model"},
        {"status": "fine"},
        {"status": "failed"},
    ],
)
def test_a_row_that_contradicts_itself_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"value|reason|status|unit|backend|basis"):
        replace(complete()[0], **wrong)


def test_a_job_survives_its_file(tmp_path: Path) -> None:
    job = Job(
        CASE, Measure(epochs=2), "cpu", "run", "abc", "box", tmp_path, tmp_path, tmp_path / "p"
    )
    for one in (
        job,
        replace(job, traces=tmp_path, sensors=SensorChoice("gpm", Reason("busy", "others count"))),
    ):
        one.dump(tmp_path / "job.json")
        assert Job.load(tmp_path / "job.json") == one


def test_workload_ids_differ_when_any_field_does() -> None:
    others = [
        replace(WORKLOAD, seed=1),
        replace(WORKLOAD, max_batches=3),
        replace(WORKLOAD, fanouts=(10, 25)),
        replace(WORKLOAD, scale=0.5),
        replace(WORKLOAD, hidden=32),
    ]
    assert len({w.id for w in [WORKLOAD, *others]}) == 6


def test_workloads_that_differ_in_the_model_share_a_trace() -> None:
    assert replace(WORKLOAD, model="gat", hidden=64).trace_id == WORKLOAD.trace_id
    assert replace(WORKLOAD, batch_size=7).trace_id != WORKLOAD.trace_id
