"""Run folders of several ranks, by hand."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .written_run import seen

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
    fields = {workload_of(world, scaling): {"gpus": world, "scaling": scaling} for world in worlds}
    series = [
        (*names, {workload_of(w, scaling): _stages(of.get(w, 1.0)) for w in worlds})
        for names, of in seconds.items()
    ]
    of_workload = {workload_of(world, scaling): world for world in worlds}

    def more(case: tuple[str, str, str], repeat: int, epoch: int) -> list[dict[str, Any]]:
        world = of_workload[case[0]]
        if (time_s := seconds[case[1:]].get(world)) is None:
            return []
        if epoch < 0:
            many = (seeds or {}).get(world, SEEDS)
            return [] if repeat else seen("sample", "1", {"seeds": many}, basis="declared")
        of_ranks = (
            {**row, "rank": rank}
            for rank in range(world)
            for row in _rank(time_s, rank, behind=world - 1 - rank)
        )
        return [*_exchange(time_s, 0.0), *of_ranks] if world > 1 else []

    failed = {
        (workload_of(w, scaling), *names): ("failed", why)
        for (w, *names), why in (failures or {}).items()
    }
    return make_run(
        name, series=series, workloads=fields, backend=backend, repeats=repeats, epochs=epochs,
        failures=failed, more=more, **{"longer": lambda *_: 1.0} | run,
    )  # fmt: skip


def _stages(epoch_s: float) -> tuple[float, float, float, float]:
    return 0.1 * epoch_s, 0.5 * epoch_s, 0.4 * epoch_s, 0.0


def _exchange(time_s: float, wait_s: float) -> list[dict[str, Any]]:
    seconds = {"all_reduce": REDUCE * time_s, "wait": wait_s}
    return [row for stage, s in seconds.items() for row in seen(stage, "s", {"wall_time": s})]


def _rank(time_s: float, rank: int, behind: int) -> list[dict[str, Any]]:
    wait_s = WAIT * behind * time_s
    values = {"wall_time": time_s - wait_s / 2, "cpu_user": 9.0 + rank, "cpu_system": 1.0}
    return [*seen("epoch", "s", values), *_exchange(time_s, wait_s)]
