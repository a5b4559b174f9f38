"""Run folders of several ranks, by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .written_run import append_rows, edit

#: Of a step of all ranks, and of an epoch of one of them.
SEEDS = 20_000.0
#: Shares of an epoch: what all ranks exchange, and what each but the slowest waits for it.
REDUCE, WAIT = 0.05, 0.02


def workload_of(world: int, scaling: str = "strong") -> str:
    """A workload's id."""
    return f"wordnet-sage16x2-b1000-1x{world}{scaling[0]}"


def write_ranks(
    make_run: Callable[..., Path],
    seconds: Mapping[tuple[str, str], Mapping[int, float]],
    *,
    scaling: str = "strong",
    seeds: Mapping[int, float] | None = None,
    name: str = "20261122-several-abc123",
    backend: str = "host",
    repeats: int = 3,
    epochs: int = 2,
    failures: Mapping[tuple[int, str, str], str] | None = None,
    **run: Any,
) -> Path:
    """A run whose series take ``seconds`` an epoch, by their number of ranks.

    A tenth of an epoch is sampling, half of it fetching, the rest training; in this the exchange
    takes :data:`REDUCE` of the epoch. Rank ``r`` of ``W`` waits for :data:`WAIT` of the epoch times
    ``W - 1 - r``, and ends its epoch half as much earlier; it uses ``10 + r`` core-seconds.
    ``seeds`` an epoch by number of ranks. ``failures``: why no repeat of a series was measured, by
    its number of ranks, strategy and variant.
    """
    worlds = sorted({world for of in seconds.values() for world in of})
    fields = {
        workload_of(world, scaling): {"gpus": world, "nodes": 1, "scaling": scaling}
        for world in worlds
    }
    series = [
        (
            *names,
            {
                workload_of(w, scaling): (
                    0.1 * of.get(w, 1.0),
                    0.5 * of.get(w, 1.0),
                    0.4 * of.get(w, 1.0),
                    0.0,
                )
                for w in worlds
            },
        )
        for names, of in seconds.items()
    ]
    folder = make_run(
        name, series=series, workloads=fields, backend=backend, repeats=repeats, epochs=epochs,
        longer=run.pop("longer", lambda *_: 1.0), **run,
    )  # fmt: skip
    for (strategy, variant), of in seconds.items():
        for world, time_s in of.items():
            case = {"workload": workload_of(world, scaling), "strategy": strategy}
            case |= {"variant": variant, "backend": backend}
            case |= {"machine": run["machine"]} if "machine" in run else {}
            many = (seeds or {}).get(world, SEEDS)
            row = {"stage": "sample", "metric": "seeds", "unit": "1", "value": many}
            append_rows(folder, [{**row, "basis": "declared"}], **case)
            if world > 1:
                for repeat in range(repeats):
                    for epoch in range(epochs):
                        at = {**case, "repeat": repeat, "epoch": epoch}
                        append_rows(folder, _exchange(time_s, 0.0), **at)
                        for rank in range(world):
                            behind = world - 1 - rank
                            append_rows(folder, _rank(time_s, rank, behind), rank=rank, **at)
    reasons = {
        (workload_of(w, scaling), *names): why for (w, *names), why in (failures or {}).items()
    }

    def of(row: dict[str, str]) -> tuple[str, str, str]:
        return row["workload"], row["strategy"], row["variant"]

    def fail(row: dict[str, str]) -> None:
        if of(row) in reasons:
            row |= {"status": "failed", "value": "", "reason": reasons[of(row)]}

    edit(folder, fail, keep=lambda row: of(row) not in reasons or row["stage"] == "case")
    return folder


def _exchange(time_s: float, wait_s: float) -> list[dict[str, Any]]:
    what = {"metric": "wall_time", "unit": "s"}
    return [
        {"stage": "all_reduce", "value": REDUCE * time_s, **what},
        {"stage": "wait", "value": wait_s, **what},
    ]


def _rank(time_s: float, rank: int, behind: int) -> list[dict[str, Any]]:
    wait_s = WAIT * behind * time_s
    values = {"wall_time": time_s - wait_s / 2, "cpu_user": 9.0 + rank, "cpu_system": 1.0}
    rows = [
        {"stage": "epoch", "metric": metric, "unit": "s", "value": value}
        for metric, value in values.items()
    ]
    return [*rows, *_exchange(time_s, wait_s)]
