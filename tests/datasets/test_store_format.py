"""The on-disk format: what is written is read back, and nothing broken is ever opened."""

import contextlib
import dataclasses
import errno
import json
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from gatherbench.datasets import files, writer
from gatherbench.datasets.dataset import (
    HEADER_BYTES,
    SPEC_FILE,
    DatasetSpec,
    _digest,
    folder_bytes,
    read_spec,
    write_spec,
)
from gatherbench.datasets.store import DatasetError, data_root, dataset_folder, open_dataset
from gatherbench.datasets.writer import DatasetWriter

N, D, CLASSES = 400, 7, 3
SPEC = DatasetSpec("tiny", 1.0, N, 0, D, "float32", CLASSES, "a test", "none", ("first note",))


class Arrays(NamedTuple):
    indptr: NDArray[np.int64]
    indices: NDArray[np.int64]
    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    splits: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def make_arrays() -> Arrays:
    rng = np.random.default_rng(5)
    degree = rng.integers(0, 6, N)
    indptr = np.concatenate([[0], np.cumsum(degree)])
    order = rng.permutation(N)
    return Arrays(
        indptr,
        rng.integers(0, N, indptr[-1]),
        rng.standard_normal((N, D), np.float32),
        rng.integers(-1, CLASSES, N),
        (order[:100], order[100:150], order[150:300]),
    )


ARRAYS = make_arrays()


def write(
    folder: Path, spec: DatasetSpec = SPEC, arrays: Arrays = ARRAYS, note: str = ""
) -> Arrays:
    with DatasetWriter(folder, spec) as out:
        out.write_columns([(np.diff(arrays.indptr), arrays.indices)])
        out.write_features(arrays.features)
        out.write_labels(arrays.labels)
        out.write_splits(*arrays.splits)
        if note:
            out.note(note)
    return arrays


def test_what_is_written_is_read_back(tmp_path):
    arrays = write(tmp_path / "tiny", note="second note")
    data = open_dataset(tmp_path / "tiny")
    for name in ("indptr", "indices", "features", "labels"):
        np.testing.assert_array_equal(getattr(data, name), getattr(arrays, name))
    for name, expected in zip(("train", "val", "test"), arrays.splits, strict=True):
        np.testing.assert_array_equal(getattr(data, f"{name}_ids"), expected)
    assert (data.spec.num_edges, data.name) == (len(arrays.indices), "tiny")
    assert data.spec.notes == ("first note", "second note")
    assert data.indices.dtype == np.int32
    assert data.features.ctypes.data % 128 == 0
    with pytest.raises(ValueError, match="read-only"):
        data.features[0, 0] = 1.0


def test_every_way_of_writing_gives_the_same_files(tmp_path):
    arrays = write(tmp_path / "whole")
    degree = np.diff(arrays.indptr)
    with DatasetWriter(tmp_path / "pieces", SPEC) as out:
        out.write_splits(*arrays.splits)
        out.write_features(arrays.features[i : i + 33] for i in range(0, N, 33))
        out.write_labels(arrays.labels.astype(np.int8))
        out.write_columns(
            (degree[i : i + 90], arrays.indices[arrays.indptr[i] : arrays.indptr[min(i + 90, N)]])
            for i in range(0, N, 90)
        )
    for file in (tmp_path / "whole").iterdir():
        assert (tmp_path / "pieces" / file.name).read_bytes() == file.read_bytes(), file.name


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8"])
def test_every_feature_dtype_and_empty_splits(tmp_path, dtype):
    spec = DatasetSpec("d", 1.0, 2, 0, 3, dtype, 1, "s", "l")
    none = np.empty(0, np.int64)
    features = np.arange(6.0).reshape(2, 3)  # converted by the writer
    zeros = np.zeros(3, int)
    write(tmp_path / "d", spec, Arrays(zeros, none, features, zeros[:2], (none, none, none)))
    data = open_dataset(tmp_path / "d")
    np.testing.assert_array_equal(data.features, features)
    assert data.features.dtype == np.dtype(dtype)
    assert data.indices.shape == data.train_ids.shape == (0,)


# --- the header of the table ---------------------------------------------------------------------


def test_the_table_begins_on_a_block_and_numpy_reads_it(tmp_path):
    write(tmp_path / "tiny")
    path = tmp_path / "tiny" / "features.npy"
    table = np.load(path, mmap_mode="r")
    assert table.offset == 4096
    assert path.stat().st_size == 4096 + N * D * 4
    np.testing.assert_array_equal(table, ARRAYS.features)
    real = sum(file.stat().st_size for file in path.parent.iterdir())
    estimate = folder_bytes(open_dataset(path.parent).spec)
    assert real <= estimate <= real + 16 * N + 5000, "at most a split that no node is in"
    assert np.load(tmp_path / "tiny" / "labels.npy", mmap_mode="r").offset == HEADER_BYTES


def test_a_folder_of_an_earlier_version_opens(tmp_path):
    """Its table has a header as short as those of the other arrays, and a check was recorded."""
    write(tmp_path / "tiny")
    (tmp_path / "tiny" / "checked.json").write_text("{}")
    path = tmp_path / "tiny" / "features.npy"
    np.save(path, ARRAYS.features)
    spec, files = read_spec(path.parent)
    files["features"] = dataclasses.replace(files["features"], bytes=path.stat().st_size)
    write_spec(path.parent, spec, files)
    data = open_dataset(path.parent)
    np.testing.assert_array_equal(data.features, ARRAYS.features)
    assert data.features.offset == HEADER_BYTES
    write(tmp_path / "tiny")
    assert not (tmp_path / "tiny" / "checked.json").exists()


# --- files that are broken ------------------------------------------------------------------------


DAMAGES = {
    "cut": lambda content: content[:-1],
    "longer": lambda content: content + b"\0",
    "no magic": lambda content: b"garbage!" + content[8:],
    "no header": lambda content: content[:12] + b"\xff" * 40 + content[52:],
    "dtype": lambda content: content.replace(b"<", b">", 1),
    "gone": None,
}


@pytest.mark.parametrize("array", ["features", "test_ids"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_file_is_refused_by_name_with_the_remedy(tmp_path, array, damage):
    for name, remedy in (
        ("made@0.5", "gatherbench datasets prepare made --scale 0.5 --force"),
        ("mine", "import it again: `gatherbench datasets import FILE --name mine --force`"),
    ):
        source = "imported from e.csv" if name == "mine" else "generated"
        write(tmp_path / name, dataclasses.replace(SPEC, source=source))
        path = tmp_path / name / f"{array}.npy"
        path.write_bytes(damage(path.read_bytes())) if damage else path.unlink()
        with pytest.raises(DatasetError, match=rf"{array}\.npy") as refusal:
            open_dataset(tmp_path / name)
        assert remedy in str(refusal.value)
        assert ("prepare" in remedy) == ("prepare" in str(refusal.value))
        assert "finite" not in str(refusal.value), "values of a file that is not what it was"
        assert "no node" not in str(refusal.value)


# --- the spec -------------------------------------------------------------------------------------


def test_any_flipped_bit_in_the_spec_is_refused(tmp_path):
    write(tmp_path / "tiny")
    path = tmp_path / "tiny" / SPEC_FILE
    whole = path.read_bytes()
    for position in range(0, len(whole), 19):
        broken = bytearray(whole)
        broken[position] ^= 1
        with contextlib.suppress(ValueError):
            if json.loads(broken) == json.loads(whole):
                continue  # white space
        path.write_bytes(bytes(broken))
        with pytest.raises(DatasetError, match=r"spec\.json"):
            open_dataset(tmp_path / "tiny")


def test_another_version_and_folders_without_a_spec_are_refused(tmp_path):
    with pytest.raises(DatasetError, match="no such dataset folder"):
        open_dataset(tmp_path / "nowhere")
    write(tmp_path / "tiny")
    spec, arrays = read_spec(tmp_path / "tiny")
    write_spec(tmp_path / "tiny", dataclasses.replace(spec, format_version=99), arrays)
    with pytest.raises(DatasetError, match="format version 99"):
        open_dataset(tmp_path / "tiny")
    for text in ("", "[]", "{}", '{"spec": 3}', "\x00\x01"):
        (tmp_path / "tiny" / SPEC_FILE).write_text(text)
        with pytest.raises(DatasetError, match=r"spec\.json: unreadable"):
            open_dataset(tmp_path / "tiny")
    (tmp_path / "tiny" / SPEC_FILE).unlink()
    with pytest.raises(DatasetError, match=r"spec\.json: missing, so the folder was never"):
        open_dataset(tmp_path / "tiny")


# --- writing --------------------------------------------------------------------------------------


def leftovers(root: Path) -> list[str]:
    return [p.name for p in root.iterdir() if ".writing" in p.name]


def interrupted(failure: BaseException) -> Any:
    yield np.zeros((1, D))
    raise failure


def test_a_failure_leaves_nothing_and_keeps_the_old_folder(tmp_path):
    write(tmp_path / "tiny")
    for failure in (RuntimeError("mid-way"), KeyboardInterrupt()):
        with pytest.raises(type(failure)):
            write(tmp_path / "tiny", SPEC, ARRAYS._replace(features=interrupted(failure)))
        assert leftovers(tmp_path) == []
    np.testing.assert_array_equal(open_dataset(tmp_path / "tiny").labels, ARRAYS.labels)


def test_what_was_never_written_is_named(tmp_path):
    with (
        pytest.raises(DatasetError, match="never written: indptr, indices, features, train_ids"),
        DatasetWriter(tmp_path / "t", SPEC) as out,
    ):
        out.write_labels(ARRAYS.labels)
    assert list(tmp_path.iterdir()) == []


def put(array: NDArray[Any], index: int | tuple[int, int], value: float) -> NDArray[Any]:
    array = array.copy()
    array[index] = value
    return array


_A, (_TRAIN, _VAL, _TEST) = ARRAYS, ARRAYS.splits
_INDPTR, _INDICES, _ROWS, _LABELS = _A.indptr, _A.indices, _A.features, _A.labels
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"labels": _LABELS[1:]}, "labels has length 399, expected 400"),
    ({"labels": put(_LABELS, 5, CLASSES)}, r"labels\.npy: \[5\] = 3 is no class"),
    ({"labels": put(_LABELS, 5, -2)}, r"labels\.npy: \[5\] = -2 is no class"),
    ({"labels": put(_LABELS.astype("u8") % 2, 5, 2**64 - 1)}, "= 18446744073709551615 is no class"),
    ({"features": put(_ROWS, (17, 2), np.nan)}, r"features\.npy: \[17, 2\] = nan is not finite"),
    ({"features": put(_ROWS, (N - 1, D - 1), np.inf)}, r"\[399, 6\] = inf is not finite"),
    ({"features": np.array_split(put(_ROWS, (333, 2), np.nan), 13)}, r"\[333, 2\] = nan is not"),
    ({"features": _ROWS[1:]}, "features has length 399, expected 400"),
    ({"features": _ROWS[:, 1:]}, r"features has rows of shape \(6,\), expected \(7,\)"),
    ({"splits": (_TRAIN, _VAL, _TRAIN)}, r"test_ids\.npy: names a node twice, or one of another"),
    ({"splits": (_TRAIN, _VAL, put(_TEST, 7, _TEST[0]))}, r"test_ids\.npy: names a node twice"),
    ({"splits": (put(_TRAIN, 5, N), _VAL, _TEST)}, rf"train_ids\.npy: \[5\] = {N} is no node"),
    ({"splits": (_TRAIN, put(_VAL, 5, -1), _TEST)}, r"val_ids\.npy: \[5\] = -1 is no node"),
    ({"indptr": put(_INDPTR, 9, -1)}, "degrees and in-neighbours disagree"),
    ({"indptr": _INDPTR[1:]}, "degrees and in-neighbours disagree"),
    ({"indices": _INDICES[1:]}, "degrees and in-neighbours disagree"),
    ({"indices": put(_INDICES, 3, N)}, rf"indices\.npy: \[3\] = {N} is no node"),
    ({"indices": put(_INDICES, 3, 7 + 2**32)}, r"indices\.npy: \[3\] = 4294967303 is no node"),
]


@pytest.mark.parametrize(("wrong", "complaint"), WRONG)
def test_wrong_sizes_and_values_are_refused_while_they_are_written(tmp_path, wrong, complaint):
    with pytest.raises(DatasetError, match=rf"/t[:/].*{complaint}|/t/{complaint}"):
        write(tmp_path / "t", SPEC, ARRAYS._replace(**wrong))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("spec", [None, "{", "[]", '{"spec": {}}', '{"name": "mine"}'])
def test_a_folder_that_is_no_dataset_is_never_replaced(tmp_path, spec):
    thesis = tmp_path / "tiny"
    thesis.mkdir()
    (thesis / "notes.txt").write_text("years of work")
    if spec is not None:
        (thesis / SPEC_FILE).write_text(spec)
    with pytest.raises(DatasetError, match=r"no spec\.json of gatherbench, so nothing there is"):
        write(thesis)
    with pytest.raises(DatasetError) as refusal:
        open_dataset(thesis)
    assert "--force" not in str(refusal.value)
    assert "move the folder away" in str(refusal.value)
    assert (thesis / "notes.txt").read_text() == "years of work"


def test_a_dataset_with_something_of_the_users_in_it_is_not_replaced(tmp_path):
    write(tmp_path / "tiny")
    (tmp_path / "tiny" / "notes.txt").write_text("years of work")
    with pytest.raises(DatasetError, match=r"notes\.txt in it is no part of a dataset"):
        write(tmp_path / "tiny")
    (tmp_path / "tiny" / "notes.txt").unlink()
    (tmp_path / "tiny" / "labels.npy").unlink()  # a damaged one is ours all the same
    write(tmp_path / "tiny")
    assert open_dataset(tmp_path / "tiny").spec.name == "tiny"


def test_what_became_of_the_folder_meanwhile_is_looked_at_again(tmp_path):
    def features() -> Any:
        yield ARRAYS.features
        (tmp_path / "tiny").mkdir()
        (tmp_path / "tiny" / "notes.txt").touch()

    with pytest.raises(DatasetError, match="nothing there is touched"):
        write(tmp_path / "tiny", SPEC, ARRAYS._replace(features=features()))
    assert [path.name for path in tmp_path.rglob("*")] == ["tiny", "notes.txt"]


def test_a_folder_or_a_link_to_one_is_replaced_by_the_new_one_alone(tmp_path):
    write(tmp_path / "real")
    (tmp_path / "tiny").symlink_to(tmp_path / "real")
    for labels in (np.zeros(N, np.int64), np.ones(N, np.int64)):
        write(tmp_path / "tiny", SPEC, ARRAYS._replace(labels=labels))
        assert not (tmp_path / "tiny").is_symlink()
        np.testing.assert_array_equal(open_dataset(tmp_path / "tiny").labels, labels)
        np.testing.assert_array_equal(open_dataset(tmp_path / "real").labels, ARRAYS.labels)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["real", "tiny"]


class Crash(BaseException):
    """As if the power went."""


@pytest.mark.parametrize("after", range(4))
def test_a_crash_at_any_rename_loses_nothing(tmp_path, monkeypatch, after):
    arrays = write(tmp_path / "tiny")
    rename, done = Path.rename, []

    def crashing(path: Path, target: Path) -> Path:
        if len(done) == after:
            raise Crash
        done.append(target)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", crashing)
    monkeypatch.setattr(files.shutil, "rmtree", lambda *_, **__: None)  # nobody tidies up
    renewed = arrays._replace(labels=np.zeros(N, np.int64))
    with contextlib.suppress(Crash):
        write(tmp_path / "tiny", SPEC, renewed)
    monkeypatch.undo()
    whole = [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    kept = {path.name.split("-")[0]: open_dataset(path).labels.any() for path in whole}
    assert kept == {0: {"tiny": True}, 1: {"tiny.old": True}, 3: {"tiny": False}}.get(
        after, {"tiny": False, "tiny.old": True}
    )
    for path in whole:  # by its name, as any other
        assert dataset_folder(path.name, root=tmp_path) == path
    write(tmp_path / "tiny", SPEC, renewed)
    assert leftovers(tmp_path) == []


def test_no_locks_are_left_and_waiting_is_for_the_lock_of_now(tmp_path):
    inside, order = threading.Barrier(2), []

    def work(number: int) -> None:
        inside.wait()
        for turn in range(8):
            with files.exclusive(tmp_path / "tiny"):
                order.append((number, turn))
                held = len(order)
                time.sleep(0.001)
                assert len(order) == held, "two were in at once"

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(work, number) for number in range(2)]:
            done.result()
    assert len(order) == 16
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_too_small_or_fills_up_is_said_and_nothing_left(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(writer, "_write_header", full)
        with pytest.raises(DatasetError, match=r"tiny: the disk is full; free some space"):
            write(tmp_path / "tiny")
    usage = type("Usage", (), {"free": 12_345})
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DatasetError, match=f"needs {folder_bytes(SPEC):,} bytes and 12,345 are"):
        write(tmp_path / "tiny")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_to_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(DatasetError, match=r"cannot be written to .* set GATHERBENCH_DATA"):
        write(tmp_path / "file" / "tiny")
    monkeypatch.setattr(files.os, "access", lambda *_: False)  # the tests may run as root
    with pytest.raises(DatasetError, match="no permission"):
        write(tmp_path / "tiny")


KILLED = """
    import sys, time
    from pathlib import Path
    from gatherbench.datasets.dataset import DatasetSpec
    from gatherbench.datasets.writer import DatasetWriter
    import numpy as np
    spec = DatasetSpec("tiny", 1.0, 9, 0, 2, "float32", 1, "s", "l")
    with DatasetWriter(Path(sys.argv[1]), spec) as out:
        out.write_labels(np.zeros(9, int))
        print("writing", flush=True)
        time.sleep(60)
"""


def test_a_writer_waits_for_a_living_one_and_removes_what_a_killed_one_left(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path / "tiny")],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    with process.stdout, ThreadPoolExecutor(1) as pool:
        assert process.stdout.readline() == b"writing\n"
        second = pool.submit(write, tmp_path / "tiny")
        with pytest.raises(TimeoutError):
            second.result(0.2)
        assert len(leftovers(tmp_path)) == 1, "a living writer's folder was removed"
        process.send_signal(signal.SIGKILL)
        process.wait()
        second.result(60)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("old")

    def replace(failure: bool) -> None:
        with files.replacing(path) as new:
            new.write_text("ne")
            if failure:
                raise RuntimeError
            new.write_text("new")
            assert path.read_text() == "old"

    with pytest.raises(RuntimeError):
        replace(failure=True)
    assert path.read_text() == "old"
    replace(failure=False)
    assert [(f.name, f.read_text()) for f in tmp_path.iterdir()] == [("x.txt", "new")]


# --- names and places -----------------------------------------------------------------------------


def test_where_folders_lie(tmp_path, monkeypatch):
    monkeypatch.setenv("GATHERBENCH_DATA", str(tmp_path))
    assert data_root() == tmp_path
    assert dataset_folder("products-like", 0.01) == tmp_path / "products-like@0.01"
    assert dataset_folder("wordnet") == tmp_path / "wordnet"
    assert dataset_folder("a", 2, Path("/x")) == Path("/x/a@2")
    monkeypatch.delenv("GATHERBENCH_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_root() == tmp_path / "cache" / "gatherbench"


@pytest.mark.parametrize(
    "name",
    ["", "..", "../x", "a/b", ".hidden", "a b", "a@b", "a" * 101, "raw", "traces", "NA", "null"],
)
def test_a_name_that_is_no_folder_name_of_a_dataset_is_refused(name):
    with pytest.raises(DatasetError, match=r"dataset name|is a folder of gatherbench's own"):
        dataset_folder(name)
    for scale in (0, -1, float("nan"), float("inf")):
        with pytest.raises(DatasetError, match="scale"):
            dataset_folder("x", scale)


def test_a_folder_with_a_table_a_type_is_refused(tmp_path):
    """Earlier versions wrote ``widths`` of every graph, mostly empty."""
    write(tmp_path / "tiny")
    path = tmp_path / "tiny" / SPEC_FILE
    content = json.loads(path.read_bytes())
    del content["sha256"]
    for widths in ([], [7, 3]):
        content["spec"]["widths"] = widths
        path.write_text(json.dumps({**content, "sha256": _digest(content)}))
        if not widths:
            assert read_spec(tmp_path / "tiny")[0].feature_dim == SPEC.feature_dim
    with pytest.raises(DatasetError, match="each type of nodes has a table of its own"):
        read_spec(tmp_path / "tiny")
