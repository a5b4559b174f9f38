"""WholeGraph, alone and over several ranks: who fills what, and which bytes come from where."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.peers import gatherbench_peers
from gatherbench.strategies.base import Minibatches
from gatherbench.strategies.data_path import DataPath, zero_copy_path
from gatherbench.strategies.knowledge import Knowledge, Ranks

PEERS = Path(__file__).parents[2] / "examples" / "peers"


class Library:
    """What of pylibwholegraph and librmm is used; ``first``: the row with which a rank's begin."""

    __version__ = "26.10"

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, wrong: bool = False, first: int = 0
    ) -> None:
        self.wrong, self.first = wrong, first
        self.asked: list[Tensor] = []
        self.calls: list[object] = []
        self.wmb = SimpleNamespace(finalize=lambda: self.calls.append("library ended"))
        monkeypatch.setattr(gatherbench_peers.importlib, "import_module", self.module)
        monkeypatch.setattr(gatherbench_peers.importlib.util, "find_spec", lambda name: self)

    def module(self, name: str) -> Library:
        self.calls.append(name)
        return self

    def load_library(self) -> None:
        self.calls.append("load_library")

    def init_torch_env_and_create_wm_comm(self, *world: int, wm_log_level: str) -> tuple[str, None]:
        assert world == (0, 1, 0, 1)
        return "communicator", None

    def init(self, *world: int, wm_log_level: str) -> None:
        self.calls.append(world)

    def get_global_communicator(self) -> Any:
        return SimpleNamespace(barrier=lambda: self.calls.append("barrier"))

    def create_wholememory_tensor(
        self, comm: object, kind: str, place: str, sizes: list[int], dtype: Any, strides: list[int]
    ) -> Any:
        self.calls.append((kind, place, sizes))
        assert strides == [sizes[1], 1]
        self.local = values = torch.zeros([sizes[0] - self.first, sizes[1]], dtype=dtype)

        def gathered(ids: Tensor) -> Tensor:
            self.asked.append(ids)
            return values[(ids + int(self.wrong)) % sizes[0]]

        return SimpleNamespace(
            get_local_tensor=lambda host_view: (values, self.first), gather=gathered
        )

    def destroy_wholememory_tensor(self, table: Any) -> None:
        self.calls.append("freed")

    def reset_communicators(self) -> None:
        self.calls.append("reset")

    def finalize(self) -> None:
        self.calls.append("group ended")


def test_the_library_is_loaded_behind_what_it_is_linked_to(monkeypatch):
    library = Library(monkeypatch)
    gatherbench_peers.WholeGraph().close()
    assert library.calls[:3] == ["librmm", "load_library", "pylibwholegraph"]
    assert library.calls[-1] == "group ended"


def test_a_rank_fills_its_part_and_leaves_the_group_alone(monkeypatch):
    """Rank 1 of two, for a table of 5 rows: 3 and 2."""
    library = Library(monkeypatch, first=3)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    values = torch.arange(15.0).view(5, 3)
    theirs = gatherbench_peers.WholeGraph(Ranks(1, 2, 2))
    theirs.table(values, "continuous", "cuda")
    theirs.close()
    assert torch.equal(library.local, values[3:])
    assert library.calls[-5:] == [
        (1, 2, 1, 2), ("continuous", "cuda", [5, 3]), "barrier", "library ended", "reset",
    ]  # fmt: skip


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PEERS))
    return importlib.import_module("gatherbench_peers")


IDS = torch.tensor([0, 3, 4, 4, 7])


def path_of(peers: ModuleType, memory: str, ranks: Ranks) -> DataPath:
    """Of a table of 8 rows of 600 B."""
    paths = peers.PeerWholegraph(memory).data_paths(
        Minibatches([IDS], 600, 8, Knowledge(ranks=ranks))
    )
    (path,) = paths
    assert isinstance(path, DataPath)
    assert path.arriving_bytes == path.payload_bytes == 3000
    return path


def test_which_bytes_come_from_where(peers):
    """Each of four ranks has two rows; rank 2 has 4 and 5."""

    def read(ids: Tensor) -> DataPath:
        return zero_copy_path(ids, 600, "wholegraph", "given")

    assert path_of(peers, "host", Ranks(2, 4, 4)) == read(IDS)
    in_gpu = path_of(peers, "gpu", Ranks(2, 4, 4))
    assert (in_gpu.gpu_memory_bytes, in_gpu.peer_bytes) == (1200, 1800)
    assert peers.PeerWholegraph("gpu").data_path(IDS, 600).gpu_memory_bytes == 3000
    assert peers.PeerWholegraph().data_path(IDS, 600) == read(IDS)


def test_how_much_of_the_table_a_gpu_has(peers):
    known = Knowledge(ranks=Ranks(2, 4, 2))
    assert peers.PeerWholegraph("gpu").kept_bytes(4800, known) == 1200
    assert peers.PeerWholegraph("host").kept_bytes(4800, known) == 0
