"""Files from elsewhere: nothing in one is ever run, and none takes memory that it does not fill."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import re
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data, HeteroData

from gatherbench.datasets import download
from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.import_torch import load_tensors
from gatherbench.datasets.importers import import_graph
from gatherbench.datasets.ogb_source import OgbSource
from gatherbench.datasets.reddit_source import RedditSource
from gatherbench.datasets.source import silent
from gatherbench.datasets.store import open_dataset


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


def test_pickles_in_pygs_folder_are_not_run(tmp_path: Path, payload: Payload) -> None:
    """PyG's loader falls back to loading anything, with a warning."""
    raw, processed = tmp_path / "raw/reddit/raw", tmp_path / "raw/reddit/processed"
    raw.mkdir(parents=True)
    processed.mkdir()
    np.savez(
        raw / "reddit_data.npz",
        feature=np.ones((4, 3)),
        label=np.array([0, 2, 1, 2]),
        node_types=np.array([1, 3, 2, 1]),
    )
    ends = (np.array([0, 1]), np.array([1, 0]))
    scipy.sparse.save_npz(raw / "reddit_graph.npz", scipy.sparse.coo_array((np.ones(2), ends)))
    for name in ("data.pt", "pre_transform.pt", "pre_filter.pt"):
        torch.save(payload, processed / name)
    RedditSource().prepare(tmp_path / "reddit", 1.0, silent)
    assert open_dataset(tmp_path / "reddit").indices.tolist() == [1, 0]
    np.savez(
        raw / "reddit_data.npz", feature=np.array([payload], object), label=[0], node_types=[1]
    )
    with pytest.raises(DatasetError, match="'feature': holds Python objects"):
        RedditSource().prepare(tmp_path / "reddit", 1.0, silent)
    assert not payload.made.exists()


@pytest.mark.parametrize("lax", [False, True])
def test_pickles_in_ogbs_folder_are_not_run(
    tmp_path: Path, payload: Payload, lax: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor with the variable that makes ``torch.load`` run what it finds."""
    pytest.importorskip("ogb")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", str(int(lax)))
    folder = tmp_path / "raw/ogbn_papers100M"
    (folder / "raw").mkdir(parents=True)
    (folder / "processed").mkdir()
    (folder / "split/time").mkdir(parents=True)
    (folder / "RELEASE_v1.txt").touch()
    edges, table = np.array([[0, 1], [1, 0]]), np.ones((2, 128), np.float32)
    np.savez(folder / "raw/data.npz", edge_index=edges, node_feat=table)
    np.savez(folder / "raw/node-label.npz", node_label=np.zeros((2, 1)))
    for part, ids in (("train", b"0\n"), ("valid", b"1\n"), ("test", b"1\n")):
        (folder / f"split/time/{part}.csv.gz").write_bytes(gzip.compress(ids))
    for name in ("split/time/split_dict.pt", "processed/data_processed", "processed/x.pt"):
        torch.save(payload, folder / name)
    with pytest.raises(DatasetError, match="names a node twice"):
        OgbSource("ogbn-papers100M").prepare(tmp_path / "made-of-it", 1.0, silent)
    np.savez(folder / "raw/node-label.npz", node_label=np.array([[payload], [0]], object))
    with pytest.raises(DatasetError, match="'node_label': holds Python objects"):
        OgbSource("ogbn-papers100M").prepare(tmp_path / "made-of-it", 1.0, silent)
    (folder / "split/time/test.csv.gz").unlink()
    with pytest.raises(DatasetError, match=r"test\.csv\.gz"):
        OgbSource("ogbn-papers100M").prepare(tmp_path / "made-of-it", 1.0, silent)
    assert not payload.made.exists()


@pytest.mark.parametrize("option", ["path", "features", "labels", "train"])
@pytest.mark.parametrize("suffix", [".pt", ".pth", ".npy", ".npz", ".txt", ".mtx"])
@pytest.mark.parametrize("lax", [False, True])
def test_pickles_given_to_import_are_not_run(
    tmp_path: Path,
    payload: Payload,
    option: str,
    suffix: str,
    lax: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", str(int(lax)))
    (tmp_path / "e.txt").write_text("0 1\n1 2\n")
    array = np.array([payload, payload], object)
    for number in range(5):
        evil = tmp_path / f"evil-{number}{suffix}"
        if number == 0:
            torch.save({"edge_index": torch.zeros(2, 1, dtype=torch.long), "y": payload}, evil)
        elif number == 1:
            torch.save(payload, evil, _use_new_zipfile_serialization=False)
        elif number == 2:
            evil.write_bytes(pickle.dumps(payload))
        elif number == 3:
            with evil.open("wb") as file:
                np.save(file, array)
        else:
            with evil.open("wb") as file:
                np.savez(file, edge_index=array, indptr=array, indices=array, x=array, y=array)
        files = {"path": tmp_path / "e.txt", option: evil}
        with pytest.raises(DatasetError):
            import_graph(files.pop("path"), "mine", root=tmp_path, **files)
    assert not payload.made.exists()
    assert not (tmp_path / "mine").exists()


def test_torch_is_told_to_run_nothing_though_the_names_were_looked_at(
    tmp_path: Path, payload: Payload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    monkeypatch.setattr(torch.serialization, "get_unsafe_globals_in_checkpoint", lambda _: [])
    torch.save({"edge_index": torch.zeros(2, 1), "y": payload}, tmp_path / "e.pt")
    with pytest.raises(DatasetError, match=r"e\.pt: cannot be read"):
        load_tensors(tmp_path / "e.pt")
    assert not payload.made.exists()


def test_classes_that_others_declared_safe_are_not_made(tmp_path: Path) -> None:
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
                load_tensors(tmp_path / "h.pt")
            assert Hostile.made == before
            assert Hostile in torch.serialization.get_safe_globals(), "others' list is put back"
    finally:
        del sys.modules["somewhere"]


def test_a_heterogeneous_graph_names_the_remedy(tmp_path: Path) -> None:
    data = HeteroData()
    data["a"].x = torch.ones(2, 2)
    data["a", "to", "a"].edge_index = torch.tensor([[0], [1]])
    torch.save(data, tmp_path / "h.pt")
    with pytest.raises(DatasetError, match=r"h\.pt: a HeteroData.*to_homogeneous\(\)"):
        import_graph(tmp_path / "h.pt", "mine", root=tmp_path)
    torch.save(Data(edge_index=torch.tensor([[0], [1]])), tmp_path / "d.pt")
    assert import_graph(tmp_path / "d.pt", "mine", root=tmp_path).is_dir()


# --- sizes ----------------------------------------------------------------------------------------

LIMITED = """
import resource, sys
from pathlib import Path
from gatherbench.datasets.importers import import_graph
from gatherbench.datasets.dataset import DatasetError
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (128 << 20),) * 2)
try:
    import_graph(Path(sys.argv[1]), "mine", root=Path(sys.argv[2]), dim=1, dtype="int8")
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


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"indptr": np.empty(0, int), "indices": np.array([1, 2])}, "ends with 0, expected the 2"),
        ({"edge_index": np.array([[0], [1]]), "y": np.empty(0, int)}, "bytes and .* are free"),
    ],
)
def test_an_archive_that_unpacks_to_much_more_takes_no_such_memory(
    tmp_path: Path, arrays: dict[str, np.ndarray], complaint: str
) -> None:
    bomb(tmp_path / "bomb.npz", 1 << 25, **arrays)
    assert (tmp_path / "bomb.npz").stat().st_size < 2 << 20
    code = LIMITED
    if "y" in arrays:  # as if the disk were small
        code = "import shutil\nshutil.disk_usage = lambda _: type('U', (), {'free': 10})\n" + code
    command = [sys.executable, "-c", code, str(tmp_path / "bomb.npz"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "refused:" in done.stdout
    assert re.search(complaint, done.stdout), done.stdout


@pytest.mark.parametrize("name", ["e.npy", "e.npz"])
@pytest.mark.parametrize("shape", ["(2, 4000000000)", "(-2, -8)", "(2, 7)"])
def test_a_header_that_says_another_size_is_refused(tmp_path: Path, name: str, shape: str) -> None:
    real = io.BytesIO()
    np.save(real, np.zeros((2, 8), np.int64))
    lie = real.getvalue()
    said = b"(2, 8), }"
    lie = lie.replace(said + b" " * 20, f"{shape}, }}".encode().ljust(len(said) + 20))
    (tmp_path / name).write_bytes(lie)
    if name == "e.npz":
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("edge_index.npy", lie)
    with pytest.raises(DatasetError, match=r"header says int64 .* bytes, and there are 128"):
        import_graph(tmp_path / name, "mine", root=tmp_path)


def test_a_tensor_larger_than_its_file_is_refused(tmp_path: Path) -> None:
    torch.save(torch.zeros(1, dtype=torch.long).expand(2, 10**10), tmp_path / "e.pt")
    with pytest.raises(DatasetError, match="more than the file can hold"):
        import_graph(tmp_path / "e.pt", "mine", root=tmp_path)


@pytest.mark.parametrize("option", ["path", "features", "labels", "train", "val", "test"])
def test_a_pipe_or_a_folder_is_refused_at_once(tmp_path: Path, option: str) -> None:
    (tmp_path / "e.txt").write_text("0 1\n")
    os.mkfifo(tmp_path / "pipe")
    for odd in (tmp_path / "pipe", tmp_path, tmp_path / ("a" * 300)):
        files = {"path": tmp_path / "e.txt", option: odd}
        with pytest.raises(DatasetError, match="no regular file"):
            import_graph(files.pop("path"), "mine", root=tmp_path, **files)


# --- downloads ------------------------------------------------------------------------------------


class Answer(io.BytesIO):
    """What ``urlopen`` gives, from ``url``."""

    def __init__(self, body: bytes, url: str) -> None:
        super().__init__(body)
        self.url, self.headers = url, {"Content-Length": str(len(body))}


def archive(name: str = "folder/file") -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as packed:
        packed.writestr(name, "content")
    return made.getvalue()


def test_downloads_come_over_https_and_with_their_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, leads_to = [], "https://example.org/g.zip"

    def urlopen(url: str, timeout: float) -> Answer:
        asked.append(url)
        return Answer(archive(), leads_to)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    target = tmp_path / "raw/g"
    url, right = "http://example.org/g.zip", hashlib.sha256(archive()).hexdigest()
    with pytest.raises(DatasetError, match=f"its SHA-256 is {right}, expected {'0' * 64}: .* dam"):
        download.fetch_folder(url, "folder", target, silent, "0" * 64)
    assert not target.exists()
    with pytest.raises(DatasetError, match=r"cannot be fetched .*elsewhere"):
        download.fetch_folder(url, "elsewhere", target, silent, right)
    download.fetch_folder(url, "folder", target, silent, right)
    assert (target / "file").read_text() == "content"
    leads_to = "http://example.org/g.zip"
    with pytest.raises(DatasetError, match=r"leads to http://\S*, which is not https"):
        download.fetch_folder(url, "folder", tmp_path / "raw/h", silent)
    assert asked == ["https://example.org/g.zip"] * 4


def test_an_archive_that_would_fill_the_disk_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("folder/zeros", bytes(1 << 20))
    answer = Answer(made.getvalue(), "https://example.org/g.zip")
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: answer)
    usage = type("Usage", (), {"free": 1 << 19})
    monkeypatch.setattr("gatherbench.datasets.files.shutil.disk_usage", lambda _: usage)
    with pytest.raises(DatasetError, match=r"needs 1,048,576 bytes and 524,288 are free"):
        download.fetch_folder("https://example.org/g.zip", "folder", tmp_path / "g", silent)
    assert list(tmp_path.iterdir()) == []


def test_what_has_no_checksum_says_so() -> None:
    for source in (OgbSource("ogbn-products"), OgbSource("ogbn-papers100M")):
        assert "no checksum" in " ".join(source.estimate(1.0).notes)
    for name in ("ogbn-arxiv", "reddit"):
        assert len(bytes.fromhex(download.published(name)["sha256"])) == 32
