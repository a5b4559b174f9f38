"""The producer process for real, the GPU's part in host memory; its daemon; the shared table."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import host_mps_side
import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import gatherbench
from gatherbench.kernels.reference import reference_gather, same_bytes
from gatherbench.strategies import conformance, mps_daemon
from gatherbench.strategies import shared_table as module
from gatherbench.strategies.base import Fetcher
from gatherbench.strategies.cuda_kernel_fetcher import USUAL_BUDGET
from gatherbench.strategies.knowledge import Knowledge
from gatherbench.strategies.mps import MpsFetcher
from gatherbench.strategies.mps_daemon import (
    CONTROL,
    PIPE_VARIABLE,
    SHARE_VARIABLE,
    daemon_answers,
    mps_client,
    mps_skip,
)
from gatherbench.strategies.mps_process import Producer, ProducerError, Start
from gatherbench.strategies.registry import build
from gatherbench.strategies.shared_table import map_table, shared_file

from .rank_processes import on_ranks
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


# ---- the daemon ----------------------------------------------------------------------------------


GPU = torch.device("cuda", 0)
#: Keeps a folder and a file as the real one does; notes what it was told.
PROGRAM = """#!/bin/sh
folder="${CUDA_MPS_PIPE_DIRECTORY:-/nowhere}"
if [ "$1" = -d ]; then
  [ -z "$FAKE_REFUSES" ] || { echo "no permission" >&2; exit 1; }
  echo "started, share ${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-unset}" >> "$FAKE_NOTES"
  [ -z "$FAKE_LATE" ] || sleep "$FAKE_LATE" && touch "$folder/control" &
  [ -n "$FAKE_LATE" ] || wait
  exit 0
fi
[ -e "$folder/control" ] || exit 1
read -r told
echo "$told" >> "$FAKE_NOTES"
[ "$told" = quit ] && rm "$folder/control"
[ -p "$FAKE_DONE" ] && [ "$told" = quit ] && echo done > "$FAKE_DONE"
exit 0
"""


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / CONTROL
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_NOTES", str(tmp_path / "notes"))
    monkeypatch.setenv(PIPE_VARIABLE, str(tmp_path / "usual"))
    monkeypatch.delenv(SHARE_VARIABLE, raising=False)
    monkeypatch.setattr(mps_daemon, "_refused", [])
    monkeypatch.setattr(mps_daemon, "_watched", [])
    monkeypatch.setattr(mps_daemon, "_CLIENT", ("true",))
    monkeypatch.setattr(mps_daemon, "device_attribute", lambda name, device: 1)
    (tmp_path / "usual").mkdir()
    return tmp_path / "notes"


def test_without_the_program_the_reason_names_it(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with mps_client(90):
        assert CONTROL in str(mps_skip(GPU))
        assert str(mps_skip(GPU)).startswith("unsupported: ")


def test_a_daemon_that_runs_is_used_and_left_alone(notes, tmp_path):
    (tmp_path / "usual" / "control").touch()
    with mps_client(85):
        assert os.environ[SHARE_VARIABLE] == "85"
        assert os.environ[PIPE_VARIABLE] == str(tmp_path / "usual")
        assert mps_skip(GPU) is None
    assert SHARE_VARIABLE not in os.environ
    assert notes.read_text().split() == ["get_server_list"]
    assert mps_daemon._watched == []


def test_a_file_that_was_left_behind_is_no_daemon(notes, tmp_path):
    (tmp_path / "usual" / "control").touch()
    (tmp_path / "bin" / CONTROL).write_text("#!/bin/sh\nexit 1\n")
    assert not daemon_answers(os.environ)


QUOTED = ("sh", "-c", "echo first >&2; echo cuInit failed: 805 >&2; exit 1")


@pytest.mark.parametrize(
    ("program", "client", "said", "last"),
    [
        ({"FAKE_REFUSES": "1"}, ("true",), "exit status 1.", ""),
        ({"FAKE_LATE": "4"}, ("true",), "exit status 1.", "started, share unset"),
        ({}, ("false",), "exit status 1.", "quit"),
        ({}, ("sleep", "60"), "timed out after 1 seconds", "quit"),
        ({}, QUOTED, "exit status 1. cuInit failed: 805", "quit"),
    ],
)
def test_a_daemon_that_does_not_start_or_serve_is_a_reason_and_this_process_not_its_client(
    notes, monkeypatch, program, client, said, last
):
    for name, value in program.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(mps_daemon, "_CLIENT", client)
    monkeypatch.setattr(mps_daemon, "_START_S", 1)
    before = os.environ[PIPE_VARIABLE]
    with mps_client(90):
        assert os.environ[PIPE_VARIABLE] == before
        reason = str(mps_skip(GPU))
    assert "no MPS daemon (Command" in reason
    assert reason.endswith(f"{said})")
    assert (notes.read_text().splitlines()[-1] if notes.exists() else "") == last
    assert mps_daemon._watched == []


def test_a_daemon_that_comes_late_is_waited_for(notes, monkeypatch):
    monkeypatch.setenv("FAKE_LATE", "0.5")
    subprocess.run([CONTROL, "-d"], check=True, stdout=subprocess.DEVNULL)
    assert not daemon_answers(os.environ)
    mps_daemon._await_daemon({**os.environ})
    assert daemon_answers(os.environ)


def test_our_daemon_ends_with_the_process_that_needed_it(notes, tmp_path):
    done = tmp_path / "done"
    os.mkfifo(done)
    code = f"""
import os, signal
from gatherbench.strategies import mps_daemon
from gatherbench.strategies.mps_daemon import PIPE_VARIABLE, mps_client
mps_daemon._CLIENT = ("true",)
with mps_client(90):
    print(os.environ[PIPE_VARIABLE], flush=True)
assert os.environ[PIPE_VARIABLE] == {str(tmp_path / "usual")!r}
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "FAKE_DONE": str(done), SHARE_VARIABLE: "50"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert ended.returncode == -9
    folder = ended.stdout.strip()
    assert folder != str(tmp_path / "usual")
    assert done.read_text() == "done\n"  # waits until the daemon has been told to quit
    assert notes.read_text().splitlines() == ["started, share unset", "get_server_list", "quit"]


def test_only_the_paths_that_need_it_surround_themselves(notes, tmp_path):
    (tmp_path / "usual" / "control").touch()
    for provider, budget, share in (
        ("mps", "auto", str(100 - USUAL_BUDGET)),
        ("mps", "25", "75"),
        ("stream", "auto", None),
    ):
        strategy = build("async_zero_copy", {"provider": provider, "budget": budget})
        with strategy.surroundings(GPU):
            assert os.environ.get(SHARE_VARIABLE) == share
        with strategy.surroundings(torch.device("cpu")):
            assert SHARE_VARIABLE not in os.environ


# ---- the shared table ----------------------------------------------------------------------------


TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize(
    ("local", "seen"),
    [
        (2, [[True, True, False, False]] * 2),
        (1, [[True, False, False, False], [False, True, False, False]]),
    ],
)
def test_what_one_writes_the_ranks_of_its_machine_read(local, seen, tmp_path):
    def work(rank: int) -> list[bool]:
        # Only the first rank's rows are read.
        x = gatherbench.shared_table(TABLE if rank % local == 0 else np.zeros_like(TABLE))
        assert np.array_equal(x.numpy(), TABLE)
        dist.barrier()
        x[rank] = -1
        dist.barrier()
        found: list[bool] = (x[:, 0] == -1).tolist()
        with gatherbench.unified(x, device="cpu") as features:
            assert torch.equal(features[[3, 2]], x[[3, 2]])
        maps = Path("/proc/self/maps")
        assert "gatherbench-table" in maps.read_text()
        del x, features
        gc.collect()
        assert "gatherbench-table" not in maps.read_text()
        return found

    assert on_ranks(2, work, tmp_path, local_world=local) == seen


def test_all_ranks_hear_that_there_is_no_room_or_that_one_may_not_look(tmp_path, monkeypatch):
    def work(_rank: int) -> str:
        huge = np.broadcast_to(np.float32(0), (2**50, 3))
        with pytest.raises(MemoryError) as none:
            gatherbench.shared_table(huge)
        if dist.get_rank():

            def refuse(*_: object) -> None:
                raise PermissionError(errno.EACCES, "no")

            monkeypatch.setattr(module, "map_table", refuse)
        with pytest.raises(OSError, match=r"rank 1 may not open .*: start both as one user"):
            gatherbench.shared_table(TABLE)
        return str(none.value)

    (said, other) = map(str, on_ranks(2, work, tmp_path))
    assert said == other
    assert re.match(r"rank 0 has no 12582912.00 GiB of shared memory: ", said)


@pytest.mark.parametrize("table", [TABLE, torch.arange(6, dtype=torch.bfloat16).view(3, 2)])
def test_a_process_alone_has_a_copy_of_its_own(table):
    x = gatherbench.shared_table(table)
    assert torch.equal(x, torch.as_tensor(table))
    x[0, 0] = 7
    assert table[0, 0] != 7
    assert gatherbench.shared_table(np.empty((0, 3), np.int8)).shape == (0, 3)
    with pytest.raises(ValueError, match=r"expected a table \[N, D\] in host memory, got \[12\]"):
        gatherbench.shared_table(TABLE.ravel())
