"""Memory for CUPTI's records: asked for, filled and handed back by any thread, whenever it likes.

The callbacks run in threads of the driver, while others may hold whatever they like: they do no
more than move an address from one list to another. What lies there is read later, by us.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

_BUFFER_BYTES = 4 << 20
#: All records of a window are kept until it closes: some 2.5 million.
MOST_BUFFERS = 64


class RecordBuffers:
    """The buffers of this process: one set, as CUPTI has one pair of callbacks.

    Nothing of it is ever freed: CUPTI may keep a buffer beyond a window, and call back while the
    interpreter ends.

    Attributes:
        callbacks: for ``cuptiActivityRegisterCallbacks``.
    """

    _REQUEST = ctypes.CFUNCTYPE(
        None,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(ctypes.c_size_t),
        ctypes.POINTER(ctypes.c_size_t),
    )
    _COMPLETE = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
    )

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[int] = []
        self._away: set[int] = set()
        self._filled: list[tuple[int, int]] = []
        self._allocate = ctypes.CDLL(None).calloc
        self._allocate.restype = ctypes.c_void_p
        self.callbacks = (self._REQUEST(self._requested), self._COMPLETE(self._completed))
        for callback in self.callbacks:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(callback))

    def _requested(self, buffer: Any, size: Any, limit: Any) -> None:
        buffer[0], size[0], limit[0] = None, 0, 0
        with self._changed:
            if not self._idle and len(self._away) + len(self._filled) < MOST_BUFFERS:
                address = self._allocate(ctypes.c_size_t(1), ctypes.c_size_t(_BUFFER_BYTES))
                self._idle += [address] if address else []
            if self._idle:  # else CUPTI drops what it has, and counts it
                address = self._idle.pop()
                _first_word(address).value = 0
                self._away.add(address)
                buffer[0], size[0] = address, _BUFFER_BYTES

    def _completed(self, _context: Any, _stream: int, address: int, _size: int, valid: int) -> None:
        with self._changed:
            self._away.discard(address)
            self._filled.append((address, valid))
            self._changed.notify_all()

    def drain(self, grace_s: float, each: Callable[[int, int], None]) -> bool:
        """Give each filled buffer (address, valid bytes) to ``each``, and take it back.

        Args:
            grace_s: how long buffers that CUPTI has not handed back are waited for.

        Returns:
            Whether CUPTI holds no record back: it may keep a buffer that it has not written to.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._away, grace_s)
            filled, self._filled = self._filled, []
            complete = all(_first_word(address).value == 0 for address in self._away)
        try:
            for address, valid in filled:
                each(address, valid)
        finally:
            with self._changed:
                self._idle += [address for address, _ in filled]
        return complete


def _first_word(address: int) -> ctypes.c_uint32:
    """Of a buffer: the kind of its first record, and 0 before there is one."""
    return ctypes.c_uint32.from_address(address)


@functools.cache
def record_buffers() -> RecordBuffers:
    """The process's."""
    return RecordBuffers()
