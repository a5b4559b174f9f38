"""Epochs: paths side by side, how far processes are apart, set-up, energy, the CPU's gather."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterator, Mapping, Sequence

import pandas as pd

from gatherbench.bench.read.derive import cpu_seconds
from gatherbench.bench.read.gpu import gpu_energy, gpu_power, idle_power_w
from gatherbench.bench.read.issuing import issue_shares
from gatherbench.bench.read.modelled import speedups
from gatherbench.bench.read.summary import summarise
from gatherbench.bench.read.tables import Run
from tools.gpu_results.gathers import host_gathers
from tools.gpu_results.words import ends, graph, plan_of, table

#: Workload, strategy, variant.
Series = tuple[str, str, str]
#: Paths that others are set beside.
BASELINES = ("naive", "pinned", "prefetch")
LARGE = "hashed-papers"


def decided(runs: Sequence[Run]) -> Run:
    """The run with every path: the newest of the plan ``gpu-decide``."""
    return [run for run in runs if plan_of(run.run_id) == "gpu-decide"][-1]


def ratios(run: Run, baseline: str) -> dict[Series, str]:
    """How many times as fast as a ``cpu_gather`` each series is, with its interval if it has one:
    ``13.0 (12.6–13.5)``.
    """
    found = {}
    measured = speedups(run, "cpu_gather", baseline).query("basis == 'measured'")
    for row in measured.to_dict("records"):
        value, low, high = (f"{row[name]:#.3g}" for name in ("speedup", "low", "high"))
        path = (str(row["workload"]), str(row["strategy"]), str(row["variant"]))
        found[path] = f"{value} ({low}–{high})" if row["low"] < row["high"] else value
    return found


def aligned_over_unaligned(run: Run) -> list[str]:
    """How many times as fast an aligned path is as an unaligned one, by graph."""
    found = speedups(run, "unified_zero_copy", "registered").query(
        "basis == 'measured' and strategy == 'aligned_zero_copy' and variant == 'given'"
    )
    by_workload = found.set_index("workload")
    return [
        f"{one['speedup']:.3f} ({one['low']:.3f}–{one['high']:.3f}) on {graph(str(workload))}"
        for workload, one in by_workload.loc[run.workloads].iterrows()
    ]


def epochs(runs: Sequence[Run], brought: Mapping[str, Sequence[float]]) -> Iterator[str]:
    run = decided(runs)
    frame = summarise(run).query("basis == 'measured'")
    over = {baseline: ratios(run, baseline) for baseline in BASELINES}
    yield "## Epochs"
    yield ""
    yield (
        "All paths of a graph took turns in one process a repeat, epoch by epoch, on one machine"
        f" (`{run.folder.name}`). Medians of an epoch and of its wait for rows; ratios are paired"
        " within blocks, with 95 % intervals over processes. `no_fetch` is the limit: the same"
        " loop without any fetch. Left out are epochs of `prefetch` that torch's spinning"
        " threads slowed ([why](../README.md))."
    )
    yield ""
    for workload in run.workloads:
        of = run.plan["workloads"][workload]
        fan_outs = ",".join(map(str, of["fanouts"]))
        mine = frame[frame["workload"] == workload]
        yield (
            f"**{graph(workload)}**, fan-outs {fan_outs}, {of['max_batches']} minibatches,"
            f" {ends(mine['repeats'], 0)} processes:"
        )
        yield ""
        yield from table(
            ["path", "epoch", "fetch", *(f"over {b}" for b in BASELINES)],
            (
                [
                    _named(row),
                    f"{1e3 * row['median']:.1f} ms",
                    f"{1e3 * row['fetch']:.1f} ms",
                    *(
                        over[b][workload, str(row["strategy"]), str(row["variant"])]
                        for b in BASELINES
                    ),
                ]
                for row in mine.to_dict("records")
            ),
        )
    yield from _between_processes(run)
    yield from _issuing(run)
    yield from _setup(run, brought)
    yield from _energy(runs)


def _between_processes(run: Run) -> Iterator[str]:
    apart: dict[str, float] = {}
    medians = run.values("epoch", "wall_time").groupby(["workload", *_PATH, "repeat"]).median()
    for (workload, strategy, variant), of in medians.groupby(["workload", *_PATH]):
        path = f"{strategy} {variant}".removesuffix(" default")
        apart[f"{path} on {graph(str(workload))}"] = float(of.max() / of.min())
    close = sum(ratio <= 1.05 for ratio in apart.values())
    far = sorted(apart, key=lambda name: -apart[name])[:3]
    yield (
        f"**Between processes** of one path, the longest median over the shortest: within 5 % for"
        f" {close} of {len(apart)}; furthest apart are"
        f" {', '.join(f'{name} ({apart[name]:.2f})' for name in far)}."
    )
    yield ""


def issuing(run: Run) -> dict[str, tuple[list[float], list[float]]]:
    """By graph, a process each: seconds in which the host issues a step of ``no_fetch``, in the
    loop and alone. Alone two paths that fetch ahead time it: the shorter counts.
    """
    loop = run.values("host", "issue_train").groupby(["workload", "strategy", "repeat"]).median()
    alone = run.values("setup", "train_alone_step_time").groupby(["workload", "repeat"]).min()
    found = {}
    for workload in run.workloads:
        steps = run.plan["workloads"][workload]["max_batches"]
        mine = loop.loc[workload, "no_fetch", :] / steps, alone.loc[workload, :]
        found[graph(workload)] = (mine[0].to_list(), mine[1].to_list())
    return found


def host_shares(run: Run) -> pd.Series[float]:
    """Of epochs on graphs that fit what the host issues, by paths that do not gather on the CPU."""
    found = issue_shares(run)
    mine = (found["strategy"] != "cpu_gather") & ~found["workload"].str.startswith(LARGE)
    return found.loc[mine, ["draw", "train", "fetch"]].sum(axis=1)


def _issuing(run: Run) -> Iterator[str]:
    found = issuing(run)
    loops, alones = (
        ", ".join(
            f"{ends((1e3 * s for s in times[i]), 1)} ms ({name})" for name, times in found.items()
        )
        for i in (0, 1)
    )
    over = [a / b for loop, alone in found.values() for a, b in zip(loop, alone, strict=True)]
    yield (
        f"**Issuing a step** takes the thread that trains {loops} in the loop of `no_fetch`, and"
        f" alone {alones}: {statistics.median(over):.2f} times as long in the middle of"
        f" {len(over)} processes ({ends(over)}). It differs from process to process of one"
        " machine, and with it every epoch that the host bounds."
    )
    yield ""


def _setup(run: Run, brought: Mapping[str, Sequence[float]]) -> Iterator[str]:
    mine = (run.rows["dataset"] == LARGE) & (run.rows["stage"] == "setup")
    setup = run.rows[mine & run.rows["value"].notna()]

    def seconds(metric: str) -> str:
        # A path that finds the table registered by another takes microseconds.
        return ends(setup[(setup["metric"] == metric) & (setup["value"] > 0.01)]["value"], 1)

    def made(*, managed: bool) -> str:
        load = setup[setup["metric"] == "table_load_time"]
        return ends(load[load["source"].str.contains("managed") == managed]["value"], 1)

    given, touched = brought["touch16"]
    yield (
        "**Set-up** over 48 GiB: the table is made by hash in ordinary memory in"
        f" {made(managed=False)} s, and in managed memory in {made(managed=True)} s. Registering"
        f" takes {seconds('register_time')} s, scores by degree {seconds('score_time')} s (the"
        " least where another path had asked for them)."
    )
    yield ""
    yield (
        f"**Managed memory** alone is there in {touched:.1f} s where 16 threads touch it, in"
        f" {brought['touch4'][0]:.1f} where 4 do, and in {brought['prefetch'][0]:.1f} by"
        f" `cudaMemPrefetchAsync` (by 8 threads {brought['pthreads'][0]:.1f}); where the machine"
        f" has to be given the memory first, in {given:.1f} by 16 threads. The GPU reads it equally"
        " fast after each (`20261126-populate`)."
    )
    yield ""
    threads = run.select(stage="setup", metric="gather_threads", basis="measured")["value"]
    yield (
        f"**CPU gathers** of `pinned` and `prefetch` ran on {ends(threads, 0)} of 16 threads, as"
        " few as gather within a tenth of the fastest. Beside `prefetch` training took"
        f" {', '.join(_beside_prefetch(run))} times as long to issue as beside nothing."
    )
    yield ""


def _beside_prefetch(run: Run) -> Iterator[str]:
    """By graph: issuing, by the clock of the thread that trains."""
    train = run.values("host", "issue_train").groupby(["workload", *_PATH]).median()
    for workload in run.workloads:
        floor, ahead = (
            train[workload, *path] for path in (("no_fetch", "default"), ("cpu_gather", "prefetch"))
        )
        yield f"{ahead / floor:.2f} ({graph(workload)})"


_PATH = ["strategy", "variant"]


def _named(row: Mapping[Hashable, object]) -> str:
    return f"{row['strategy']} {row['variant']}".removesuffix(" default")


def _energy(runs: Sequence[Run]) -> Iterator[str]:
    for run in runs:
        energy = gpu_energy(run)
        if energy.empty:
            continue
        power = [float(watts) for watts in gpu_power(run)["median"]]
        idle = idle_power_w(run)
        cores = cpu_seconds(run).set_index(_PATH)["median"]
        yield (
            f"**Energy of the GPU per epoch** of {graph(run.workloads[0])} ({plan_of(run.run_id)},"
            f" processes: {run.rows['repeat'].max() + 1}; over 10 s of further epochs, not the"
            f" timed ones). Idle it takes {idle:.0f} W: *above idle* is without that power times"
            " the time. The host's energy was not measured. Core-seconds are those of the timed"
            " epochs of the same process."
        )
        yield ""
        yield from table(
            ["path", "energy", "above idle", "power", "core-seconds"],
            (
                [
                    _named(row),
                    f"{row['median']:.2g} J",
                    f"{row['above idle']:.2f} J",
                    f"{watts:.0f} W",
                    f"{cores[str(row['strategy']), str(row['variant'])]:.2g}",
                ]
                for row, watts in zip(energy.to_dict("records"), power, strict=True)
            ),
        )


def processor(samples: pd.DataFrame) -> Iterator[str]:
    yield "## The processor"
    yield ""
    yield "The CPU's gather of rows of 512 B out of 32 GiB (`calibrate`), by threads:"
    yield ""
    rates = host_gathers(samples)
    yield from table(
        ["threads", *map(str, rates)], [["GB/s", *(f"{rate / 1e9:.1f}" for rate in rates.values())]]
    )
