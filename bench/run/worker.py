"""The process of one block: it does the block's work, and ends when that is done.

    python -m gatherbench.bench.run.worker RUNNER_PID    forks a process for each request

So a crash, a CUDA error or a lack of memory costs one case, and no strategy inherits the allocator,
the caches or the threads of another. Most of a process's life would go into imports, so a server
makes them once, and forks. Its forks share the addresses of libraries in memory, which affect
slightly how fast a process is: each round of repeats has a server of its own. The standard library
has one server at most, which leaves behind what a process has started in sessions of its own; this
one ends it. Requests and answers go over a bidirectional pipe, which is its standard input.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import psutil

from gatherbench.bench.run.job import DISK_FULL, Block, is_disk_full, outcome
from gatherbench.bench.run.part import PartWriter
from gatherbench.outside import plain

#: How long remaining processes of a finished one may take to end, and after they have been killed.
GRACE_S, _KILLED_S = 5.0, 10.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def prepare_workload(block: Block, out: PartWriter) -> None:
    """Prepare the workload's dataset and minibatches, and count these if a job needs it."""
    from gatherbench.bench.run.counting import count_sets
    from gatherbench.bench.sampling.prepare import prepare

    lacking = "failed"

    def progress(what: str, done: float) -> None:
        out.write("work", what=plain(what), fraction=float(done))

    def work() -> None:
        nonlocal lacking
        dataset, identity = prepare(block.jobs[0].case.workload, progress)
        out.write("answer", dataset=str(dataset), identity=identity)
        lacking = "uncounted"
        if any(job.counted for job in block.jobs):
            count_sets([replace(job, dataset=dataset) for job in block.jobs], out)

    _, reason = outcome(work)
    if reason is not None:
        out.write("answer", **{lacking: plain(reason)})


def do(block: Block) -> None:
    """Do the block; on a full disk exit with a status of its own."""
    try:
        with closing(PartWriter(block.part)) as out:
            match block.do:
                case "prepare":
                    prepare_workload(block, out)
                case "check":
                    from gatherbench.bench.run.sensor_check import check_sensors

                    check_sensors(block.jobs[0], out)
                case "measure":
                    from gatherbench.bench.run.block import measure_block
                    from gatherbench.bench.run.rank_processes import measure_ranks

                    ranks = block.jobs[0].case.workload.gpus > 1
                    (measure_ranks if ranks else measure_block)(block, out)
    except Exception as error:
        if is_disk_full(error):
            sys.exit(DISK_FULL)
        raise


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent dies, however it dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # the parent died before the call
        os.kill(os.getpid(), number)


def serve_requests(work: Callable[[Any], None]) -> None:
    """Fork for each request, (job, log), until the client is gone; the fork runs ``work(job)``.

    The answer is the fork's exit status, or less than 0 the signal that ended it. By then all that
    it had started has ended as well: it would use cores and memory while the next runs. The same
    holds when SIGTERM ends the server, as the end of the runner does.
    """
    server, client = os.getpid(), Connection(os.dup(0))
    client.send(server)  # all is imported
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans, such as daemons, become its own
    try:
        while True:
            job, log = client.recv()
            if (child := os.fork()) == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                client.close()
                die_with_parent(server)
                os._exit(_work(work, job, log))
            _, status = os.waitpid(child, 0)
            _end_children(GRACE_S)
            client.send(os.waitstatus_to_exitcode(status))
    except (EOFError, ConnectionError, SystemExit):
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_children(0.0)
    os._exit(0)  # at once: Python would first destroy what was imported


def _end_children(grace_s: float) -> None:
    """End all processes below this one; a library's tracker and a daemon's watcher have time to."""
    own, until = psutil.Process(), time.monotonic() + grace_s
    while (below := own.children(recursive=True)) and time.monotonic() < until + _KILLED_S:
        for process in below if time.monotonic() > until else ():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(below, 0.01)


def _work(work: Callable[[Any], None], job: Any, log: str) -> int:
    out = os.open(log, os.O_WRONLY | os.O_APPEND)
    for source, stream in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (out, 2)):
        os.dup2(source, stream)
    code = 1
    try:
        work(job)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def main(runner: int) -> None:
    """Import what a case needs, then fork a process for each request of ``runner``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner handles Ctrl-C
    die_with_parent(runner, signal.SIGTERM)
    # Imports start no thread that a fork would lose, and leave CUDA alone, as forks break it.
    import numba
    import torch

    # PyG asks how torch was built. To answer, torch counts GPUs, which starts the driver, and no
    # fork could use it then (pytorch #138453). PyG looks only for MKL.
    mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    built = "" if mkl else "USE_MKL=OFF"
    with mock.patch.object(torch.__config__, "show", return_value=built):
        import torch_geometric  # noqa: F401

    import gatherbench.bench.run.block
    import gatherbench.bench.run.rank_processes
    import gatherbench.bench.run.sensor_check  # noqa: F401

    numba.njit("int64(int64)")(lambda x: x)  # numba's own imports wait for the first function
    gc.freeze()  # a collection in a fork would copy the pages of all that was imported
    serve_requests(do)


if __name__ == "__main__":
    main(int(sys.argv[1]))
