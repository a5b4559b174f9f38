"""Work done by several ranks: forked processes with a gloo group that meet in a file."""

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import mkdtemp

import torch.distributed as dist

#: Seconds until a rank is given up; nothing here takes a tenth of it.
PATIENCE_S = 100.0
DIED = "died"


def on_ranks(
    world: int,
    work: Callable[[int], object],
    folder: Path,
    timeout_s: float = 60,
    local_world: int | None = None,
) -> list[object]:
    """What ``work(rank)`` gave on each of ``world`` ranks, and left no process behind.

    What it raised is text, by its type; :data:`DIED` where the process ended without a word.

    Args:
        timeout_s: of the default group.
        local_world: ranks on a machine, as they are told; by default all.
    """
    meeting = Path(mkdtemp(dir=folder)) / "meeting"
    os.environ["LOCAL_WORLD_SIZE"] = str(local_world or world)
    context = multiprocessing.get_context("fork")
    ends = [context.Pipe(duplex=False) for _ in range(world)]
    processes = [
        context.Process(target=_rank, args=(rank, world, work, meeting, timeout_s, say))
        for rank, (_, say) in enumerate(ends)
    ]
    try:
        for process in processes:
            process.start()
        for _, say in ends:
            say.close()  # so that the end of a process is the end of its pipe
        deadline = time.monotonic() + PATIENCE_S
        found = [_heard(hear, deadline) for hear, _ in ends]
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        assert not [p for p in processes if p.is_alive()], "a rank hangs"
        return found
    finally:
        del os.environ["LOCAL_WORLD_SIZE"]
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()


def _heard(hear: Connection, deadline: float) -> object:
    assert hear.poll(deadline - time.monotonic()), "a rank says nothing"
    try:
        return hear.recv()
    except EOFError:
        return DIED


def _rank(
    rank: int,
    world: int,
    work: Callable[[int], object],
    meeting: Path,
    timeout_s: float,
    say: Connection,
) -> None:
    store = dist.FileStore(str(meeting), world)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=timeout_s)
    )
    try:
        found = work(rank)
    except Exception as error:
        found = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    say.send(found)
    say.close()
    dist.destroy_process_group()
