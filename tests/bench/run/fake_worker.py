"""A worker that speaks the runner's protocol and misbehaves as its case's variant says.

It stands where the real one does, at the edge of the runner: a process of its own.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from gatherbench.bench.meters.nvml_device import SensorChoice
from gatherbench.bench.run.fork_server import die_with_parent, serve_requests
from gatherbench.bench.run.job import AnyJob, Counting, Preparation, SensorCheckJob, Turn, Turns
from gatherbench.bench.run.rows import PROCESS
from gatherbench.bench.run.store import PartWriter
from gatherbench.bench.run.worker import DISK_FULL
from gatherbench.bench.sampling.prepare import state_of


def work(job: AnyJob) -> None:
    if isinstance(job, Preparation | Counting):
        if isinstance(job, Preparation):
            prepare(job)
        return
    if isinstance(job, SensorCheckJob):
        calibrate(job)
        return
    if isinstance(job, Turns):
        if all(one.case.variant.startswith("blocks") for one in job.jobs):
            take_blocks(job)
            return
        for one in job.jobs:  # all are open before one ends
            PartWriter(one.part).close()
        if any(one.case.variant == "dies_before_any_turn" for one in job.jobs):
            os._exit(4)
        for number, one in enumerate(job.jobs):
            before_s = 1e6 if one.case.variant == "hangs_since_long" else 0.0
            Turn(number, time.monotonic(), before_s).say(job.now)
            work(one)
            Turn().say(job.now)
        return
    case = job.case
    for name, line in (("executions", case.id), ("servers", os.getppid())):
        with (job.part.parent.parent / name).open("a") as log:
            log.write(f"{line}\n")
    out, make = PartWriter(job.part), job.rows
    out.row(make.ok("epoch", "wall_time", "s", 0.5, "clock", epoch=0))
    loss = 2.0 if case.variant == "strays" else 1.0
    out.row(make.ok("train", "loss", "1", loss, "mean", epoch=0))
    if job.sensors is not None:
        trusted = job.sensors.pcie or str(job.sensors.pcie_reason)
        out.row(make.ok("epoch", "sensors", "1", 1, trusted, epoch=0))
        out.series(case, 0, "pcie_host_to_device", "B", [(0.0, 0.0), (0.02, 5e6)])
    out.samples(case, 0, "fetch", [0.1, 0.2])
    match case.variant:
        case "crash":
            print("the driver says: unspecified launch failure", file=sys.stderr)
            os._exit(3)
        case "eats":
            held = [b"x" * 2**20 for _ in range(100)]
            raise AssertionError(f"it holds {len(held)} MiB")
        case "cut_short":
            os.kill(os.getpid(), signal.SIGBUS)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang" | "hangs_since_long":
            time.sleep(60)
        case "slow":
            time.sleep(0.5)
        case "held":
            while (job.part.parent.parent / "held").exists():
                time.sleep(0.01)
        case "disk_full":
            sys.exit(DISK_FULL)
        case "raises":
            out.end("failed", "RuntimeError: wrong\nrows", 0.1)
            return
        case "beside_work":
            for name, seconds in (("window_time", 2), ("cpu_user", 1), ("cpu_system", 0)):
                out.row(make.ok("epoch", name, "s", seconds, "clock", epoch=0))
            out.row(make.ok("epoch", "system_cpu_busy", "s", 4.0, "clock", epoch=0))
        case "skips":
            out.end("skipped", "no GPU here", 0.1)
            return
        case "full_table":
            table = job.part.parent.parent / "cases.csv"
            if not table.with_suffix(".kept").exists():
                table.rename(table.with_suffix(".kept"))
                table.symlink_to("/dev/full")
    out.end("ok", None, 0.2)


def take_blocks(job: Turns) -> None:
    """One epoch of each path a block; each is noted, and what is to happen then happens.

    ``after``, beside the parts: a number of epochs, and what comes behind so many.
    """
    folder = job.now.parent.parent
    outs = [PartWriter(one.part, more=one.start > 0) for one in job.jobs]
    for one, out in zip(job.jobs, outs, strict=True):
        out.row(one.rows.ok(*PROCESS, os.getpid(), "pid", one.start or -1))
        out.row(one.rows.ok("setup", "open_time", "s", 0.1, "clock"))
    for block in range(job.jobs[0].measure.epochs):
        turn = [n for n, one in enumerate(job.jobs) if one.start <= block]
        for number in turn:
            one, out = job.jobs[number], outs[number]
            Turn(number, time.monotonic()).say(job.now)
            with (folder / "epochs").open("a") as log:
                log.write(f"{one.case.variant} {block}\n")
            done = len((folder / "epochs").read_text().splitlines())
            wanted, what = (folder / "after").read_text().split()
            if done == int(wanted):
                if what == "die":
                    os._exit(3)
                if what == "kill":
                    os.kill(os.getppid(), signal.SIGKILL)
                (folder / "reached").touch()
                time.sleep(60)
            out.row(one.rows.ok("epoch", "wall_time", "s", 0.5, "clock", epoch=block))
            out.samples(one.case, block, "fetch", [0.1, 0.2])
            Turn().say(job.now)
        for number in turn:
            outs[number].block(block, 0.5 * (1 + block - job.jobs[number].start), 96)
    for out in outs:
        out.end("ok", None, 2.0)


def prepare(job: Preparation) -> None:
    print("some library has to say something")
    dataset = job.workload.dataset
    if dataset == "full":
        sys.exit(DISK_FULL)
    with job.answers.open("w") as file:
        if dataset == "downloaded" and os.environ.get("TEST_NETWORK") == "down":
            print(json.dumps({"error": "OSError: no route to host"}), file=file)
            sys.exit(1)
        print(json.dumps({"what": "drawing", "fraction": 0.5}), file=file, flush=True)
        while dataset == "endless":
            time.sleep(0.1)
        folder = Path(os.environ.get("TEST_FOLDER", "/nowhere"))
        spec = folder / "spec.json"
        identity = spec.read_text() if spec.exists() else os.environ.get("TEST_DATA", "")
        answer = {"dataset": str(folder), "trace": f"/nowhere-{state_of(folder)}"}
        time.sleep(0.25)  # long enough to be seen at work
        print(json.dumps({**answer, "identity": identity}), file=file)


def calibrate(job: SensorCheckJob) -> None:
    """Trusts what the environment says; dies where it says nothing, hangs where it says so."""
    with (job.choice.parent / "executions").open("a") as log:
        log.write("calibration\n")
    trusted = os.environ.get("TEST_TRUSTED_SOURCE")
    out = PartWriter(job.part)
    out.row(job.rows.ok("calibration", "pcie_host_to_device_ratio", "1", 1.04, "stub"))
    if trusted is None:
        os.kill(os.getpid(), signal.SIGSEGV)
    if trusted == "hang":
        time.sleep(60)
    job.keep(SensorChoice(trusted, None))
    out.end("ok", None, 0.1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(int(sys.argv[1]), signal.SIGTERM)
    serve_requests(work)
