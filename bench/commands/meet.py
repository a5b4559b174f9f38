"""How the machines of a run come together, as `gatherbench run --meet` shows it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rich.console import Console

from gatherbench.bench.plan.workload import Case
from gatherbench.bench.run.guards import terminate_as_interrupt
from gatherbench.bench.run.machines import TOKEN_VARIABLE, Machines, MachinesError, follow
from gatherbench.bench.run.runner import Workers


def meet(where: str, out: Console) -> Machines | None:
    """The machines of this run; ``None``: another machine keeps it, and this one has taken part.

    Args:
        where: ``HOST:PORT``.

    Raises:
        MachinesError: they do not come together, or machine 0 is gone.
    """
    host, _, digits = where.rpartition(":")
    if not host or not digits.isdecimal() or not 0 < int(digits) < 65536:
        raise MachinesError(f"--meet {where}: expected HOST:PORT, such as node1:29500")
    host, port = host.strip("[]"), int(digits)
    if (machines := Machines.at(host, port)) is not None:
        return machines
    temporary = tempfile.TemporaryDirectory(prefix="gatherbench-machine-")
    with (
        terminate_as_interrupt(),
        temporary as folder,
        closing(Workers(Path(folder), os.environ)) as workers,
    ):

        def say(said: str) -> None:
            out.print(said, soft_wrap=True, highlight=False)

        follow(host, port, workers.do, Path(folder), say)
    return None


def assemble(machines: Machines, where: str, cases: Sequence[Case], out: Console) -> None:
    """Have the machines come together that the cases ask for; says how where that is not known.

    Raises:
        MachinesError: they do not come, have other code, or are not asked for.
    """
    count = max(case.workload.nodes for case in cases)
    if count == 1:
        raise MachinesError("--meet is for several machines: say nodes in a [[workload]]")
    if not os.environ.get(TOKEN_VARIABLE):
        command = f"{TOKEN_VARIABLE}={machines.token} gatherbench run --meet {where}"
        out.print(f"On each of the other machines: {command}", soft_wrap=True, highlight=False)
    out.print(f"waiting for {count - 1} more of {count} machines")
    machines.assemble(count)
