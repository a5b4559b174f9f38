"""Small run folders, written here by hand so that a mistake of the store cannot hide itself."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gatherbench.bench.run.rows import HEADER, SCHEMA_VERSION

#: Strategy, variant, and the seconds of an epoch it spends sampling, fetching and training.
BASELINE = ("cpu_gather", "naive", (0.2, 1.0, 0.5))
PINNED = ("cpu_gather", "pinned", (0.2, 0.6, 0.5))
ZERO_COPY = ("unified_zero_copy", "registered", (0.2, 0.4, 0.5))
EIGHT = (
    BASELINE,
    PINNED,
    ("cpu_gather", "prefetch", (0.2, 0.45, 0.5)),
    ZERO_COPY,
    ("aligned_zero_copy", "registered,given", (0.2, 0.35, 0.5)),
    ("aligned_zero_copy", "registered,sorted", (0.2, 0.3, 0.5)),
    ("async_zero_copy", "stream", (0.2, 0.05, 0.55)),
    ("all_in_gpu", "default", (0.2, 0.1, 0.5)),
)
PAYLOAD_BYTES = 2.0e9


def write_run(
    folder: Path,
    *,
    series: Sequence[tuple[str, str, tuple[float, float, float]]] = (BASELINE, PINNED, ZERO_COPY),
    workloads: Sequence[str] = ("wordnet-sage16x2-b1000-1f2e3d4c",),
    repeats: int = 3,
    epochs: int = 4,
    backend: str = "host",
    failures: dict[tuple[str, str], tuple[str, str]] | None = None,
    modelled: Sequence[tuple[str, str, Any]] = (),
    borrowed: Mapping[tuple[str, str], Sequence[str]] | None = None,
    profile: str = "rtx3090-pcie4",
    cut_off: Sequence[tuple[str, str]] = (),
    jitter: float = 0.0,
    other_cores: float = 0.0,
    beside: tuple[str, str, int] | None = None,
    machine: str = "cpu-amd-epyc-2c",
    schema_version: int = SCHEMA_VERSION,
) -> Path:
    """Write a run; ``failures`` maps a series to its status and reason, ``cut_off`` never ran.

    A ``modelled`` series has its times, or a list of them: one for each corner of the profile. Of
    what is ``borrowed`` the stages are named. Other work has ``other_cores`` beside every case, or
    only ``beside`` that one (its repeat last).
    """
    folder.mkdir(parents=True)
    rng = np.random.default_rng(7)
    failures = failures or {}
    cases: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    samples: list[tuple[Any, ...]] = []

    def row(
        key: dict[str, Any], stage: str, metric: str, unit: str, value: Any, **more: Any
    ) -> None:
        fields = {
            "run_id": folder.name,
            "schema_version": schema_version,
            "commit": "0123456789ab",
            "machine": machine,
            "backend": backend,
            "basis": "measured",
            "dataset": "wordnet",
            "epoch": -1,
            "source": "test",
            "status": "ok",
            "reason": "",
            "borrowed": "",
            **key,
            "stage": stage,
            "metric": metric,
            "unit": unit,
            "value": value,
            **more,
        }
        rows.append(fields)

    def epoch(key: dict[str, Any], times: tuple[float, float, float], number: int) -> None:
        scale = rng.lognormal(0, jitter)
        sample, fetch, train = (t * scale for t in times)
        at = {**key, "epoch": number}
        for stage, value in (("sample", sample), ("fetch", fetch), ("train", train)):
            row(at, stage, "wall_time", "s", value)
        row(at, "epoch", "wall_time", "s", sample + fetch + train + 0.01)
        row(at, "epoch", "cpu_user", "s", 2 * fetch + train)
        row(at, "epoch", "cpu_system", "s", 0.1 * fetch)
        case = (key["strategy"], key["variant"], key["repeat"])
        other_s = other_cores * 2.0 if beside in (None, case) else 0.0
        row(at, "epoch", "system_cpu_busy", "s", 2.1 * fetch + train + other_s)
        row(at, "epoch", "window_time", "s", 2.0)
        row(at, "epoch", "cpu_main", "s", fetch + train)
        row(at, "epoch", "cpu_gather_workers", "s", fetch)
        for metric in ("sampler_workers", "torch_pool", "other_threads", "ended_threads", "meters"):
            row(at, "epoch", f"cpu_{metric}", "s", 0.02 * fetch)
        reason = "no_device: none here"
        row(at, "epoch", "gpu_energy", "J", "", status="skipped", reason=reason)
        row(at, "fetch", "payload", "B", PAYLOAD_BYTES)

    for w, workload in enumerate(workloads):
        for strategy, variant, times in series:
            for repeat in range(repeats):
                key = {
                    "workload": workload,
                    "strategy": strategy,
                    "variant": variant,
                    "repeat": repeat,
                }
                cases.append({**key, "params": {}})
                if (strategy, variant) in cut_off:
                    continue
                if (strategy, variant) in failures:
                    status, reason = failures[strategy, variant]
                    row(key, "case", "wall_time", "s", "", status=status, reason=reason)
                    continue
                row(key, "setup", "open_time", "s", 0.3)
                for number in range(epochs):
                    epoch(key, tuple(t * (w + 1) for t in times), number)
                    samples.append((workload, strategy, variant, repeat, number, "fetch", 0, 0.1))
                row(key, "case", "wall_time", "s", 10.0)
        for strategy, variant, times in modelled:
            key = {"workload": workload, "strategy": strategy, "variant": variant, "repeat": 0}
            key |= {"backend": "cuda", "basis": "predicted", "machine": profile}
            key["borrowed"] = " ".join((borrowed or {}).get((strategy, variant), ()))
            for number, corner in enumerate(times if isinstance(times, list) else [times]):
                epoch(key, tuple(t * (w + 1) for t in corner), number)
    plan = {
        "name": "quick",
        "description": "a test",
        "device": "cpu",
        "measure": {"repeats": repeats, "warmup_epochs": 1, "epochs": epochs, "sampling": "live"},
        "workloads": {
            workload: {
                "dataset": "wordnet",
                "scale": 1.0,
                "model": "sage",
                "hidden": 16,
                "fanouts": [25, 10],
                "batch_size": 1000,
                "max_batches": 0,
                "seed": 0,
            }
            for workload in workloads
        },
        "cases": cases,
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    gpus = [{"name": "NVIDIA H200"}] if backend == "cuda" else []
    env = {"cpu": {"model": "AMD EPYC", "usable_cores": 2}, "gpus": gpus}
    (folder / "env.json").write_text(json.dumps(env))
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, HEADER, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    columns = ["workload", "strategy", "variant", "repeat", "epoch", "stage", "batch", "value_s"]
    pd.DataFrame(samples, columns=columns).to_parquet(folder / "samples.parquet")
    return folder
