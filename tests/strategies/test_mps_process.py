"""The producer process for real, with the GPU's part done in host memory: bytes, life and death."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import ClassVar

import host_mps_side
import psutil
import pytest
import torch
from torch import Tensor

from gatherbench.kernels.reference import reference_gather, same_bytes
from gatherbench.strategies import conformance
from gatherbench.strategies.base import Fetcher
from gatherbench.strategies.knowledge import Knowledge
from gatherbench.strategies.mps import MpsFetcher
from gatherbench.strategies.mps_process import Producer, ProducerError, Start
from gatherbench.strategies.shared_table import map_table, shared_file

from .right_paths import Made

HOST = torch.device("cpu")
PATHS = filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS), "OMP_NUM_THREADS": "1"}


def opened(table: Tensor, folder: Path, **arguments: object) -> MpsFetcher:
    side = host_mps_side.HostTrainingSide(table, folder)
    there = "host_mps_side:HostProducerSide"
    return MpsFetcher(table, HOST, side, there, arguments, ENVIRONMENT)


class ByAnotherProcess(Made):
    """For the conformance suite: gathered by another process, on the host."""

    folder: ClassVar[Path]
    lookahead = 1

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        return opened(features, self.folder)


def test_it_keeps_the_contract(tmp_path):
    """As far as another process may break it; a GPU's tests have every check."""
    ByAnotherProcess.folder = tmp_path
    conformance.check_pipeline(ByAnotherProcess(), HOST)


def test_messages_follow_the_records_they_are_about_and_fetches_the_rules_of_flight(tmp_path):
    table = torch.randn(50, 4)
    with opened(table, tmp_path) as fetcher:
        side = fetcher._side
        assert isinstance(side, host_mps_side.HostTrainingSide)
        ids = torch.tensor([4, 2, 49], dtype=torch.int32)
        wanted = reference_gather(table, ids)
        first, second = fetcher.submit(ids), fetcher.submit(torch.arange(5))
        with pytest.raises(RuntimeError):
            fetcher.submit(ids)
        ids.zero_()  # they may change at once
        assert side.notes == [("free", 0), ("free", 1)]
        second.result()  # out of turn: the answer to the first is read on the way
        assert same_bytes(first.result(), wanted) is None
        assert side.notes[2:] == [("arrived", 1), ("arrived", 0)]
        assert first.result() is first.result()
        for _ in range(2):
            fetcher.submit(ids).result()
        with pytest.raises(RuntimeError):
            first.result()
        process = fetcher._producer.process
        assert psutil.Process(process.pid).is_running()
        left = fetcher.submit(ids)  # closed in flight
        steps = {step.metric: step.value for step in fetcher.setup}
    assert steps["register_time"] == 0.5
    assert steps["shared"] == table.nbytes
    assert steps["producer_start_time"] > 0
    assert side.closed
    assert process.returncode == 0
    fetcher.close()
    for late in (left.result, lambda: fetcher.submit(ids)):
        with pytest.raises(RuntimeError):
            late()


def test_a_producer_that_dies_is_an_error_with_its_last_words(tmp_path):
    with opened(torch.randn(50, 4), tmp_path, dies_at=1) as fetcher:
        assert fetcher.submit(torch.arange(3)).result().shape == (3, 4)
        ticket = fetcher.submit(torch.arange(3))
        with pytest.raises(ProducerError, match=r"exit status -9.*about to die"):
            ticket.result()
        with pytest.raises(ProducerError, match="gone"):
            fetcher.submit(torch.arange(3))
    assert fetcher._producer.process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("fails", ["open", "gather"])
def test_what_goes_wrong_there_is_told_here(fails, tmp_path):
    words = {"open": "MemoryError: no room to lock", "gather": "ValueError: an illegal memory"}
    with (
        pytest.raises(ProducerError, match=words[fails]),
        opened(torch.randn(50, 4), tmp_path, fails=fails) as fetcher,
    ):
        fetcher.submit(torch.arange(3)).result()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_no_producer_outlives_a_killed_user(tmp_path):
    read, write = os.pipe()
    user = os.fork()
    if user == 0:
        try:
            fetcher = opened(torch.randn(50, 4), tmp_path)
            os.write(write, b"%d" % fetcher._producer.process.pid)
            fetcher.submit(torch.arange(3))
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(write)
    _, status = os.waitpid(user, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    with os.fdopen(read, "rb") as said:
        producer = int(said.read())
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(producer).wait(100)
    assert not psutil.pid_exists(producer)


def test_shared_memory_has_no_name_and_no_size_but_what_is_used():
    with shared_file(1 << 34) as room:  # 16 GiB of holes
        map_table(room.fileno(), (1 << 34,), torch.uint8)[-1] = 7
        assert os.fstat(room.fileno()).st_blocks * 512 < 1 << 20


def no_room(*_: object, **__: object) -> None:
    raise OSError(12, "Cannot allocate memory")


@pytest.mark.parametrize(
    ("broken", "side", "error"),
    [
        ("socket.socketpair", "host_mps_side:HostProducerSide", OSError),
        ("tempfile.TemporaryFile", "host_mps_side:HostProducerSide", OSError),
        ("subprocess.Popen", "host_mps_side:HostProducerSide", OSError),
        ("", "host_mps_side:NoSuchSide", ProducerError),
    ],
)
def test_a_producer_that_does_not_start_leaves_nothing_open(broken, side, error, monkeypatch):
    with shared_file(4) as table, shared_file(4) as ids:
        start = Start(side, table.fileno(), ids.fileno(), (1, 1), torch.float32, 1, {})
        here = psutil.Process()
        files, children = here.num_fds(), here.children()
        if broken:
            monkeypatch.setattr(f"gatherbench.strategies.mps_process.{broken}", no_room)
        # Held, and with it all that the constructor had made: nothing is closed by being forgotten.
        with pytest.raises(error) as held:
            Producer(start, ENVIRONMENT)
        assert here.num_fds() == files
        assert here.children() == children
    assert held.value.__traceback__ is not None
