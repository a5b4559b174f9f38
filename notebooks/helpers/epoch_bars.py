"""Epochs of the notebooks: measured, modelled, and what changes against the conventional path."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from gatherbench.bench.model.predict import predictions
from gatherbench.bench.model.profile import DEFAULT_PROFILE, profile_of_machine
from gatherbench.bench.plan.workload import GRAPHLESS
from gatherbench.bench.read.derive import (
    STAGES,
    epoch_times,
    gathers_among,
    repeat_logs,
    set_aside,
    sort_series,
    stage_breakdown,
)
from gatherbench.bench.read.disturbance import disturbance, disturbed_alone
from gatherbench.bench.read.gpu import per_epoch
from gatherbench.bench.read.issuing import host_bound as bound_of
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import with_ends
from gatherbench.bench.run.rows import SERIES, Key
from gatherbench.stats.interval import Interval, interval_of
from gatherbench.stats.judge import ratio_of, shortest
from gatherbench.strategies.registry import build, role_of
from helpers.findings import Findings
from helpers.ratios import ONE_REPEAT, compared, undecided

#: The published profile nearest to a machine that measured runs; one of its own is taken before it.
NEAREST = {"nvidia-h200": "h200-sxm-pcie5"}
#: What a bar of ``epoch_bars`` is made of; some tables add ``machine``.
BARS = ["group", "kind", "strategy", "variant", "median", "low", "high", "note"]
#: From the seeds outwards.
BYTES_TOUCHED = ("cpu_read", "cpu_write", "copy_engine")
#: The paper's baseline.
BASELINE = ("cpu_gather", "naive")
#: Logarithms of an epoch's seconds, by strategy and variant.
Times = Mapping[tuple[str, str], ArrayLike]


def measured_stages(findings: Findings, backend: str, strategy: str, variant: str) -> pd.DataFrame:
    """``kind``, ``label`` and the seconds of each stage of one series, for every workload.

    ``share``: of the epoch that is ``fetch``, in words with its 95 % interval over the repeats.
    """

    def stages(run: Run) -> pd.DataFrame:
        table = stage_breakdown(run)
        shares = repeat_logs(run.values("fetch", "wall_time") / run.values("epoch", "wall_time"))
        mine = table[(table["strategy"] == strategy) & (table["variant"] == variant)]
        keys = [Key(*key) for key in mine[SERIES].itertuples(index=False, name=None)]
        said = [with_ends(*interval_of((1, shares[key])).ends, "share") for key in keys]
        return mine.assign(share=said)

    mine = _on_graphs(findings.derived(backend, stages))
    columns = ["kind", "label", *STAGES, "other", "share"]
    if mine.empty:
        return pd.DataFrame(columns=columns)
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
            known = [epoch.epoch_s for epoch in epochs if not math.isnan(epoch.epoch_s)]
            place = (machine, one.workload)
            if place not in on_gpu and one.workload in graphs_on_gpu:
                continue  # modelled already, for the machine that measured it on a GPU
            graph = on_gpu.get(place, names[one.workload])
            case = (one.strategy, one.variant)
            if not known or case in aside or (graph, *case) in seen:
                continue
            seen.add((graph, *case))
            note = "" if one.variant == "default" else one.variant
            records.append((graph, "modelled", *case, *_halfway(known), note, profile.name))
    return pd.DataFrame(records, columns=[*BARS, "machine"])


def _halfway(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Halfway between the ends of what is modelled, and the ends where they differ."""
    low, high = min(seconds), max(seconds)
    return (low + high) / 2, *((low, high) if low < high else (float("nan"),) * 2)


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


def whole_epochs(findings: Findings) -> pd.DataFrame:
    """Whole epochs of papers100M's shape: published by system, measured by path, as bars."""
    published = findings.published.query("table == 'whole_epochs'")
    said = published.assign(kind="published", median=published["value"], low=np.nan, high=np.nan)
    workloads = [(i, w) for run in findings.runs for i, w in run.plan["workloads"].items()]
    whole = [i for i, w in workloads if (w["scale"], w["max_batches"]) == (1, 0)]
    mine = findings.epochs("cuda")
    papers = mine["dataset"].isin(["hashed-papers100M", "ogbn-papers100M"])
    mine = mine[papers & mine["workload"].isin(whole)]
    variant = mine["variant"].where(mine["variant"] != "default", "")
    found = mine.assign(kind="measured", variant=variant + " " + mine["machine"])
    bars = pd.concat([said, found], ignore_index=True)
    return bars.assign(note=bars["variant"].str.strip())


def _on_graphs(table: pd.DataFrame) -> pd.DataFrame:
    """Epochs that begin with sampling: those without a graph do not."""
    return table[table["model"] != GRAPHLESS]


def measured_times(
    findings: Findings, backend: str
) -> Iterator[tuple[str, Times, frozenset[tuple[str, str]]]]:
    """By panel (:func:`bar_groups`) the epochs of each series that counts, one of each repeat.

    And which series the host bounds by issuing their epochs.
    """
    groups = bar_groups(findings, backend)
    for run in findings.runs_on(backend):
        apart, alone = set_aside(run), disturbed_alone(run)
        logs = repeat_logs(run.values("epoch", "wall_time"))
        for workload, fields in run.plan["workloads"].items():
            mine = [key for key in logs if key.workload == workload and key not in alone]
            if fields["model"] != GRAPHLESS:
                times = {key[1:3]: logs[key] for key in mine if key[1:3] not in apart}
                bound = frozenset(k[1:3] for k in bound_of(run) if k.workload == workload)
                yield groups[run.machine, workload], times, bound


def stated_times(bars: pd.DataFrame) -> Iterator[tuple[str, Times]]:
    """The same of epochs that were published or modelled: each with its ends, where it has any.

    They are named by panel and kind, and what is modelled by its machine.
    """
    for (group, kind), mine in bars.groupby(["group", "kind"], sort=False):
        machines = mine["machine"].dropna().unique() if "machine" in mine else ()
        times = {
            (str(row["strategy"]), str(row["variant"])): np.log(
                [row[name] for name in ("low", "median", "high") if row[name] > 0]
            )
            for row in mine.to_dict("records")
        }
        yield f"{group}, {' for '.join([str(kind), *machines])}", times


def possible(one: ArrayLike, other: ArrayLike) -> Interval:
    """The ratio of two values that are known between ends: as far as these allow."""
    ends = np.exp(np.subtract.outer(one, other))
    middle = float(np.exp(np.median(np.asarray(one)) - np.median(np.asarray(other))))
    return Interval(middle, float(ends.min()), float(ends.max()), 2, 0.0)


def gain(
    times: Times,
    over: Callable[[ArrayLike, ArrayLike], Interval] = ratio_of,
    host_bound: Collection[tuple[str, str]] = (),
) -> str:
    """How fast the fastest zero-copy is, in words, or that there is none.

    Over the paper's baseline, over the best CPU gather, and beside all-in-GPU.

    Args:
        over: what one of ``times`` is over another, with its interval.
        host_bound: of those whose epochs the host bounds: between two of them is no verdict.
    """
    ours = {name: logs for name, logs in times.items() if role_of(*name) == "zero_copy"}
    gathers = {name: times[name] for name in gathers_among(times)}
    bounds = {name: logs for name, logs in times.items() if role_of(*name) == "bound"}
    if not ours:
        return "no zero-copy to compare."
    fastest, words = shortest(ours, over, host_bound)
    said, near = f"`{_joined(fastest)}`", sum(word != "SLOW" for word in words.values())
    held = sum(word == "HOST-BOUND" for word in words.values())
    if words:
        said = f"of {len(ours)} zero-copy variants {said} came out fastest"
        and_held = f", {held} host-bound as it is" * bool(held)
        said += f" ({near} of the others level with it or not decided{and_held})" * bool(near)
    ratios, clauses = [], []
    best = shortest(gathers, over)[0] if gathers else BASELINE
    for name in dict.fromkeys([BASELINE, best]):
        if name in gathers:
            ratios.append(over(gathers[name], ours[fastest]))
            which = f", the best of {len(gathers)}" if name == best and len(gathers) > 1 else ""
            clauses.append(compared(ratios[-1], f"as fast as `{_joined(name)}`{which}"))
    if bounds:
        bound = shortest(bounds, over)[0]
        ratios.append(over(ours[fastest], bounds[bound]))
        both = {fastest, bound} <= {*host_bound}
        said_of = compared(ratios[-1], f"as long as `{bound[0]}`", host_bound=both)
        clauses.append(f"it takes {said_of}")
    one = f" {ONE_REPEAT}" if any(ratio.repeats < 2 for ratio in ratios) else ""
    return f"{said}: {'; '.join(clauses) or 'nothing beside it'}.{one}"


def _joined(name: tuple[str, str]) -> str:
    return " ".join(word for word in name if word != "default")


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


# ---- changes against the conventional path ------------------------------------------------------

#: Of tables of changes.
COLUMNS = ["quantity", "kind", "strategy", "label", "median", "low", "high"]
#: Of transfers of one series over another.
TRANSFERS = [*SERIES, "over", "rows", "row_bytes", "interval", "ratio"]


def measured_changes(
    findings: Findings, backend: str, quantities: Mapping[str, tuple[str, str]]
) -> pd.DataFrame:
    """Changes against ``cpu_gather naive``, for every other strategy: ratios of means over repeats.

    Of each quantity and workload by the newest run that has it. A strategy is shown by the variant
    with the shortest epoch, over the workloads by the median of their changes. Of a path that
    fetches ahead the stage ``fetch`` is what it could not hide, and no transfer: it is left out.

    Args:
        quantities: what the change is called → stage and metric; the stage ``energy`` has
            ``energy`` an epoch and mean ``power`` of the GPU, ``processor`` seconds are the
            sum of ``cpu_user`` and ``cpu_system`` and have the metric ``cpu``.

    Returns:
        ``quantity``, ``kind``, ``strategy``, ``label``, ``median``, ``low``, ``high`` (the extremes
        over the workloads of their 95 % intervals; of single repeats of the changes themselves), as
        shares; ``note``: whether there is one repeat alone; ``said``: in words, workload by
        workload.
    """
    records = []
    for quantity, (stage, metric) in quantities.items():
        table = findings.derived(backend, partial(_changes, stage=stage, metric=metric))
        for strategy, mine in sort_series(table).groupby("strategy", sort=False):
            count = len(mine)
            label = f"{strategy}, {count} workload{'s' * (count > 1)}"
            note = "one repeat" * bool(mine["low"].isna().all())
            ends = mine["low"].fillna(mine["median"]), mine["high"].fillna(mine["median"])
            said = "; ".join(
                f"{findings.names[row['workload']]}, {row['machine']}, `{row['variant']}`:"
                f" {row['said']}"
                for row in mine.to_dict("records")
            )
            middle = (mine["median"].median(), ends[0].min(), ends[1].max())
            records.append((quantity, "measured", strategy, label, *middle, note, said))
    return pd.DataFrame(records, columns=[*COLUMNS, "note", "said"])


def _changes(run: Run, stage: str, metric: str) -> pd.DataFrame:
    """Each strategy's fastest variant against the baseline: ``median``, ``low``, ``high``."""
    values = per_epoch(run, stage, metric)
    logs = repeat_logs(values[values > 0])
    left_out = _fetching_ahead(run) if stage == "fetch" else set()
    records = []
    for key in map(Key._make, _fastest_variants(run)):
        base = logs.get(key._replace(strategy=BASELINE[0], variant=BASELINE[1]))
        if base and key in logs and key.strategy != BASELINE[0] and key[:3] not in left_out:
            ratio = ratio_of(logs[key], base)
            change, low, high = (end - 1 for end in ratio.ends)
            ends = "one repeat" if ratio.repeats < 2 else f"{low:+.0%} to {high:+.0%}"
            said = f"**{change:+.0%}** ({ends}){undecided(ratio)}"
            records.append((*key, change, low, high, said))
    return pd.DataFrame(records, columns=[*SERIES, "median", "low", "high", "said"])


def _fetching_ahead(run: Run) -> set[tuple[str, ...]]:
    """Workload, strategy and variant of the series that have minibatches in flight meanwhile."""
    said = run.select(stage="fetch", metric="lookahead", basis="declared")
    return set(said[said["value"] > 0][SERIES[:3]].itertuples(index=False, name=None))


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


def published_changes(published: pd.DataFrame) -> pd.DataFrame:
    """What PyTorch-Direct's paper says of transfer time and power: as :func:`measured_changes`."""
    records = []
    published = published[published["table"] == "headlines"]
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
    """Fetch time of CPU gather over that of ``aligned_zero_copy`` on GPUs, variant by variant.

    Columns: ``group`` (graph, and machine where there are several), ``over`` (of CPU gather, the
    paper's baseline first) and ``variant`` (of zero-copy, the usual one first); ``rows`` of a mean
    minibatch, ``row_bytes``; ``interval`` (of the ratio) and ``ratio``. Variants that fetch ahead
    have no transfer time: they are left out.
    """
    usual, groups = build("aligned_zero_copy").variant, bar_groups(findings, "cuda")
    table = findings.derived("cuda", _transfers)
    if table.empty:
        return pd.DataFrame(columns=["group", "machine", *TRANSFERS])
    pairs = zip(table["machine"], table["workload"], strict=True)
    found = table.assign(
        group=[groups[pair] for pair in pairs],
        base=table["over"] != BASELINE[1],
        unusual=table["variant"] != usual,
    )
    return found.sort_values(["group", "base", "unusual"], kind="stable", ignore_index=True)


def _transfers(run: Run) -> pd.DataFrame:
    """Of each pair of variants the lines of :func:`measured_transfers`, by series."""
    logs, ahead = repeat_logs(run.values("fetch", "wall_time")), _fetching_ahead(run)
    waits = {key: values for key, values in logs.items() if key[:3] not in ahead}
    payload = run.values("fetch", "payload").groupby("workload").median()
    batches = run.values("epoch", "minibatches").groupby("workload").median()
    widths = run.rows[run.rows["metric"] == "row"].groupby("workload")["value"].median()
    records = []
    for (one, mine), (other, theirs) in itertools.product(waits.items(), repeat=2):
        names = (one.strategy, other.strategy)
        known = one.workload == other.workload and one.workload in widths
        if known and names == ("aligned_zero_copy", BASELINE[0]):
            ratio, width = ratio_of(theirs, mine), widths[one.workload]
            rows = payload[one.workload] / batches[one.workload] / width
            records.append((*one, other.variant, rows, width, ratio, ratio.value))
    return pd.DataFrame(records, columns=TRANSFERS)
