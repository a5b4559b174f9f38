"""Work done by several ranks: forked processes with a gloo group that meet in a file."""

import multiprocessing
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import mkdtemp

import torch.distributed as dist

#: Seconds until a rank is given up; nothing here takes a tenth of it.
PATIENCE_S = 100.0


def on_ranks(
    world: int, work: Callable[[int], object], folder: Path, local_world: int | None = None
) -> list[object]:
    """What ``work(rank)`` gave on each of ``world`` ranks, or the text of what it raised; no
    process is left behind. ``local_world``: ranks on a machine, by default all."""
    meeting = Path(mkdtemp(dir=folder)) / "meeting"
    context = multiprocessing.get_context("fork")
    ends = [context.Pipe(duplex=False) for _ in range(world)]
    processes = [
        context.Process(target=_rank, args=(rank, world, local_world or world, work, meeting, say))
        for rank, (_, say) in enumerate(ends)
    ]
    try:
        for process, (_, say) in zip(processes, ends, strict=True):
            process.start()
            say.close()  # so that the end of a process is the end of its pipe
        found = []
        for hear, _ in ends:
            assert hear.poll(PATIENCE_S), "a rank says nothing"
            found.append(hear.recv())
        for process in processes:
            process.join(PATIENCE_S)
        assert not any(process.is_alive() for process in processes), "a rank hangs"
        return found
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()


def _rank(
    rank: int,
    world: int,
    local_world: int,
    work: Callable[[int], object],
    meeting: Path,
    say: Connection,
) -> None:
    os.environ["LOCAL_WORLD_SIZE"] = str(local_world)
    store, limit = dist.FileStore(str(meeting), world), timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
    try:
        found = work(rank)
    except Exception as error:
        found = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    say.send(found)
    dist.destroy_process_group()
