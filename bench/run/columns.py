"""The names of the columns of ``epochs.csv`` and ``cases.csv``, and what each means.

A process observes a metric of a stage in a unit; the column has all three in its name: the wall
time of the stage ``fetch`` is ``fetch_s``. What a case computes from its ids and data path, in
place of measuring it, begins with ``declared_``.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

#: How a name ends, by the unit of its values.
_ENDS = {
    **{"s": "_s", "B": "_bytes", "J": "_j", "W": "_w", "K": "_k", "Hz": "_hz"},
    **{"1/s": "_per_s", "1": ""},
}
#: What is usually said of the link, from where the GPU is: what it receives, and what it sends.
_SHORT = {"pcie_host_to_device": "link_rx", "pcie_device_to_host": "link_tx"}
_REQUESTS = re.compile(r"gpu_requests_(\d+)_bytes")
_TIME = re.compile(r"_?(wall_)?time(?=_|$)")
_NUMBERS = re.compile(r"\d+")
#: What stands before the metrics of an epoch.
EPOCH_KEYS = (
    *("run", "commit", "machine", "backend", "basis", "borrowed", "workload", "dataset"),
    *("strategy", "variant", "rank", "repeat", "block", "epoch"),
)
#: What stands before what a case did as a whole: how it ended is among it.
CASE_KEYS = (
    *("run", "commit", "machine", "backend", "basis", "borrowed", "workload", "dataset"),
    *("strategy", "variant", "rank", "repeat", "status", "reason"),
)
#: Of a case that has ended: how many lines ``epochs.csv`` has of it.
COUNT = "epochs"
#: Of a value that is missing, or whose source is not its column's. Epoch -1: all of the case's.
REASON_KEYS = (
    *("basis", "workload", "strategy", "variant", "rank", "repeat", "epoch", "table"),
    *("column", "status", "reason", "source"),
)
#: A metric of such a name has its stage before it.
_RESERVED = {*EPOCH_KEYS, *CASE_KEYS, COUNT, "noisy", "other_cores"}
#: What columns mean, in the order in which they stand in a table.
KNOWN: dict[str, str] = tomllib.loads(
    Path(__file__).with_name("columns.toml").read_text(encoding="utf-8")
)
#: Of tables: what an epoch observed, and what a case did as a whole.
EPOCHS, CASES = "epochs", "cases"


@dataclass(frozen=True, slots=True)
class Column:
    """What a column holds.

    Attributes:
        stage, metric, unit: what is observed, in which SI unit.
        declared: computed from ids and data path, not measured.
        source: the counter, clock or formula of most values; where one has another, ``reasons``
            says so. Of a sensor that is polled ``samples=N`` stands for how often it was read, and
            a column beside it says how often that was.
    """

    stage: str
    metric: str
    unit: str
    declared: bool
    source: str = ""

    @property
    def name(self) -> str:
        """The column's name."""
        stem = _SHORT.get(self.metric, self.metric)
        stem = _TIME.sub("", _REQUESTS.sub(r"gpu_requests_\1b", stem)).strip("_")
        own = self.stage in ("epoch", "case") or (self.declared and self.stage == "fetch")
        parts = ["" if own and stem else self.stage, stem]
        if self.declared and not stem.startswith("declared_"):
            parts = ["declared", *parts]
        name = "_".join(filter(None, parts)) + _ENDS[self.unit]
        return f"{self.stage}_{name}" if name in _RESERVED else name

    @property
    def samples(self) -> str:
        """The name of the column with how often a sensor was read for its value."""
        return self.name.removesuffix(_ENDS[self.unit]) + "_samples"

    @property
    def meaning(self) -> str:
        """What it means, in words."""
        for name in (self.name, _NUMBERS.sub("N", self.name)):
            if name in KNOWN:
                return KNOWN[name]
        kind = "declared" if self.declared else "measured"
        return f"{self.metric.replace('_', ' ')} ({kind}; stage {self.stage})"
