"""The real worker; rank 1 of a case goes wrong as the case's variant says."""

import os
import signal
import sys
import time
from dataclasses import replace
from typing import Any

from torch import nn

from gatherbench.bench.run import group, models, rank_processes, session
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.worker import main

#: Where rank 0 waits for it: at the begin, in its own step's exchange, and in that of all.
FAULTS = (
    "raises in open",
    "killed in train",
    "raises in train",
    "killed in all_reduce",
    "hangs in train",
    "other data",
    "gradients of their own",
)
_now = ["", ""]


def spoil(owner: Any, name: str, stage: str) -> None:
    """Have rank 1 go wrong where it comes to a stage."""
    right = getattr(owner, name)

    def wrong(*args: Any, **named: Any) -> Any:
        fault, _, where = _now[0].partition(" in ")
        if _now[1] == "1" and stage == where:
            if fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault == "hangs":
                time.sleep(3600)
            raise RuntimeError(f"rank 1 broke in {stage}")
        return right(*args, **named)

    setattr(owner, name, wrong)


def not_averaged(self: group.Together, model: nn.Module) -> nn.Module:
    self._model = model
    return model


def chosen(job: Job, **changes: Any) -> Job:
    """Where a rank is given its job: the fault is known from here on."""
    _now[:] = job.case.variant, str(changes.get("rank"))
    if _now[0] == "gradients of their own":
        group.Together.wrap = not_averaged  # type: ignore[method-assign]
    if _now[0] == "hangs in train":
        rank_processes.PATIENCE_S = 6.0
    other = str(changes["rank"]) if _now[0] == "other data" else job.identity
    return replace(job, **changes, identity=other)


if __name__ == "__main__":
    spoil(session, "knowledge_of", "open")
    spoil(models.Trainer, "step", "train")
    spoil(group.Together, "_exchange", "all_reduce")
    rank_processes.replace = chosen  # type: ignore[attr-defined]
    rank_processes._LINGER_S = 0.5  # half of the faults are waited for so long
    main(int(sys.argv[1]))
