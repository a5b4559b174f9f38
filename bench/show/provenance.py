"""Describe a run in sentences: what was measured on which machine, and warnings."""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.read.derive import noise, noisy_series, problems
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import quantity, short


def modelled_for(run: Run) -> list[str]:
    """List the link profiles for which epochs were modelled."""
    return sorted(set(run.predicted["machine"]))


def borrowed(run: Run) -> str:
    """Say that modelled epochs use times of this run, if they do."""
    if run.predicted["borrowed"].isna().all():
        return ""
    return " Modelled epochs take the time of minibatches from this run."


def warnings_of(run: Run) -> list[str]:
    """Return warnings for the run's charts: no GPU took part, or the host was busy."""
    cautions = [] if run.has_gpu else ["Host memory only: no GPU and no PCIe link took part"]
    if noisy_series(run):  # else only clean repeats count
        cautions.append(f"Noisy: {noise(run)}; measure again on an idle machine")
    return cautions


def repeats_of(run: Run) -> str:
    """Return the repeats per series, such as ``6 to 9 repeats``; before any ends, the planned."""
    series = ["workload", "strategy", "variant"]
    ended = run.ended[run.ended["status"].eq("ok") & run.ended["used"]]
    cases = ended if len(ended) else pd.DataFrame(run.plan["cases"])
    counts = cases.groupby(series).size()
    low, high = counts.min(), counts.max()
    return f"{low} to {high} repeats" if low < high else f"{low} repeat{'' if low == 1 else 's'}"


def provenance(run: Run) -> str:
    """Describe what was measured on which machine, and how often."""
    epochs, dropped = (run.plan["measure"][name] for name in ("epochs", "warmup_epochs"))
    processor = run.env.get("cpu", {}).get("model", "unknown processor")
    measured = run.epochs[(run.epochs["basis"] == "measured") & (run.epochs["rank"] < 0)]
    backends = ", ".join(sorted({*measured["backend"]})) or "none"
    modelled = ", some epochs modelled" if modelled_for(run) else ""
    others = [
        f"{name} ({package['package']} {package['version']})"
        for names in run.env.get("plugins", {}).values()
        for name, package in names.items()
    ]
    turns = ", paths in turns in one process a repeat" if run.in_turns else ""
    added = f" Installed plug-ins: {', '.join(others)}." if others else ""
    return (
        f"{repeats_of(run)} × {epochs} epoch{'s' * (epochs != 1)}, {dropped} warm-up"
        f" epoch{'s' * (dropped != 1)} dropped{turns}. Machine {run.machine or 'unknown'}"
        f" ({processor}), backend {backends}{modelled}, commit {run.commit or 'unknown'},"
        f" run {run.run_id}.{added}"
    )


def cases_ended(run: Run) -> dict[str, int]:
    """Count the cases that are ``ok``, ``failed`` and ``skipped``, and planned ones ``not run``."""
    ended = run.ended["status"]
    counts = {status: int((ended == status).sum()) for status in ("ok", "failed", "skipped")}
    bad = problems(run)
    return {**counts, "not run": int(bad.loc[bad["status"] == "not run", "repeats"].sum())}


def gpu_of(run: Run) -> str:
    """Return the name of the GPU that the run used, else of all present ones; empty: none."""
    gpus, used = run.env.get("gpus") or [], run.env.get("gpu_in_use")
    used_gpus = [gpu for gpu in gpus if used and gpu.get("uuid_hash") == used] or gpus
    return ", ".join(sorted({str(gpu.get("name", "unnamed")) for gpu in used_gpus}))


def in_short(run: Run) -> list[tuple[str, str]]:
    """Return the main facts for the head of a report: names and values."""
    cpu, counts = run.env.get("cpu", {}), cases_ended(run)
    epochs, dropped = map(run.plan["measure"].get, ("epochs", "warmup_epochs"))
    many, workers = f"{repeats_of(run)} × {epochs} epochs", run.sampler_workers
    drawn = f"{run.drawn}, {workers} worker{'s' * (workers > 1)}" if workers else run.drawn
    ended = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
    cores, memory = cpu.get("usable_cores"), run.env.get("memory", {}).get("total")
    host = [cpu.get("model") or "unknown processor"]
    host += [f"{cores} cores"] * bool(cores) + [quantity(memory, "B")] * bool(memory)
    return [
        ("Machine", run.machine or "none yet"),
        ("Processor", short(", ".join(host))),
        ("GPU", short(gpu_of(run) or "none: figures are of host memory")),
        ("Plan", short(run.plan.get("description") or run.plan.get("name", "unnamed"), 160)),
        ("Cases", ended),
        ("Epochs", f"{many}, {dropped} warm-up dropped, sampling {drawn}"),
        ("Commit", short(run.commit or "unknown")),
    ]
