"""Files from elsewhere: nothing in one is ever run, and none takes memory that it does not fill."""

import gzip
import io
import os
import pickle
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data, HeteroData

from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.import_files import load_fields
from gatherbench.datasets.import_options import Import
from gatherbench.datasets.importers import import_graph
from gatherbench.datasets.ogb_source import OgbSource
from gatherbench.datasets.reddit_source import RedditSource
from gatherbench.datasets.source import silent


class Payload:
    """A pickle that makes a file when it is loaded, by a module that torch does not suspect."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return shutil.copyfile, (__file__, str(self.made))


@pytest.fixture
def payload(tmp_path: Path) -> Payload:
    """It works, else the tests here would prove nothing."""
    tried = Payload(tmp_path / "tried")
    pickle.loads(pickle.dumps(tried))
    assert tried.made.exists()
    return Payload(tmp_path / "made")


@pytest.mark.parametrize("lax", ["0", "1"])
def test_pickles_in_the_folders_of_pyg_and_ogb_are_not_run(tmp_path, payload, lax, monkeypatch):
    """Their loaders fall back to loading anything; a variable makes ``torch.load`` run it too."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", lax)
    reddit, ogb = tmp_path / "raw/reddit", tmp_path / "raw/ogbn_papers100M"
    for folder in (reddit / "raw", reddit / "processed", ogb / "raw", ogb / "processed"):
        folder.mkdir(parents=True)
    (ogb / "split/time").mkdir(parents=True)
    (ogb / "RELEASE_v1.txt").touch()
    for part, ids in (("train", b"0\n"), ("valid", b"1\n"), ("test", b"1\n")):
        (ogb / f"split/time/{part}.csv.gz").write_bytes(gzip.compress(ids))
    for name in ("data.pt", "pre_transform.pt", "pre_filter.pt"):
        torch.save(payload, reddit / "processed" / name)
    for name in ("split/time/split_dict.pt", "processed/data_processed", "processed/x.pt"):
        torch.save(payload, ogb / name)
    evil = np.array([[payload], [0]], object)
    ends = (np.array([0, 1]), np.array([1, 0]))
    scipy.sparse.save_npz(
        reddit / "raw/reddit_graph.npz", scipy.sparse.coo_array((np.ones(2), ends))
    )
    classes = {"label": [0, 2], "node_types": [1, 2]}
    np.savez(reddit / "raw/reddit_data.npz", feature=np.ones((2, 3)), **classes)
    RedditSource().prepare(tmp_path / "reddit", 1.0, silent)
    np.savez(reddit / "raw/reddit_data.npz", feature=evil, **classes)
    with pytest.raises(DatasetError, match=r"'feature': cannot be read .*Python objects"):
        RedditSource().prepare(tmp_path / "reddit", 1.0, silent)
    table = np.ones((2, 128), np.float32)
    np.savez(ogb / "raw/data.npz", edge_index=np.array(ends), node_feat=table)
    for labels, complaint in ((np.zeros((2, 1)), "names a node twice"), (evil, "Python objects")):
        np.savez(ogb / "raw/node-label.npz", node_label=labels)
        with pytest.raises(DatasetError, match=complaint):
            OgbSource("ogbn-papers100M").prepare(tmp_path / "made-of-it", 1.0, silent)
    assert not payload.made.exists()


@pytest.mark.parametrize("option", ["path", "features", "labels", "train"])
@pytest.mark.parametrize("suffix", [".pt", ".pth", ".npy", ".npz", ".txt", ".mtx"])
def test_pickles_given_to_import_are_not_run(tmp_path, payload, option, suffix, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    (tmp_path / "e.txt").write_text("0 1\n1 2\n")
    array, evil = np.array([payload, payload], object), tmp_path / f"evil{suffix}"
    names = ("edge_index", "indptr", "indices", "x", "y")
    fields = {"edge_index": torch.zeros(2, 1, dtype=torch.long), "y": payload}
    for write in (
        lambda file: torch.save(fields, file),
        lambda file: torch.save(payload, file, _use_new_zipfile_serialization=False),
        lambda file: pickle.dump(payload, file),
        lambda file: np.save(file, array),
        lambda file: np.savez(file, **dict.fromkeys(names, array)),
    ):
        with evil.open("wb") as file:
            write(file)
        files = {"path": tmp_path / "e.txt", option: evil}
        with pytest.raises(DatasetError):
            import_graph(Import(files.pop("path"), "mine", **files), tmp_path)
    assert not payload.made.exists()
    assert not (tmp_path / "mine").exists()


def test_torch_is_told_to_run_nothing_though_the_names_were_looked_at(
    tmp_path, payload, monkeypatch
):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    monkeypatch.setattr(torch.serialization, "get_unsafe_globals_in_checkpoint", lambda _: [])
    torch.save({"edge_index": torch.zeros(2, 1), "y": payload}, tmp_path / "e.pt")
    with pytest.raises(DatasetError, match=r"e\.pt: cannot be read"):
        load_fields(tmp_path / "e.pt")
    assert not payload.made.exists()


def test_classes_that_others_declared_safe_are_not_made(tmp_path):
    """PyG declares classes safe whose making reads files; ours is a list of its own."""

    class Hostile:
        made = 0

        def __init__(self) -> None:
            Hostile.made += 1

        def __reduce__(self) -> tuple[type, tuple[()]]:
            return Hostile, ()

    Hostile.__qualname__ = "Hostile"
    Hostile.__module__ = "somewhere"
    sys.modules["somewhere"] = type(sys)("somewhere")
    sys.modules["somewhere"].Hostile = Hostile  # type: ignore[attr-defined]
    try:
        torch.save({"edge_index": torch.tensor([[0], [1]]), "z": Hostile()}, tmp_path / "h.pt")
        with torch.serialization.safe_globals([Hostile]):
            before = Hostile.made
            with pytest.raises(DatasetError, match=r"asks for somewhere\.Hostile"):
                load_fields(tmp_path / "h.pt")
            assert Hostile.made == before
            assert Hostile in torch.serialization.get_safe_globals(), "others' list is put back"
    finally:
        del sys.modules["somewhere"]


def test_a_heterogeneous_graph_names_the_remedy(tmp_path):
    data = HeteroData()
    data["a"].x = torch.ones(2, 2)
    data["a", "to", "a"].edge_index = torch.tensor([[0], [1]])
    torch.save(data, tmp_path / "h.pt")
    with pytest.raises(DatasetError, match=r"/h\.pt: asks for .*HeteroData.*to_homogeneous\(\)"):
        import_graph(Import(tmp_path / "h.pt", "mine"), tmp_path)
    torch.save(Data(edge_index=torch.tensor([[0], [1]])), tmp_path / "d.pt")
    assert import_graph(Import(tmp_path / "d.pt", "mine"), tmp_path).is_dir()


# --- sizes ----------------------------------------------------------------------------------------

LIMITED = """
import resource, shutil, sys
import pandas, psutil, pyarrow.csv  # which map libraries
from pathlib import Path
from gatherbench.datasets.import_options import Import
from gatherbench.datasets.importers import import_graph
from gatherbench.datasets.dataset import DatasetError
shutil.disk_usage = lambda _: type("U", (), {"free": 1 << 20})
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (128 << 20),) * 2)
try:
    import_graph(Import(Path(sys.argv[1]), "mine", dim=1, dtype="int8"), Path(sys.argv[2]))
except DatasetError as error:
    print("refused:", error)
"""


def bomb(path: Path, zeros: int, **arrays: np.ndarray) -> None:
    """An archive with arrays of one of them ``zeros`` int64 long, some thousand times smaller."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                if array.size:
                    np.lib.format.write_array(member, array)
                    continue
                head = {"descr": "<i8", "fortran_order": False, "shape": (zeros, *array.shape[1:])}
                np.lib.format.write_array_header_1_0(member, head)
                for _ in range(zeros >> 17):
                    member.write(bytes(8 << 17))


def test_an_archive_that_unpacks_to_much_more_takes_no_such_memory(tmp_path):
    """As on a small disk: what does not fit is refused before it is read."""
    bomb(tmp_path / "bomb.npz", 1 << 25, edge_index=np.array([[0], [1]]), y=np.empty(0, int))
    assert (tmp_path / "bomb.npz").stat().st_size < 2 << 20
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "bomb.npz"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search("refused: .* bytes and .* are free", done.stdout), done.stdout


@pytest.mark.parametrize("name", ["e.npy", "e.npz"])
@pytest.mark.parametrize("shape", ["(2, 4000000000)", "(-2, -8)", "(2, 7)"])
def test_a_header_that_says_another_size_is_refused(tmp_path, name, shape):
    real = io.BytesIO()
    np.save(real, np.zeros((2, 8), np.int64))
    lie = real.getvalue()
    said = b"(2, 8), }"
    lie = lie.replace(said + b" " * 20, f"{shape}, }}".encode().ljust(len(said) + 20))
    (tmp_path / name).write_bytes(lie)
    if name == "e.npz":
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("edge_index.npy", lie)
    with pytest.raises(DatasetError, match=r"header says int64 .*, and there |cannot be read"):
        import_graph(Import(tmp_path / name, "mine"), tmp_path)


def test_a_tensor_larger_than_its_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("GATHERBENCH_MEMORY_GIB", "1")
    torch.save(torch.zeros(1, dtype=torch.long).expand(2, 10**10), tmp_path / "e.pt")
    with pytest.raises(DatasetError, match="its edges need about 160,000,000,000 bytes"):
        import_graph(Import(tmp_path / "e.pt", "mine"), tmp_path)


@pytest.mark.parametrize("option", ["path", "features", "labels", "train", "val", "test"])
def test_a_pipe_or_a_folder_is_refused_at_once(tmp_path, option):
    (tmp_path / "e.txt").write_text("0 1\n")
    os.mkfifo(tmp_path / "pipe")
    for odd in (tmp_path / "pipe", tmp_path, tmp_path / ("a" * 300)):
        files = {"path": tmp_path / "e.txt", option: odd}
        with pytest.raises(DatasetError, match=r"not a regular file|aaa: no such file|expected"):
            import_graph(Import(files.pop("path"), "mine", **files), tmp_path)
