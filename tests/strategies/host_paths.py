"""The strategies that run on the host, and a path that waits until it is let through."""

import os
import re
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.host_fetcher import DirectPath
from gatherbench.strategies.registry import STRATEGIES, representatives

HOST = torch.device("cpu")
RUNNABLE = [
    pytest.param(variant, id=f"{cls.name}-{variant.variant}")
    for cls in STRATEGIES
    for variant in representatives(cls)
    if variant.skip(HOST) is None
]
#: Which rows a policy keeps, how many, and how many reads are in flight, does not change how rows
#: are moved.
MOVERS = [
    param
    for param in RUNNABLE
    if "cached" not in str(param.id) or re.search(r"(presampled|lru|belady),10%", str(param.id))
    if not re.search(r"disk_direct.*,(8|32),|disk_mmap-(normal|random,cold)", str(param.id))
]


def through_the_host(size: int, **more: Any) -> DataPath:
    """What the conventional path takes for so many bytes of rows: three passes over memory."""
    return DataPath(size, size, size, copy_engine_bytes=size, **more)


class GatedPath(DirectPath):
    """Waits at a gate before each gather, counts them, and fails when told to."""

    def __init__(self, features: Tensor) -> None:
        super().__init__(features)
        self.gate, self.began = threading.Event(), threading.Event()
        self.fetched, self.closed = 0, False
        self.failure: BaseException | None = None

    def fetch(self, ids: Tensor, out: Tensor) -> None:
        self.began.set()
        assert self.gate.wait(30)
        self.fetched += 1
        if self.failure is not None:
            raise self.failure
        super().fetch(ids, out)

    def begin(self, *_: object) -> None:
        """It fetches in Python, above."""

    def close(self) -> None:
        self.closed = True
        super().close()


def in_a_fork(job: Callable[[], object], seconds: int = 200) -> str:
    """What ``job`` raises in a forked child, whose hanging ends it with no word."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        raised = "nothing was raised"
        signal.alarm(seconds)
        try:
            job()
        except BaseException as error:
            raised = f"{type(error).__name__}: {error}"
        os.write(write, raised.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        raised = answer.read()
    os.waitpid(child, 0)
    return raised
