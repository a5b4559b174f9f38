"""The run's folder: what is written is read back, and what was torn is recovered."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tomllib
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from tests.bench.observations import rows_of_run, write_rows

from gatherbench.bench.meters.base import LEAST, MOST
from gatherbench.bench.meters.nvml_device import SensorChoice
from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.read.tables import began
from gatherbench.bench.run.frames import TABLES, Column
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.part import PartWriter, SoFar, StoreError, Tail, read_part, rows_of
from gatherbench.bench.run.rows import BASES, UNITS, WORDS, Row, RowMaker
from gatherbench.bench.run.store import RunStore
from gatherbench.reason import Reason

WORKLOAD = Workload("wordnet", fanouts=(25, 10))
CASE = Case(WORKLOAD, "cpu_gather", "pinned", {"mode": "pinned"}, 0)
MAKE = RowMaker("run", "abc", "box", "host", WORKLOAD.id, "wordnet", "cpu_gather", "pinned", 0)


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


def add(store: RunStore, rows: list[Row]) -> None:
    """As the end of a run adds what it has measured."""
    write_rows(store, [*rows_of_run(store), *rows])


text = st.text(st.characters(exclude_categories=()), max_size=30)
names = st.from_regex(r"[a-z]+(_[a-z0-9]+)?", fullmatch=True)
rows = st.builds(
    lambda maker, stage, metric, unit, value, reason: (
        maker.ok(stage, metric, unit, value, "source")
        if reason is None
        else maker.missing(stage, metric, unit, "source", reason)
    ),
    st.builds(
        RowMaker,
        *(text, text, text, st.sampled_from(WORDS["backend"]), text, text, text, text),
        st.integers(0, 99),
        st.sampled_from(BASES),
        st.sampled_from(("", "sample", "sample fetch")),
        st.integers(-1, 7),
    ),
    names,
    names,
    st.sampled_from(UNITS),
    st.floats(0, MOST).filter(lambda value: value == 0 or value >= LEAST),
    st.none() | text.filter(bool),
)


def cell(row: Row) -> tuple[object, ...]:
    """Where an observation stands: on which line, in which column."""
    column = Column(row.stage, row.metric, row.unit, row.basis == "declared").name
    return (row.repeat, row.rank, column)


@settings(max_examples=30, deadline=None)
@given(st.lists(rows, max_size=8, unique_by=cell), st.lists(rows, max_size=8, unique_by=cell))
def test_reading_back_gives_the_same_rows(tmp_path_factory, first, second):
    what = {(row.stage, row.metric, row.unit, row.basis == "declared") for row in first + second}
    assume(len({Column(*of).name for of in what}) == len(what))
    store = RunStore(tmp_path_factory.mktemp("run"))
    write_rows(store, [])
    second = [replace(row, repeat=row.repeat + 100) for row in second]
    add(store, first)
    add(store, second)
    assert sorted(rows_of_run(store), key=repr) == sorted(first + second, key=repr)
    for path in store.folder.glob("*.csv"):
        if path.name != "calibration.csv":
            path.unlink()
    again = RunStore(store.folder)
    assert sorted(rows_of_run(again), key=repr) == sorted(first + second, key=repr)
    add(again, [replace(row, repeat=row.repeat + 100) for row in second])
    assert len(rows_of_run(again)) == len(first) + 2 * len(second)


def test_pandas_without_arguments_reads_the_tables(store):
    """A whole number stays one, and a name that looks like nothing is not written."""
    add(store, [MAKE.ok("epoch", "minibatches", "1", 12, "count", epoch=0), *complete()])
    epochs = pd.read_csv(store.folder / "epochs.csv")
    told = epochs[["strategy", "variant", "epoch", "epoch_s", "minibatches"]]
    assert told.values.tolist() == [["cpu_gather", "pinned", 0, 1.25, 12]]
    assert "int" in str(epochs["epoch"].dtype)
    cases = pd.read_csv(store.folder / "cases.csv")
    assert cases[["status", "case_s"]].to_dict("list") == {"status": ["ok"], "case_s": [3.5]}
    columns = tomllib.loads((store.folder / "columns.toml").read_text())
    assert columns["epoch_s"] == {
        "unit": "s",
        "meaning": "wall time of the epoch",
        "source": "clock",
        "stage": "epoch",
        "metric": "wall_time",
        "declared": False,
    }


@pytest.mark.parametrize("name", ["epochs", "cases"])
def test_lines_that_were_lost_are_missed(store, name):
    """A file that was cut short at the end of a line looks whole."""
    add(store, complete())
    add(store, complete(replace(MAKE, repeat=1)))
    table = store.folder / f"{name}.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))
    if name == "epochs":
        with pytest.raises(StoreError, match=r"epochs\.csv: lines of .* 1 are missing"):
            rows_of_run(store.folder)
    else:  # readers leave such a case out
        ends = [row.repeat for row in rows_of_run(store.folder) if row.stage == "case"]
        assert ends == [0]


def test_a_search_may_have_saved_time_and_no_other_time_is_below_zero(store):
    saved = MAKE.ok("setup", "search_extra_time", "s", -0.005, "clock")
    add(store, [saved, *complete()])
    assert saved in rows_of_run(store.folder)
    with pytest.raises(ValueError, match=r"setup\.open_time: value -0\.005 s is no time"):
        MAKE.ok("setup", "open_time", "s", -0.005, "clock")


def test_a_column_that_a_later_case_brings_is_empty_before(store):
    add(store, complete())
    later = replace(MAKE, repeat=1)
    add(store, [later.ok("epoch", "gpu_energy", "J", 7, "NVML", epoch=0), *complete(later)])
    for read, kind in ((pd.read_csv, "csv"), (pd.read_parquet, "parquet")):
        epochs = read(store.folder / f"epochs.{kind}")
        assert epochs["gpu_energy_j"].fillna(-1).tolist() == [-1, 7]


def test_a_reason_of_nothing_or_of_several_lines_with_a_nul_is_one_line_that_is_read_back(store):
    for repeat, words in enumerate(("", "\x1b[0m", "last\nwords\0")):
        make = replace(MAKE, repeat=repeat)
        add(store, [make.missing("case", "wall_time", "s", "clock", words, "failed")])
    reasons = [row.reason for row in rows_of_run(store.folder)]
    assert reasons == [*["no reason was given"] * 2, "last | words\ufffd"]


def with_another_part(store: RunStore) -> RowMaker:
    """A case in the tables, and another repeat of it in a part; return the maker of its rows."""
    add(store, complete())
    later = replace(MAKE, repeat=1)
    with closing(PartWriter(store.new_part())) as out:
        out.row(later.ok("epoch", "wall_time", "s", 1.25, "clock", epoch=0))
        out.end(later, "ok", None, 3.5)
    return later


def test_whoever_reads_a_run_that_was_killed_has_what_its_parts_tell_wherever_they_are_torn(store):
    """The end of a case counts once its line is whole; the tables, of an earlier end, stay."""
    later = with_another_part(store)
    (part,) = store.parts.iterdir()
    whole = part.read_bytes()
    both = [*complete(), *complete(later)]
    assert [replace(row, source="clock") for row in rows_of_run(store)] == both
    for size in range(0, len(whole), 41):
        part.write_bytes(whole[:size])
        assert rows_of_run(store.folder) == complete()


def test_tables_of_which_only_some_were_written_before_a_crash_cost_nothing(store):
    """What they lack the parts have; a case of which the parts tell more is read from there."""
    with_another_part(store)
    tables = [store.folder / f"{table}.csv" for table in TABLES]
    before, whole = [table.read_bytes() for table in tables], rows_of_run(store)
    store.end(store.frames(), finished=False)
    for table, earlier in zip(tables, before, strict=True):
        after = table.read_bytes()
        table.write_bytes(earlier)
        assert sorted(rows_of_run(store.folder), key=repr) == sorted(whole, key=repr)
        table.write_bytes(after)


def swap(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new)


def again(old: str, new: str) -> Callable[[str], str]:
    """The first line once more, changed so."""
    return lambda text: text + text.splitlines(True)[1].replace(old, new)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("epochs.csv", lambda text: text + "half a line\n", "not a table of a run .*columns"),
        ("epochs.csv", swap("1.25", "nan"), "epoch_s .* no measurement"),
        ("epochs.csv", swap("1.25", "1e400"), "epoch_s"),
        ("epochs.csv", swap("1.25", "-1.25"), "epoch_s .* no measurement"),
        ("epochs.csv", swap("1.25", "1e-320"), "epoch_s .* no measurement"),
        ("epochs.csv", swap(",0,1.25", ",-2,1.25"), "epoch .* out of range"),
        ("epochs.csv", lambda text: text[:-1], "its last line is cut off"),
        ("epochs.csv", again("", ""), "stands twice"),
        ("epochs.csv", again(",-1,0,1.", ",3,0,1."), "stands twice"),
        ("epochs.csv", again(",-1,0,1.", ",-1,1,1."), "another number of them"),
        ("epochs.csv", swap("1.25", "fast"), "not a table of a run .*Row #2: .*'fast'"),
        ("epochs.csv", swap("1.25", "\0\0\0\0"), "it holds bytes that are no text"),
        ("epochs.csv", swap(",0,1.25", f",{10**20},1.25"), "not a table of a run"),
        ("epochs.csv", swap(",host,", ",moon,"), "backend = 'moon'"),
        ("epochs.csv", swap(",host,", ",,"), "backend = ''"),
        ("epochs.csv", lambda _: "a,b\n1,2\n", "it has no column 'run'"),
        ("epochs.csv", swap("dataset", "workload"), "have one name"),
        ("epochs.csv", swap("epoch_s", "colour"), "'colour' does not stand"),
        ("epochs.csv", lambda _: "", "not a table of a run"),
        ("cases.csv", swap(",ok,", ",fine,"), "status = 'fine'"),
        ("columns.toml", lambda _: "[", "not the columns of a run"),
        ("columns.toml", lambda _: f"a = {'[' * 10**5}", "not the columns of a run"),
        ("columns.toml", swap('"s"', '"B"'), "epoch_s: .*'epoch_bytes'"),
        ("columns.toml", swap('"epoch"', "3"), "epoch_s.stage: .*string"),
        ("columns.toml", lambda _: "a = 1\nschema_version = 4", "not the columns of a run"),
        ("columns.toml", swap("= 4", "= 9"), "schema version 9, expected 4"),
        ("columns.toml", None, "schema version 3.*the gatherbench version that wrote"),
    ],
)
def test_a_table_that_is_none_is_named(store, name, change, said):
    add(store, complete())
    table = store.folder / name
    if change is None:
        table.rename(store.folder / "rows.csv")
    else:
        table.write_text(change(table.read_text()))
    with pytest.raises(StoreError, match=rf"{name}: .*{said}"):
        rows_of_run(store)


def test_a_part_holds_what_was_written_before_the_tear_and_its_end_is_synced(tmp_path, monkeypatch):
    path, kinds = tmp_path / "part.jsonl", list[list[str]]()

    def told() -> list[str]:
        return [record["kind"] for record in read_part(path)]

    monkeypatch.setattr(os, "fsync", lambda _: kinds.append(told()))
    with closing(PartWriter(path)) as out:
        out.rows(complete())
    with path.open("a") as file:
        file.write('{"kind": "row", "run_')
    assert rows_of(read_part(path)) == complete()
    assert not kinds, "between epochs nothing waits for the disk"
    with closing(PartWriter(path)) as out:  # the runner says why its writer is gone
        out.end(MAKE, "failed", "killed", 1.5)
    assert kinds == [["row", "row", "end"]] == [told()]


@pytest.mark.parametrize(
    "line",
    [
        *("3", "[]", "{}", '{"kind": ["row"]}', '{"kind": "end"}', "[" * 10**5, "9" * 5001),
        *('{"kind": "row", "run_id": "a"}', None),
    ],
)
def test_a_part_that_is_none_is_named_with_its_remedy(store, line):
    """Without a line it is a fifo, for which nobody waits."""
    part = store.new_part()
    os.mkfifo(part) if line is None else part.write_text(f"{line}\n")
    why = "it is no regular file" if line is None else "line 1: "
    with pytest.raises(StoreError, match=rf"jsonl: .*{why}.*; delete the file and resume the run"):
        list(read_part(part))
    assert Tail(part).more() == [], "while its process runs nobody minds"


@pytest.mark.parametrize("value", ["fast", 10**400])
def test_a_row_of_a_part_that_has_no_number_is_named(store, value):
    part = store.new_part()
    part.write_text(json.dumps({"kind": "row", **asdict(complete()[0]), "value": value}) + "\n")
    with pytest.raises(StoreError, match=r"line 1: .*; delete the file and resume the run"):
        list(read_part(part))


def test_what_is_said_of_a_case_that_was_cut_off_is_measured_and_of_all_ranks():
    last = replace(MAKE, rank=1, basis="predicted", borrowed="sample").ok("a", "b", "s", 1, "c", 0)
    cut_off = SoFar()
    cut_off.add([{"kind": "row", "row": last}])
    assert [(r.rank, r.basis, r.borrowed) for r in cut_off.rows[1:]] == [(-1, "measured", "")] * 2


def test_a_part_is_followed_line_by_line(store):
    tail = Tail(part := store.new_part())
    assert tail.more() == []
    with closing(PartWriter(part)) as out:
        out.write("work", what="drawing", fraction=0.5)
    assert [record["fraction"] for record in tail.more()] == [0.5]
    with part.open("a") as file:
        file.write('{"kind": "answer"')
        file.flush()
        assert tail.more() == []
        file.write("}\n")
    assert [record["kind"] for record in tail.more()] == ["answer"]
    assert tail.more() == []


def test_a_process_says_of_no_case_but_its_own():
    """Its repeat, strategy or workload in a part would be another's, or the baseline's."""
    other = replace(MAKE, strategy="all_in_gpu", repeat=7, workload="x", run_id="y", rank=1)
    made = MAKE.own(other.ok("epoch", "wall_time", "s", 1.25, "clock", epoch=0))
    assert made == replace(MAKE, rank=1).ok("epoch", "wall_time", "s", 1.25, "clock", epoch=0)


def test_samples_are_gathered_and_parts_go_when_the_run_is_finished(store):
    with closing(PartWriter(store.new_part())) as out:
        values = {"batch": [0, 1], "value_s": [0.5, 0.25]}
        out.write("samples", **CASE.names, epoch=0, stage="fetch", **values)
        out.end(MAKE, "ok", None, 1.0)
    for finished in (False, True, True):  # and resumed, with nothing to do
        store.end(store.frames(), finished=finished)
        assert store.parts.is_dir() != finished
    table = pd.read_parquet(store.folder / "samples.parquet")
    told = table[["variant", "batch", "value_s"]].values.tolist()
    assert told == [["pinned", 0, 0.5], ["pinned", 1, 0.25]]
    table.drop(columns="batch").to_parquet(store.folder / "samples.parquet")
    with pytest.raises(StoreError, match=r"it has no column 'batch'.*, or delete it"):
        store.lists("samples")


def two_processes(store: RunStore) -> None:
    """The parts of a case whose blocks 0 and 1 had a process each."""
    for block in range(2):
        with closing(PartWriter(store.new_part())) as out:
            out.row(MAKE.ok("epoch", "wall_time", "s", 1.0 + block, "clock", epoch=block))
            out.write("block", **CASE.names, number=block, wall_time_s=1.0, rows=8)
            if block:
                out.end(MAKE, "ok", None, 2.0)


def test_a_kill_while_the_parts_of_a_finished_run_go_costs_no_epoch(store, monkeypatch):
    """One part alone would stand for a case whose first epochs another one had."""
    two_processes(store)
    whole = rows_of_run(store)
    with monkeypatch.context() as patch:

        def killed(folder: Path, **_: object) -> None:
            if folder.is_dir():
                min(folder.iterdir()).unlink()
                raise KeyboardInterrupt

        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            store.end(store.frames(), finished=True)
    assert rows_of_run(store.folder) == whole
    assert [row.value for row in whole] == [1.0, 2.0, 2.0]


def test_whoever_reads_while_the_run_ends_reads_again(store, monkeypatch):
    """Its parts were there, and are gone when they are opened: they stand in the tables."""
    two_processes(store)
    whole, frames = rows_of_run(store), store.frames()
    reader, so_far = RunStore(store.folder), RunStore.so_far

    def ends_meanwhile(self: RunStore) -> object:
        monkeypatch.setattr(RunStore, "so_far", so_far)
        parts = self._parts()
        store.end(frames, finished=True)
        monkeypatch.setattr(RunStore, "_parts", lambda _: monkeypatch.undo() or parts)
        return self.so_far()

    monkeypatch.setattr(RunStore, "so_far", ends_meanwhile)
    assert rows_of_run(reader) == whole


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
    job = Job(CASE, Measure(epochs=2), "cpu", run, tmp_path, tmp_path / "p")
    sensors = SensorChoice("gpm", Reason("busy", "others count"))
    for changes in ({}, {"tuned": tmp_path, "sensors": sensors}):
        one = replace(job, **changes)
        assert text.validate_json(text.dump_json(one)) == one
        assert pickle.loads(pickle.dumps(one)) == one


def test_workload_ids_differ_when_any_field_does_and_are_names_that_a_file_can_have():
    """A class or a fan-out may be of any length."""
    model, fanouts = f"mine:{'A' * 300}", (10,) * 200
    long = replace(WORKLOAD, dataset="d" * 100, model=model, fanouts=fanouts)
    changes = {"seed": 1, "max_batches": 3, "fanouts": (10, 25), "scale": 0.5, "hidden": 32}
    for workload in (WORKLOAD, long):
        others = [replace(workload, **{name: value}) for name, value in changes.items()]
        ids = {w.id for w in [workload, *others]}
        assert len(ids) == len({one.rpartition("-")[2] for one in ids}) == 6
        assert max(map(len, ids)) < 220
