"""A worker that speaks the runner's protocol and misbehaves as its case's variant says.

It stands where the real one does, at the edge of the runner: a process of its own.
"""

import os
import signal
import sys
import time
from contextlib import closing
from pathlib import Path

from gatherbench.bench.meters.nvml_device import SensorChoice
from gatherbench.bench.run.job import CHOICE, DISK_FULL, Block, Job
from gatherbench.bench.run.part import PartWriter
from gatherbench.bench.run.rows import PROCESS
from gatherbench.bench.run.worker import die_with_parent, serve_requests
from gatherbench.bench.sampling.prepare import state_of

#: Samples of an epoch of two minibatches.
TIMES = {"stage": "fetch", "batch": [0, 1], "value_s": [0.1, 0.2]}


def work(block: Block) -> None:
    with closing(PartWriter(block.part)) as out:
        match block.do:
            case "prepare":
                prepare(block, out)
            case "check":
                check(block, out)
            case "measure" if block.jobs[0].case.variant.startswith("blocks"):
                take_blocks(block, out)
            case "measure":
                if any(one.case.variant == "dies_before_any_turn" for one in block.jobs):
                    os._exit(4)
                for one in block.jobs:
                    before_s = 1e6 if one.case.variant == "hangs_since_long" else 0.0
                    say(out, one.case.id, before_s)
                    measure(one, out)
                    say(out)


def say(out: PartWriter, case: str | None = None, before_s: float = 0.0) -> None:
    """Whose turn it is."""
    out.write("turn", case=case, since=time.monotonic(), before_s=before_s, done=0.0)


def measure(job: Job, out: PartWriter) -> None:
    case = job.case
    for name, line in (("executions", case.id), ("servers", os.getppid())):
        with (job.part.parent.parent / name).open("a") as log:
            log.write(f"{line}\n")
    make = job.rows
    out.row(make.ok("epoch", "wall_time", "s", 0.5, "clock", epoch=0))
    loss = 2.0 if case.variant == "strays" else 1.0
    out.row(make.ok("train", "loss", "1", loss, "mean", epoch=0))
    if job.sensors is not None:
        trusted = job.sensors.pcie or str(job.sensors.pcie_reason)
        out.row(make.ok("epoch", "sensors", "1", 1, trusted, epoch=0))
        what = {"metric": "pcie_host_to_device", "unit": "B"}
        points = {"time_s": [0.0, 0.02], "value": [0.0, 5e6]}
        out.write("timeline", **case.names, epoch=0, **what, **points)
    out.write("samples", **case.names, epoch=0, **TIMES)
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
            out.end(make, "failed", "RuntimeError: wrong\nrows", 0.1)
            return
        case "beside_work":
            for name, seconds in (("window_time", 2), ("cpu_user", 1), ("cpu_system", 0)):
                out.row(make.ok("epoch", name, "s", seconds, "clock", epoch=0))
            out.row(make.ok("epoch", "system_cpu_busy", "s", 4.0, "clock", epoch=0))
        case "skips":
            out.end(make, "skipped", "no GPU here", 0.1)
            return
    out.end(make, "ok", None, 0.2)


def take_blocks(block: Block, out: PartWriter) -> None:
    """One epoch of each path a block; each is noted, and what is to happen then happens.

    ``after``, beside the parts: a number of epochs, and what comes behind so many.
    """
    folder = block.part.parent.parent
    for one in block.jobs:
        out.row(one.rows.ok(*PROCESS, os.getpid(), "pid", one.start or -1))
        out.row(one.rows.ok("setup", "open_time", "s", 0.1, "clock"))
    for number in range(block.jobs[0].measure.epochs):
        turn = [one for one in block.jobs if one.start <= number]
        for one in turn:
            say(out, one.case.id)
            with (folder / "epochs").open("a") as log:
                log.write(f"{one.case.variant} {number}\n")
            done = len((folder / "epochs").read_text().splitlines())
            wanted, what = (folder / "after").read_text().split()
            if done == int(wanted):
                if what == "die":
                    os._exit(3)
                if what == "kill":
                    os.kill(os.getppid(), signal.SIGKILL)
                (folder / "reached").touch()
                time.sleep(60)
            out.row(one.rows.ok("epoch", "wall_time", "s", 0.5, "clock", epoch=number))
            out.write("samples", **one.case.names, epoch=number, **TIMES)
            say(out)
        for one in turn:
            spent_s = one.spent_s + 0.5 * (1 + number - one.start)
            had = {"number": number, "wall_time_s": spent_s, "rows": 96}
            out.write("block", **one.case.names, **had)
    for one in block.jobs:
        out.end(one.rows, "ok", None, one.spent_s + 2.0)


def prepare(block: Block, out: PartWriter) -> None:
    print("some library has to say something")
    dataset = block.jobs[0].case.workload.dataset
    if dataset == "full":
        sys.exit(DISK_FULL)
    if dataset == "downloaded" and os.environ.get("TEST_NETWORK") == "down":
        out.write("answer", failed="OSError: no route to host")
        return
    out.write("work", what="drawing", fraction=0.5)
    while dataset == "endless":
        time.sleep(0.1)
    folder = Path(os.environ.get("TEST_FOLDER", "/nowhere"))
    spec = folder / "spec.json"
    identity = spec.read_text() if spec.exists() else os.environ.get("TEST_DATA", "")
    identity = f"{state_of(folder)}-{identity}"
    out.write("answer", dataset=str(folder), identity=identity, ranks=[[]])


def check(block: Block, out: PartWriter) -> None:
    """Trusts what the environment says; dies where it says nothing, hangs where it says so."""
    make = block.jobs[0].run
    with (block.part.parent.parent / "executions").open("a") as log:
        log.write("calibration\n")
    trusted = os.environ.get("TEST_TRUSTED_SOURCE")
    out.row(make.ok("calibration", "pcie_host_to_device_ratio", "1", 1.04, "stub"))
    if trusted is None:
        os.kill(os.getpid(), signal.SIGSEGV)
    if trusted == "hang":
        time.sleep(60)
    out.end(make, "ok", None, 0.1)
    out.write("answer", choice=CHOICE.dump_python(SensorChoice(trusted, None), mode="json"))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(int(sys.argv[1]), signal.SIGTERM)
    serve_requests(work)
