"""The process of one block: it does the block's work, and ends when that is done.

    python -m gatherbench.bench.run.worker RUNNER_PID    forks a process for each request

So a crash, a CUDA error or a lack of memory costs one case, and no strategy inherits the allocator,
the caches or the threads of another. Most of its life would go into imports: the server that forks
it (:mod:`gatherbench.bench.run.fork_server`) makes them once.
"""

from __future__ import annotations

import gc
import signal
import sys
from contextlib import closing
from dataclasses import replace
from unittest import mock

from gatherbench.bench.run.fork_server import die_with_parent, serve_requests
from gatherbench.bench.run.job import DISK_FULL, Block, is_disk_full, outcome
from gatherbench.bench.run.part import PartWriter
from gatherbench.outside import plain


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
