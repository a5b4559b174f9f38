"""Epochs: medians, how far processes are apart, drawing, energy, the processor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import pandas as pd

from gatherbench.bench.read.cpu import cores_of, thread_seconds
from gatherbench.bench.read.derive import epoch_times
from gatherbench.bench.read.gpu import gpu_energy, gpu_power, idle_power_w
from gatherbench.bench.read.tables import Run
from tools.gpu_results.gathers import host_gathers
from tools.gpu_results.words import ends, graph, plan_of, table

#: Workload, strategy, variant.
Series = tuple[str, str, str]


def epochs(runs: Sequence[Run]) -> Iterator[str]:
    yield "## Epochs"
    yield ""
    plan = next(iter(runs[0].plan["workloads"].values()))
    fan_outs = ",".join(map(str, plan["fanouts"]))
    yield (
        f"Median seconds of {plan['max_batches']} minibatches (fan-outs {fan_outs}, hidden"
        f" {plan['hidden']}, drawn on the GPU), one process each."
    )
    yield ""
    medians = {}
    for run in runs:
        times = epoch_times(run).query("backend == 'cuda' and basis == 'measured'")
        for row in times.to_dict("records"):
            case = (str(row["strategy"]), str(row["variant"]))
            medians[run.run_id, str(row["workload"]), *case] = float(row["median"])
    groups = list(dict.fromkeys(key[:2] for key in medians))
    paths = list(dict.fromkeys(key[2:] for key in medians))
    yield from table(
        ["path", *(f"{graph(w)} ({plan_of(r)})" for r, w in groups)],
        (
            [
                " ".join(path).removesuffix(" default"),
                *(f"{medians[(*g, *path)]:.2f}" if (*g, *path) in medians else "" for g in groups),
            ]
            for path in paths
        ),
    )
    yield from _between_processes(runs, medians)
    every = pd.concat([run.samples[run.samples["stage"] == "sample"] for run in runs])
    first = every[every["batch"] == 0]["value_s"].median()
    later = every[every["batch"] > 0]["value_s"].median()
    drawing = [seconds for run in runs for seconds in _by_epoch(run, ["sample"]).values()]
    yield (
        f"**Drawing** takes {ends(drawing)} s of them (medians of a path's epochs). Of that the"
        f" first minibatch takes {1e3 * first:.0f} ms and each other {1e3 * later:.1f}: sorting all"
        f" seeds is some {1e3 * (first - later):.0f} ms an epoch. This was a sampler in torch"
        " operations; the one of now has kernels of its own, and is not yet timed on a GPU."
    )
    yield ""
    yield from _energy(runs)


def _between_processes(
    runs: Sequence[Run], medians: dict[tuple[str, str, str, str], float]
) -> Iterator[str]:
    """Paths that ran in two processes; of cases that did not end, by the stages of their epochs."""
    seen: defaultdict[Series, list[tuple[float | None, float]]] = defaultdict(list)
    for run in runs:
        for path, seconds in _by_epoch(run, ["sample", "fetch", "train"]).items():
            seen[path].append((medians.get((run.run_id, *path)), seconds))
    rows = []
    for (workload, strategy, variant), found in seen.items():
        if len(found) > 1:
            whole = [epoch for epoch, _ in found if epoch is not None]
            ended = len(whole) == len(found)
            times = whole if ended else [stages for _, stages in found]
            name = f"{strategy} {variant}".removesuffix(" default")
            how = "" if ended else "by the stages of its epochs: a case did not end"
            rows.append([graph(workload), name, f"{max(times) / min(times):.2f}", how])
    yield (
        "**Between processes** of one path, the longest epoch over the shortest: no order among"
        " paths as close as that is claimed."
    )
    yield ""
    yield from table(["graph", "path", "ratio", ""], rows)


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


def processor(runs: Sequence[Run], samples: pd.DataFrame) -> Iterator[str]:
    yield "## The processor"
    yield ""
    busy, torch = [], []
    for run in runs:
        window = run.values("epoch", "window_time").groupby(["workload", "strategy", "variant"])
        seconds = window.median()
        for row in thread_seconds(run).to_dict("records"):
            case = (row["workload"], row["strategy"], row["variant"])
            busy.append(row["median"] / seconds[case])
            torch.append(row["torch"] / seconds[case])
    yield (
        f"An epoch kept {ends(busy, 0)} of {cores_of(runs[0])} cores busy, torch's pool"
        f" {ends(torch, 0)} of them: it spins for milliseconds after an operation. Ids are checked"
        " and copied without it since; that has not been measured on a GPU again."
    )
    yield ""
    yield "The CPU's gather of rows of 512 B out of 32 GiB (`calibrate`), by threads:"
    yield ""
    rates = host_gathers(samples)
    yield from table(
        ["threads", *map(str, rates)], [["GB/s", *(f"{rate / 1e9:.1f}" for rate in rates.values())]]
    )


def _by_epoch(run: Run, stages: Sequence[str]) -> dict[Series, float]:
    """Median seconds of an epoch in these stages, of cases that did not end, too."""
    samples = pd.read_parquet(run.folder / "samples.parquet")
    mine = samples[samples["stage"].isin(stages)]
    sums = mine.groupby(["workload", "strategy", "variant", "epoch"])["value_s"].sum()
    medians = sums.groupby(["workload", "strategy", "variant"]).median()
    return dict(zip(medians.index, map(float, medians), strict=True))
