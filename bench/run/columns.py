"""The names of the columns of ``epochs.csv`` and ``cases.csv``, and what each means.

A process observes a metric of a stage in a unit; the column's name has all three: the wall time of
the stage ``fetch`` is ``fetch_s``. Names of values that a case computes from its ids and data path,
rather than measures, begin with ``declared_``.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

#: The suffix of a name, by the unit of its values.
_ENDS = {
    **{"s": "_s", "B": "_bytes", "J": "_j", "W": "_w", "K": "_k", "Hz": "_hz"},
    **{"1/s": "_per_s", "1": ""},
}
#: The usual words for the link, seen from the GPU: what it receives, and what it sends.
_SHORT = {"pcie_host_to_device": "link_rx", "pcie_device_to_host": "link_tx"}
_REQUESTS = re.compile(r"gpu_requests_(\d+)_bytes")
_TIME = re.compile(r"_?(wall_)?time(?=_|$)")
_NUMBERS = re.compile(r"\d+")
_RUN_KEYS = (
    *("run", "commit", "machine", "backend", "basis", "borrowed", "workload", "dataset"),
    *("strategy", "variant", "rank", "repeat"),
)
#: The prefix of the metrics of an epoch.
EPOCH_KEYS = (*_RUN_KEYS, "block", "epoch")
#: The prefix of the metrics of a case as a whole, which include how it ended.
CASE_KEYS = (*_RUN_KEYS, "status", "reason")
#: The keys of a case, or of one rank of it, within a run.
OF_CASE = ("basis", "workload", "strategy", "variant", "rank", "repeat")
#: The number of lines that ``epochs.csv`` has for a case that has ended.
COUNT = "epochs"
#: Keys of a value that is missing, or has another source than its column. Epoch -1: the whole case.
REASON_KEYS = (*OF_CASE, "epoch", "table", "column", "status", "reason", "source")
#: A metric of such a name follows its stage.
_RESERVED = {*EPOCH_KEYS, *CASE_KEYS, COUNT, "noisy", "other_cores"}
#: The meaning of columns, in the order of a table.
KNOWN: dict[str, str] = tomllib.loads(
    Path(__file__).with_name("columns.toml").read_text(encoding="utf-8")
)
#: The contents of tables: what an epoch observed, and what a case did as a whole.
EPOCHS, CASES = "epochs", "cases"


@dataclass(frozen=True, slots=True)
class Column:
    """The contents of a column.

    Attributes:
        stage, metric, unit: the observed quantity, in an SI unit.
        declared: computed from ids and data path, not measured.
        source: the counter, clock or formula of most values; ``reasons`` names the others.
            For a sensor that is polled ``samples=N`` represents the number of its readings, which
            has a column of its own.
    """

    stage: str
    metric: str
    unit: str
    declared: bool
    source: str = ""

    @property
    def name(self) -> str:
        """Return the column's name."""
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
        """Return the name of the column with the number of readings of a polled sensor."""
        return self.name.removesuffix(_ENDS[self.unit]) + "_samples"

    @property
    def meaning(self) -> str:
        """Return its meaning in words."""
        for name in (self.name, _NUMBERS.sub("N", self.name)):
            if name in KNOWN:
                return KNOWN[name]
        kind = "declared" if self.declared else "measured"
        return f"{self.metric.replace('_', ' ')} ({kind}; stage {self.stage})"


#: The column with the duration of a case; how it ended is its status.
ENDED = Column("case", "wall_time", "s", declared=False)
