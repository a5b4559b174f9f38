"""Epochs of the notebooks: measured, modelled, and what changes against the conventional path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from gatherbench.bench.model.advise.question import Question, graph_sizes, source_graph
from gatherbench.bench.model.advise.rank import advise
from gatherbench.bench.model.predict import predictions
from gatherbench.bench.model.profile import DEFAULT_PROFILE, LinkProfile, profile_of_machine
from gatherbench.bench.plan.workload import GRAPHLESS
from gatherbench.bench.read.disturbance import disturbance
from gatherbench.bench.read.epochs import (
    STAGES,
    epoch_times,
    set_aside,
    sort_series,
    stage_breakdown,
)
from gatherbench.bench.read.gpu import block_values
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES
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
        aside = set_aside(run)
        for one, epochs in predictions(run, profile):
            seconds = [epoch.epoch_s.value for epoch in epochs]
            place = (machine, one.workload)
            if place not in on_gpu and one.workload in graphs_on_gpu:
                continue  # modelled already, for the machine that measured it on a GPU
            graph = on_gpu.get(place, names[one.workload])
            known = [s for s in seconds if s is not None]
            case = (one.strategy, one.variant)
            if not known or case in aside or (graph, *case) in seen:
                continue
            seen.add((graph, *case))
            note = "" if one.variant == "default" else one.variant
            low, high = min(known), max(known)
            ends = (low, high) if low < high else (float("nan"),) * 2
            records.append((graph, "modelled", *case, (low + high) / 2, *ends, note, profile.name))
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


def modelled_shapes(names: Sequence[str], profile: LinkProfile) -> pd.DataFrame:
    """One epoch of GraphSAGE with the paper's hyper-parameters on each graph, as :data:`BARS`.

    Every variant that declares something of its own has a bar; a strategy whose table does not fit
    in GPU memory has none.
    """
    records = []
    for name in names:
        question = Question(source_graph(name))
        for option in advise(question, graph_sizes(question), profile).ranked:
            note = "" if option.variant == "default" else option.variant
            nan = float("nan")
            case = (f"{name} GraphSAGE", "modelled", option.strategy, option.variant)
            records.append((*case, option.longest_s, nan, nan, note))
    return pd.DataFrame(records, columns=BARS)


# ---- changes against the conventional path ------------------------------------------------------

#: Of tables of changes.
COLUMNS = ["quantity", "kind", "strategy", "label", "median", "low", "high"]


def measured_changes(
    findings: Findings, backend: str, quantities: Mapping[str, tuple[str, str]]
) -> pd.DataFrame:
    """Changes of per-epoch medians against ``cpu_gather naive``, for every other strategy.

    A strategy is shown by the variant with the shortest epoch, over the workloads by the median of
    their changes.

    Args:
        quantities: what the change is called → stage and metric; the stage ``energy`` has
            ``energy`` an epoch and mean ``power`` of the GPU, ``processor`` seconds are the
            sum of ``cpu_user`` and ``cpu_system`` and have the metric ``cpu``.

    Returns:
        ``quantity``, ``kind``, ``strategy``, ``label``, ``median``, ``low``, ``high`` (the extremes
        over the workloads), as shares.
    """
    tables = [pd.DataFrame(columns=[*SERIES, *quantities])]
    for run in findings.runs_on(backend):
        table = changes_of_run(run, quantities)
        fastest = pd.MultiIndex.from_frame(table[SERIES]).isin(_fastest_variants(run))
        tables.append(table[fastest & (table["strategy"] != "cpu_gather")])
    shares = (
        sort_series(pd.concat(tables)).melt(["strategy"], list(quantities), "quantity").dropna()
    )
    groups = shares.groupby(["quantity", "strategy"], sort=False)["value"]
    found = groups.agg(median="median", low="min", high="max", count="count").reset_index()
    words = ["workload" if count == 1 else "workloads" for count in found["count"]]
    found["label"] = [
        f"{strategy}, {count} {word}"
        for strategy, count, word in zip(found["strategy"], found["count"], words, strict=True)
    ]
    return found.assign(kind="measured")[COLUMNS]


def changes_of_run(
    run: Run,
    quantities: Mapping[str, tuple[str, str]],
    reference: tuple[str, str] = ("cpu_gather", "naive"),
) -> pd.DataFrame:
    """Changes of per-epoch medians against ``reference``, of every other measured series of a run.

    Args:
        quantities: as :func:`measured_changes` takes them.
        reference: strategy and variant, of the same workload and backend.

    Returns:
        :data:`gatherbench.bench.run.rows.SERIES`, and a column of shares for each
        quantity: -0.17 is 17 % less, NaN where it was not measured.
    """
    found: dict[tuple[str, ...], dict[str, float]] = {}
    run = replace(run, rows=run.select(basis="measured"))
    for quantity, (stage, metric) in quantities.items():
        values = _per_epoch(run, stage, metric).groupby(SERIES).median().dropna()
        for key in values.index:
            base = values.get((key[0], *reference, *key[3:]), 0.0)
            if base > 0 and key[1:3] != reference:
                found.setdefault(key, {})[quantity] = float(values[key] / base - 1)
    records = [dict(zip(SERIES, key, strict=True)) | shares for key, shares in found.items()]
    return pd.DataFrame(records, columns=[*SERIES, *quantities])


def _fastest_variants(run: Run) -> list[tuple[str, ...]]:
    """Keys of the fastest variant for each workload, strategy and backend; and the baseline's.

    Series that nobody would train with are none.
    """
    epochs = epoch_times(run).sort_values("median", kind="stable")
    aside = pd.MultiIndex.from_frame(epochs[SERIES[1:3]]).isin(list(set_aside(run)))
    epochs = epochs[~aside]
    best = epochs.drop_duplicates(["workload", "strategy", "backend"])
    baseline = epochs[(epochs["strategy"] == "cpu_gather") & (epochs["variant"] == "naive")]
    return list(pd.concat([best, baseline])[SERIES].itertuples(index=False, name=None))


def _per_epoch(run: Run, stage: str, metric: str) -> pd.Series[float]:
    if stage == "energy":
        return block_values(run, metric)
    if metric == "cpu":
        return run.values(stage, "cpu_user") + run.values(stage, "cpu_system")
    return run.values(stage, metric)


def published_changes(published: pd.DataFrame) -> pd.DataFrame:
    """What PyTorch-Direct's paper says of transfer time and power: as :func:`measured_changes`."""
    records = []
    for metric, quantity in (
        ("wall_time_change", "transfer time"),
        ("system_power_change", "power"),
    ):
        rows = published[published["metric"] == metric]
        low, high = float(rows["value"].min()), float(rows["value"].max())
        middle = low if low == high else float("nan")
        label = "PyTorch-Direct" + (", average" if metric == "wall_time_change" else ", system")
        case = (quantity, "published", "unified_zero_copy", label)
        records.append((*case, middle, low, high))
    return pd.DataFrame(records, columns=COLUMNS)


def measured_transfers(findings: Findings) -> pd.DataFrame:
    """Fetch time of CPU gather over that of zero-copy on GPUs: ``rows``, ``row_bytes``, ``ratio``.

    A point for each workload that was run with ``cpu_gather naive`` and ``aligned_zero_copy``;
    ``rows`` are those of a mean minibatch.
    """
    records = []
    for run in findings.runs_on("cuda"):
        seconds = run.values("fetch", "wall_time").groupby(SERIES).median()
        payload = run.values("fetch", "payload").groupby("workload").median()
        batches = run.values("epoch", "minibatches").groupby("workload").median()
        widths = run.rows[run.rows["metric"] == "row"].groupby("workload")["value"].median()
        for workload in run.workloads:
            slow = seconds.get((workload, "cpu_gather", "naive", "cuda", "measured"))
            fast = seconds[seconds.index.get_level_values("workload") == workload]
            fast = fast[fast.index.get_level_values("strategy") == "aligned_zero_copy"]
            if slow is None or fast.empty or workload not in widths:
                continue
            width = float(widths[workload])
            rows = float(payload[workload] / batches[workload] / width)
            records.append((workload, rows, width, float(slow) / float(fast.min())))
    return pd.DataFrame(records, columns=["workload", "rows", "row_bytes", "ratio"])
