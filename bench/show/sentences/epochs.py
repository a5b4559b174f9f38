"""Epochs and their stages, measured and modelled, as tables for figures."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from gatherbench.bench.model.predict import predictions
from gatherbench.bench.model.profile import DEFAULT_PROFILE, profile_of_machine
from gatherbench.bench.plan.workload import GRAPHLESS
from gatherbench.bench.read.disturbance import disturbance
from gatherbench.bench.read.epochs import STAGES, stage_breakdown
from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.notebook_tables import Findings

#: The published profile nearest to a machine that measured runs; one of its own is taken before it.
NEAREST = {"nvidia-h200": "h200-sxm-pcie5"}
#: What a bar of ``epoch_bars`` is made of; some tables add ``machine``.
BARS = ["group", "kind", "strategy", "variant", "median", "low", "high", "note"]
#: From the seeds outwards.
BYTES_TOUCHED = ("cpu_read", "cpu_write", "copy_engine")


def measured_stages(findings: Findings, backend: str, strategy: str, variant: str) -> pd.DataFrame:
    """``kind``, ``label`` and the seconds of each stage of one series, for every workload."""
    table = _on_graphs(findings.derived(backend, stage_breakdown))
    columns = ["kind", "label", *STAGES, "other"]
    if table.empty:
        return pd.DataFrame(columns=columns)
    mine = table[(table["strategy"] == strategy) & (table["variant"] == variant)]
    where = ", host memory only" if backend == "host" else ""
    name = mine["workload"].map(findings.names).astype(str)
    label = name + "\n" + mine["machine"] + where
    return mine.assign(kind="measured", label=label)[columns].reset_index(drop=True)


def passes_over_memory(run: Run) -> pd.DataFrame:
    """Bytes that each strategy declares to touch in host memory for a byte that it delivers.

    Columns: ``workload``, ``strategy``, ``variant``, ``passes``. Declared, not measured.
    """
    keys = ["workload", "strategy", "variant"]
    declared = run.select(stage="fetch", metric=BYTES_TOUCHED, basis="declared", status="ok")
    payload = run.select(stage="fetch", metric="payload", basis="measured", status="ok")
    passes = declared.groupby(keys)["value"].sum() / payload.groupby(keys)["value"].median()
    return passes.rename("passes").reset_index()


def predicted_bars(findings: Findings) -> pd.DataFrame:
    """What the link model expects of every measured workload: columns of ``epoch_bars``.

    On the machine that measured it where a profile describes that, else on the paper's. A series
    that declares nothing to predict from, or needs an unknown constant, is left out.
    """
    records = []
    seen = set()
    names = findings.names
    on_gpu = bar_groups(findings, "cuda")
    graphs_on_gpu = {workload for _, workload in on_gpu}
    for run in [*findings.runs_on("cuda"), *findings.runs_on("host")]:
        machine = run.machine
        profile = profile_of_machine(machine, NEAREST.get(machine, DEFAULT_PROFILE))
        for one, epochs in predictions(run, profile):
            seconds = [epoch.epoch_s.value for epoch in epochs]
            place = (machine, one.workload)
            if place not in on_gpu and one.workload in graphs_on_gpu:
                continue  # modelled already, for the machine that measured it on a GPU
            graph = on_gpu.get(place, names[one.workload])
            known = [s for s in seconds if s is not None]
            if not known or (graph, one.strategy, one.variant) in seen:
                continue
            seen.add((graph, one.strategy, one.variant))
            note = "" if one.variant == "default" else one.variant
            case = (graph, "modelled", one.strategy, one.variant)
            low, high = min(known), max(known)
            ends = (low, high) if low < high else (float("nan"),) * 2
            records.append((*case, (low + high) / 2, *ends, note, profile.name))
    return pd.DataFrame(records, columns=[*BARS, "machine"])


def bar_groups(findings: Findings, backend: str) -> dict[tuple[str, str], str]:
    """The panel of each machine and workload: the graph, and the machine where several took part.

    Ratios are only ever taken within a panel, so two machines never share one.
    """
    names = findings.names
    pairs = findings.epochs(backend)[["machine", "workload"]].drop_duplicates()
    shared = {w for w, machines in pairs.groupby("workload")["machine"] if len(machines) > 1}
    return {
        (machine, workload): names[workload] + (f", {machine}" if workload in shared else "")
        for machine, workload in pairs.itertuples(index=False)
    }


def measured_bars(findings: Findings, backend: str, dataset: str = "") -> pd.DataFrame:
    """Measured epochs of ``dataset`` (all without) as bars: a group for each graph and machine."""
    table = _on_graphs(findings.epochs(backend))
    if dataset:
        table = table[table["dataset"] == dataset]
    note = table["variant"].where(table["variant"] != "default", "")
    groups = bar_groups(findings, backend)
    group = [groups[pair] for pair in zip(table["machine"], table["workload"], strict=True)]
    bars = table.assign(kind="measured", group=group, note=note)
    return bars[[*BARS, "machine"]]


def _on_graphs(table: pd.DataFrame) -> pd.DataFrame:
    """Epochs that begin with sampling: those of ``gpu-meters`` do not."""
    return table[table["model"] != GRAPHLESS]


def gains(bars: pd.DataFrame) -> pd.DataFrame:
    """For each group and kind: the fastest zero-copy epoch against CPU gather and all-in-GPU.

    Columns: ``group``, ``kind``, ``strategy`` (the fastest), ``over_naive`` and ``over_best``
    (times as fast as the paper's baseline and as the best CPU gather), ``of_bound`` (its time over
    the all-in-GPU time); NaN where there is nothing to compare with.
    """
    records = []
    for (group, kind), mine in bars.groupby(["group", "kind"], sort=False):
        zero_copy = mine[mine["strategy"].str.endswith("zero_copy")]
        if zero_copy.empty:
            continue
        best = zero_copy.sort_values("median", kind="stable").iloc[0]
        gathered = mine[mine["strategy"] == "cpu_gather"]
        naive = gathered[gathered["variant"] == "naive"]
        bound = mine[mine["strategy"] == "all_in_gpu"]["median"].min()
        times = best["median"]
        over = (naive["median"].min() / times, gathered["median"].min() / times, times / bound)
        records.append((group, kind, best["strategy"], *over))
    columns = ["group", "kind", "strategy", "over_naive", "over_best", "of_bound"]
    return pd.DataFrame(records, columns=columns)


def disturbances(runs: Iterable[Run]) -> list[str]:
    """A sentence for each run beside which other work had too many of the host's cores."""
    found = []
    for run in runs:
        busy = disturbance(run)
        if busy:
            found.append(
                f"- Run {run.run_id} was **disturbed**: {busy}. Their epochs, and ratios to them,"
                " are not to be trusted."
            )
    return found
