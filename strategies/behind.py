"""Run Python code after a gather by native threads, as soon as its rows are complete."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from gatherbench.kernels.host_gather import Begun
from gatherbench.kernels.native_threads import NativeThreads


class Behind(threading.Thread):
    """Waits for one job after another, and takes Python's lock once per job, when it is done.

    The thread ends when the native threads are closed.
    """

    def __init__(self, native: NativeThreads) -> None:
        super().__init__(name="gatherbench-fetch", daemon=True)
        self._native, self._next = native, native.posted
        self._todo: dict[int, tuple[Begun, Callable[[float], None], Future[None]]] = {}
        self._turn = threading.Lock()
        self.start()

    def begin(
        self, begin: Callable[[], Begun], ended: Callable[[float], None]
    ) -> Callable[[], None]:
        """Begin a gather, then call ``ended`` with its seconds; return a call that waits for both.

        That call raises the errors of the gather and of ``ended``.
        """
        future = Future[None]()
        with self._turn:  # else it might be done before its entry is stored
            begun = begin()
            self._todo[begun.number] = begun, ended, future
        return future.result

    def run(self) -> None:
        while True:
            self._native.wait(self._next)
            with self._turn:
                todo = self._todo.pop(self._next, None)
            self._next += 1
            if todo is not None:
                begun, ended, future = todo
                try:
                    ended(begun.result())
                    future.set_result(None)
                except BaseException as error:
                    future.set_exception(error)
            if not (self._native.usable or self._todo):
                return
