"""`gatherbench datasets` beyond what the library does: defaults, and what is said of bad input."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gatherbench.bench.cli import app
from gatherbench.bench.read.units import quantity
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.store import open_dataset


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GATHERBENCH_DATA", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture
def edges(root: Path) -> Path:
    """A ring of three nodes."""
    file = root / "edges.txt"
    file.write_text("0 1\n1 2\n2 0\n")
    return file


def imported(path: Path, *options: object) -> GraphDataset:
    arguments = ["datasets", "import", path, "--name", "mine", "--force", *options]
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == 0, done.output
    return open_dataset(Path(done.stdout.strip()))


def test_the_width_is_that_of_the_feature_file_or_a_default(root, edges):
    features = root / "x.npy"
    np.save(features, np.arange(21, dtype=np.float16).reshape(3, 7))
    assert imported(edges).features.shape == (3, 128)
    assert imported(edges, "--dim", 9).features.shape == (3, 9)
    given = imported(edges, "--features", features)
    assert given.features.dtype == np.float16
    assert np.array_equal(given.features, np.load(features))


def test_a_graph_of_ones_own_is_listed_and_suggested(root, edges):
    imported(edges, "--dim", 9)
    (root / "data" / "broken").mkdir()
    (root / "data" / "broken" / "spec.json").write_text("{")
    listed = CliRunner().invoke(app, ["list", "datasets"])
    (mine,) = [line for line in listed.stdout.splitlines() if "imported from edges.txt" in line]
    assert [cell.strip() for cell in mine.split("│")[1:5]] == ["mine", "3", "3", "9 × float32"]
    assert "broken" in listed.stdout
    code, said = invoke("prepare", "mine", "--scale", "0.1")
    assert (code, "mine was imported: it is one fixed graph" in said) == (2, True)
    code, said = invoke("info", "mien")
    assert (code, "did you mean 'mine'?" in said) == (2, True)


def test_an_import_says_what_it_made_and_warns_of_ids_with_gaps(edges):
    edges.write_text("7 90\n90 7000\n7 90\n")
    code, said = invoke("import", edges, "--name", "mine", "--dim", 2, "--zero-based")
    assert code == 0, said
    assert "mine: 7,001 nodes (7,001 labelled), 2 edges, rows of 2 × float32" in said
    assert 'dataset = "mine"' in said
    assert "6,998 of the 7,001 nodes are in no edge" in said
    assert "numpy.unique(edges, return_inverse=True)" in said


def invoke(*words: object, **options: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["datasets", *(str(word) for word in words)], **options)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, " ".join(done.output.split())


def test_force_replaces_datasets_and_nothing_else(root, edges):
    data = root / "data"
    for kept in ("raw/ogbn_arxiv/x", "traces/t/x", "thesis/notes.txt"):
        (data / kept).parent.mkdir(parents=True)
        (data / kept).write_text(kept)
    for name in ("raw", "traces", "thesis"):
        for force in ((), ("--force",)):
            code, said = invoke("import", edges, "--name", name, "--dim", 2, *force)
            assert (code, "--force" in said) == (2, False), said
            assert "choose another name" in said
    code, said = invoke("prepare", "thesis", "--force")
    assert (code, "--force" in said) == (2, False), said
    for kept in ("raw/ogbn_arxiv/x", "traces/t/x", "thesis/notes.txt"):
        assert (data / kept).read_text() == kept
    imported(edges, "--dim", 2)
    code, said = invoke("import", edges, "--name", "mine")
    assert (code, "choose another name, or --force" in said) == (2, True)
    assert imported(edges, "--dim", 3).spec.feature_dim == 3
    assert sorted(path.name for path in data.iterdir()) == ["mine", "raw", "thesis", "traces"]


def test_what_is_invented_is_said_at_once(root, edges):
    labels, train = root / "y.npy", root / "train.npy"
    np.save(labels, [0, -1, 1])
    np.save(train, [2])
    command = ("import", edges, "--dim", 2, "--name")
    said = invoke(*command, "bare")[1]
    for what in ("features INVENTED: random", "labels INVENTED: 16 random", "splits INVENTED"):
        assert what in said
    said = invoke(*command, "own", "--labels", labels, "--train", train)[1]
    assert "features INVENTED: random, nothing" in said
    assert "labels from y.npy splits from train.npy" in said
    assert "1 nodes to train, 0 to validate, 0 to test" in said
    assert "(2 labelled)" in said
    assert said.count("INVENTED") == 1


def test_remove_takes_a_dataset_and_nothing_else(root, edges):
    data = root / "data"
    imported(edges, "--dim", 9)
    shutil.copytree(data / "mine", data / "mine-foo")
    for kept in ("raw", "traces"):
        (data / kept / "x").mkdir(parents=True)
    (data / "link").symlink_to(data / "mine")
    staged = shutil.copytree(data / "mine", data / ".mine.writing-0")  # another process is at it
    strange = ("..", ".", "", "../mine", "mine/../raw", str(data))
    for name in ("raw", "traces", "nowhere", staged.name, *strange):
        code, said = invoke("remove", name, "--yes")
        assert code == 2, said
    shutil.rmtree(staged)
    assert invoke("remove", "link", "--yes")[0] == 0
    assert not (data / "link").is_symlink()
    code, said = invoke("remove", "mine", input="n\n")
    assert (code, "Aborted" in said) == (1, True)
    assert (data / "mine").is_dir()
    size = sum(f.stat().st_size for f in (data / "mine").iterdir())
    code, said = invoke("remove", "mine", input="y\n")
    assert (code, said.endswith(f"removed {data / 'mine'}: {quantity(size, 'B')}")) == (0, True)
    assert sorted(path.name for path in data.iterdir()) == ["mine-foo", "raw", "traces"]
    (data / "mine-foo" / "thesis.txt").touch()
    code, said = invoke("remove", "mine-foo", "--yes")
    assert (code, "thesis.txt in it is no part of a dataset" in said) == (2, True)


def test_a_folder_that_refuses_ends_in_words(root, edges, monkeypatch):
    """The tests may run as a user whom no mode stops."""
    imported(edges, "--dim", 2)
    really_open = Path.open

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system", str(path))

    def read_only(path: Path, mode: str = "r", **more: object) -> object:
        return refuse(path) if "w" in mode else really_open(path, mode, **more)

    refusals = {"mkdir": refuse, "rename": refuse, "open": read_only}
    for name, refusal in refusals.items():
        with monkeypatch.context() as patch:
            patch.setattr(Path, name, refusal)
            commands: list[tuple[object, ...]] = [
                ("import", edges, "--name", "mine", "--force"),
                ("prepare", "wiki-like", "--scale", 0.001),
            ]
            if name != "open":  # to remove a folder no file is opened
                commands.append(("remove", "mine", "--yes"))
            for words in commands:
                code, said = invoke(*words)
                assert code in (0, 2), said
                assert code == 0 or "Read-only file system" in said
    assert open_dataset(root / "data" / "mine").spec.num_nodes == 3


def test_what_lies_on_disk_is_listed_with_what_it_takes(root, edges):
    def listed() -> list[str]:
        done = CliRunner().invoke(app, ["datasets", "list"])
        assert done.exit_code == 0, done.output
        return str(done.stdout).splitlines()

    place = root / "data"
    assert listed() == [f"0 B in {place}; to have room: gatherbench datasets remove NAME"]
    imported(edges, "--dim", 9)
    for name, size in (("raw/ogbn_arxiv", 3_000_000), (".gone.writing-0", 20), ("broken", 1)):
        (place / name).mkdir(parents=True)
        (place / name / "x.bin").write_bytes(b"0" * size)
    (place / "broken" / "spec.json").write_text("{")
    lines = listed()
    rows = json.loads(CliRunner().invoke(app, ["datasets", "list", "--json"]).stdout)
    of = {row["dataset"]: [*row.values()][1:] for row in rows}
    assert of["broken"] == ["damaged", "–", "–", "2 B"]
    assert of["mine"][:3] == ["3", "3", "9 × float32"]
    assert of["raw"][3] == "3.00 MB"
    assert of[".gone.writing-0"][3] == "20 B"
    everything = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    assert lines[-1].startswith(f"{quantity(everything, 'B')} in {place}")


def test_a_folder_that_cannot_be_read_is_named_and_not_taken_for_empty(root, monkeypatch):
    locked, look = root / "data" / "raw" / "locked", os.scandir
    refusal: OSError = PermissionError(13, "Permission denied", str(locked))

    def scandir(folder: str) -> object:
        if Path(folder) == locked:
            raise refusal
        return look(folder)

    locked.mkdir(parents=True)
    monkeypatch.setattr(os, "scandir", scandir)
    code, said = invoke("list")
    assert (code, str(locked) in said) == (2, True)
    refusal = FileNotFoundError(2, "No such file or directory", str(locked))
    assert invoke("list")[0] == 0
