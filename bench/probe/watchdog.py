"""Ends a program whose GPU no longer answers, after writing down what is known.

A call into a driver that hangs cannot be cancelled. So another thread watches the time. Where even
that thread cannot run, because the call holds Python's lock, the interpreter's own watchdog ends
the process a little later.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator

#: Exit status of a process that was ended so.
CUT_OFF = 4
#: What ``closing`` may take.
CLOSING_S = 30.0


@contextlib.contextmanager
def ends_within(seconds: float, closing: Callable[[], object]) -> Iterator[None]:
    """The block is left within ``seconds``, or the process ends with :data:`CUT_OFF`.

    Before it ends so, it prints where every thread stands, and calls ``closing`` from another
    thread; at most :data:`CLOSING_S` later it is gone, whatever ``closing`` does.
    """

    def cut_off() -> None:
        print(f"cut off after {seconds:.0f} s; every thread stands at:", flush=True)
        faulthandler.dump_traceback(1)
        try:
            closing()
        except Exception:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(CUT_OFF)

    seconds = max(0.0, seconds)
    faulthandler.dump_traceback_later(seconds + CLOSING_S, exit=True, file=2)
    alarm = threading.Timer(seconds, cut_off)
    alarm.daemon = True
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()
        faulthandler.cancel_dump_traceback_later()
