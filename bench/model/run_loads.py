"""A run's series as loads: what each case declared of itself, and what the run's host measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch

from gatherbench.bench.model.estimate import Estimate, combine
from gatherbench.bench.model.minibatch_load import MinibatchLoad
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.read.disturbance import disturbed
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES
from gatherbench.strategies.base import Strategy
from gatherbench.strategies.registry import build

#: What a case has to have declared (``bench/run/declared_rows.py``), as ``stage.metric``.
_NEEDED = (
    "fetch.declared_payload",
    "fetch.row",
    "fetch.lookahead",
    "fetch.gpu_share",
    "sample.minibatches",
    "sample.edges",
    "train.operations",
    "train.gpu_memory",
    "train.launches",
    "train.structure",
)
_REQUESTS = "fetch.gpu_requests_"
_VISITS = "fetch.gpu_page_visits"
_KEYS = ["workload", "strategy", "variant"]
_NOWHERE = torch.device("cuda", 127)
#: What is said of the run's own time for minibatches, by how they were had.
_SAMPLING = {
    "live": "sampling as measured in the run, not scaled",
    "replay": "minibatches read from the trace as in the run, not drawn",
    "gpu": "sampling by the run's device as measured there, not scaled",
}
_GATHER = "the CPU's gather as measured on the run's host"


@dataclass(frozen=True, slots=True)
class Series:
    """One strategy on one workload of a run.

    Attributes:
        workload, strategy, variant: as in the rows.
        load: its average minibatch; ``None`` where the run says too little.
        batches: minibatches of an epoch.
        missing: why there is no load.
    """

    workload: str
    strategy: str
    variant: str
    load: MinibatchLoad | None
    batches: int
    missing: str | None = None


def series_of(run: Run, profile: LinkProfile) -> list[Series]:
    """Every series of the run's plan, ready to be predicted with ``profile``."""
    declared = _declared(run)
    tables = run.select(stage="setup", metric="table").groupby("workload")["value"].max()
    host = _Host(run, declared)
    found = []
    planned = {
        (str(case["workload"]), str(case["strategy"]), str(case["variant"])): case
        for case in run.plan["cases"]
    }
    for key, case in planned.items():
        refused = _refused(case)
        if refused is not None:
            found.append(Series(*key, None, 0, refused))
            continue
        facts = declared.get(key, {})
        if any(name not in facts for name in _NEEDED) or key[0] not in tables:
            found.append(Series(*key, None, 0, _why(run, key)))
            continue
        load = host.complete(key, load_of(facts, float(tables[key[0]])), profile)
        found.append(Series(*key, load, int(facts["sample.minibatches"])))
    return found


def refusal(strategy: Strategy) -> str | None:
    """Why the strategy runs on no GPU of any machine, or ``None`` where one would do.

    It is asked about a GPU that no machine has; that alone is no reason.
    """
    reason = strategy.skip(_NOWHERE)
    return None if reason is None or reason.startswith("no_device:") else reason


def _refused(case: Mapping[str, Any]) -> str | None:
    """:func:`refusal` of the case's strategy; ``None`` where it is not registered here."""
    try:
        return refusal(build(str(case["strategy"]), case.get("params")))
    except ValueError:
        return None


def load_of(declared: Mapping[str, float], table_bytes: float) -> MinibatchLoad:
    """The average minibatch of what a case declared (``stage.metric`` → total over the trace)."""
    batches = declared["sample.minibatches"]

    def mean(name: str) -> float:
        return declared.get(name, 0.0) / batches

    requests = {
        int(name.removeprefix(_REQUESTS).removesuffix("_bytes")): count / batches
        for name, count in declared.items()
        if name.startswith(_REQUESTS)
    }
    read = mean("fetch.gpu_link_read")
    # Runs from before it was declared had no path that kept a part of the table.
    kept = 0.0 if read or mean("fetch.cpu_write") else table_bytes
    return MinibatchLoad(
        payload_bytes=mean("fetch.declared_payload"),
        row_bytes=declared["fetch.row"],
        cpu_read_bytes=mean("fetch.cpu_read"),
        cpu_write_bytes=mean("fetch.cpu_write"),
        copy_engine_bytes=mean("fetch.copy_engine"),
        pageable_bytes=mean("fetch.pageable"),
        gpu_link_read_bytes=read,
        gpu_requests=requests if requests or not read else None,
        gpu_page_visits=mean(_VISITS) if _VISITS in declared else None,
        table_bytes=table_bytes,
        gpu_table_bytes=declared.get("fetch.gpu_table", kept),
        lookahead=int(declared["fetch.lookahead"]),
        gpu_share=declared["fetch.gpu_share"],
        sampled_edges=mean("sample.edges"),
        train_operations=mean("train.operations"),
        train_bytes=mean("train.gpu_memory"),
        train_launches=mean("train.launches"),
        structure_bytes=mean("train.structure"),
    )


class _Host:
    """What the machine of a run measured, as far as a profile may have to borrow it.

    Of each workload the cases count beside which there was no other work, if there are any.
    """

    def __init__(self, run: Run, declared: Mapping[tuple[str, ...], Mapping[str, float]]) -> None:
        self._sampling = str(run.plan["measure"].get("sampling"))
        measured = run.select(metric="wall_time", basis="measured", status="ok")
        self._times = measured[measured["epoch"] >= 0]
        self._on_host = self._times[self._times["backend"] == "host"]
        self._declared = declared
        self._disturbed = disturbed(run).index

    def complete(
        self, key: tuple[str, ...], load: MinibatchLoad, profile: LinkProfile
    ) -> MinibatchLoad:
        """The load with what the host measured and the profile does not know.

        Sampling is that of the run, drawn live, replayed or on the GPU: a profile's rate may be
        another program's, and is of its processor. The CPU's gather is the profile's where it knows
        its processor.
        """
        batches = self._declared[key]["sample.minibatches"]
        sampled = self._times[
            (self._times["workload"] == key[0]) & (self._times["stage"] == "sample")
        ]
        load = replace(load, gpu_samples=self._sampling == "gpu")
        drawn = self._median(sampled, batches, _SAMPLING.get(self._sampling, _SAMPLING["live"]))
        if drawn is not None:
            load = replace(load, sample_s=drawn)
        gathered = None
        if load.pageable_bytes:
            if not profile.copy.pageable.values:
                gathered = self._fetch_time([key], batches)
        elif load.cpu_write_bytes and not profile.host.gather_rate.values:
            keys = [k for k in self._declared if self._direct(k, key[0])]
            gathered = self._fetch_time(keys, batches)
            share = load.cpu_write_bytes / load.payload_bytes  # the rest is not the CPU's to gather
            gathered = gathered and combine(lambda s: share * s, gathered)
        return load if gathered is None else replace(load, gather_s=gathered)

    def _direct(self, key: tuple[str, ...], workload: str) -> bool:
        """Whether the host runs this series as one pass from the table into the output.

        A path that reads less than the batch in place has something else to do with the rest.
        """
        facts = self._declared[key]
        blocking = facts.get("fetch.lookahead") == 0
        whole = 0 < facts.get("fetch.declared_payload", 0.0) <= facts.get("fetch.gpu_link_read", 0)
        return key[0] == workload and blocking and whole

    def _fetch_time(self, keys: list[tuple[str, ...]], batches: float) -> Estimate | None:
        """Median seconds a minibatch in the fetch stage of these series on the host."""
        rows = self._on_host[self._on_host["stage"] == "fetch"]
        names = zip(*(rows[k] for k in _KEYS), strict=True)
        return self._median(rows.loc[[name in keys for name in names]], batches, _GATHER)

    def _median(self, rows: pd.DataFrame, batches: float, remark: str) -> Estimate | None:
        """Of an epoch's seconds in these rows, over its minibatches; ``None`` if there are none."""
        if rows.empty:
            return None
        cases = pd.MultiIndex.from_frame(rows[[*SERIES, "repeat"]])
        quiet = rows[~cases.isin(self._disturbed)]
        if quiet.empty:
            remark = f"{remark}, beside other work"
        seconds = float((rows if quiet.empty else quiet)["value"].median())
        return Estimate(seconds / batches).remark(remark)


def _declared(run: Run) -> dict[tuple[str, ...], dict[str, float]]:
    """``stage.metric`` → value of what each series declared."""
    rows = run.select(basis="declared", status="ok")
    facts: dict[tuple[str, ...], dict[str, float]] = {}
    for row in rows[[*_KEYS, "stage", "metric", "value"]].itertuples(index=False, name=None):
        facts.setdefault(row[:3], {})[f"{row[3]}.{row[4]}"] = float(row[5])
    return facts


def _why(run: Run, key: tuple[str, ...]) -> str:
    """Why a series declared too little."""
    rows = run.rows
    ours = rows[(rows[_KEYS] == list(key)).all(axis=1)]
    mine = ours[ours["stage"] == "case"]
    said = mine["reason"].dropna()
    if len(said):
        return f"the case did not get so far: {said.iloc[0]}"
    training = ours[(ours["stage"] == "train") & (ours["metric"] == "operations")]
    undeclared = training["reason"].dropna()
    if len(undeclared):
        return str(undeclared.iloc[0])
    if not len(mine):
        return "the case has not been run; --resume completes it"
    return "the case declares too little: an old run"
