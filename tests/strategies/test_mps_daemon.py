"""Finding, starting and ending the MPS daemon, with a stand-in for NVIDIA's control program."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gatherbench.strategies import mps_daemon
from gatherbench.strategies.cuda_kernel_fetcher import USUAL_BUDGET
from gatherbench.strategies.mps_daemon import (
    CONTROL,
    PIPE_VARIABLE,
    SHARE_VARIABLE,
    daemon_answers,
    mps_client,
    mps_skip,
)
from gatherbench.strategies.registry import build

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
