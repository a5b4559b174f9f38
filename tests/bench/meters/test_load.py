"""A busy machine is seen before a run begins, and threads sleep there unless the user decided."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from gatherbench.bench.meters import load as load_module
from gatherbench.bench.meters.load import VARIABLES, Load, Waiting

IDLE, BUSY = Load(0.1, 4, 0.2), Load(3.0, 4, 9.8)
CPU = {"usable_cores": 4, "quota_cores": None}


def test_the_load_is_what_others_did_in_a_window(monkeypatch):
    """Of 0.5 s on four cores others had 1.5 core-seconds."""
    work = SimpleNamespace(cores=lambda: 1.5 / 0.5)
    monkeypatch.setattr(load_module, "OtherWork", lambda: work)
    slept = list[float]()
    monkeypatch.setattr(load_module, "time", SimpleNamespace(sleep=slept.append))
    monkeypatch.setattr(load_module.psutil, "cpu_count", lambda: 4)
    monkeypatch.setattr(load_module.os, "getloadavg", lambda: (9.8, 5.0, 1.0))
    assert (Load.now(), slept) == (BUSY, [0.5])
    assert BUSY.busy
    assert not IDLE.busy, "daemons"
    assert not Load(None, 4, 9.8).busy, "nobody counted"


@pytest.mark.parametrize(
    ("threads", "quota", "load", "passive", "reason"),
    [
        (0, None, IDLE, False, ""),
        (0, None, BUSY, True, "other work uses 3.0 of 4 cores (load average 9.8)"),
        (1, None, BUSY, True, "other work uses 3.0 of 4 cores (load average 9.8)"),
        (0, 1.5, IDLE, True, "4 threads have 1.5 cores"),
        (1, 1.5, IDLE, False, ""),
        (2, None, IDLE, False, ""),
    ],
)
def test_threads_sleep_where_there_are_fewer_free_cores_than_threads(
    threads, quota, load, passive, reason
):
    found = Waiting.chosen(threads, CPU | {"quota_cores": quota}, load, {})
    assert (found.passive, found.reason) == (passive, reason)
    assert str(found) == ("passively" if passive else "by default")


@pytest.mark.parametrize("name", VARIABLES)
def test_what_the_user_set_stays(name, monkeypatch):
    found = Waiting.chosen(0, CPU, BUSY, {name: "7", "PATH": "/bin"})
    assert (found.variables, found.reason) == ({name: "7"}, "")
    assert str(found) == f"with {name}=7"
    assert not found.passive
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    made = found.environment()
    assert {one: made.get(one) for one in VARIABLES} == dict.fromkeys(VARIABLES) | {name: "7"}


def test_the_policy_is_read_back_from_what_a_run_keeps():
    made = Waiting.chosen(0, CPU, IDLE, {"OMP_WAIT_POLICY": "passive"})
    kept = json.loads(json.dumps({"waiting": asdict(made)}))
    assert Waiting.of(kept).passive
    assert Waiting.of({}) == Waiting({})
