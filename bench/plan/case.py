"""One case: a workload, a strategy with its parameters, and which repetition it is."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from gatherbench.bench.plan.workload import Workload


@dataclass(frozen=True, slots=True)
class Case:
    """One workload run once with one strategy."""

    workload: Workload
    strategy: str
    variant: str
    params: dict[str, Any] = field(hash=False)
    repeat: int

    @property
    def id(self) -> str:
        """Names the case in file names and messages."""
        variant = re.sub(r"[^A-Za-z0-9]+", "-", self.variant)
        return f"{self.workload.id}.{self.strategy}.{variant}.r{self.repeat}"

    @property
    def names(self) -> dict[str, Any]:
        """What tells it from the other cases of a run, by column of the table."""
        names = {"workload": self.workload.id, "strategy": self.strategy, "variant": self.variant}
        return {**names, "repeat": self.repeat}
