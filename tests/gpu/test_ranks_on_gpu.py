"""What several ranks rest on: NCCL, here with one rank, and a GPU that a forked process can use.

Each in a process of its own: a group, a fork and the driver's start are of a whole process.
"""

import json
import subprocess
import sys
from typing import Any

import pytest

#: Two epochs of three minibatches, with a group of one rank and without any.
TRAIN = """
import json, sys, torch
from torch import nn
from torch.distributed import FileStore
from gatherbench.bench.run.group import ALONE, Together
from gatherbench.bench.run.loop import run_epoch
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.strategies.knowledge import Ranks
from gatherbench.strategies.registry import build

device, table = torch.device("cuda"), torch.arange(96.0).reshape(12, 8) / 96
batches = [MiniBatch(torch.arange(i, i + 4), (), (4,)) for i in range(3)]

class Steps:
    def __init__(self, group):
        torch.manual_seed(1)
        self.model = nn.Linear(8, 1).to(device)
        self.called = group.wrap(self.model)
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, x, batch):
        loss = (self.called(x) - 1).square().mean()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return loss.detach()

def train(group):
    steps = Steps(group)
    with build("cpu_gather", {"mode": "naive"}).open(table, device) as fetcher:
        return [run_epoch(batches, fetcher, steps.step, group=group) for _ in range(2)]

store = FileStore(sys.argv[1], 1)
alone, group = train(ALONE), Together(device, Ranks(0, 1, 1), store, 60.0)
told = group.gathered("a word")
together = train(group)
group.close()
print(json.dumps({
    "told": told,
    "losses": [[epoch.losses for epoch in epochs] for epochs in (alone, together)],
    "stages": [{name: epoch.stages[name] for name in ("train", "all_reduce", "wait")}
               for epoch in together],
}))
"""
#: The server of a run's cases, which has imported all that a case needs.
FORK = """
import os, torch
from gatherbench.bench.run import worker

def fork_once(work):
    if os.fork() == 0:
        print(torch.ones(3, device="cuda").sum().item(), flush=True)
        os._exit(0)
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))

worker.serve_requests = fork_once
worker.main(os.getppid())
"""


def printed(code: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_one_rank_with_nccl_learns_what_one_process_learns(tmp_path):
    found: dict[str, Any] = json.loads(printed(TRAIN, str(tmp_path / "store")))
    alone, together = found["losses"]
    assert found["told"] == ["a word"]
    assert [len(losses) for losses in together] == [3, 3]
    for one, other in zip(alone, together, strict=True):
        assert other == pytest.approx(one, rel=1e-4)
    for stages in found["stages"]:
        assert stages["wait"] == [0.0] * 3  # for nobody
        for exchange, step in zip(stages["all_reduce"], stages["train"], strict=True):
            assert 0 <= exchange <= step


def test_a_case_that_the_server_forks_can_use_the_gpu():
    pytest.importorskip("numba")
    pytest.importorskip("torch_geometric")
    assert printed(FORK) == "3.0\n"
