"""A GPU that answers no more: the program says where it stood, writes what it has, and ends."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from gatherbench.bench.probe.watchdog import ends_within

HANGS = """
import sys, threading
from gatherbench.bench.probe import watchdog
watchdog.CLOSING_S = 0.5

def closing():
    print("what there is")
    {closing}

def driver_call():
    {hang}

with watchdog.ends_within(0.1, closing):
    driver_call()
"""
WAIT = "threading.Event().wait()"
#: ``ctypes.PyDLL`` does not let go of Python's lock: no other thread of Python runs meanwhile.
LOCKED = "import ctypes; ctypes.PyDLL(None).sleep(50)"


@pytest.mark.parametrize(
    ("hang", "closing", "out", "err"),
    [
        (WAIT, "pass", ["what there is", "in driver_call"], []),
        (WAIT, "raise OSError('disk')", ["what there is", "in driver_call"], ["disk"]),
        (WAIT, WAIT, ["in driver_call"], ["in closing"]),
        (LOCKED, "pass", [], ["in driver_call"]),
    ],
    ids=["closing", "broken closing", "hanging closing", "locked"],
)
def test_a_hang_ends_with_what_there_is_and_where_it_was(
    hang: str, closing: str, out: list[str], err: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS.format(hang=hang, closing=closing)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert all(words in done.stdout for words in out)
    assert all(words in done.stderr for words in err)


def test_what_ends_in_time_is_left_alone() -> None:
    called = threading.Event()
    with ends_within(3600.0, called.set):
        pass
    with pytest.raises(KeyError), ends_within(3600.0, called.set):
        raise KeyError
    assert not called.is_set()
    for alarm in threading.enumerate():
        if isinstance(alarm, threading.Timer):
            alarm.join(10)
            assert not alarm.is_alive(), "it would end the program an hour later"
