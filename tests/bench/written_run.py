"""Small run folders, of rows that are written here by hand."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tests.bench.observations import rows_of_run
from tests.bench.observations import write_rows as write_observations

from gatherbench.bench.run.rows import HEADER, SCHEMA_VERSION, Row
from gatherbench.bench.run.store import RunStore

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
WORKLOAD = "wordnet-sage16x2-b1000-1f2e3d4c"
#: Of a workload in ``plan.json``.
FIELDS: dict[str, Any] = {
    "dataset": "wordnet", "scale": 1.0, "model": "sage", "hidden": 16, "fanouts": [25, 10],
    "batch_size": 1000, "max_batches": 0, "seed": 0,
}  # fmt: skip
#: What its stages, and what is between them, take of an epoch of which only the seconds are given.
SHARES = (0.2, 0.5, 0.29, 0.01)
#: What an epoch spends beside its stages, s.
BETWEEN = 0.01
PAYLOAD_BYTES = 2.0e9
#: What a zero-copy path of 2 GB in 20 minibatches says of itself, by stage and unit.
DECLARED: dict[tuple[str, str], dict[str, float]] = {
    ("fetch", "B"): {
        "declared_payload": 2e9, "gpu_link_read": 2e9, "gpu_table": 7e7, "row": 1280,
    },
    ("fetch", "1"): {"gpu_requests_128_bytes": 2e9 / 128, "lookahead": 0, "gpu_share": 0},
    ("sample", "1"): {"minibatches": 20, "edges": 4e5},
    ("train", "1"): {"operations": 3e9, "launches": 1440},
    ("train", "B"): {"gpu_memory": 2e9, "structure": 6e6},
}  # fmt: skip


def rows_in(folder: Path) -> list[dict[str, str]]:
    """Every observation of a run, as texts; what is missing is empty."""
    return [
        {name: "" if (of := getattr(row, name)) is None else str(of) for name in HEADER}
        for row in rows_of_run(folder)
    ]


def write_rows(folder: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the tables of a run anew."""
    made = []
    for row in rows:
        numbers = {name: int(row[name]) for name in ("schema_version", "repeat", "epoch", "rank")}
        value = float(row["value"]) if row.get("value") not in ("", None) else None
        made.append(Row(**{**row, **numbers, "value": value, "reason": row["reason"] or None}))
    write_observations(RunStore(folder), made)


def append_rows(folder: Path, rows: Iterable[Mapping[str, Any]], **fixed: Any) -> None:
    """Add rows to a run's tables; what they and ``fixed`` leave out is filled in."""
    usual = {
        "run_id": folder.name,
        "schema_version": SCHEMA_VERSION,
        "commit": "0123456789ab",
        "machine": "cpu-amd-epyc-2c",
        "backend": "host",
        "basis": "measured",
        "workload": WORKLOAD,
        "dataset": "wordnet",
        "repeat": 0,
        "epoch": -1,
        "source": "test",
        "status": "ok",
        "reason": "",
        "borrowed": "",
        "rank": -1,
    }
    known = rows_in(folder) if (folder / "epochs.csv").exists() else []
    write_rows(folder, [*known, *({**usual, **fixed, **row} for row in rows)])


Change = Callable[[dict[str, str]], None]
#: More rows of a case (workload, strategy, variant), by repeat and epoch; -1: of the case itself.
More = Callable[[tuple[str, str, str], int, int], Iterable[Mapping[str, Any]]]


def edit(
    folder: Path, *changes: Change, keep: Callable[[dict[str, str]], bool] = lambda row: True
) -> None:
    """Change each row of the tables in place; drop those that are not to ``keep``."""
    rows = [row for row in rows_in(folder) if keep(row)]
    for row in rows:
        for change in changes:
            change(row)
    write_rows(folder, rows)


def change(file: Path, what: Callable[[Any], Any]) -> None:
    """Change what a JSON file holds, or put what is returned in its place."""
    content = json.loads(file.read_text())
    file.write_text(json.dumps(what(content) or content))


def put(value: Callable[[dict[str, str]], object], **where: str) -> Change:
    """Put a value, of the row, into rows with these fields."""

    def change(row: dict[str, str]) -> None:
        if all(row[name] == of for name, of in where.items()):
            row["value"] = str(value(row))

    return change


def fail(reason: str, variant: str, repeat: str) -> Change:
    """Have a repeat of a path end badly."""

    def change(row: dict[str, str]) -> None:
        if (row["stage"], row["variant"], row["repeat"]) == ("case", variant, repeat):
            row.update(status="failed", value="", reason=reason)

    return change


def seen(stage: str, unit: str, values: Mapping[str, Any], **more: Any) -> list[dict[str, Any]]:
    """A row for each metric."""
    return [
        {"stage": stage, "metric": metric, "unit": unit, "value": value, **more}
        for metric, value in values.items()
    ]


def epoch_rows(
    times: Sequence[float], other_s: float = 0.0, payload: float = PAYLOAD_BYTES
) -> list[dict[str, Any]]:
    """The rows of an epoch; ``times``: of its stages, and of what is between them."""
    sample, fetch, train, between = times
    whole = {
        "wall_time": sample + fetch + train + between,
        "cpu_user": 2 * fetch + train,
        "cpu_system": 0.1 * fetch,
        "system_cpu_busy": 2.1 * fetch + train + other_s,
        "window_time": 2.0,
    }
    none = {"status": "skipped", "reason": "no_device: none here"}
    stages = {"sample": sample, "fetch": fetch, "train": train}
    return [
        *(row for stage, s in stages.items() for row in seen(stage, "s", {"wall_time": s})),
        *seen("epoch", "s", whole),
        *seen("epoch", "J", {"gpu_energy": ""}, **none),
        *seen("fetch", "B", {"payload": payload}),
    ]


def write_run(
    folder: Path,
    *,
    series: Sequence[tuple[str, str, Any]] = (BASELINE, PINNED, ZERO_COPY),
    workloads: Sequence[str] | Mapping[str, Mapping[str, Any]] = (WORKLOAD,),
    dataset: str = "wordnet",
    repeats: int = 3,
    epochs: int = 4,
    backend: str = "host",
    failures: Mapping[tuple[str, ...], tuple[str, str]] | None = None,
    more: More = lambda _case, _repeat, _epoch: (),
    modelled: Sequence[tuple[str, str, Any]] = (),
    borrowed: Mapping[tuple[str, str], Sequence[str]] | None = None,
    profile: str = "rtx3090-pcie4",
    cut_off: Sequence[tuple[str, str]] = (),
    declared: bool = False,
    jitter: float = 0.0,
    longer: Callable[[int, int, int], float] = lambda workload, repeat, epoch: workload + 1,
    other_cores: float = 0.0,
    beside: tuple[str, str, int] | None = None,
    machine: str = "cpu-amd-epyc-2c",
    plan_name: str = "quick",
    max_batches: int = 0,
    sampling: str = "live",
) -> Path:
    """Write a run; ``failures`` maps a series to its status and reason, ``cut_off`` never ran.

    A series that fails on one workload alone has the workload's id before its names. ``more`` gives
    what else a case and its epochs observed. A series has its times (of the stages or the whole),
    or those of each workload by its id. Where ``workloads`` are mapped to fields, those are not as
    usual. A ``modelled`` series has its times. Of what is ``borrowed`` the stages are named. Other
    work has ``other_cores`` beside every case, or only ``beside`` that one (its repeat last).
    Epochs of a workload, repeat and epoch (numbers) are ``longer`` by that factor. ``declared``:
    the first repeats say :data:`DECLARED` of themselves.
    """
    folder.mkdir(parents=True)
    rng = np.random.default_rng(7)
    changes = workloads if isinstance(workloads, Mapping) else {}
    failures, borrowed = failures or {}, borrowed or {}
    cases: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    samples: list[tuple[Any, ...]] = []

    def add(key: Mapping[str, Any], *made: Mapping[str, Any]) -> None:
        rows.extend({**key, **row} for row in made)

    def scaled(times: Sequence[float] | float, factor: float) -> tuple[float, ...]:
        """The same factor for each stage; what is between them only where it was given."""
        if isinstance(times, float):
            times = [share * times for share in SHARES]
        return (*(factor * t for t in times), *([] if len(times) == 4 else [BETWEEN]))

    for w, workload in enumerate(workloads):
        for strategy, variant, given in series:
            times = given[workload] if isinstance(given, Mapping) else given
            for repeat in range(repeats):
                key = {"workload": workload, "strategy": strategy, "variant": variant}
                key |= {"repeat": repeat}
                cases.append({**key, "params": {}})
                if (strategy, variant) in cut_off:
                    continue
                case = (workload, strategy, variant)
                if failed := failures.get(case) or failures.get((strategy, variant)):
                    status, reason = failed
                    add(key, *seen("case", "s", {"wall_time": ""}, status=status, reason=reason))
                    continue
                add(key, *seen("check", "1", {"batches": 3}, source="compared bit for bit"))
                if declared and repeat == 0:
                    for of, facts in DECLARED.items():
                        add(key, *seen(*of, facts, basis="declared"))
                    add(key, *seen("setup", "B", {"table": 1.4e8}))
                add(key, *seen("setup", "s", {"open_time": 0.3}), *more(case, repeat, -1))
                other_s = other_cores * 2.0 if beside in (None, (strategy, variant, repeat)) else 0
                for number in range(epochs):
                    factor = rng.lognormal(0, jitter) * longer(w, repeat, number)
                    add({**key, "epoch": number}, *epoch_rows(scaled(times, factor), other_s))
                    add({**key, "epoch": number}, *more(case, repeat, number))
                    samples.append((workload, strategy, variant, repeat, number, "fetch", 0, 0.1))
                add(key, *seen("case", "s", {"wall_time": 10.0}))
        for strategy, variant, times in modelled:
            key = {"workload": workload, "strategy": strategy, "variant": variant, "repeat": 0}
            key |= {"backend": "cuda", "basis": "predicted", "machine": profile}
            key["borrowed"] = " ".join(borrowed.get((strategy, variant), ()))
            add({**key, "epoch": 0}, *epoch_rows(scaled(times, longer(w, 0, 0))))
    fixed = {"dataset": dataset, "max_batches": max_batches}
    plan = {
        "name": plan_name,
        "description": "a test",
        "device": "cpu",
        "measure": {"repeats": repeats, "warmup_epochs": 1, "epochs": epochs, "sampling": sampling},
        "workloads": {
            workload: FIELDS | fixed | dict(changes.get(workload, {})) for workload in workloads
        },
        "cases": cases,
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    gpus = [{"name": "NVIDIA H200"}] if backend == "cuda" else []
    cpu = {"model": "AMD EPYC", "usable_cores": 2}
    env = {"cpu": cpu, "gpus": gpus, "memory": {"total": 25276510208}}
    (folder / "env.json").write_text(json.dumps(env))
    what = {"machine": machine, "backend": backend, "dataset": dataset}
    append_rows(folder, rows, **what)
    columns = ["workload", "strategy", "variant", "repeat", "epoch", "stage", "batch", "value_s"]
    pd.DataFrame(samples, columns=columns).to_parquet(folder / "samples.parquet")
    return folder
