"""The process of one case or one preparation: started by the runner, gone when it is done.

    python -m gatherbench.bench.run.worker RUNNER_PID    forks a process for each request

A process of its own means that a crash, a CUDA error or a lack of memory costs one case, and that
no strategy meets the allocator, the caches or the threads that another one left behind. Most of
such a process's life would go into imports, so they are imported once, in the server that forks
(:mod:`gatherbench.bench.run.fork_server`).
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any
from unittest import mock

from gatherbench.bench.run.job import Job, Preparation

#: Exit status that tells the runner that the disk is full (EX_IOERR of sysexits.h): no case can
#: be measured until there is room, so the run stops where a failed case would not stop it.
DISK_FULL = 74


def is_disk_full(error: BaseException | None) -> bool:
    """Whether a full disk is behind an error, however it has been worded since."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


def prepare_workload(path: Path) -> None:
    """Prepare the job's workload; progress and result go to its file of answers."""
    from gatherbench.bench.sampling.prepare import identity, prepare

    job = Preparation.load(path)
    with job.answers.open("w", encoding="utf-8") as file:

        def answer(**fields: str | float) -> None:
            print(json.dumps(fields), file=file, flush=True)

        try:
            dataset, trace = prepare(
                job.workload, lambda what, fraction: answer(what=what, fraction=fraction)
            )
            content = identity(dataset, trace)
        except Exception as error:
            if is_disk_full(error):
                sys.exit(DISK_FULL)
            traceback.print_exc()
            answer(error=f"{type(error).__name__}: {error}")
            sys.exit(1)
        answer(dataset=str(dataset), trace=str(trace), identity=content)


def last_answer(answers: Path) -> dict[str, Any]:
    """The last whole line that :func:`prepare_workload` wrote; empty before there is one."""
    whole = answers.read_text(encoding="utf-8").rpartition("\n")[0] if answers.exists() else ""
    return dict(json.loads(whole.rpartition("\n")[2] or "{}"))


def measure_case(path: Path) -> None:
    """Measure the job's case into its part; the last record says how it ended."""
    job = Job.load(path)
    begin = time.perf_counter()
    try:
        from gatherbench.bench.run.measure import measure
        from gatherbench.bench.run.memory_limit import enter, killed_at_limit, peak_row
        from gatherbench.bench.run.ranks import measure_ranks
        from gatherbench.bench.run.store import PartWriter

        of_case = measure if job.case.workload.world == 1 else measure_ranks
        with contextlib.closing(PartWriter(job.part)) as out:
            try:
                limit = enter(job)
                if limit is not None:
                    out.row(limit)
                skipped = limit.reason if limit and limit.reason else of_case(job, out)
                status, reason = ("skipped", skipped) if skipped else ("ok", None)
            except Exception as error:
                if is_disk_full(error):
                    raise
                traceback.print_exc()
                # Of several ranks it may be one that was killed.
                status, reason = (
                    "failed",
                    killed_at_limit(job) or f"{type(error).__name__}: {error}",
                )
            if (peak := peak_row(job)) is not None:
                out.row(peak)
            out.end(status, reason, time.perf_counter() - begin)
    except Exception as error:
        if is_disk_full(error):
            sys.exit(DISK_FULL)
        raise


def calibrate_sensors(path: Path) -> None:
    """Calibrate the GPU's sensors for the run; what goes wrong is the last record's reason."""
    from gatherbench.bench.machine.reason import Reason
    from gatherbench.bench.meters.gpu_choice import SensorChoice
    from gatherbench.bench.run.calibration_job import CalibrationJob, run_maker
    from gatherbench.bench.run.sensor_calibration import calibrate_gpu
    from gatherbench.bench.run.store import PartWriter

    job = CalibrationJob.load(path)
    begin = time.perf_counter()
    with contextlib.closing(PartWriter(job.part)) as out:
        status, reason = "ok", None
        try:
            make = run_maker(job.run_id, job.commit, job.machine)
            choice = calibrate_gpu(make, out.row, job.copies_mib).choice
        except Exception as error:
            traceback.print_exc()
            status, reason = "failed", f"{type(error).__name__}: {error}"
            choice = SensorChoice(None, Reason("failed", f"the calibration ended with {reason}"))
        job.keep(choice)
        out.end(status, reason, time.perf_counter() - begin)


VERBS = {"prepare": prepare_workload, "calibrate": calibrate_sensors, "measure": measure_case}


def main(runner: int) -> None:
    """Import what a case needs, then fork a process for each request of ``runner``."""
    from gatherbench.bench.run.fork_server import die_with_parent, serve_requests

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the runner's to answer
    die_with_parent(runner)
    # Imports start no thread that a fork would lose, and leave CUDA alone, which no fork survives.
    import numba
    import torch

    # PyG asks how torch was built. To answer, torch counts GPUs, which starts the driver, and no
    # fork could use it then (pytorch #138453). PyG looks for MKL alone.
    mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    built = "" if mkl else "USE_MKL=OFF"
    with mock.patch.object(torch.__config__, "show", return_value=built):
        import torch_geometric  # noqa: F401

    import gatherbench.bench.run.ranks
    import gatherbench.bench.run.sensor_calibration
    import gatherbench.bench.run.store  # noqa: F401

    numba.njit("int64(int64)")(lambda x: x)  # numba's own imports wait for the first function
    gc.freeze()  # a collection in a fork would copy the pages of all that was imported
    serve_requests(lambda verb, path: VERBS[verb](Path(path)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
