"""The process of one case, of several that take turns, or of what precedes them: gone when done.

    python -m gatherbench.bench.run.worker RUNNER_PID    forks a process for each request

A process of its own means that a crash, a CUDA error or a lack of memory costs one case, and that
no strategy meets the allocator, the caches or the threads that another one left behind. Most of
such a process's life would go into imports, so they are imported once, in the server that forks
(:mod:`gatherbench.bench.run.fork_server`).
"""

from __future__ import annotations

import contextlib
import gc
import json
import signal
import sys
import time
from unittest import mock

from gatherbench.bench.meters.nvml_device import SensorChoice
from gatherbench.bench.run.fork_server import die_with_parent, serve_requests
from gatherbench.bench.run.job import (
    DISK_FULL,
    AnyJob,
    Counting,
    Job,
    Preparation,
    SensorCheckJob,
    Turns,
    is_disk_full,
    outcome,
)
from gatherbench.bench.run.store import PartWriter
from gatherbench.outside import plain
from gatherbench.reason import Reason


def prepare_workload(job: Preparation) -> None:
    """Prepare the job's workload; progress and result go to its file of answers."""
    from gatherbench.bench.sampling.prepare import identity, prepare

    with job.answers.open("w", encoding="utf-8") as file:

        def answer(**fields: str | float) -> None:
            print(json.dumps(fields), file=file, flush=True)

        def work() -> None:
            dataset, trace = prepare(
                job.workload, lambda what, done: answer(what=plain(what), fraction=float(done))
            )
            answer(dataset=str(dataset), trace=str(trace), identity=identity(dataset, trace))

        _, reason = outcome(work)
        if reason is not None:
            answer(error=reason)
            sys.exit(1)


def measure_case(job: Job) -> None:
    """Measure the job's case into its part; the last record says how it ended."""
    from gatherbench.bench.run.measure import measure
    from gatherbench.bench.run.rank_processes import measure_ranks

    begin = time.perf_counter()
    with contextlib.closing(PartWriter(job.part)) as out:
        work = measure if job.case.workload.gpus == 1 else measure_ranks
        status, reason = outcome(lambda: work(job, out))
        out.end(status, reason, time.perf_counter() - begin)


def calibrate_sensors(job: SensorCheckJob) -> None:
    """Calibrate the GPU's sensors for the run; what goes wrong is the last record's reason."""
    from gatherbench.bench.run.sensor_check import calibrate_gpu

    begin = time.perf_counter()
    with contextlib.closing(PartWriter(job.part)) as out:
        status, reason = outcome(
            lambda: job.keep(calibrate_gpu(job.rows, out.row, job.copies_mib).choice)
        )
        if reason is not None:
            why = Reason("failed", f"the calibration ended with {reason}")
            job.keep(SensorChoice(None, why))
        out.end(status, reason, time.perf_counter() - begin)


def measure_turns(job: Turns) -> None:
    """Measure cases that take turns, each into its part."""
    from gatherbench.bench.run.turns import take_turns

    take_turns(job)


def count_minibatches(job: Counting) -> None:
    """Count what the minibatches of the job's cases ask for."""
    from gatherbench.bench.run.counting import count_sets

    count_sets(job)


def do(job: AnyJob) -> None:
    """Do the job; on a full disk it ends with a status of its own."""
    try:
        match job:
            case Preparation():
                prepare_workload(job)
            case Counting():
                count_minibatches(job)
            case SensorCheckJob():
                calibrate_sensors(job)
            case Turns():
                measure_turns(job)
            case Job():
                measure_case(job)
    except Exception as error:
        if is_disk_full(error):
            sys.exit(DISK_FULL)
        raise


def main(runner: int) -> None:
    """Import what a case needs, then fork a process for each request of ``runner``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the runner's to answer
    die_with_parent(runner, signal.SIGTERM)
    # Imports start no thread that a fork would lose, and leave CUDA alone, which no fork survives.
    import numba
    import torch

    # PyG asks how torch was built. To answer, torch counts GPUs, which starts the driver, and no
    # fork could use it then (pytorch #138453). PyG looks for MKL alone.
    mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    built = "" if mkl else "USE_MKL=OFF"
    with mock.patch.object(torch.__config__, "show", return_value=built):
        import torch_geometric  # noqa: F401

    import gatherbench.bench.run.rank_processes
    import gatherbench.bench.run.sensor_check  # noqa: F401

    numba.njit("int64(int64)")(lambda x: x)  # numba's own imports wait for the first function
    gc.freeze()  # a collection in a fork would copy the pages of all that was imported
    serve_requests(do)


if __name__ == "__main__":
    main(int(sys.argv[1]))
