"""Where machines meet, as it is asked for on the command line: what cannot be is said at once."""

import io
import socket
from contextlib import closing
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from gatherbench.bench.cli import app
from gatherbench.bench.commands.meet import assemble, meet
from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.run.machines import TOKEN_VARIABLE, Machines, MachinesError

ONE = "[[workload]]\ndataset = 'wordnet'\n[[strategy]]\nname = 'cpu_gather'\n"


@pytest.mark.parametrize("where", ["nowhere", ":29500", "here:", "here:x", "here:0", "here:65536"])
def test_an_address_is_a_host_and_a_port(where):
    with pytest.raises(MachinesError, match=f"^--meet {where}: expected HOST:PORT, such as"):
        meet(where, Console(file=io.StringIO()))


def test_machine_0_says_what_to_start_elsewhere_unless_the_token_is_known(monkeypatch):
    told: list[int] = []
    monkeypatch.setattr(Machines, "assemble", lambda _, count: told.append(count))
    cases = [Case(Workload("tiny", nodes=nodes), "cpu_gather", "pinned", {}, 0) for nodes in (1, 3)]
    for token in ("", "of this run"):
        monkeypatch.setenv(TOKEN_VARIABLE, token)
        out: Any = Console(file=io.StringIO(), width=200)
        machines = Machines.at("127.0.0.1", 0)
        assert machines is not None
        with closing(machines):
            assemble(machines, "127.0.0.1:29500", cases, out)
        *how, waiting = out.file.getvalue().splitlines()
        assert waiting == "waiting for 2 more of 3 machines"
        command = f"{TOKEN_VARIABLE}={machines.token} gatherbench run --meet 127.0.0.1:29500"
        assert how == ([] if token else [f"On each of the other machines: {command}"])
        assert (machines.token == token) == bool(token)
        assert len(machines.token) > 10
    assert told == [3, 3]


def test_a_run_of_one_machine_and_a_taken_port_begin_nothing(tmp_path):
    (tmp_path / "one.toml").write_text(ONE)
    with closing(socket.create_server(("127.0.0.1", 0))) as soon_free:
        free = f"127.0.0.1:{soon_free.getsockname()[1]}"
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        for where, said in ((free, "for several machines"), (taken, "port is taken")):
            words = ["run", str(tmp_path / "one.toml"), "--results", str(tmp_path), "--meet", where]
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 2, done.output
            assert said in done.stderr
            assert "Traceback" not in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["one.toml"], "no folder of a run"
