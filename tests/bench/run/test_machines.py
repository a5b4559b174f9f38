"""Several machines in one run: real TCP; network namespaces stand for the machines."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import TypeAdapter
from torch.distributed import DistError, TCPStore

from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.run import door, machines
from gatherbench.bench.run.job import AnyJob, Job, Meeting, Preparation
from gatherbench.bench.run.machines import Machines, MachinesError, follow
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.store import RunStore

from .fakes import cases, runner
from .networks import Place, attacked, ip, listening

#: Two cases: one that ends soon, and one of fifty times as many minibatches, until its link is cut.
PLAN = """
[measure]
repeats = 1
warmup_epochs = 0
epochs = 30
timeout_s = 30
[[workload]]
dataset = "tiny"
model = "mlp"
fanouts = [1]
batch_size = 50
max_batches = 1
nodes = 2
[[workload]]
dataset = "tiny"
model = "mlp"
fanouts = [3, 2]
batch_size = 2
nodes = 2
[[strategy]]
name = "cpu_gather"
"""
#: The command line, of a machine that looks for machine 0 often, and only measures.
SHORT_LOOKS = Path(__file__).parent / "short_looks.py"
PORT, TOKEN = 29500, machines.TOKEN_VARIABLE


@pytest.fixture
def gatherbench(
    places: tuple[Place, Place], tiny_root: Path, tmp_path: Path
) -> Iterator[list[subprocess.Popen[str]]]:
    """The two machines' processes, machine 0 first; ended with the test."""
    (tmp_path / "two.toml").write_text(PLAN)
    where, started = f"{places[0].address}:{PORT}", []
    for node, place in enumerate(places):
        mine = {"GATHERBENCH_DATA": str(tiny_root), "TMPDIR": str(tmp_path), TOKEN: "of this run"}
        command = [
            *place.prefix, sys.executable, str(SHORT_LOOKS), "run", str(tmp_path / "two.toml"),
            "--results", str(tmp_path / "results"), "--device", "cpu", "--meet", where,
        ]  # fmt: skip
        with (tmp_path / f"machine{node}.log").open("w") as log:
            started.append(
                subprocess.Popen(
                    command, stdout=log, stderr=log, text=True, env={**os.environ, **mine}
                )
            )
    yield started
    for process in started:
        process.terminate()
        process.wait(60)


def rows_in(results: Path) -> list[Row]:
    folders = list(results.glob("*/*/plan.json"))
    return RunStore.open(folders[0].parent).rows() if folders else []


def in_flight(results: Path, ended: int) -> bool:
    """Whether so many cases have ended, and a rank of the next one has written something."""
    cases = [row for row in rows_in(results) if row.stage == "case"]
    parts = (part.stat().st_size for part in results.rglob("rank0.jsonl"))
    return len(cases) == ended and any(parts)


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


def test_two_machines_measure_no_stranger_is_heard_and_a_dead_link_ends_both_and_loses_nothing(
    places, gatherbench, tmp_path
):
    def wait_for_case(number: int) -> None:
        until = time.monotonic() + 150
        while not in_flight(tmp_path / "results", number):
            assert time.monotonic() < until
            assert [process.poll() for process in gatherbench] == [None, None]
            time.sleep(0.05)

    wait_for_case(0)
    for place, process in zip(places, gatherbench, strict=True):
        on = listening(process.pid)
        assert set(on) <= {place.address, "127.0.0.1"}
        assert (PORT in on[place.address]) == (place is places[0])
    assert attacked(places[1], places[0], tmp_path / "executed", "", {PORT}) == []
    assert not (tmp_path / "executed").exists()
    wait_for_case(1)
    ip(*places[1].cut)
    assert [process.wait(100) for process in gatherbench] == [1, 2]
    said = (tmp_path / "machine1.log").read_text()
    assert "[c10d]" not in said + (tmp_path / "machine0.log").read_text(), "torch's own words"
    assert "machine 1 of 2: machine 0 keeps the run's folder" in said
    assert said.count(": done") == 1
    assert f"error: machine 0 ({places[0].address}:{PORT}) is gone, or out of reach" in said
    rows = rows_in(tmp_path / "results")
    assert [row.status for row in rows if row.stage == "case"] == ["ok", "failed"]
    together = [row for row in rows if row.workload == rows[0].workload]
    assert {row.rank for row in together if row.metric == "payload"} == {-1, 0, 1}
    cut_off = [row for row in rows if row.workload != rows[0].workload]
    assert cut_off[-1].stage == "case"
    assert {row.rank for row in cut_off[:-1]} == {0}, "what machine 0's rank wrote"
    assert processes_of(tmp_path) == []


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    """Machine 0 of three, on a port of the loopback."""
    monkeypatch.setenv(TOKEN, "of this run")
    found = Machines.at("127.0.0.1", 0)
    assert found is not None
    found.count = 3
    with closing(found):
        yield found


@pytest.fixture
def meeting_place(first: Machines) -> TCPStore:
    """The store, as the machine has it that keeps the run."""
    return first._store


def port_of(first: Machines) -> int:
    return first._door.port


def a_job(folder: Path, timeout_s: float) -> Job:
    case = Case(Workload("tiny", nodes=3), "cpu_gather", "pinned", {"mode": "pinned"}, 0)
    measure = Measure(timeout_s=timeout_s)
    run = RowMaker("run", "abc", "box", "host")
    return Job(case, measure, "cpu", run, folder, folder, folder / "p")


def test_another_machine_joins_and_does_its_part_of_the_cases(
    monkeypatch, tmp_path, first, meeting_place
):
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

    store, meeting = meeting_place, Meeting(0, 0, "127.0.0.1", meeting_place.port)
    store.set("case/0", TypeAdapter(Job).dump_json(replace(job, meeting=meeting)).decode())
    store.set("case/1", store.get("case/0").decode())
    alone = replace(job, case=replace(job.case, workload=Workload("tiny")))
    store.set("case/2", TypeAdapter(Job).dump_json(alone).decode())  # it is not of this machine
    store.set("case/3", "")
    for key, value in {"count": "3", "welcome/1": ""}.items():
        store.set(key, value)
    said: list[str] = []
    follow("127.0.0.1", port_of(first), work, tmp_path, said.append)
    assert store.get("ready/0/1") == b""
    greeting = "machine 1 of 3: machine 0 keeps the run's folder"
    assert said == [
        "127.0.0.1 is another machine: waiting for it",
        greeting,
        f"{job.case.id}: done",
        f"{job.case.id}: timed out",
    ]
    _, mine, *rest = told
    assert isinstance(mine, Job)
    assert len(rest) == 2
    assert (mine.run.commit, mine.identity, mine.dataset) == ("def", "its own", Path("/data"))
    assert mine.meeting is not None
    assert (mine.meeting.node, mine.meeting.number) == (1, 0)
    assert mine.meeting.port not in (meeting_place.port, port_of(first)), "a way of its own"
    assert mine.traces is None, "machine 0 has a folder for them"
    assert store.check(["left/1"])


def following(first: Machines, tmp_path: Path) -> None:
    follow("127.0.0.1", port_of(first), lambda *_: None, tmp_path, lambda _: None)


def test_a_machine_with_other_code_and_one_too_many_are_sent_away(
    monkeypatch, tmp_path, first, meeting_place
):
    codes = iter(["abc", "def"])
    monkeypatch.setattr(machines, "commit_id", lambda: next(codes))
    monkeypatch.setattr(machines.platform, "node", lambda: "box")
    refused: list[str] = []

    def assembled() -> None:
        with pytest.raises(MachinesError) as found:
            first.assemble(2)
        refused.append(str(found.value))

    waiting = threading.Thread(target=assembled)
    waiting.start()
    door.store_at(meeting_place.port).get("count")  # once it knows its own code
    with pytest.raises(MachinesError) as told:
        following(first, tmp_path)
    waiting.join()
    words = "box runs def, and box abc: install the same commit on each machine"
    assert [str(told.value), *refused] == [words, words]
    monkeypatch.setattr(machines, "commit_id", lambda: "abc")
    with pytest.raises(MachinesError, match=r"^the run has its 2 machines already$"):
        following(first, tmp_path)


def test_what_cannot_be_read_is_no_case(tmp_path, first, meeting_place):
    for key, value in {"count": "2", "welcome/1": "", "case/0": "{}"}.items():
        meeting_place.set(key, value)
    with pytest.raises(MachinesError, match=r"^machine 0 calls for what is no case here: install"):
        following(first, tmp_path)


def test_who_does_not_know_the_token_is_not_let_in(monkeypatch, tmp_path, first, meeting_place):
    where = f"127.0.0.1:{port_of(first)}"
    monkeypatch.setenv(TOKEN, "of another run")
    with pytest.raises(
        MachinesError, match=f"^{where} does not know this {TOKEN}, or is no gather"
    ):
        following(first, tmp_path)
    monkeypatch.delenv(TOKEN)
    with pytest.raises(MachinesError, match=f"^{TOKEN} is not set: machine 0, 127.0.0.1, says"):
        following(first, tmp_path)
    assert not meeting_place.check(["machines"])


def test_a_machine_0_that_does_not_open_is_given_up(monkeypatch, tmp_path):
    monkeypatch.setenv(TOKEN, "of this run")
    monkeypatch.setattr(machines, "JOIN_S", -1.0)
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waits on"))
    with closing(socket.create_server(("127.0.0.1", 0))) as soon_free:
        port = soon_free.getsockname()[1]
    with pytest.raises(MachinesError, match=rf"^machine 0 \(127.0.0.1:{port}\) cannot be reached"):
        follow("127.0.0.1", port, lambda *_: None, tmp_path, lambda _: None)


def test_a_machine_does_not_talk_to_whoever_listens_where_machine_0_should(monkeypatch, tmp_path):
    """The handshake goes both ways: one who lets everybody in does not know the token either."""
    monkeypatch.setenv(TOKEN, "of this run")

    def lets_everybody_in(connection: door.Connection) -> None:
        connection.send_bytes(b"#CHALLENGE#" + bytes(20))
        connection.recv_bytes()
        connection.send_bytes(b"#WELCOME#")
        connection.recv_bytes()
        connection.send_bytes(b"anything")
        connection.recv_bytes()

    for greeting in (lets_everybody_in, lambda line: line._send(b"HTTP/1.1 400 Bad Request\r\n")):
        with listener(greeting) as port, pytest.raises(MachinesError, match="is no gatherbench"):
            follow("127.0.0.1", port, lambda *_: None, tmp_path, lambda _: None)


@contextmanager
def listener(greets: Callable[[door.Connection], object]) -> Iterator[int]:
    """Somebody who listens on a port of the loopback and is no gatherbench."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def serve() -> None:
            visitor, _ = listening.accept()
            with door.Connection(visitor.detach()) as line:
                greets(line)
                line.poll(2)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


def test_a_visitor_who_says_nothing_keeps_nobody_waiting(first, meeting_place):
    meeting_place.set("count", "3")
    with closing(socket.create_connection(("127.0.0.1", port_of(first)))) as silent:
        with closing(door.way_to("127.0.0.1", port_of(first), b"of this run")) as way:
            assert door.store_at(way.port, 20.0).get("count") == b"3"
        silent.settimeout(20)
        assert silent.recv(4)[3:], "it was asked for the token, and no more"


def test_a_machine_that_waits_answers_a_signal_and_notices_that_the_store_is_gone(meeting_place):
    class Signalled(Exception):  # noqa: N818
        pass

    def raised(*_: object) -> None:
        raise Signalled

    before = signal.signal(signal.SIGALRM, raised)
    begin = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Signalled):
            machines._has(meeting_place, "never", 60)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - begin < 30, "it waited for the key"
    gone = door.loopback_store()
    client = door.store_at(gone.port)
    del gone
    with pytest.raises(DistError):
        machines._has(client, "never", 60)


def test_the_store_is_this_machines_alone(first, meeting_place):
    assert [on for on, ports in listening(os.getpid()).items() if meeting_place.port in ports] == [
        "127.0.0.1"
    ]


def test_where_machines_cannot_meet_is_said():
    assert Machines.at("192.0.2.1", 29500) is None, "an address that is kept for examples"
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        with pytest.raises(MachinesError, match=f"^--meet 127.0.0.1:{port}: the port is taken; "):
            Machines.at("127.0.0.1", port)
    with pytest.raises(
        MachinesError, match=r"^--meet no\.such\.host\.invalid:1: .*; name another one"
    ):
        Machines.at("no.such.host.invalid", 1)
    with pytest.raises(
        MachinesError, match=r"that name is 127\.0\.0\.1, which no other machine reach"
    ):
        Machines.at("localhost", 0)


def test_all_machines_are_called_any_may_refuse_and_one_that_is_silent_is_waited_for_once(
    first, meeting_place, tmp_path
):
    job = a_job(tmp_path, 10)
    for key, said in {"0/1": "", "0/2": "no such graph", "1/1": "", "1/2": ""}.items():
        meeting_place.set(f"ready/{key}", said)
    assert first.call(0, job) == "machine 2: no such graph"
    called = first.call(1, job)
    assert isinstance(called, Job)
    assert called.meeting == Meeting(0, 1, "127.0.0.1", meeting_place.port)
    assert TypeAdapter(Job).validate_json(meeting_place.get("case/1")) == called
    two = replace(job, case=replace(job.case, workload=Workload("tiny", nodes=2)))
    meeting_place.set("ready/2/1", "")
    assert isinstance(first.call(2, two), Job), "machine 2 is not asked"
    meeting_place.set("ready/3/1", "")
    job = a_job(tmp_path, 0.1)
    assert first.call(3, job) == "machine 2 did not answer within 0.1 s"
    assert first.call(4, job) == "machine 2 has not answered before"
    assert not meeting_place.check(["case/4"]), "nobody is called"
    meeting_place.set("ready/4/1", "")
    assert isinstance(first.call(4, replace(two, measure=job.measure)), Job), "without it"
    meeting_place.set("left/1", "")
    first.dismiss(5)
    assert meeting_place.get("case/5") == b""


def test_the_runner_calls_machines_by_turns_and_tries_again_what_they_could_not_begin(store):
    answers: list[str] = ["machine 1: no such graph", "", ""]
    told: list[int | str] = []

    class First(Machines):
        def __init__(self) -> None:
            pass

        def call(self, number: int, job: Job) -> Job | str:
            told.append(number)
            return answers.pop(0) or job

        def dismiss(self, number: int) -> None:
            told.append(f"dismissed {number}")

    two = cases("fine", "fine", workload=Workload("tiny", nodes=2))
    several = [*two, *cases("fine")]
    run = runner(store, several, machines=First())
    assert run.run() == 1
    assert (told, run.left, run.unprepared) == ([0, 1, "dismissed 2"], 1, 1)
    ended = [(row.status, row.reason) for row in store.rows() if row.stage == "case"]
    assert ended == [("failed", "machine 1: no such graph"), ("ok", None), ("ok", None)]
    assert runner(store, several, machines=First()).run() == 0
    assert told[3:] == [0, "dismissed 1"]


def test_machine_0_gets_what_the_others_found_and_leaves_out_who_says_nothing(meeting_place):
    mine = Meeting(0, 7, "127.0.0.1", meeting_place.port)
    for node in (1, 3):
        found = {"killed": [], "parts": {f"rank{node}.jsonl": "x"}}
        assert machines.exchange_parts(replace(mine, node=node), 4, found, 0.1) == []
    told = machines.exchange_parts(mine, 4, {}, 0.1)
    assert [list(one["parts"]) for one in told] == [["rank1.jsonl"], ["rank3.jsonl"]]
    begin = time.monotonic()
    found = machines.exchange_parts(replace(mine, number=8), 9, {}, 1.0)
    assert found == [], "of the same case, tried again"
    assert time.monotonic() - begin < 4, "1 s for all of them together"


@pytest.mark.parametrize("told", [None, "mine0"])
def test_ranks_use_the_network_that_leads_to_machine_0_unless_told(told, monkeypatch):
    address = SimpleNamespace
    found = {"eth0": [address(address="10.0.0.1")], "lo": [address(address="127.0.0.1")]}
    monkeypatch.setattr(machines.psutil, "net_if_addrs", lambda: found)
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    for name in names:
        monkeypatch.setenv(name, told or "")  # so that both are as before when the test ends
        if told is None:
            monkeypatch.delenv(name)
    machines.use_interface_towards("127.0.0.1")
    assert [os.environ[name] for name in names] == [told or "lo"] * 2
