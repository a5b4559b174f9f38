"""What ran where: the run in a few facts, its workloads, and the machine in full."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from gatherbench.bench.plan.workload import ranks_in_words, ranks_of
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import quantity, short
from gatherbench.bench.show.sentences.provenance import repeats_of
from gatherbench.bench.show.sentences.verdict import cases_ended, gpu_of
from gatherbench.bench.show.table import Column, Table, tabulate

Fact = tuple[str, str]

#: Fields of ``env.json`` that are bytes.
_BYTES = ("total", "container_limit", "huge_page_size")


def in_short(run: Run) -> list[Fact]:
    """The few facts that stand at the head of the page."""
    cpu = run.env.get("cpu", {})
    counts = cases_ended(run)
    ended = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
    memory = run.env.get("memory", {}).get("total")
    host = [cpu.get("model") or "unknown processor"]
    if cpu.get("usable_cores"):
        host.append(f"{cpu['usable_cores']} cores")
    if memory:
        host.append(quantity(memory, "B"))
    return [
        ("Processor", short(", ".join(host))),
        ("GPU", short(gpu_of(run) or "none: figures are of host memory")),
        ("Plan", short(run.plan.get("description") or run.plan.get("name", "unnamed"), 160)),
        ("Cases", ended),
        ("Epochs", _epochs(run)),
        ("Commit", short(", ".join(sorted(set(run.rows["commit"]))) or "unknown")),
    ]


def machine_of(run: Run) -> str:
    """Name of the machine that measured."""
    return run.machine or "no machine yet"


def workloads(run: Run) -> Table:
    """Everything that decides which minibatches an epoch has."""
    frame = pd.DataFrame(
        [
            {
                "workload": ident,
                "name": run.names[ident],
                **fields,
                "fanouts": ", ".join(map(str, fields["fanouts"])),
                "max_batches": fields.get("max_batches") or None,
                "ranks": ranks_in_words(*ranks_of(fields)),
                "scaling": fields["scaling"] if ranks_of(fields) != (1, 1) else None,
            }
            for ident, fields in run.plan["workloads"].items()
        ]
    )
    columns = [
        Column("workload", "workload"),
        Column("name", "in titles"),
        Column("dataset", "dataset"),
        Column("scale", "scale", "1"),
        Column("model", "model"),
        Column("hidden", "hidden width", "1"),
        Column("fanouts", "fan-outs, from the seeds outwards"),
        Column("batch_size", "batch size", "1"),
        Column("max_batches", "epoch cut to minibatches", "1"),
        Column("seed", "seed", "1"),
    ]
    if len(frame) and frame["scaling"].notna().any():
        columns += [Column("ranks", "ranks"), Column("scaling", "scaling")]
    return tabulate("workloads", "Workloads of the plan", columns, frame)


def machine(run: Run) -> list[Fact]:
    """``env.json`` field by field."""
    return [(short(name, 80), short(value, 200)) for name, value in _flat(run.env)]


def _epochs(run: Run) -> str:
    epochs, dropped = map(run.plan["measure"].get, ("epochs", "warmup_epochs"))
    many = f"{repeats_of(run)} × {epochs} epochs"
    return f"{many}, {dropped} warm-up dropped, sampling {run.sampling}"


def _flat(value: Any, name: str = "") -> Iterator[Fact]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name} › {key}" if name else str(key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{name} {number}")
        if not value:
            yield name.replace("_", " "), "none"
    else:
        last = name.rpartition(" › ")[2]
        in_bytes = last in _BYTES and isinstance(value, int)
        said = quantity(value, "B") if in_bytes else "not known" if value is None else str(value)
        yield name.replace("_", " "), said
