"""The answer in a sentence, worded so that it claims no more than was measured.

What was measured in host memory is called so, what was modelled is called so, and a winner is only
named where its interval leaves the others' behind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd

from gatherbench.bench.answers.provenance import modelled_for
from gatherbench.bench.derive.disturbance import disturbance, disturbed, other_load
from gatherbench.bench.derive.epochs import problems, reference_variant, speedup_over
from gatherbench.bench.tables import Run
from gatherbench.bench.units import quantity, short

#: The strategy whose table lies in the device's memory: what the others can at best come near to.
BOUND = "all_in_gpu"


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence of the verdict; ``kind`` is ``measured``, ``modelled`` or ``warning``."""

    kind: str
    text: str


def verdict(run: Run) -> list[Statement]:
    """One sentence for each kind of number that the run holds, then what limits them.

    Where there was other work beside most cases that comes first: the numbers may be anything.
    """
    reference = reference_variant(run)
    found: list[Statement] = []
    ratios = speedup_over(run, *reference) if reference else None
    for backend in ("cuda", "host", "model"):
        here = None if ratios is None else ratios[ratios["backend"] == backend]
        if here is not None and len(here) and reference:
            kind = "modelled" if backend == "model" else "measured"
            found.append(Statement(kind, _sentence(run, here, " ".join(reference), backend)))
    if not any(s.kind == "measured" for s in found):
        found.insert(0, Statement("warning", _nothing(run)))
    found += [Statement("warning", text) for text in _limits(run)]
    if busy := disturbance(run):
        said = f"{busy[0].upper()}{busy[1:]}: measure again on an idle machine before trusting any"
        most = 2 * len(disturbed(run)) > len(other_load(run))
        found.insert(0 if most else len(found), Statement("warning", f"{said} difference."))
    return found


def cases_ended(run: Run) -> dict[str, int]:
    """How many cases of the plan were ``ok``, ``failed``, ``skipped`` and ``not run``."""
    rows = run.rows
    ended = rows[(rows["stage"] == "case") & (rows["metric"] == "wall_time")]["status"]
    counts = {status: int((ended == status).sum()) for status in ("ok", "failed", "skipped")}
    return {**counts, "not run": len(run.plan["cases"]) - len(ended)}


def _sentence(run: Run, ratios: pd.DataFrame, reference: str, backend: str) -> str:
    winners: dict[tuple[str, ...], list[float]] = {}
    only: dict[tuple[str, ...], str] = {}
    for workload, here in ratios.groupby("workload", sort=False):
        rivals = here[here["strategy"] != BOUND].sort_values("speedup", ascending=False)
        if rivals.empty:
            continue
        names = _level(run, str(workload), backend, rivals)
        winners.setdefault(names, []).append(float(rivals["speedup"].iloc[0]))
        only[names] = str(workload)
    several = sum(map(len, winners.values())) > 1
    clauses = []
    for names, won in winners.items():
        where = short(run.names[only[names]]) if len(won) == 1 else f"{len(won)} workloads"
        clauses.append(_clause(names, _range(won), reference, f" on {where}" if several else ""))
    bound = ratios[ratios["strategy"] == BOUND]["speedup"]
    if len(bound):
        clauses.append(f"{BOUND}, the upper bound, reached {_range(list(bound))}")
    return f"{_where(run, backend)}: {'; '.join(clauses)}."


def _level(run: Run, workload: str, backend: str, rivals: pd.DataFrame) -> tuple[str, ...]:
    """The fastest series of the workload, and those that are not measurably slower than it."""
    best = rivals.iloc[0]
    rows = run.rows
    here = rows[(rows["workload"] == workload) & (rows["backend"] == backend)]
    beside = speedup_over(replace(run, rows=here), best["strategy"], best["variant"])
    ratio = {(r["strategy"], r["variant"]): r["high"] for r in beside.to_dict("records")}
    pairs = zip(rivals["strategy"], rivals["variant"], strict=True)
    return tuple(f"{s} {v}" for s, v in pairs if ratio[s, v] >= 1.0)


def _clause(names: tuple[str, ...], times: str, reference: str, on: str) -> str:
    if reference in names:
        return f"nothing was measurably faster than {reference}{on}"
    if len(names) == 1:
        return f"{short(names[0])} had the shortest epochs{on}, {times} as fast as {reference}"
    return (
        f"the shortest epochs{on} were {times} as fast as {reference}, and too close to tell apart:"
        f" {_listed(names)}"
    )


def gpu_of(run: Run) -> str:
    """Name of the GPU that the run used, or of those that it may have; empty: there was none."""
    gpus, used = run.env.get("gpus", []), run.env.get("gpu_in_use")
    mine = [gpu for gpu in gpus if used and gpu.get("uuid_hash") == used] or gpus
    return ", ".join(sorted({str(gpu.get("name", "unnamed")) for gpu in mine}))


def _where(run: Run, backend: str) -> str:
    if backend == "host":
        return "Measured in host memory only (no GPU, no PCIe link)"
    if backend == "model":
        return f"Modelled, not measured, for {_listed(modelled_for(run))}"
    return f"Measured on {gpu_of(run) or 'a GPU'}"


def _nothing(run: Run) -> str:
    counts = cases_ended(run)
    if counts["ok"]:
        return "No speed-up can be stated: no cpu_gather epoch was measured to compare with."
    said = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
    reasons = problems(run)["reason"]
    first = f" The first: {short(reasons.iloc[0], 200)}." if len(reasons) else ""
    return f"Nothing was measured: of {len(run.plan['cases'])} cases {said}.{first}"


def _limits(run: Run) -> list[str]:
    limits = []
    counts = cases_ended(run)
    if counts["not run"]:
        remedy = (
            "It was still going when this was written."
            if run.going
            else "`gatherbench run --resume FOLDER` completes it."
        )
        limits.append(
            f"The run is incomplete: {counts['not run']} of {len(run.plan['cases'])} cases have not"
            f" been run. {remedy}"
        )
    if counts["ok"] and run.plan["measure"].get("repeats") == 1:
        limits.append("One repeat only: differences between processes are not in the intervals.")
    return limits


def _range(ratios: list[float]) -> str:
    low, high = quantity(min(ratios), "×"), quantity(max(ratios), "×")
    return low if low == high else f"{low} to {high}"


def _listed(names: list[str] | tuple[str, ...]) -> str:
    shown = [short(name) for name in names[:4]]
    if len(names) > 4:
        return ", ".join(shown) + f" and {len(names) - 4} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
