"""Rows as a GPU run and gpu-micro would write them, made up for the tests of what reads them."""

import itertools
from collections.abc import Iterable
from pathlib import Path

from gatherbench.bench.probe.points import Point, append_row
from gatherbench.bench.probe.rig import GIB
from gatherbench.kernels.policies import POLICIES

from ..written_run import append_rows, seen

MINIBATCHES, ROW_BYTES = 100, 2000
BUDGETS = {5: 4.0, 10: 2.0, 15: 1.0, 25: 1.0}


def add_rows(folder: Path, rows: Iterable[dict[str, object]], **fixed: object) -> None:
    """Append rows of a GPU to a run's table."""
    append_rows(folder, rows, **{"machine": "nvidia-h200", "backend": "cuda"} | fixed)


def declare_path(folder: Path, strategy: str, variant: str, **facts: float) -> None:
    """What a case says of an epoch's way, by metric; 1000 B are wanted unless said otherwise."""
    known = {"declared_payload": 1000.0, "copy_engine": 0.0, "gpu_link_read": 0.0, **facts}
    units = {name: "1" if "requests" in name else "B" for name in known}
    rows = [row for name, of in known.items() for row in seen("fetch", units[name], {name: of})]
    add_rows(folder, rows, basis="declared", strategy=strategy, variant=variant)


def measure_link(folder: Path, strategy: str, variant: str, *epochs: float) -> None:
    """Bytes from host to device that a sensor saw in each of these epochs."""
    for number, value in enumerate(epochs):
        rows = seen("epoch", "B", {"pcie_host_to_device": value}, epoch=number)
        add_rows(folder, rows, strategy=strategy, variant=variant)


def add_gpu_metrics(folder: Path, series: Iterable[tuple[str, str]], epochs: int = 4) -> None:
    """What a GPU run has beyond ``write_run``: power, row widths, the sweeps of the SMs' share.

    ``cpu_gather naive`` draws 400 W, everything else 300 W, over 10 epochs in 10 s.
    """
    for strategy, variant in series:
        key = {"strategy": strategy, "variant": variant}
        watts = 400.0 if variant == "naive" else 300.0
        rows = [
            row
            for repeat, number in itertools.product(range(3), range(epochs))
            for row in seen("epoch", "1", {"minibatches": MINIBATCHES}, epoch=number, repeat=repeat)
        ]
        rows += seen("energy", "J", {"gpu_energy": 10 * watts})
        rows += seen("energy", "s", {"window_time": 10}) + seen("energy", "1", {"epochs": 10})
        rows += seen("fetch", "B", {"row": ROW_BYTES}, basis="declared")
        if strategy == "async_zero_copy":
            steps = {"train_alone_step_time": 0.5, "fetch_alone_step_time": 0.8}
            steps |= {f"budget_{percent}_gather_time": s for percent, s in BUDGETS.items()}
            steps |= {f"budget_{percent}_step_time": s for percent, s in BUDGETS.items()}
            rows += seen("setup", "s", steps)
        add_rows(folder, rows, **key)


def write_micro(folder: Path, policies: Iterable[str] = tuple(POLICIES)) -> Path:
    """A gpu-micro run: each launch moves 1 GB, in 1/50 s by copy engine, 1/40 s by SMs.

    Gathers take 1/30 s, the policy ``aligned`` 1/38 s sorted and 1/36 s as given; with a grid cap
    of 5 % twice as long. Each point has three rounds: one 10 % slower and one 10 % faster.
    """
    folder.mkdir(parents=True)
    launches = [
        (Point("copy_to_device", span_bytes=8 * GIB), 50.0),
        (Point("sm_read", span_bytes=8 * GIB, grid_percent=400), 40.0),
    ]
    for policy in policies:
        for width in (64, 512, 2408):
            ours = POLICIES[policy].system == "gatherbench"
            for order in ("given", "sorted") if ours else (POLICIES[policy].order_of(width),):
                best = {"given": 36.0, "sorted": 38.0}[order] if policy == "aligned" else 30.0
                for cap, rate in ((0, best), (5, best / 2))[: 2 if ours else 1]:
                    point = Point("gpu_gather", width, 8 * GIB, 0, cap, policy, order)
                    launches.append((point, rate))
    rounds = enumerate((1.0, 1.1, 0.9), 1)
    for (point, rate), (number, factor) in itertools.product(launches, rounds):
        seen = {"round": number, "amount": 1e9, "unit": "B", "time_s": factor / rate}
        append_row(folder / "rows.csv", point, **seen, source="test")
    (folder / "env.json").write_text("{}")
    return folder


def add_overlap(folder: Path) -> None:
    """To a gpu-micro run: a step of 10 ms takes 14 ms beside a fetch of 9 ms."""
    points = [(Point("train_alone", load="memory_pass"), 0.01)]
    for percent in (5, 25):
        share = {"grid_percent": percent, "provider": "stream"}
        points.append((Point("fetch_alone", **share), 0.009))
        points.append((Point("train_and_fetch", load="memory_pass", **share), 0.014))
    for point, seconds in points:
        seen = {"round": 1, "amount": 1, "unit": "1", "time_s": seconds}
        append_row(folder / "rows.csv", point, **seen, source="test")


def add_peer(folder: Path) -> None:
    """To a gpu-micro run: WholeGraph at 20 GB/s, ours at 25."""
    for name, order, rate in (("WholeGraph 26.10", "its own", 20), ("aligned", "given", 25)):
        point = Point("peer_gather", 512, 2 * GIB, policy=name, order=order)
        for number in range(1, 4):
            seen = {"round": number, "amount": 1e9, "unit": "B", "time_s": 1 / rate}
            append_row(folder / "rows.csv", point, **seen, source="test")
