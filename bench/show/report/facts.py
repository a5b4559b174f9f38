"""The few facts that stand at the head of the page."""

from __future__ import annotations

from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import quantity, short
from gatherbench.bench.show.provenance import cases_ended, gpu_of, repeats_of

Fact = tuple[str, str]


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


def _epochs(run: Run) -> str:
    epochs, dropped = map(run.plan["measure"].get, ("epochs", "warmup_epochs"))
    many = f"{repeats_of(run)} × {epochs} epochs"
    return f"{many}, {dropped} warm-up dropped, sampling {run.sampling}"
