"""Several machines in one run: real torchrun, real TCP; network namespaces stand for the machines.

Where namespaces cannot be made (no root), two torchruns meet on the loopback instead.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import TypeAdapter
from torch.distributed import TCPStore

from gatherbench.bench.plan.case import Case
from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run import machines
from gatherbench.bench.run.job import AnyJob, Job, Meeting, Preparation
from gatherbench.bench.run.machines import Machines, MachinesError
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.store import RunStore

from .fakes import cases, runner

PLAN = """
[measure]
repeats = 1
warmup_epochs = 0
epochs = 1
timeout_s = 60
[[workload]]
dataset = "tiny"
model = "mlp"
fanouts = [3, 2]
batch_size = 50
max_batches = 3
nodes = 2
[[strategy]]
name = "cpu_gather"
"""
#: A case that goes on until its link is cut.
LONG = PLAN.replace("timeout_s = 60", "timeout_s = 30").replace("epochs = 1", "epochs = 100000")
#: The command line, of a machine that looks for machine 0 often, and only measures.
SHORT_LOOKS = Path(__file__).parent / "short_looks.py"


@dataclass(frozen=True)
class Place:
    """A machine's network: what a command is run in, its address, and how its link is cut."""

    prefix: tuple[str, ...]
    address: str
    cut: tuple[str, ...] = ()


def _ip(*words: str) -> None:
    subprocess.run(("ip", *words), check=True, capture_output=True)


@contextmanager
def _namespaces() -> Iterator[tuple[Place, Place]]:
    name, (one, other) = secrets.token_hex(3), ("a", "b")
    net = secrets.randbelow(200) + 20
    try:
        for end in (one, other):
            _ip("netns", "add", f"gb{name}{end}")
        _ip("link", "add", f"v{name}{one}", "type", "veth", "peer", "name", f"v{name}{other}")
        for end, host in ((one, 1), (other, 2)):
            space, link = f"gb{name}{end}", f"v{name}{end}"
            _ip("link", "set", link, "netns", space)
            _ip("-n", space, "addr", "add", f"10.97.{net}.{host}/24", "dev", link)
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "link", "set", link, "up")
        first, second = (
            Place(
                ("ip", "netns", "exec", f"gb{name}{end}"),
                f"10.97.{net}.{host}",
                ("-n", f"gb{name}{end}", "link", "set", f"v{name}{end}", "down"),
            )
            for end, host in ((one, 1), (other, 2))
        )
        yield first, second
    finally:
        for end in (one, other):
            subprocess.run(
                ("ip", "netns", "del", f"gb{name}{end}"), check=False, capture_output=True
            )


@pytest.fixture
def places() -> Iterator[tuple[Place, Place]]:
    try:
        with _namespaces() as found:
            yield found
    except (OSError, subprocess.CalledProcessError):
        yield Place((), "127.0.0.1"), Place((), "127.0.0.1")


@pytest.fixture
def plan() -> str:
    return PLAN


@pytest.fixture
def gatherbench(
    plan: str, places: tuple[Place, Place], tiny_root: Path, tmp_path: Path
) -> Iterator[list[subprocess.Popen[str]]]:
    """The two machines' processes, machine 0 first; ended with the test."""
    (tmp_path / "two.toml").write_text(plan)
    with closing(socket.socket()) as probe:
        probe.bind(("", 0))
        port = str(probe.getsockname()[1])
    started = []
    for node, place in enumerate(places):
        env = {**os.environ, "GATHERBENCH_DATA": str(tiny_root), "TMPDIR": str(tmp_path)}
        command = [
            *place.prefix, sys.executable, "-m", "torch.distributed.run", "--nnodes", "2",
            "--nproc-per-node", "1", "--node-rank", str(node), "--master-addr", places[0].address,
            "--master-port", port, str(SHORT_LOOKS), "run", str(tmp_path / "two.toml"),
            "--results", str(tmp_path / "results"), "--device", "cpu",
        ]  # fmt: skip
        with (tmp_path / f"machine{node}.log").open("w") as log:
            started.append(subprocess.Popen(command, stdout=log, stderr=log, text=True, env=env))
    yield started
    for process in started:
        process.terminate()
        process.wait(60)


def rows_in(results: Path) -> list[Row]:
    folders = list(results.glob("*/*/plan.json"))
    return RunStore.open(folders[0].parent).rows() if folders else []


def test_two_machines_measure_together_and_machine_0_keeps_the_folder(
    gatherbench: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    assert [process.wait(200) for process in gatherbench] == [0, 0], (
        tmp_path / "machine0.log"
    ).read_text()
    rows = rows_in(tmp_path / "results")
    assert [row.status for row in rows if row.stage == "case"] == ["ok"]
    assert {row.rank for row in rows if row.metric == "payload"} == {-1, 0, 1}
    said = (tmp_path / "machine1.log").read_text()
    assert "machine 1 of 2: machine 0 keeps the run's folder" in said
    assert said.count(": done") == 1


def in_flight(folder: Path) -> bool:
    """Whether a rank has written something."""
    return any(part.stat().st_size for part in folder.rglob("rank0.jsonl"))


def processes_of(folder: Path) -> list[str]:
    """Processes that were told to write into the folder, and those that they started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mine = f"TMPDIR={folder}\0".encode() in (process / "environ").read_bytes()
        except OSError:
            continue
        if mine:
            found.append(process.name)
    return found


@pytest.mark.parametrize("plan", [LONG])
def test_a_link_that_dies_without_a_word_ends_both_machines_and_nothing_is_lost(
    places: tuple[Place, Place], gatherbench: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    if not places[1].cut:
        pytest.skip("needs network namespaces")
    until = time.monotonic() + 150
    while not in_flight(tmp_path / "results"):
        assert time.monotonic() < until
        time.sleep(0.05)
    _ip(*places[1].cut)
    assert [process.wait(100) for process in gatherbench] == [1, 1]
    said = (tmp_path / "machine1.log").read_text()
    assert f"machine 0 ({places[0].address}:" in said
    assert "cannot be reached" in said
    rows = rows_in(tmp_path / "results")
    assert (rows[-1].stage, rows[-1].status) == ("case", "failed")
    assert {row.rank for row in rows[:-1]} == {0}, "what machine 0's rank wrote"
    assert processes_of(tmp_path) == []


@pytest.fixture
def meeting_place() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def a_job(folder: Path, timeout_s: float) -> Job:
    case = Case(Workload("tiny", nodes=3), "cpu_gather", "pinned", {"mode": "pinned"}, 0)
    measure = Measure(timeout_s=timeout_s)
    run = RowMaker("run", "abc", "box", "host")
    return Job(case, measure, "cpu", run, folder, folder, folder / "p")


def test_another_machine_says_which_code_it_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, meeting_place: TCPStore
) -> None:
    """Ranks compare commits: that of machine 0, which comes with the job, would always agree."""
    job = replace(a_job(tmp_path, 60), traces=tmp_path / "traces")
    monkeypatch.setattr(machines, "commit_id", lambda: "def")
    told: list[AnyJob] = []

    def work(job: AnyJob, timeout_s: float) -> str | None:
        told.append(job)
        if isinstance(job, Preparation):
            answer = {"dataset": "/data", "trace": "/trace", "identity": "its own"}
            job.answers.write_text(json.dumps(answer) + "\n")
        return "timed out" if len(told) > 2 and isinstance(job, Job) else None

    store, meeting = meeting_place, Meeting(2, 0, "127.0.0.1", 1, meeting_place.port)
    store.set("case/0", TypeAdapter(Job).dump_json(replace(job, meeting=meeting)).decode())
    store.set("case/1", store.get("case/0").decode())
    store.set("case/2", "")
    said: list[str] = []
    Machines(1, 2, "127.0.0.1", store.port).follow(work, tmp_path, said.append)
    assert store.get("ready/0/1") == b""
    assert said == [f"{job.case.id}: done", f"{job.case.id}: timed out"]
    _, mine, *_ = told
    assert isinstance(mine, Job)
    assert (mine.run.commit, mine.identity, mine.dataset) == ("def", "its own", Path("/data"))
    assert mine.meeting == replace(meeting, node=1)
    assert mine.traces is None, "machine 0 has a folder for them"


class SlowStore:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.told = threading.Event()

    def wait(self, _keys: list[str], _longest: object) -> None:
        self.told.wait(30)

    def get(self, _key: str) -> bytes:
        return b"told"


def test_a_machine_that_waits_gives_up_when_machine_0_was_out_of_reach_three_times_in_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, looks = SlowStore(), iter([False, False, True, False, False, False])
    monkeypatch.setattr(machines, "LOOK_S", 0.01)
    monkeypatch.setattr(Machines, "_reached", lambda _: next(looks))
    mine = Machines(1, 2, "there", 29500)
    with pytest.raises(MachinesError, match=r"^machine 0 \(there:29500\) cannot be reached$"):
        mine._awaited(store, "case/0")  # type: ignore[arg-type]
    assert list(looks) == []
    monkeypatch.setattr(Machines, "_reached", lambda _: store.told.set() or True)
    assert mine._awaited(store, "case/0") == b"told"  # type: ignore[arg-type]


def test_a_machine_is_reached_where_somebody_listens(meeting_place: TCPStore) -> None:
    assert Machines(1, 2, "127.0.0.1", meeting_place.port)._reached()
    assert meeting_place.check([]), "the look has left the store as it was"
    with closing(socket.socket()) as nobody:
        nobody.bind(("127.0.0.1", 0))
        assert not Machines(1, 2, "127.0.0.1", nobody.getsockname()[1])._reached()


def test_all_machines_are_called_any_may_refuse_and_one_that_is_silent_is_waited_for_once(
    meeting_place: TCPStore, tmp_path: Path
) -> None:
    first, job = Machines(0, 3, "127.0.0.1", meeting_place.port), a_job(tmp_path, 10)
    for key, said in {"0/1": "", "0/2": "no such graph", "1/1": "", "1/2": ""}.items():
        meeting_place.set(f"ready/{key}", said)
    assert first.call(0, job) == "machine 2: no such graph"
    called = first.call(1, job)
    assert isinstance(called, Job)
    assert called.meeting is not None
    assert (called.meeting.nodes, called.meeting.node) == (3, 0)
    assert called.meeting.store_port == meeting_place.port != called.meeting.port
    assert TypeAdapter(Job).validate_json(meeting_place.get("case/1")) == called
    first.dismiss(2)
    assert meeting_place.get("case/2") == b""
    meeting_place.set("ready/3/1", "")
    job = a_job(tmp_path, 0.1)
    assert first.call(3, job) == "machine 2 did not answer within 0.1 s"
    assert first.call(4, job) == "machine 2 has not answered before"
    assert not meeting_place.check(["case/4"]), "nobody is called"


def test_the_runner_calls_machines_by_turns_and_tries_again_what_they_could_not_begin(
    store: RunStore,
) -> None:
    answers: list[str] = ["machine 1: no such graph", "", ""]
    told: list[int | str] = []

    class First(Machines):
        def call(self, number: int, job: Job) -> Job | str:
            told.append(number)
            return answers.pop(0) or job

        def dismiss(self, number: int) -> None:
            told.append(f"dismissed {number}")

    two = cases("fine", "fine", workload=Workload("tiny", nodes=2))
    several = [*two, *cases("fine")]
    run = runner(store, several, machines=First(0, 2, "here", 1))
    assert run.run() == 1
    assert (told, run.left, run.unprepared) == ([0, 1, "dismissed 2"], 1, 1)
    ended = [(row.status, row.reason) for row in store.rows() if row.stage == "case"]
    assert ended == [("failed", "machine 1: no such graph"), ("ok", None), ("ok", None)]
    assert runner(store, several, machines=First(0, 2, "here", 1)).run() == 0
    assert told[3:] == [0, "dismissed 1"]


def test_machine_0_gets_what_the_others_found_and_leaves_out_who_says_nothing(
    meeting_place: TCPStore,
) -> None:
    first = Meeting(4, 0, "127.0.0.1", 1, meeting_place.port)
    for node in (1, 3):
        found = {"killed": [], "parts": {f"rank{node}.jsonl": "x"}}
        assert machines.exchange_parts(replace(first, node=node), "case", found, 0.1) == []
    told = machines.exchange_parts(first, "case", {}, 0.1)
    assert [list(one["parts"]) for one in told] == [["rank1.jsonl"], ["rank3.jsonl"]]
    later, begin = replace(first, nodes=9, port=2), time.monotonic()
    found = machines.exchange_parts(later, "case", {}, 1.0)
    assert found == [], "of the same case, tried again"
    assert time.monotonic() - begin < 4, "1 s for all of them together"


@pytest.mark.parametrize("told", [None, "mine0"])
def test_ranks_use_the_network_that_leads_to_machine_0_unless_told(
    told: str | None, meeting_place: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = SimpleNamespace
    found = {"eth0": [address(address="10.0.0.1")], "lo": [address(address="127.0.0.1")]}
    monkeypatch.setattr(machines.psutil, "net_if_addrs", lambda: found)
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    for name in names:
        monkeypatch.setenv(name, told or "")  # so that both are as before when the test ends
        if told is None:
            monkeypatch.delenv(name)
    machines.use_interface_towards("127.0.0.1", meeting_place.port)
    assert [os.environ[name] for name in names] == [told or "lo"] * 2


def test_what_torchrun_tells() -> None:
    told = {
        "TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "RANK": "1",
        "MASTER_ADDR": "a", "MASTER_PORT": "29500",
    }  # fmt: skip
    assert Machines.of(told) == Machines(1, 2, "a", 29500)
    assert Machines.of({}) is None
    assert Machines.of({**told, "WORLD_SIZE": "1"}) is None
    with pytest.raises(MachinesError, match="--nproc-per-node 1, and gpus = N in the plan"):
        Machines.of({**told, "LOCAL_WORLD_SIZE": "2"})
