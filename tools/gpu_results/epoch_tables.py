"""Epochs: paths side by side, how far processes are apart, set-up, energy, the CPU's gather."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from gatherbench.bench.read.gpu import gpu_energy, gpu_power, idle_power_w
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


def in_turns(runs: Sequence[Run]) -> list[Run]:
    """Runs whose paths took turns in one process a repeat."""
    return [run for run in runs if run.processes]


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


def epochs(runs: Sequence[Run], brought: Mapping[str, Sequence[float]]) -> Iterator[str]:
    yield "## Epochs"
    yield ""
    yield (
        "All paths of a graph took turns in one process a repeat, epoch by epoch. Medians of an"
        " epoch and of its wait for rows; ratios are paired within blocks, with 95 % intervals over"
        " processes; of one process there is none. `null` is the floor: the same loop, whose rows"
        " lie ready. Each process of `fbf04e` was on a machine of its own, and each other run on"
        " one: they are of one kind, and differ by half in what issuing takes them."
    )
    yield ""
    for run in in_turns(runs):
        frame = summarise(run).query("basis == 'measured'")
        over = {baseline: ratios(run, baseline) for baseline in BASELINES}
        for workload in run.workloads:
            of = run.plan["workloads"][workload]
            fan_outs = ",".join(map(str, of["fanouts"]))
            yield (
                f"**{graph(workload)}**, fan-outs {fan_outs}, {of['max_batches']} minibatches"
                f" (`{run.run_id.split('-', 1)[1]}`):"
            )
            yield ""
            yield from table(
                ["path", "processes", "epoch", "fetch", *(f"over {b}" for b in BASELINES)],
                (
                    [
                        f"{row['strategy']} {row['variant']}".removesuffix(" default"),
                        f"{row['repeats']:.0f}",
                        f"{1e3 * row['median']:.1f} ms",
                        f"{1e3 * row['fetch']:.1f} ms",
                        *(
                            over[b][workload, str(row["strategy"]), str(row["variant"])]
                            for b in BASELINES
                        ),
                    ]
                    for row in frame[frame["workload"] == workload].to_dict("records")
                ),
            )
    yield from _between_processes(runs)
    yield from _setup(runs, brought)
    yield from _energy(runs)


def _between_processes(runs: Sequence[Run]) -> Iterator[str]:
    apart: dict[str, float] = {}
    for run in in_turns(runs):
        medians = run.values("epoch", "wall_time").groupby(["workload", *_PATH, "repeat"]).median()
        for (workload, strategy, variant), of in medians.groupby(["workload", *_PATH]):
            if len(of) > 1:
                path = f"{strategy} {variant}".removesuffix(" default")
                name = f"{path} on {graph(str(workload))}"
                apart[name] = max(apart.get(name, 1.0), float(of.max() / of.min()))
    close = sum(ratio <= 1.05 for ratio in apart.values())
    far = sorted(apart, key=lambda name: -apart[name])[:3]
    yield (
        f"**Between processes** of one path in one run, the longest median over the shortest:"
        f" within 5 % for {close} of {len(apart)}; furthest apart are"
        f" {', '.join(f'{name} ({apart[name]:.2f})' for name in far)}."
    )
    yield ""


def _setup(runs: Sequence[Run], brought: Mapping[str, Sequence[float]]) -> Iterator[str]:
    every = pd.concat([run.rows for run in in_turns(runs)])
    mine = (every["dataset"] == LARGE) & (every["stage"] == "setup")
    setup = every[mine & every["value"].notna()]

    def seconds(metric: str) -> str:
        # A path that finds the table registered by another takes microseconds.
        return ends(setup[(setup["metric"] == metric) & (setup["value"] > 0.01)]["value"], 1)

    def made(*, managed: bool) -> str:
        return ", ".join(
            f"{ends(of['value'], 1)} s (`{str(run).split('-', 1)[1]}`)"
            for run, of in setup[
                (setup["metric"] == "table_load_time")
                & (setup["source"].str.contains("managed") == managed)
            ].groupby("run_id")
        )

    given, touched = brought["touch16"]
    yield (
        "**Set-up** over 48 GiB: the table is made by hash in ordinary memory in"
        f" {made(managed=False)}, and in managed memory in {made(managed=True)}. Registering takes"
        f" {seconds('register_time')} s, scores by degree {seconds('score_time')} s (the least"
        " where another path had asked for them)."
    )
    yield ""
    yield (
        f"**Managed memory** alone is there in {touched:.1f} s where 16 threads touch it, in"
        f" {brought['touch4'][0]:.1f} where 4 do, and in {brought['prefetch'][0]:.1f} by"
        f" `cudaMemPrefetchAsync` (by 8 threads {brought['pthreads'][0]:.1f}); where the machine"
        f" has to be given the memory first, in {given:.1f} by 16 threads. The GPU reads it equally"
        " fast after each (`20261126-populate`). `gpu-decide-fbf04e` was the first run to touch it;"
        " its table took as long as before, in memory that its machines had to be given."
    )
    yield ""
    threads = {
        run.run_id.split("-", 1)[1]: ends(
            run.select(stage="setup", metric="gather_threads", basis="measured")["value"], 0
        )
        for run in in_turns(runs)
    }
    said = ", ".join(f"{count} in `{run}`" for run, count in threads.items())
    yield (
        f"**CPU gathers** of `pinned` and `prefetch` ran on these threads: {said}. Chosen on 8 MiB"
        " of rows they were too few. On all cores, chosen on 64 MiB, the training of an epoch"
        f" beside `prefetch` took {', '.join(_beside_prefetch(runs))} times as long as that of the"
        " floor. As few are taken now as gather within a tenth of the fastest; that is not timed"
        " yet."
    )
    yield ""


def _beside_prefetch(runs: Sequence[Run]) -> Iterator[str]:
    """By graph, where the gather had all 16 cores."""
    for run in in_turns(runs):
        threads = run.select(stage="setup", metric="gather_threads", basis="measured")["value"]
        train = run.values("train", "wall_time").groupby(["workload", *_PATH]).median()
        for workload in run.workloads if threads.min() == 16 else ():
            floor, ahead = (
                train[workload, *path] for path in (("null", "default"), ("cpu_gather", "prefetch"))
            )
            yield f"{ahead / floor:.2f} ({graph(workload)})"


_PATH = ["strategy", "variant"]


def _energy(runs: Sequence[Run]) -> Iterator[str]:
    for run in runs:
        energy = gpu_energy(run)
        if energy.empty:
            continue
        power = [float(watts) for watts in gpu_power(run)["median"]]
        idle = idle_power_w(run)
        yield (
            f"**Energy of the GPU per epoch** of {graph(run.workloads[0])} ({plan_of(run.run_id)};"
            f" over 10 s of further epochs, not the timed ones). Idle it takes {idle:.0f} W."
        )
        yield ""
        yield from table(
            ["path", "energy", "power"],
            (
                [f"{row['strategy']} {row['variant']}", f"{row['median']:.0f} J", f"{watts:.0f} W"]
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
