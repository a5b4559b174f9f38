"""Whoever shares a network with a run, and no more, has nothing to say in it."""

import os
import subprocess
import sys
import time

from .networks import attacked, listening

PLAN = """
[measure]
repeats = 1
epochs = 1000
timeout_s = 600
[[workload]]
dataset = "tiny"
model = "mlp"
fanouts = [3, 2]
batch_size = 50
max_batches = 3
gpus = 2
[[strategy]]
name = "cpu_gather"
"""


def test_ranks_of_one_machine_are_out_of_reach(places, tiny_root, tmp_path):
    (tmp_path / "two.toml").write_text(PLAN)
    here, there = places
    command = (
        *here.prefix, sys.executable, "-m", "gatherbench", "run", str(tmp_path / "two.toml"),
        "--results", str(tmp_path / "results"), "--device", "cpu",
    )  # fmt: skip
    env = {**os.environ, "GATHERBENCH_DATA": str(tiny_root)}
    with (tmp_path / "log").open("w") as log:
        run = subprocess.Popen(command, stdout=log, stderr=log, env=env)
    try:
        while not any(f.stat().st_size for f in tmp_path.rglob("rank0.jsonl")):
            assert run.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.05)
        (part,) = tmp_path.rglob("*.ranks")
        ports = listening(run.pid)
        mark = tmp_path / "executed"
        opened = attacked(there, here, mark, part.stem, set().union(*ports.values()))
        time.sleep(1.0)
        assert not mark.exists(), "what a stranger wrote was unpickled"
        assert not opened
        assert set(ports) <= {"127.0.0.1", "::1"}
    finally:
        run.terminate()
        run.wait(60)
