"""``perf_event_open(2)``, which libc does not wrap: a counter of the kernel as a descriptor."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

#: Number of the system call (arch/*/entry/syscalls in Linux).
_NUMBERS = {"x86_64": 298, "aarch64": 241}
#: ``struct perf_event_attr`` as far as its first published version reached (include/uapi/linux).
_SIZE = 64
#: Read the time enabled and the time running beside the count.
_TIMES = 1 | 2
_CLOSE_ON_EXEC = 8


def open_counter(kind: int, config: int, cpu: int, pid: int = -1) -> int:
    """Open a counter that counts from now on; reading it gives three unsigned 64-bit numbers.

    Args:
        kind, config: what to count (``type`` and ``config`` of ``perf_event_attr``).
        cpu: on which processor (-1: any).
        pid: of which process (-1: all, which needs a privilege).

    Raises:
        OSError: the kernel refuses, or there is no such counter.
    """
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(38, "no system call number is known for this processor")
    #                      type  size   config sample sample_type read_format flags
    attributes = struct.pack("IIQQQQQ", kind, _SIZE, config, 0, 0, _TIMES, 0).ljust(_SIZE, b"\0")
    libc = ctypes.CDLL(None, use_errno=True)
    wide = (ctypes.c_long(x) for x in (pid, cpu, -1, _CLOSE_ON_EXEC))
    descriptor = int(libc.syscall(ctypes.c_long(number), attributes, *wide))
    if descriptor < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return descriptor
