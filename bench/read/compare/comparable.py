"""May two runs be compared? Not if they had other minibatches, other settings or other machines.

A workload's id says what its minibatches were drawn from. That the draw gave the same ones is
told by their number and their bytes, which every epoch writes down and which depend on nothing
else.
"""

from __future__ import annotations

from typing import Any

from gatherbench.bench.read.epochs import reference_variant
from gatherbench.bench.read.tables import Run

_SAME_PLAN = ("settings", "run the same plan")


class CompareError(ValueError):
    """Two runs that cannot be compared; the message says why, and the remedy."""


def check_comparable(base: Run, new: Run, *, across_machines: bool) -> None:
    """Refuse a pair of runs whose numbers mean different things.

    Raises:
        CompareError: no workload in common, other minibatches, other settings, other machines
            without ``across_machines``, or with it no common reference.
    """
    common = [name for name in base.workloads if name in new.workloads]
    if not common:
        raise CompareError(
            f"{base.folder} and {new.folder} have no workload in common"
            f" ({', '.join(base.workloads)} and {', '.join(new.workloads)}): run the same plan"
        )
    for workload in common:
        _same_minibatches(base, new, workload)
    _refuse(base, new, _settings(base, "sampling"), _settings(new, "sampling"), *_SAME_PLAN)
    if across_machines:
        one, other = reference_variant(base), reference_variant(new)
        if one is None or one != other:
            said = [" ".join(found) if found else "none" for found in (one, other)]
            raise CompareError(
                f"machines are compared by ratios over a reference, and the runs have different"
                f" ones ({said[0]} and {said[1]}): measure the same cpu_gather variant on both"
            )
        return
    _refuse(base, new, facts(base), facts(new), "machines", "--across-machines compares ratios")
    _refuse(base, new, _settings(base, "threads"), _settings(new, "threads"), *_SAME_PLAN)


def facts(run: Run) -> dict[str, Any]:
    """What makes a machine another one, in words; what is not known is ``None``."""
    env, cpu = run.env, run.env.get("cpu", {})
    limits = env.get("thread_limits") or {}
    return {
        "name": run.machine or None,
        "processor": cpu.get("model"),
        "cores": cpu.get("usable_cores"),
        "GPUs": ", ".join(map(_gpu, env.get("gpus") or ())) or None,
        "architecture": env.get("architecture"),
        **{name: limits.get(name) for name in sorted(limits)},
    }


def changes(base: Run, new: Run) -> list[str]:
    """What else has changed that may explain a difference: code, kernel, driver, libraries."""
    said = [_software(run) for run in (base, new)]
    return [
        f"{name}: {said[0].get(name) or 'none'} in A, {said[1].get(name) or 'none'} in B"
        for name in sorted(said[0].keys() | said[1].keys())
        if said[0].get(name) != said[1].get(name)
    ]


def _gpu(gpu: dict[str, Any]) -> str:
    """Kind, power limit and link: what decides how fast one is."""
    power, link = gpu.get("power_limit_w"), (gpu.get("link_gen_max"), gpu.get("link_width_max"))
    more = [f"{power:g} W"] if power else []
    more += [f"PCIe {link[0]} x{link[1]}"] if all(link) else []
    return f"{gpu['name']} ({', '.join(more)})" if more else str(gpu["name"])


def _settings(run: Run, name: str) -> dict[str, Any]:
    return {name: run.plan["measure"].get(name)}


def _software(run: Run) -> dict[str, Any]:
    env = run.env
    drivers = {str(gpu.get("driver")) for gpu in env.get("gpus") or () if gpu.get("driver")}
    return {
        "commit": ", ".join(sorted(set(run.rows["commit"]))) or env.get("commit"),
        "kernel": env.get("kernel"),
        "python": env.get("python"),
        "driver": ", ".join(sorted(drivers)) or None,
        **(env.get("libraries") or {}),
    }


def _same_minibatches(base: Run, new: Run, workload: str) -> None:
    prints = [_fingerprint(run, workload) for run in (base, new)]
    for metric in ("minibatches", "payload"):
        one, other = (found.get(metric, set()) for found in prints)
        if one and other and one != other:
            raise CompareError(
                f"{workload}: {metric} of an epoch were {_several(one)} in {base.folder} and"
                f" {_several(other)} in {new.folder}: these are different minibatches (another"
                " version of the dataset or of the sampler?), and their times cannot be compared"
            )


def _fingerprint(run: Run, workload: str) -> dict[str, set[float]]:
    rows = run.select(workload=workload, status="ok", basis="measured")
    return {
        metric: set(rows.loc[rows["metric"] == metric, "value"])
        for metric in ("minibatches", "payload")
    }


def _several(values: set[float]) -> str:
    return " and ".join(f"{value:.15g}" for value in sorted(values))


def _refuse(
    base: Run, new: Run, one: dict[str, Any], other: dict[str, Any], what: str, remedy: str
) -> None:
    differs = [
        f"{name}: {one.get(name)} and {other.get(name)}"
        for name in one | other
        if one.get(name) != other.get(name)
    ]
    if differs:
        raise CompareError(
            f"{base.folder} and {new.folder} are from different {what}"
            f" ({'; '.join(differs)}): {remedy}"
        )
