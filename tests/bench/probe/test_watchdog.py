"""A GPU that answers no more: the program says where it stood, writes what it has, and ends."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from gatherbench.bench.probe.watchdog import CUT_OFF, ends_within

HANGS = """
import sys, threading
from gatherbench.bench.probe import watchdog
watchdog.CLOSING_S = 2.0

def closing():
    print("what there is")
    {closing}

def driver_call():
    {hang}

with watchdog.ends_within(0.2, closing):
    driver_call()
"""


def run(hang: str, closing: str = "pass") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HANGS.format(hang=hang, closing=closing)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("closing", ["pass", "raise OSError('disk')"])
def test_a_hang_ends_with_what_there_is_and_where_it_was(closing: str) -> None:
    done = run("threading.Event().wait()", closing)
    assert done.returncode == CUT_OFF
    assert "what there is" in done.stdout
    assert "in driver_call" in done.stdout
    assert ("disk" in done.stderr) == (closing != "pass")


def test_closing_that_hangs_too_ends_all_the_same() -> None:
    done = run("threading.Event().wait()", "threading.Event().wait()")
    assert done.returncode != 0
    assert "in closing" in done.stderr


def test_a_call_that_keeps_pythons_lock_ends_all_the_same() -> None:
    """``ctypes.PyDLL`` does not let go of it; no other thread of Python runs meanwhile."""
    done = run("import ctypes; ctypes.PyDLL(None).sleep(50)")
    assert done.returncode != 0
    assert "in driver_call" in done.stderr


def test_what_ends_in_time_is_left_alone() -> None:
    called = threading.Event()
    with ends_within(3600.0, called.set):
        pass
    assert not called.is_set()
    with pytest.raises(KeyError), ends_within(3600.0, called.set):
        raise KeyError
    assert not called.is_set()
